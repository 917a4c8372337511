"""The adapter: predicts and adapts, one batch or many epochs at a time."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from acclimate.batches import Batches, in_order
from acclimate.delta import check_source, digests, read_delta, write_delta
from acclimate.engine import Engine
from acclimate.errors import (
    AcclimateError,
    AcclimateWarning,
    DeltaError,
    OptionError,
    checked_count,
    listed,
    said,
    unknown,
)
from acclimate.export import export_module
from acclimate.fast.recycling import release_memory
from acclimate.fitting import Fit, begin, run
from acclimate.inputs import cropped_for
from acclimate.interrupts import uninterrupted
from acclimate.mean_std import MeanStd
from acclimate.methods import Method, chosen_setting, parse_method
from acclimate.network import Normalization
from acclimate.normalization import normalization_of
from acclimate.objectives import External, of_logits_and_index
from acclimate.options import Options, make_options
from acclimate.prepare import checked_model, count_outputs, possible_outputs
from acclimate.ranks import Ranks
from acclimate.stability import Views, second_view, temperature_for
from acclimate.types import Batch, History

__all__ = ["FIT_ONLY", "PREDICTS_BY", "Adapter", "keywords"]


PREDICTS_BY: Final = ("batch", "target")
"""Which statistics `Adapter.predict` can take; the first is the default."""

FIT_ONLY: Final = {"epochs", "batch_size", "shuffle", "progress", "on_step", "on_epoch", "on_logits"}


P = ParamSpec("P")
R = TypeVar("R")


def _one_at_a_time(method: Callable[Concatenate[Adapter, P], R]) -> Callable[Concatenate[Adapter, P], R]:
    """Calls of one adapter from several threads wait for each other: each of them changes the network."""

    @functools.wraps(method)
    def alone(self: Adapter, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return alone


class Adapter:
    """A classifier that adapts itself to the unlabelled images it sees.

    ``adapter(images)`` predicts and then adapts: the logits are from before the update.
    ``adapter.fit(loader, epochs=5)`` adapts over epochs. ``adapter.predict`` leaves no trace. All of
    them do the same inside ``torch.no_grad()`` and ``torch.inference_mode()``: adaptation turns on the
    gradients it needs, for itself only, and what it returns carries none. Calls from several threads
    wait for each other; different adapters do not. An adapter can be copied and pickled.

    Args:
        model: any network that turns images into logits. It is not changed. Weights that do not adapt
            are shared with it, not copied: do not train it while the adapter is in use.
        method: a name such as ``"slr"``, ``"tent+"`` or ``"slr+it"``, or a `Method`.
        normalize: ``(mean, std)``, a name of `acclimate.mean_std.NORMALIZATIONS` such as ``"imagenet"``, or
            the text ``"mean/std"``. With it, images are pixels in [0, 1] and are normalised here. Without
            it, float tensors go to the model as they are; what is known to be pixels (an ImageSet, bytes,
            Pillow's images) is normalised as the network's weights say.
        freeze: ``"auto"`` (as the method says), ``"top"``, ``"none"``, or patterns of module names.
        input_transform: put a trainable `InputTransformation` before the model; needs ``normalize``.
        classes: the outputs that can occur; all others are left out of loss and prediction.
        prior: how often each class occurs, if not equally often.
        setting: ``"paper"``, chosen for 1,000 classes; ``"few"``, a second set of hyperparameters for
            ``hlr`` and ``slr``; ``"auto"`` takes ``"few"`` for networks of fewer than 64 outputs.
        statistics: where batch norms take theirs from: ``"batch"``; ``"stream"``, a mixture of source and
            stream that is right for single images and small batches; ``"running"``, ``"blend"`` or
            ``"source"``. ``"auto"`` takes ``"stream"`` if the first batch has fewer than 32 images, otherwise
            ``"batch"``. ``method="source"`` always keeps the source's.
        episodic: start from the source model again for every batch.
        features: name of the classifier layer whose input SHOT's centroids use, if not the last.
        objective: minimise this function of logits, or of (logits, index), instead of the method's loss.
        steps: number of online calls to come, over which a cosine schedule decays.
        device: where to adapt, if not where the model is.
        seed: of the order of the images and the initial weights of the input transformation.
        fast: take every saving of `acclimate.fast.TRICKS`, which moves the last digits; or a list of
            their names; or none (``False``).
        precision: what the network computes in: ``"fp32"``, ``"bf16"``, ``"fp16"``, or ``"auto"``, the best
            that the device has natively. Losses, statistics and updates stay in float32. It means the same
            for a network whose weights are in half precision: ``"fp32"`` computes in float32, on a copy.
        memory: compute the first stages of the network a second time instead of keeping them: ``"auto"``
            if a batch would not fit, ``"low"`` always, ``"off"`` never.
        ranks: what the processes of a `torch.distributed` job do: adapt one network ``"together"``, each with
            its share of every batch and statistics of all of it; the same with ``"local"`` statistics; or
            each its own, ``"alone"``.
        guard: watch every step, and take back what alarms (`acclimate.guard` says what does): it is told by a
            warning and in ``history.alarms``. Its limits were fitted on ten classes, and what goes wrong can
            pass them: streams sorted by class, rates of 300 times the default.
        calibrate: at the end of `fit`, find one temperature for all logits, as `calibrate` does.
        **overrides: fields of `Method`: ``lr``, ``delta``, ``kappa``, ``optimizer``, ...

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 10))
    >>> adapter = Adapter(net, method="tent")
    >>> adapter(torch.rand(16, 3, 8, 8)).shape
    torch.Size([16, 10])
    """

    def __init__(
        self,
        model: nn.Module,
        method: str | Method = "slr",
        *,
        normalize: str | MeanStd | None = None,
        freeze: str | Sequence[str] = "auto",
        input_transform: bool = False,
        classes: Sequence[int] | None = None,
        prior: Sequence[float] | Tensor | None = None,
        statistics: str = "auto",
        setting: str = "auto",
        episodic: bool = False,
        features: str | None = None,
        objective: External | Callable[[Tensor], Tensor] | None = None,
        steps: int | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
        fast: bool | Sequence[str] = True,
        precision: str = "fp32",
        memory: str = "auto",
        ranks: str = "together",
        guard: bool = True,
        calibrate: bool = False,
        **overrides: Any,
    ) -> None:
        misplaced = sorted(overrides.keys() & FIT_ONLY)
        if misplaced:
            raise OptionError(f"{listed(misplaced)} belongs to fit, not to Adapter")
        if input_transform:
            overrides["input_transform"] = True
        outputs = count_outputs(model) if classes is None else len(classes)
        self.setting = None if isinstance(method, Method) else chosen_setting(setting, outputs)
        """Which set of hyperparameters the method began with; None where the user gave a `Method`."""
        self.method = parse_method(method, self.setting or "paper").override(
            overrides, also=[*keywords(), *FIT_ONLY]
        )
        self._options = make_options(
            normalize=normalize,
            freeze=freeze,
            classes=classes,
            prior=prior,
            outputs=possible_outputs(model),
            statistics=statistics,
            episodic=episodic,
            features=features,
            steps=steps,
            seed=seed,
            fast=fast,
            precision=precision,
            memory=memory,
            ranks=ranks,
            guard=bool(guard),
            calibrate=bool(calibrate),
        )
        self._pixel_notes: tuple[str, ...] = ()
        self._external = None if objective is None else of_logits_and_index(objective)
        self._lock = threading.RLock()
        with torch.inference_mode(False):
            self._engine = Engine(model, self.method, self._options, external=self._external, device=device)
        self._generator = torch.Generator()
        self._fit: Fit | None = None
        self.reset()
        for caution in self._engine.cautions:
            warnings.warn(caution, AcclimateWarning, stacklevel=2)

    @property
    def adapting(self) -> tuple[str, ...]:
        """Names of all that adapts: parameters of the model and of the input transformation, statistics."""
        return tuple(self._engine.changing())

    @property
    def device(self) -> torch.device:
        """Where it adapts."""
        return self._engine.device

    @property
    def options(self) -> Options:
        """How it was asked to adapt, besides the method."""
        return self._options

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found and decided, before adapting and for batches that came, one sentence each."""
        return (*self._engine.notes, *self._engine.cautions, *self._pixel_notes)

    @property
    def classes(self) -> tuple[int, ...] | None:
        """The outputs of the network that the logits stand for; known once a batch was seen."""
        if self._options.classes is not None or self._engine.objective is None:
            return self._options.classes
        return tuple(range(len(self._engine.objective.distribution.p)))

    @property
    def class_distribution(self) -> Tensor | None:
        """The running class distribution p_t; known once a batch was seen."""
        return None if self._engine.objective is None else self._engine.objective.distribution.p.clone()

    @property
    def predicts_by(self) -> str:
        """Which statistics `predict` takes unless it is told otherwise.

        ``"batch"``, the batch's; ``"source"``; or ``"target"``, those that `export` bakes in, as with
        ``statistics="running"`` or without a batch norm.
        """
        statistics = self._engine.prepared.statistics
        if statistics.policy == "source":
            return "source"
        return "batch" if statistics.of_batch else "target"

    @property
    def history(self) -> History:
        """One entry per step since the last reset."""
        return self._engine.history

    @property
    def step(self) -> int:
        """Updates since the last reset."""
        return self._engine.step

    @_one_at_a_time
    def __call__(self, images: Tensor) -> Tensor:
        """Predict, then adapt: the logits ``(N, classes)`` are from before the update."""
        if self.method.pseudo_label_weight > 0:
            raise OptionError(
                f"{self.method.name!r} labels the whole target set between epochs, which an online call "
                "does not have: use fit, or a method without centroid labels"
            )
        if self._options.episodic:
            self.reset()
        if self._calls == self._options.steps:
            warnings.warn(
                f"all of the {self._calls} calls that steps= announced were made: the schedule has ended",
                AcclimateWarning,
                stacklevel=2,
            )
        with uninterrupted():
            logits = self._engine.update(Batch(images), position=self._calls, total=self._options.steps)
            self._calls += 1
        return self._tempered(logits)

    @_one_at_a_time
    def fit(
        self,
        data: Any,
        epochs: int = 5,
        *,
        batch_size: int = 64,
        shuffle: bool = True,
        progress: bool | None = None,
        on_step: Callable[[Adapter], None] | None = None,
        on_epoch: Callable[[Adapter], None] | None = None,
        on_logits: Callable[[Tensor, Tensor | None], None] | None = None,
    ) -> History:
        """Adapt over epochs, with the learning rate on its schedule over all steps.

        Args:
            data: images, a data set, a loader, a list of batches, or another iterable with a length.
            epochs: how many times to go through it. `bn` learns nothing, and needs one time only.
            batch_size: for images and data sets; a loader has its own.
            shuffle: draw the order from the seed, where images can be reached by position.
            progress: show a bar; by default in a terminal only.
            on_step: called after every update, for instance to `save`.
            on_epoch: called after every epoch.
            on_logits: called in every step with the logits from before the update, as an online call
                returns them, and with the images' positions in the data, where they have one.

        Of several ranks, each is given all of the data, and works on its share of every batch; all of them
        call the functions above, with what is true of the whole batch.

        Interrupted at any point, or loaded from a file that `on_step` or `on_epoch` saved, the same call
        with the same data goes on where it stood, to the same numbers. Ctrl-C waits for the end of a step.
        Returns the history of every step since the last reset.
        """
        if self._options.episodic:
            raise OptionError("episodic=True starts again with every batch, so that there is nothing to fit")
        epochs = checked_count("epochs", epochs)
        ranks = self._engine.ranks
        batches = self._batches(data, batch_size, shuffle=shuffle)

        def call(function: Callable[[Adapter], None] | None) -> None:
            if function is not None:
                function(self)

        if not self._engine.adapts:  # there is nothing to learn from going through the images
            for _ in range(epochs):
                call(on_epoch)
            return self.history
        before = self._generator.get_state()
        fit = begin(self._fit, epochs, batches)
        if ranks.size > 1:
            fingerprint = getattr(data, "fingerprint", lambda: None)()
            ranks.check_same("data", (fingerprint, dataclasses.astuple(fit)))
        if fit is not self._fit:
            self._engine.forget_labels()  # they are those of other data
            self._fit = fit
            self.temperature = 1.0
        steps, ends = (lambda: call(on_step)), (lambda: call(on_epoch))
        try:
            run(
                fit,
                self._engine,
                batches,
                self._generator,
                progress=progress,
                on_step=steps,
                on_epoch=ends,
                on_logits=on_logits,
            )
        except BaseException:
            if fit.epoch == fit.batch == 0:  # nothing was done yet, so that there is nothing to go on with
                self._fit = None
                self._generator.set_state(before)
            raise
        self._fit = None
        if self._options.calibrate:
            self.calibrate(data, batch_size=batch_size)
        release_memory()
        return self.history

    @_one_at_a_time
    def predict(self, data: Any, *, batch_size: int | None = None, statistics: str = "batch") -> Tensor:
        """Logits without an update, in the order of the data.

        Args:
            data: as for `fit`. A float tensor of images is one batch unless ``batch_size`` says otherwise.
                Loaders and data sets are gone through in a shuffled order, as batch statistics want it, and
                put back in theirs; of several ranks, each is given all of the data and gets all logits.
            batch_size: for images and data sets, 64 unless it is given.
            statistics: ``"batch"`` predicts as an online call does, by default with the statistics of the
                batch that an image comes in; ``"target"`` as the network that `export` gives, for which it
                does not matter what other images come with one.
        """
        if statistics not in PREDICTS_BY:
            raise OptionError(unknown("statistics of predictions", statistics, PREDICTS_BY))
        forward = functools.partial(self._engine.forward, as_exported=statistics == "target")
        if isinstance(data, Tensor) and data.is_floating_point() and batch_size is None:
            return self._tempered(forward(data))
        ranks = self._engine.ranks
        batches = self._batches(data, batch_size or 64)
        seen = batches.epoch(self._options.seed)
        found = [(forward(batch.images).cpu(), batch.index) for batch in seen]
        if ranks.size > 1:
            found = [(ranks.rows(logits), None if i is None else ranks.rows(i)) for logits, i in found]
        return self._tempered(in_order(found, batches.order))

    @_one_at_a_time
    def calibrate(self, data: Any, *, batch_size: int = 64) -> float:
        """Divide logits from here on by one temperature, found without a label, and return it.

        With it, the mean confidence is the share of images on which the network agrees with itself about
        a second view of them (`acclimate.stability`), which is near its accuracy. Predictions stay the
        same. At most the first 1,000 images are looked at; `reset` and the next `fit` forget it.
        """
        self.temperature = 1.0
        views = self.views(data, batch_size=batch_size)
        self.temperature = temperature_for(views.logits, views.agreement)
        return self.temperature

    @_one_at_a_time
    def views(self, data: Any, *, batch_size: int = 64, images: int = 1000) -> Views:
        """Logits of some images, and of a second view of each, without an update."""
        ranks = self._engine.ranks
        found: list[tuple[Tensor, Tensor]] = []
        for batch in self._batches(data, batch_size).epoch(self._options.seed):
            both = (self._engine.forward(part) for part in (batch.images, second_view(batch.images)))
            first, second = (ranks.rows(self._tempered(logits)).cpu() for logits in both)
            found.append((first, second))
            if sum(len(logits) for logits, _ in found) >= images:
                break
        return Views(*(torch.cat(parts)[:images] for parts in zip(*found, strict=True)))

    def _batches(self, data: Any, batch_size: int, *, shuffle: bool = True) -> Batches:
        """Batches as the network takes them: what are pixels cropped and normalised, as it says itself."""
        images, are_pixels = cropped_for(self._engine.prepared.model, data)
        convert = None
        if are_pixels and self._options.normalize is None:
            mean, std = normalization_of(self._engine.prepared.model, None)
            normalized = Normalization(mean, std).to(self.device)
            convert = lambda images: normalized(images.to(self.device))  # noqa: E731 - read here
            self._pixel_notes = (f"pixels are normalised as the network says: mean {mean}, std {std}",)
        return Batches(images, batch_size, shuffle=shuffle, ranks=self._engine.ranks, convert=convert)

    def _tempered(self, logits: Tensor) -> Tensor:
        return logits if self.temperature == 1.0 else logits / self.temperature

    @_one_at_a_time
    def transformed(self, images: Tensor) -> Tensor:
        """What the input transformation makes of images in [0, 1]: the images, where there is none."""
        return self._engine.transformed(images)

    @_one_at_a_time
    def reset(self) -> None:
        """Back to the source model, bit for bit: weights, statistics, optimiser, schedule, p_t, step, RNG."""
        self._engine.reset()
        self._generator.manual_seed(self._options.seed)
        self._calls = 0
        self._fit = None
        self.temperature = 1.0
        """What logits are divided by, if they were calibrated."""

    @_one_at_a_time
    def export(self) -> nn.Module:
        """A plain module in evaluation mode that needs no acclimate.

        The target's statistics are baked into the norms. It loads into its stock class with
        ``strict=True`` and takes what the source model took, normalised images; unless an input
        transformation or affines that cannot be folded are part of it: then it takes what the adapter
        takes, pixels if ``normalize`` was given. It has all outputs, whatever ``classes`` says.
        """
        with torch.inference_mode(False):
            self._engine.settle()
            return export_module(self._engine.network, self._engine.prepared)

    @_one_at_a_time
    def save(self, path: str | os.PathLike[str], *, about: Mapping[str, str] | None = None) -> bool:
        """Write a delta: what adapted, and what is needed to go on. The source model is not in it.

        ``about`` is kept beside it for whoever reads the file. Of several ranks, the first writes; if one of
        them is gone, whoever is left does. Returns whether this one did.
        """
        if not self._engine.ranks.writes:
            return False
        document = {
            "method": dataclasses.asdict(self.method),
            "options": dataclasses.asdict(self._options),
            "external": self._external is not None,
            "about": dict(about or {}),
            "source": self._engine.source_digests(),
            "calls": self._calls,
            "temperature": self.temperature,
            "fit": None if self._fit is None else dataclasses.asdict(self._fit),
        }
        write_delta(path, {**self._engine.state(), "generator": self._generator.get_state()}, document)
        return True

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        *,
        objective: External | Callable[[Tensor], Tensor] | None = None,
        device: torch.device | str | None = None,
        ranks: str = "together",
    ) -> Adapter:
        """The adapter that `save` wrote, on the same source model; refused on any other.

        Of several ranks, all of which must call it, the first reads the file; with ``ranks="alone"``, each
        reads one of its own.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise OptionError(f"load takes a path, then the model; the path is a {type(path).__name__}")
        tensors, document = Ranks(ranks).first(lambda: read_delta(path))
        try:
            method = Method(**{**document["method"], "betas": tuple(document["method"]["betas"])})
            options, fit, calls = dict(document["options"]), document["fit"], int(document["calls"])
            source, external = document["source"], document["external"]
            options |= {"ranks": ranks} if ranks == "alone" else {}
        except (KeyError, TypeError, ValueError) as error:
            raise DeltaError(f"{os.fspath(path)} lacks what this acclimate needs: {error}") from error
        if external and objective is None:
            raise DeltaError("this delta was made with an objective of its own: give it again by objective=")
        check_source(source, digests(checked_model(model).state_dict()))
        try:
            adapter = cls(model, method, objective=objective, device=device, **options)
            with torch.inference_mode(False):
                adapter._engine.restore({name: tensor.clone() for name, tensor in tensors.items()})
            adapter._generator.set_state(tensors["generator"])
            adapter._calls = calls
            adapter.temperature = float(document.get("temperature", 1.0))
            adapter._fit = None if fit is None else Fit(**fit)
        except AcclimateError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DeltaError(f"{os.fspath(path)} is damaged: {said(error)}") from error
        return adapter

    def __getstate__(self) -> dict[str, Any]:
        """For copies and other processes, which have a lock of their own."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        name = type(self._engine.prepared.model).__name__
        tensors = len(self.adapting)
        return f"Adapter({name}, method={self.method.name!r}, step={self.step}, {tensors} tensors adapt)"


def keywords() -> list[str]:
    """What an `Adapter` takes beside the fields of `Method`."""
    parameters = inspect.signature(Adapter.__init__).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]

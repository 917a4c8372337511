"""One step of a method: images → g → logits → objective → backward → update. No loops, no files."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from acclimate.errors import AcclimateWarning, DivergenceError, ModelError, OptionError
from acclimate.fast.checkpoints import Checkpoints
from acclimate.fast.measures import Measures, Shown, native_measures
from acclimate.fast.precision import LossScale, chosen_precision
from acclimate.fast.recycling import begin_step, exactly
from acclimate.guard import Guard, Look, look_at
from acclimate.images import checked_images
from acclimate.interrupts import uninterrupted
from acclimate.labelling import label_table
from acclimate.making import make_network
from acclimate.methods import Method
from acclimate.moving import Moving, under
from acclimate.objectives import External, Objective
from acclimate.optimization import learning_rate, lr_share
from acclimate.options import Options
from acclimate.prepare import floating_like, model_info, normalization_mismatch, prepare
from acclimate.ranks import Ranks
from acclimate.types import Batch, History

__all__ = ["Engine"]


class Engine:
    """Holds all that changes while a model adapts, and changes it."""

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        options: Options,
        *,
        external: External | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.method = method
        self._options = options
        self._external = external
        self.ranks = Ranks(options.ranks)
        self.prepared = prepare(
            model,
            parameters=method.adapts_parameters,
            freeze=options.freeze,
            freeze_top=method.freeze_top,
            statistics=options.statistics if method.adapts_statistics else "source",
            momentum=method.statistics_momentum,
            pseudo_count=method.pseudo_count,
            lean="norms" in options.tricks,
            ranks=self.ranks,
            device=device,
            needed=not method.input_transform,
        )
        like = floating_like(self.prepared.model)
        self.device, self._dtype = like.device, like.dtype
        self._precision = chosen_precision(options.precision, self.device)
        if self._precision is not None and self._dtype == torch.float64:
            if options.precision != "auto":
                raise OptionError(
                    f'precision="{options.precision}" is for networks in float32, and this one is in float64'
                )
            self._precision = None
        self._recycles = self.device.type == "cpu" and "recycling" in options.tricks
        self._scale = LossScale() if self._precision == torch.float16 else None
        self.network = make_network(
            self.prepared.model, method, options, like=like, precision=self._precision, ranks=self.ranks
        )
        mismatch = options.normalize and normalization_mismatch(model_info(model), *options.normalize)
        self.cautions = (*self.prepared.cautions, mismatch) if mismatch else self.prepared.cautions
        self._moving = Moving(self.prepared, self.network, method, fused="optimizer" in options.tricks)
        self.parameters, self._optimizer = self._moving.parameters, self._moving.optimizer
        if external is not None and not self.parameters:
            raise OptionError(f"{method.name!r} adapts no parameters, so that objective= has nothing to move")
        if self.parameters and not (method.has_loss or external is not None):
            raise OptionError(f"{method.name!r} has no loss that could move the parameters it adapts")
        self.objective: Objective | None = None
        self._checkpoints = Checkpoints(
            self.network,
            options.memory if self.parameters else "off",
            rehearse=self._rehearse,
            again=self.prepared.statistics.repeating,
            ranks=self.ranks,
        )
        own = [p for name, p in self.parameters.items() if name.startswith("model.")]
        is_lean = self.ranks.size == 1 and "measures" in options.tricks
        native = native_measures(self.parameters.values()) if is_lean else None
        self._measures = native or Measures(self.ranks)
        self.guard = Guard(own or self.parameters.values(), active=options.guard)
        self.adapts = bool(self._moving.source)
        self.reset()
        self.ranks.check_device(self.device)
        self.ranks.check_same("method and options", (method, options))
        if self.ranks.size > 1:
            self.ranks.check_same("network", self.source_digests())

    def update(self, batch: Batch, *, position: int, total: int | None, epoch: int = 0) -> Tensor:
        """Predict, then adapt, as step ``position`` of ``total``: the logits are from before the update.

        Whatever goes wrong before the optimiser's step leaves everything as it was.
        """
        if not self.adapts:
            return self.forward(batch.images)
        # The caller may be in no_grad or inference mode: adaptation has a mode of its own.
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return self.update(batch, position=position, total=total, epoch=epoch)
        with torch.set_grad_enabled(self._learns):
            images = self.ranks.meet(lambda: self._checked(batch.images, batch.index))
            logits, look, usable = self._tried(images, batch.index)
            share = self._share_of(len(images))
            lr = learning_rate(self.method, position, total) * share * self.guard.rate
            if self._optimizer is not None and usable:
                if self.guard.active:
                    self.guard.keep(self.step, self._copied)
                    self.guard.unchecked = True
                self._optimizer.param_groups[0]["lr"] = lr
                self._optimizer.step()
        self.step += 1
        self.history.loss.append(look.loss)
        self.history.confidence.append(look.confidence)
        self.history.class_entropy.append(look.class_entropy)
        self.history.lr.append(lr)
        self.history.epoch.append(epoch)
        return logits.detach()

    @property
    def changes_by_epochs(self) -> bool:
        """Whether a second pass over the same images changes anything: an average over one is whole."""
        return bool(self.parameters) or self.prepared.statistics.policy == "running"

    @property
    def _learns(self) -> bool:
        """Whether parameters move."""
        return self._optimizer is not None and not self.guard.stopped

    def _share_of(self, images: int) -> float:
        """The part of the learning rate for this batch; a small one is remembered, for `notes`."""
        count = self._count(images)
        share = lr_share(self.method, count)
        if share < 1:
            self._small = count
        return share

    def _count(self, images: int) -> int:
        """Of the batch of all ranks, of which so many images are here."""
        return sum(self.ranks.counts) if self.ranks.size > 1 else images

    def _tried(self, images: Tensor, index: Tensor | None) -> tuple[Tensor, Look, bool]:
        """Logits and gradients from a state that the guard has nothing against, and whether to take them."""
        undo = self._hold()
        try:
            logits, look = self._looked(images, index)
            if not self._is_odd(look):
                return logits, look, self._usable(look) and self._learns
        except BaseException:
            undo()
            raise
        undo()
        return self._tried_again(images, index, (logits, look))

    def _tried_again(
        self, images: Tensor, index: Tensor | None, seen: tuple[Tensor, Look]
    ) -> tuple[Tensor, Look, bool]:
        """The same images in an earlier state; if they are odd there too, they are to blame."""
        held, told = self._copied(), len(self.guard.alarms)
        state = self.guard.react(self.step)
        if state is not None:
            self._put_back(state)
            torch.set_grad_enabled(self._learns)
            undo = self._hold()
            try:
                logits, look = self._looked(images, index)
                if not self._is_odd(look):
                    self._warn(told)
                    return logits, look, self._usable(look) and self._learns
            except BaseException:
                undo()
                raise
            undo()
            if self.guard.blame_images(self.step):
                self._put_back(held)
            self._warn(told)
        self._usable(seen[1])  # which raises, if these are no numbers
        return (*seen, False)

    def _is_odd(self, look: Look) -> bool:
        """Whether the guard objects."""
        if not self.guard.active or self.guard.stopped or self._overflows(look):
            return False
        return self.guard.finding(look) is not None

    def _looked(self, images: Tensor, index: Tensor | None) -> tuple[Tensor, Look]:
        """Forward, loss and backward, and what they show."""
        self.prepared.statistics.decide(self._count(len(images)))
        with self._checkpoints(images), self.prepared.statistics.updating():
            logits = self.network.forward(images)  # which has no hooks
        loss = self._loss(logits, index)
        if self._learns:
            self._backward(loss)
            self.ranks.sum_gradients(self.parameters.values())
        return logits, self._measured(loss.detach(), logits.detach())

    def settle(self) -> None:
        """Look at the last update, which no step has looked at yet, before anybody uses what it made."""
        if not self.guard.unchecked:
            return
        told = len(self.guard.alarms)
        with uninterrupted():
            drift = self.guard.drift_of(self._measures.way(*self.guard.way))
            if self.guard.finding(Look(drift)) is not None:
                state = self.guard.react(self.step)
                assert state is not None  # no images were looked at
                self._put_back(state)
        self._warn(told)

    def _warn(self, told: int) -> None:
        """Of alarms that were not told yet."""
        for alarm in self.guard.alarms[told:] if self.ranks.rank == 0 else ():
            warnings.warn(f"the guard: {alarm.message}", AcclimateWarning, stacklevel=6)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found and decided, one sentence each."""
        found = (*self.prepared.notes, *self.prepared.statistics.notes, *self._checkpoints.notes)
        if not self._small or not self.parameters:
            return found
        part = f"{lr_share(self.method, self._small):.2g} of the learning rate"
        small = f"a batch of {self._small} takes {part}, as its gradient is noisy: full_batch=0 gives it all"
        return (*found, small)

    def transformed(self, images: Tensor) -> Tensor:
        """Images as the input transformation makes them."""
        if self.network.transform is None:
            return images
        with torch.inference_mode(False), torch.no_grad():
            made: Tensor = self.network.transform(self._checked(images))
        return made

    def forward(self, images: Tensor, *, as_exported: bool = False) -> Tensor:
        """Logits that leave no trace, by the statistics of the policy or by those that are exported."""
        with torch.inference_mode(False), torch.no_grad():
            self.settle()
            met = self.ranks.meet(lambda: self._checked(images, single=not as_exported))
            statistics = self.prepared.statistics
            by_layers = as_exported or statistics.needs_source(self._count(len(met)))
            with statistics.detached() if by_layers else statistics.untouched():
                logits: Tensor = self.network(met)
        self._objective_for(logits)
        return logits

    def label(self, batches: Iterable[Batch]) -> None:
        """Give every sample SHOT's centroid label, by a pass over all of them."""
        labels = label_table(
            batches, self.forward, self.network, self.method.pseudo_label_set, ranks=self.ranks
        )
        assert self.objective is not None
        self.objective.labels = labels

    def forget_labels(self) -> None:
        """Drop the labels of another data set."""
        if self.objective is not None:
            self.objective.labels = None

    def reset(self) -> None:
        """Back to the source model, bit for bit."""
        with torch.inference_mode(False):
            self._put_back({})
        self.prepared.statistics.forget()
        if self.objective is not None:
            self.objective.labels = None
        self._scale = None if self._scale is None else LossScale()
        self.step = 0
        self._small = 0  # images of the last batch that took a part of the learning rate
        self.guard.restart()
        self.history = History(alarms=self.guard.alarms)

    def changing(self) -> dict[str, Tensor]:
        """Every tensor of the network that adaptation can change."""
        return self._moving.changing()

    def source_digests(self) -> dict[str, str]:
        """Digests of the model as the user gave it."""
        return self._moving.source_digests()

    def state(self) -> dict[str, Tensor]:
        """All that changed, and all that the next step depends on, as tensors."""
        self.settle()
        tensors = self._moving.state()
        if self.objective is not None:
            tensors |= {f"objective.{name}": value for name, value in self.objective.state_dict().items()}
        for key, values in self.history.per_step().items():
            tensors[f"history.{key}"] = torch.tensor(values, dtype=torch.float64)
        if self._scale is not None:
            tensors["scale"] = torch.tensor([self._scale.value, self._scale.since], dtype=torch.float64)
        if self.guard.active:
            tensors |= {f"guard.{name}": value for name, value in self.guard.state().items()}
        tensors |= {f"statistics.{name}": value for name, value in self.prepared.statistics.state().items()}
        return {**tensors, "steps": torch.tensor([self.step, self.prepared.statistics.steps])}

    def _copied(self) -> dict[str, Tensor]:
        """A state to go back to."""
        assert self.objective is not None
        followed = {f"statistics.{n}": value for n, value in self.prepared.statistics.state().items()}
        state = {**self._moving.state(), **followed, "p": self.objective.distribution.p}
        copies = {name: tensor.detach().clone() for name, tensor in state.items()}
        return {**copies, "steps": torch.tensor(self.prepared.statistics.steps)}

    def _put_back(self, state: dict[str, Tensor]) -> None:
        """A state that was copied, or the source, if it is empty."""
        self._moving.put_back(state)
        if self.objective is not None:
            self.objective.distribution.restart()
            self.objective.distribution.p = state.get("p", self.objective.distribution.p)
        self.prepared.statistics.put_back(under("statistics.", state), int(state.get("steps", 0)))

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        self._moving.put_back(tensors)
        state = under("objective.", tensors)
        if state:
            p = state["distribution.p"].to(self.device)
            objective = self._objective_for(p.unsqueeze(0))
            objective.distribution.p = p
            objective.labels = state["labels"].to(self.device) if "labels" in state else None
        for key, values in under("history.", tensors).items():
            numbers = values.tolist()
            setattr(self.history, key, [int(n) for n in numbers] if key == "epoch" else numbers)
        if self._scale is not None:
            value, since = tensors["scale"].tolist()
            self._scale.value, self._scale.since = value, int(since)
        self.guard.restore(
            {name: value.to(_home(name, self.device)) for name, value in under("guard.", tensors).items()}
        )
        self.history.alarms = self.guard.alarms
        self.step, batches = tensors["steps"].tolist()
        self.prepared.statistics.restore(under("statistics.", tensors), batches)

    def _objective_for(self, logits: Tensor) -> Objective:
        """The objective, made when the first logits tell the number of classes."""
        if logits.shape[1] < 2:
            raise ModelError("the network has one output only: adaptation needs a logit for every class")
        if self.objective is None:
            self.objective = Objective(
                self.method,
                logits.shape[1],
                prior=self._options.prior,
                external=self._external,
                shared="objective" in self._options.tricks,
                ranks=self.ranks,
                dtype=torch.float64 if logits.dtype == torch.float64 else torch.float32,
            ).to(logits.device)
        return self.objective

    def _checked(self, images: Tensor, index: Tensor | None = None, *, single: bool = True) -> Tensor:
        if self._recycles:
            begin_step()
        refused = self._single if single else None
        checked = checked_images(images, self.device, self._dtype, single=refused, index=index)
        self.network.check(checked)
        return checked

    def _single(self) -> str | None:
        """Why the network cannot take a batch of one image; a share of one image is none of one in all."""
        return None if self.ranks.synchronised else self.prepared.statistics.single

    def _rehearse(self, images: Tensor) -> Tensor:
        """The forward pass of a step that leaves no trace."""
        put_back = self.prepared.statistics.hold()
        devices = [self.device] if self.device.type == "cuda" else []
        try:
            with exactly(), torch.random.fork_rng(devices), self.prepared.statistics.updating():
                logits: Tensor = self.network(images)
        finally:
            put_back()
        return logits

    def _loss(self, logits: Tensor, index: Tensor | None) -> Tensor:
        if self._learns and not logits.requires_grad:
            raise ModelError("the network's logits carry no gradient: its forward must not run in no_grad")
        loss: Tensor = self._objective_for(logits)(logits, index)
        if loss.ndim != 0:
            raise OptionError(f"objective= must return a scalar, got the shape {tuple(loss.shape)}")
        return loss

    def _backward(self, loss: Tensor) -> None:
        assert self._optimizer is not None
        for parameter in self.parameters.values():
            parameter.grad = None  # zero_grad does the same and takes several times as long
        scaled = loss if self._scale is None else loss * self._scale.value
        try:
            scaled.backward()  # type: ignore[no-untyped-call]
        except CheckpointError as error:
            raise ModelError(
                "the network runs parts of itself a second time (torch.utils.checkpoint), and batch norms "
                "that adapt are not the same then: switch that off in the network (memory_efficient=False, "
                "set_grad_checkpointing(False)); memory='low' saves as much"
            ) from error
        if self._scale is not None:
            torch._foreach_div_(self._gradients(), self._scale.value)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters.values() if p.grad is not None]

    def _measured(self, loss: Tensor, logits: Tensor) -> Look:
        """What a step shows, by one transfer from the device."""
        assert self.objective is not None
        followed, learns = self.objective.distribution, self._learns
        assert followed.confidence is not None
        seen = (loss, followed.confidence, followed.p, self._gradients() if learns else ())
        if not (self.guard.active and learns):
            return Look(0.0, *self._measures(Shown(*seen))[:4])
        numbers = self._measures(Shown(*seen, *self.guard.way, logits))
        look = look_at(numbers, followed, self.guard, self._count(logits.shape[0]))
        # the first batch of a stream is normalised much as the source is: no measure for the logits to come
        return look._replace(logit_norm=None) if self.prepared.statistics.begins else look

    def _overflows(self, look: Look) -> bool:
        """Whether the gradient is too large for float16 only, so that a smaller loss scale helps."""
        if self._scale is None or self._scale.value <= 1 or not math.isfinite(look.loss):
            return False
        return not math.isfinite(look.gradient_norm)

    def _usable(self, look: Look) -> bool:
        """Whether the optimiser can take the gradient: always, but for overflows that a loss scale is for."""
        finite = math.isfinite(look.loss) and math.isfinite(look.gradient_norm)
        if self._scale is not None and (finite or self._overflows(look)):
            return self._scale.accept(overflow=not finite)
        if not finite:
            raise DivergenceError(
                f"the loss is {look.loss} and the norm of its gradient {look.gradient_norm} at step "
                f"{self.step + 1}; nothing was changed by it. Lower lr, or check the network's outputs on "
                "these images"
            )
        return True

    def _hold(self) -> Callable[[], None]:
        """Remember statistics and class distribution; what this returns puts them back."""
        statistics = self.prepared.statistics.hold()
        p = None if self.objective is None else self.objective.distribution.p

        def undo() -> None:
            statistics()
            if self.objective is not None:
                self.objective.distribution.p = self.objective.distribution.target.clone() if p is None else p

        return undo


def _home(name: str, device: torch.device) -> torch.device | str:
    """Where a tensor of the guard lives: counters stay with Python, as torch has it for Adam's steps."""
    return "cpu" if name == "document" or name.endswith(("steps", "/step")) else device

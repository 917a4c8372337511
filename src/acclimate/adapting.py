"""From a folder of images to an adapted network and its predictions: what `acclimate adapt` does."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from acclimate.adapter import Adapter
from acclimate.data import Crop, ImageSet, find_layout, open_data
from acclimate.data.folders import FileReader
from acclimate.data.image_set import unreadable, without
from acclimate.data.pictures import read_image
from acclimate.delta import read_delta
from acclimate.errors import AcclimateError, AcclimateWarning, InputError, OptionError, WorkerError
from acclimate.files import check_writable, whole_file
from acclimate.gate import GATES
from acclimate.interrupts import Ended
from acclimate.methods import chosen_setting
from acclimate.normalization import Normalization, fitted, probe_normalization
from acclimate.one_call import judged
from acclimate.outcome import AdaptOutcome, outcome_of, write_predictions
from acclimate.prepare import count_outputs, model_info
from acclimate.ranks import Ranks
from acclimate.recording import adaptation_record
from acclimate.records import write_record

__all__ = ["adapt_images", "check_export", "open_images", "some_of", "trained_crop"]

_OF_SOURCE = ": they are what is given here, and nothing was exported"
_PROBED = 64  # images that are looked at for their normalisation


def open_images(
    model: nn.Module,
    data: str | Path,
    *,
    size: int | None = None,
    layout: str = "auto",
    corruption: str | None = None,
    severity: int | None = None,
    split: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[ImageSet, dict[str, str]]:
    """Images as a network wants them, and what is wrong with those that cannot be read.

    Args:
        data: whatever `acclimate.data.open_data` takes. Labels are not needed, so that class folders need
            not be complete.
        size: to which images are cropped; 0 leaves them, None takes what the network says that it was
            trained on, or 224.
        layout: a row of `acclimate.data.LAYOUTS`.
        corruption: of ImageNet-C and CIFAR-C.
        severity: of ImageNet-C and CIFAR-C.
        split: of VisDA-C and of the hub.
    """
    found = find_layout(data) if layout == "auto" else layout
    if found == "class-folders":
        found = "unlabelled"
    crop = trained_crop(model) if size is None else Crop(size) if size else None
    images = open_data(
        data,
        found,
        crop=crop,
        corruption=corruption,
        severity=severity,
        split=split,
        partial=True,
        labels=False,
    )
    if size is None and crop is not None and not _says_size(model) and found not in ("arrays", "cifar-c"):
        _tell_of_enlarging(images, crop)
    ranks = Ranks()
    own = range(len(images))[ranks.share(len(images))]
    found_images, failed = without(images, ranks.merged(unreadable(images, own, progress)))
    _check_size(model, found_images)
    return found_images, failed


def _check_size(model: nn.Module, images: ImageSet) -> None:
    """Images of another size than the published weights were trained on are most often a mistake."""
    info = model_info(model)
    height, width = images.read(0).shape[:2]
    if info is None or info.size is None or (height, width) == (info.size, info.size):
        return
    said = f"{info.origin} says {info.size} by {info.size} pixels, but the images have {width} by {height}"
    if info.assumed:
        warnings.warn(said, AcclimateWarning, stacklevel=3)
        return
    raise InputError(f"{said}: bring them to that size (for image files, leave --size out)")


def _tell_of_enlarging(images: ImageSet, crop: Crop) -> None:
    """A network that does not say what it wants gets ImageNet's size, which may not be meant."""
    reader = images.read
    if not isinstance(reader, FileReader):
        return
    try:
        height, width = read_image(reader.folder / reader.names[0], None).shape[:2]
    except InputError:  # told of later, with all others that cannot be read
        return
    if min(height, width) < crop.size:
        warnings.warn(
            f"images of {width} by {height} pixels are enlarged to {crop.size}, as the network does not say "
            "what it was trained on: give their size, or 0 to leave them as they are (--size)",
            AcclimateWarning,
            stacklevel=3,
        )


def _says_size(model: nn.Module) -> bool:
    info = model_info(model)
    return info is not None and info.size is not None


def trained_crop(model: nn.Module) -> Crop:
    """The crop that a network was evaluated with, as its weights say; otherwise ImageNet's."""
    info = model_info(model)
    if info is None or info.size is None:
        return Crop()
    return Crop(info.size, info.resize, info.interpolation or "bilinear", squash=info.squash)


def adapt_images(
    model: nn.Module,
    images: ImageSet,
    *,
    method: str = "slr",
    normalize: Normalization | None = None,
    epochs: int = 5,
    batch_size: int = 64,
    classes: Sequence[str] | None = None,
    setting: str = "auto",
    device: str | None = None,
    seed: int = 0,
    precision: str = "fp32",
    memory: str = "auto",
    ranks: str = "together",
    guard: bool = True,
    gate: str = GATES[0],
    calibrate: bool = False,
    out: Path | None = None,
    export: Path | None = None,
    predictions: Path | None = None,
    record: Path | None = None,
    asked: Mapping[str, Any] | None = None,
    left_out: Mapping[str, str] | None = None,
    resume: bool = False,
    progress: bool | None = None,
    on_step: Callable[[Adapter], None] = lambda adapter: None,
) -> AdaptOutcome:
    """Adapt a network to unlabelled images, write what was asked for, and say what changed.

    Of several ranks (`torch.distributed`), all call it with the same, and the first writes.

    Args:
        images: what `open_images` gives.
        normalize: what the network's input is normalised with.
        classes: names of the network's outputs, for the predictions.
        precision: as for `Adapter`, of the predictions before as of those after.
        memory: as for `Adapter`.
        ranks: as for `Adapter`, ``"together"`` or ``"local"``.
        guard: as for `Adapter`; what it says is among the cautions.
        gate: whether the adapted network is held against the source: ``"warn"`` tells of harm as a caution,
            ``"refuse"`` also gives the source's predictions and leaves no file at ``export``, ``"off"`` does
            not ask.
        calibrate: as for `Adapter`.
        out: a file for the delta. It is also written after every epoch and when the work is interrupted.
        export: a .safetensors file for the weights of the adapted network, in its stock form.
        predictions: a CSV file of the predictions before and after.
        record: a JSON file of all that can be said without labels, which `acclimate report` shows.
        asked: what the record says was asked for: a `acclimate.bench.Cell` as JSON.
        left_out: images that could not be read, and why, for the record.
        resume: go on from ``out``, if it is there.
        on_step: called before the first update, after each, and when the work is interrupted.
    """
    job = Ranks()
    check_export(export)
    job.first(lambda: check_writable(out, export, predictions, record))
    begun = time.perf_counter()
    if len(images) < 2:
        raise InputError(f"adaptation needs at least 2 images, got {len(images)}")
    normalize = fitted(normalize, images.batch([0]).shape[1])
    options: dict[str, Any] = {
        "normalize": normalize,
        "classes": images.classes,
        "device": device,
        "precision": precision,
        "memory": memory,
        "ranks": ranks,
    }
    with _cautions() as cautions:
        adapter = Adapter(
            model, method, setting=setting, seed=seed, guard=guard, calibrate=calibrate, **options
        )
        if resume and out is not None and job.first(out.exists):
            adapter = _resumed(adapter, out, model, images, device)
        before = source_logits(model, images, batch_size=batch_size, **options)
        names = _output_names(classes, images.classes, before.shape[1])
        if may_be_normalised_otherwise(model):
            cautions.append(probe_normalization(model, some_of(images), normalize).caution)
        _fit(adapter, images, epochs, batch_size, out, progress, on_step)
        verdict = None if gate == "off" else judged(model, adapter, images, batch_size=batch_size)
        refused = gate == "refuse" and verdict is not None and not verdict.accepted
        after = before if refused else adapter.predict(images, batch_size=batch_size)
        if predictions is not None and job.writes:
            write_predictions(predictions, images.names, names, before, after)
        if export is not None and job.writes:
            if refused:
                export.resolve().unlink(missing_ok=True)  # an older one would pass for this one
            else:
                cautions.append(_export(adapter, model, export))
    used = chosen_setting(setting, count_outputs(model) if images.classes is None else len(names))
    found = [text for text in cautions if text is not None]
    if verdict is not None and not verdict.accepted:
        found.append(f"{verdict.reason}{_OF_SOURCE if refused else ''}")
    outcome = outcome_of(
        before,
        after,
        names,
        method=adapter.method.name,
        setting=used,
        cautions=found,
        verdict=verdict,
        refused=refused,
    )
    if record is not None and job.writes:
        made = adaptation_record(
            adapter,
            model,
            images,
            {"method": method, "epochs": epochs, "batch_size": batch_size, "seed": seed, **(asked or {})},
            logits=(before, after),
            setting=used,
            names=None if classes is None else names,
            seconds=time.perf_counter() - begun,
            cautions=outcome.cautions,
            left_out=left_out,
            verdict=verdict,
        )
        write_record(record, made)
    return outcome


def source_logits(model: nn.Module, images: ImageSet, *, batch_size: int, **options: Any) -> Tensor:
    """What the network says before it adapts; if it cannot take the images, that is told."""
    try:
        return Adapter(model, "source", **options).predict(images, batch_size=batch_size)
    except AcclimateError:
        raise
    except RuntimeError as error:
        shape = tuple(images.batch([0]).shape[1:])
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"the network cannot take images of the shape {shape} (channels, height, width): {reason}"
        ) from error


def may_be_normalised_otherwise(model: nn.Module) -> bool:
    """Whether the weights leave open what their input was normalised with."""
    info = model_info(model)
    return info is None or info.mean is None or info.assumed


@contextmanager
def _cautions() -> Iterator[list[str | None]]:
    """What acclimate warns of, each once, instead of Python's way to print it."""
    found: list[str | None] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AcclimateWarning)
        yield found
    told = [str(warning.message) for warning in caught if issubclass(warning.category, AcclimateWarning)]
    found[:0] = dict.fromkeys(told)
    for warning in caught:
        if not issubclass(warning.category, AcclimateWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _fit(
    adapter: Adapter,
    images: ImageSet,
    epochs: int,
    batch_size: int,
    out: Path | None,
    progress: bool | None,
    on_step: Callable[[Adapter], None],
) -> None:
    """Adapt, and keep what was reached after every epoch and whatever happens."""
    about = {"data": images.fingerprint()}
    kept = False

    def keep(adapter: Adapter) -> None:
        nonlocal kept
        kept = out is not None and adapter.save(out, about=about)

    on_step(adapter)
    try:
        adapter.fit(images, epochs, batch_size=batch_size, on_step=on_step, on_epoch=keep, progress=progress)
    except KeyboardInterrupt as interrupt:
        if isinstance(interrupt, Ended):  # by a launcher, because another rank is gone
            adapter._engine.ranks.broken = True
        keep(adapter)
        on_step(adapter)  # the interrupt came after a step, before it could be told
        raise
    except WorkerError as error:  # of another rank: this one has what all had
        keep(adapter)
        where = f"; {out} has the first {adapter.step} steps, and --resume goes on from it" if kept else ""
        raise WorkerError(f"{error}{where}") from error
    if not kept and not adapter.method.has_loss:  # what the last epoch keeps says that it is complete
        keep(adapter)


def _resumed(new: Adapter, saved: Path, model: nn.Module, images: ImageSet, device: str | None) -> Adapter:
    """The adapter that was saved, if it is what would be made anew."""
    found = Adapter.load(saved, model, device=device)
    ours, theirs = (
        (options.precision, options.memory, options.ranks) for options in (new.options, found.options)
    )
    data = Ranks().first(lambda: read_delta(saved)[1]).get("about", {}).get("data")
    differs = {
        "method, setting or hyperparameters": found.method != new.method,
        "precision, memory or ranks": ours != theirs,
        "normalisation, classes or seed": found.options != new.options,
        "images": data is not None and data != images.fingerprint(),
    }
    if any(differs.values()):
        what = next(name for name, differ in differs.items() if differ)
        raise OptionError(
            f"{saved} was adapted with other {what} ({found.method.name}): give the same command to go on, "
            "or begin anew"
        )
    return found


def check_export(path: Path | None) -> None:
    """Refuse a name that does not say what is written to it."""
    if path is not None and path.suffix.lower() != ".safetensors":
        raise OptionError(f"weights are exported as safetensors: expected a name.safetensors, got {path}")


def _export(adapter: Adapter, model: nn.Module, path: Path) -> str | None:
    """Write the weights of the adapted network; what should be known of them."""
    state = adapter.export().state_dict()
    found = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    with whole_file(path) as part:
        part.write_bytes(save({name: value.cpu().contiguous().clone() for name, value in found.items()}))
    if found.keys() == model.state_dict().keys():
        return None
    return (
        f"{path} does not load into the stock class: besides the network it holds what was put before it or "
        "into it (an input transformation, a normalisation, affines)"
    )


def _output_names(classes: Sequence[str] | None, kept: Sequence[int] | None, columns: int) -> list[str]:
    """A name for each column of the logits, which may be some of the network's outputs only."""
    expected = columns if kept is None else max(kept) + 1
    if classes is not None and (len(classes) < expected or (kept is None and len(classes) != columns)):
        least = "" if kept is None else "at least "
        raise InputError(f"expected a name for each of {least}{expected} outputs, got {len(classes)}")
    outputs = list(range(columns)) if kept is None else list(kept)
    return [str(output) if classes is None else classes[output] for output in outputs]


def some_of(images: ImageSet) -> Tensor:
    """A few images from all over the data."""
    step = max(1, len(images) // _PROBED)
    return images.batch(range(0, len(images), step)[:_PROBED]).contiguous()

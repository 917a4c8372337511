"""From a folder of images to an adapted network and its predictions: what `acclimate adapt` does."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from acclimate.adapter import Adapter
from acclimate.data import Crop, ImageSet, find_layout, open_data
from acclimate.data.image_set import readable
from acclimate.errors import InputError, OptionError
from acclimate.files import check_writable, whole_file
from acclimate.normalization import Normalization, probe_normalization
from acclimate.prepare import count_outputs, model_info

__all__ = ["AdaptOutcome", "adapt_images", "open_images", "some_of", "told", "trained_crop"]

_COLLAPSED = 0.5  # share of its largest value below which the entropy of the predictions is an alarm
_PROBED = 64  # images that are looked at for their normalisation


@dataclass(frozen=True)
class AdaptOutcome:
    """What can be said of an adaptation without a label."""

    images: int
    changed: int
    """Images whose predicted class is another than before."""
    confidence: tuple[float, float]
    """Mean confidence before and after."""
    histogram: tuple[dict[str, int], dict[str, int]]
    """How often each class was predicted, before and after; those that never were are left out."""
    cautions: list[str] = field(default_factory=list)


def open_images(
    model: nn.Module,
    data: str | Path,
    *,
    size: int | None = None,
    layout: str = "auto",
    corruption: str | None = None,
    severity: int | None = None,
    split: str | None = None,
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
    if found in ("imagenet", "class-folders"):
        found = "unlabelled"
    crop = trained_crop(model) if size is None else Crop(size) if size else None
    images = open_data(
        data, found, crop=crop, corruption=corruption, severity=severity, split=split, partial=True
    )
    return readable(images)


def trained_crop(model: nn.Module) -> Crop:
    """The crop that a network was evaluated with, as its weights say; otherwise ImageNet's."""
    info = model_info(model)
    if info is None or info.size is None:
        return Crop()
    return Crop(info.size, info.resize, info.interpolation or "bilinear")


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
    out: Path | None = None,
    export: Path | None = None,
    predictions: Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> AdaptOutcome:
    """Adapt a network to unlabelled images, write what was asked for, and say what changed.

    Args:
        images: what `open_images` gives.
        normalize: what the network's input is normalised with.
        classes: names of the network's outputs, for the predictions.
        out: a file for the delta. It is also written after every epoch and when the work is interrupted.
        export: a file for the weights of the adapted network, in its stock form.
        predictions: a CSV file of the predictions before and after.
        resume: go on from ``out``, if it is there.
    """
    check_writable(out, export, predictions)
    if len(images) < 2:
        raise InputError(f"adaptation needs at least 2 images, got {len(images)}")
    options: dict[str, Any] = {"normalize": normalize, "classes": images.classes, "device": device}
    adapter = Adapter(model, method, setting=setting, seed=seed, **options)
    if resume and out is not None and out.exists():
        adapter = _resumed(adapter, out, model, device)
    _check_names(classes, count_outputs(model))
    before = Adapter(model, "source", **options).predict(images, batch_size=batch_size)
    names = _output_names(classes, images.classes, before.shape[1])
    # what the weights say of themselves needs no probe
    caution = None if model_info(model) else probe_normalization(model, some_of(images), normalize).caution
    _fit(adapter, images, epochs, batch_size, out, progress)
    after = adapter.predict(images, batch_size=batch_size)
    if export is not None:
        state = {name: value.contiguous().clone() for name, value in adapter.export().state_dict().items()}
        with whole_file(export) as part:
            save_file(state, part)
    if predictions is not None:
        _write_predictions(predictions, images.names, names, before, after)
    return _outcome(before, after, names, [] if caution is None else [caution])


def _fit(
    adapter: Adapter, images: ImageSet, epochs: int, batch_size: int, out: Path | None, progress: bool | None
) -> None:
    """Adapt, and keep what was reached after every epoch and whatever happens."""

    def keep(adapter: Adapter) -> None:
        if out is not None:
            adapter.save(out)

    try:
        adapter.fit(images, epochs, batch_size=batch_size, on_epoch=keep, progress=progress)
    except KeyboardInterrupt:
        keep(adapter)
        raise
    keep(adapter)


def _resumed(new: Adapter, saved: Path, model: nn.Module, device: str | None) -> Adapter:
    """The adapter that was saved, if it is what would be made anew."""
    found = Adapter.load(saved, model, device=device)
    if found.method != new.method:
        raise OptionError(
            f"{saved} was adapted by another method ({found.method.name}, setting or hyperparameters): "
            "give the same command to go on, or --force to begin anew"
        )
    return found


def _output_names(classes: Sequence[str] | None, kept: Sequence[int] | None, columns: int) -> list[str]:
    """A name for each column of the logits, which may be some of the network's outputs only."""
    outputs = list(range(columns)) if kept is None else list(kept)
    _check_names(classes, columns if kept is None else None)
    return [str(output) if classes is None else classes[output] for output in outputs]


def _check_names(classes: Sequence[str] | None, outputs: int | None) -> None:
    if classes is not None and outputs is not None and len(classes) != outputs:
        raise InputError(f"expected a name for each of {outputs} outputs, got {len(classes)}")


def some_of(images: ImageSet) -> Tensor:
    """A few images from all over the data."""
    step = max(1, len(images) // _PROBED)
    return images.batch(range(0, len(images), step)[:_PROBED])


def told(outcome: AdaptOutcome, failed: Mapping[str, str]) -> str:
    """The outcome for people."""
    share = 100 * outcome.changed / outcome.images
    before, after = outcome.histogram
    lines = [
        f"{outcome.images:,} images: the prediction of {outcome.changed:,} ({share:.1f}%) has changed",
        f"mean confidence: {outcome.confidence[0]:.3f} before, {outcome.confidence[1]:.3f} after",
        f"classes predicted: {len(before)} before, {len(after)} after",
    ]
    common = sorted(after, key=lambda name: -after[name])[:10]
    lines += [f"  {name}: {before.get(name, 0)} before, {after[name]} after" for name in common]
    lines += [f"caution: {caution}" for caution in outcome.cautions]
    lines += [f"left out: {reason}" for _, reason in sorted(failed.items())]
    return "\n".join(lines)


def _write_predictions(
    path: Path, files: Sequence[str], names: list[str], before: Tensor, after: Tensor
) -> None:
    columns = ["file", "index", "class", "confidence", "source_class", "source_confidence"]
    (sure, top), (source_sure, source_top) = (logits.float().softmax(1).max(1) for logits in (after, before))
    with (
        whole_file(path) as part,
        part.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(columns)
        for i, name in enumerate(files):
            own = (names[int(top[i])], f"{sure[i]:.6f}")
            writer.writerow([name, i, *own, names[int(source_top[i])], f"{source_sure[i]:.6f}"])


def _outcome(before: Tensor, after: Tensor, names: list[str], cautions: Sequence[str] = ()) -> AdaptOutcome:
    tops = [logits.argmax(1) for logits in (before, after)]
    counts = [top.bincount(minlength=len(names)) for top in tops]
    shares = counts[1].double() / len(after)
    entropy = -torch.special.xlogy(shares, shares).sum().item()
    possible = math.log(min(len(names), len(after)))
    found = list(cautions)
    if possible > 0 and entropy < _COLLAPSED * possible:
        found.append(
            f"the predictions fall on few classes (entropy {entropy:.2f} of at most {possible:.2f}): "
            "this may be a collapse, unless the images are of few classes"
        )
    first, second = ({names[i]: int(n) for i, n in enumerate(count.tolist()) if n} for count in counts)
    means = [logits.float().softmax(1).amax(1).mean().item() for logits in (before, after)]
    return AdaptOutcome(
        images=len(after),
        changed=int(tops[0].ne(tops[1]).sum()),
        confidence=(means[0], means[1]),
        histogram=(first, second),
        cautions=found,
    )

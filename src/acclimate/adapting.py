"""From a folder of images to an adapted network and its predictions: what `acclimate adapt` does."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

from acclimate.adapter import Adapter
from acclimate.corruptions.array_files import readable
from acclimate.corruptions.sources import Source, open_source
from acclimate.errors import InputError, OptionError
from acclimate.files import check_writable, whole_file
from acclimate.normalization import Normalization, probe_normalization
from acclimate.prepare import count_outputs, model_info, trained_size

__all__ = ["AdaptOutcome", "ImageData", "adapt_images", "some_images", "told"]

_COLLAPSED = 0.5  # share of its largest value below which the entropy of the predictions is an alarm
_PROBED = 64  # images that are looked at for their normalisation


class ImageData(Dataset[Tensor]):
    """Images of a folder or an array as pixels (C, H, W) in [0, 1], without labels."""

    def __init__(self, source: Source, positions: Sequence[int]) -> None:
        self.names = [source.names[position] for position in positions]
        self._source, self._positions = source, positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> Tensor:
        image = torch.from_numpy(self._source.read(self._positions[index]).copy())
        return image.permute(2, 0, 1).float() / 255


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
    failed: dict[str, str] = field(default_factory=dict)
    """Images that could not be read, and why."""


def adapt_images(
    model: nn.Module,
    data: str | Path,
    *,
    method: str = "slr",
    normalize: Normalization | None = None,
    size: int | None = None,
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
    force: bool = False,
    progress: bool | None = None,
) -> AdaptOutcome:
    """Adapt a network to unlabelled images, write what was asked for, and say what changed.

    Args:
        data: a folder of images, or a `.npy` or `.npz` file of them.
        normalize: what the network's input is normalised with.
        size: to which the images of a folder are cropped; 0 leaves them, None takes what the network says
            that it was trained on, or 224.
        classes: names of the network's outputs, for the predictions.
        out: a file for the delta. It is also written after every epoch and when the work is interrupted.
        export: a file for the weights of the adapted network, in its stock form.
        predictions: a CSV file of the predictions before and after.
        resume: go on from ``out``, if it is there.
        force: begin anew where ``out`` is there.
    """
    check_writable(out, export, predictions)
    if out is not None and out.exists() and not (resume or force):
        raise OptionError(f"{out} is there: --resume goes on from it, --force begins anew and replaces it")
    adapter = _adapter(model, out if resume else None, method, normalize, setting, seed, device)
    source = open_source(Path(data), trained_size(model) if size is None else size or None)
    positions, _, failed = readable(source, workers=1)
    images = ImageData(source, positions)
    if len(images) < 2:
        raise InputError(f"adaptation needs at least 2 images, got {len(images)} in {data}")
    _check_names(classes, count_outputs(model))
    before = Adapter(model, "source", normalize=normalize, device=device).predict(
        images, batch_size=batch_size
    )
    _check_names(classes, before.shape[1])
    # what the weights say of themselves needs no probe
    caution = None if model_info(model) else probe_normalization(model, _some(images), normalize).caution

    def keep(adapter: Adapter) -> None:
        if out is not None:
            adapter.save(out)

    try:
        adapter.fit(images, epochs, batch_size=batch_size, on_epoch=keep, progress=progress)
    except KeyboardInterrupt:
        keep(adapter)
        raise
    keep(adapter)
    after = adapter.predict(images, batch_size=batch_size)
    if export is not None:
        with whole_file(export) as part:
            save_file(
                {name: x.contiguous().clone() for name, x in adapter.export().state_dict().items()}, part
            )
    names = list(classes or map(str, range(before.shape[1])))
    if predictions is not None:
        _write_predictions(predictions, images.names, names, before, after)
    return _outcome(before, after, names, failed, [] if caution is None else [caution])


def _adapter(
    model: nn.Module,
    saved: Path | None,
    method: str,
    normalize: Normalization | None,
    setting: str,
    seed: int,
    device: str | None,
) -> Adapter:
    """A new one, or the one that was saved, if it is what would be made anew."""
    adapter = Adapter(model, method, normalize=normalize, setting=setting, seed=seed, device=device)
    if saved is None or not saved.exists():
        return adapter
    found = Adapter.load(saved, model, device=device)
    if found.method != adapter.method:
        raise OptionError(
            f"{saved} was adapted by another method ({found.method.name}, setting or hyperparameters): "
            "give the same command to go on, or --force to begin anew"
        )
    return found


def _check_names(classes: Sequence[str] | None, outputs: int | None) -> None:
    if classes is not None and outputs is not None and len(classes) != outputs:
        raise InputError(f"expected a name for each of {outputs} outputs, got {len(classes)}")


def _some(images: ImageData) -> Tensor:
    """A few images from all over the data, of the size that most have."""
    step = max(1, len(images) // _PROBED)
    found = [images[position] for position in range(0, len(images), step)][:_PROBED]
    shapes = [tuple(image.shape) for image in found]
    common = max(set(shapes), key=shapes.count)
    return torch.stack([image for image, shape in zip(found, shapes, strict=True) if shape == common])


def some_images(data: str | Path, size: int) -> Tensor:
    """A few images of a folder or an array, pixels in [0, 1]."""
    source = open_source(Path(data), size)
    positions, _, _ = readable(source, workers=1)
    if not positions:
        raise InputError(f"no image in {data} can be read")
    return _some(ImageData(source, positions))


def told(outcome: AdaptOutcome) -> str:
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
    lines += [f"left out: {reason}" for _, reason in sorted(outcome.failed.items())]
    return "\n".join(lines)


def _write_predictions(path: Path, files: list[str], names: list[str], before: Tensor, after: Tensor) -> None:
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


def _outcome(
    before: Tensor, after: Tensor, names: list[str], failed: dict[str, str], cautions: Sequence[str] = ()
) -> AdaptOutcome:
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
        failed=failed,
    )

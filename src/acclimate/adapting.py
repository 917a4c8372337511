"""From a folder of images to an adapted network and its predictions: what `acclimate adapt` does."""

from __future__ import annotations

import csv
import math
import os
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
from acclimate.errors import InputError, OptionError, OutputError
from acclimate.prepare import model_info, normalization_mismatch

__all__ = ["AdaptOutcome", "ImageData", "adapt_images", "normalization_of", "told"]

_COLLAPSED = 0.5  # share of its largest value below which the entropy of the predictions is an alarm


_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


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
    normalize: tuple[Sequence[float], Sequence[float]] | None = None,
    size: int | None = 224,
    epochs: int = 5,
    batch_size: int = 64,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    out: Path | None = None,
    export: Path | None = None,
    predictions: Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> AdaptOutcome:
    """Adapt a network to unlabelled images, write what was asked for, and say what changed.

    Args:
        data: a folder of images, or a `.npy` or `.npz` file of them.
        normalize: what the network's input is normalised with.
        size: to which the images of a folder are cropped; None leaves them.
        classes: names of the network's outputs, for the predictions.
        out: a file for the delta. It is also written after every epoch and when the work is interrupted.
        export: a file for the weights of the adapted network, in its stock form.
        predictions: a CSV file of the predictions before and after.
        resume: go on from ``out``, if it is there.
    """
    source = open_source(Path(data), size)
    positions, _, failed = readable(source, workers=1)
    images = ImageData(source, positions)
    if len(images) < 2:
        raise InputError(f"adaptation needs at least 2 images, got {len(images)} in {data}")
    before = Adapter(model, "source", normalize=normalize).predict(images, batch_size=batch_size)
    if classes is not None and len(classes) != before.shape[1]:
        raise InputError(f"expected a name for each of {before.shape[1]} outputs, got {len(classes)}")
    if resume and out is not None and out.exists():
        adapter = Adapter.load(out, model)
    else:
        adapter = Adapter(model, method, normalize=normalize, seed=seed)

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
        _export(adapter, export)
    names = list(classes or map(str, range(before.shape[1])))
    if predictions is not None:
        _write_predictions(predictions, images.names, names, before, after)
    return _outcome(before, after, names, failed)


def normalization_of(model: nn.Module, given: str | None) -> tuple[Sequence[float], Sequence[float]] | None:
    """What a network's input is normalised with: as the user says, otherwise as its weights do.

    >>> normalization_of(nn.Identity(), "0.5/0.25")
    ([0.5], [0.25])
    """
    info = model_info(model)
    if given is None:
        if info is None or info.mean is None or info.std is None:
            raise OptionError(
                "the network does not say what its input was normalised with: give it as MEAN/STD, "
                "imagenet or none"
            )
        return info.mean, info.std
    if given in ("none", "imagenet"):
        return None if given == "none" else _IMAGENET
    try:
        mean, std = ([float(value) for value in part.split(",")] for part in given.split("/"))
    except ValueError as error:
        raise OptionError(
            f"normalize must be MEAN/STD, such as 0.5,0.5,0.5/0.2,0.2,0.2, got {given!r}"
        ) from error
    if (mismatch := normalization_mismatch(info, mean, std)) is not None:
        raise OptionError(mismatch)
    return mean, std


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


def _export(adapter: Adapter, path: Path) -> None:
    state = {name: tensor.contiguous().clone() for name, tensor in adapter.export().state_dict().items()}
    try:
        save_file(state, path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def _write_predictions(path: Path, files: list[str], names: list[str], before: Tensor, after: Tensor) -> None:
    columns = ["file", "index", "class", "confidence", "source_class", "source_confidence"]
    (sure, top), (source_sure, source_top) = (logits.float().softmax(1).max(1) for logits in (after, before))
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            for i, name in enumerate(files):
                own = (names[int(top[i])], f"{sure[i]:.6f}")
                writer.writerow([name, i, *own, names[int(source_top[i])], f"{source_sure[i]:.6f}"])
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def _outcome(before: Tensor, after: Tensor, names: list[str], failed: dict[str, str]) -> AdaptOutcome:
    tops = [logits.argmax(1) for logits in (before, after)]
    counts = [top.bincount(minlength=len(names)) for top in tops]
    shares = counts[1].double() / len(after)
    entropy = -torch.special.xlogy(shares, shares).sum().item()
    possible = math.log(min(len(names), len(after)))
    found = []
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

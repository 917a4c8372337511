"""The images of a cell: published ones as they are, corrupted ones made where only clean ones are there."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from acclimate.bench.spec import Data, Subset
from acclimate.corruptions import corrupt
from acclimate.data import Crop, ImageSet, find_layout, open_data
from acclimate.data.labels import labelled_for
from acclimate.data.pictures import Bytes
from acclimate.data.subsets import fraction_of_classes, fraction_of_samples
from acclimate.errors import InputError, counted
from acclimate.inputs import trained_crop
from acclimate.outputs import logits_of
from acclimate.prepare import count_outputs

__all__ = [
    "CORRUPTED_ALREADY",
    "clean_images",
    "crop_of",
    "is_published",
    "labelled_by",
    "open_cell_images",
    "part_of",
]

CORRUPTED_ALREADY = ("imagenet-c", "cifar-c")
"""Layouts of published corruptions."""
_AT_ONCE = 2**31  # bytes of pixels that are kept in memory
_CHUNK = 256  # images that are corrupted at once


class _Arrays:
    """Reads images that are in memory."""

    def __init__(self, pixels: Bytes) -> None:
        self.pixels = pixels

    def __call__(self, position: int) -> Bytes:
        return self.pixels[position]  # type: ignore[no-any-return]


@lru_cache(maxsize=3)
def open_cell_images(
    root: Path, data: Data, corruption: str | None, severity: int | None, crop: Crop | None
) -> ImageSet:
    """Images and labels, as a network with this crop takes them."""
    published = is_published(root, data)
    if _is_function(data.path):
        images = _from_function(data.path)
    else:
        chosen = {"corruption": corruption, "severity": severity} if published else {}
        path, layout = _found(root, data)
        images = open_data(path, layout, crop=crop, split=data.split, partial=True, warn=False, **chosen)  # type: ignore[arg-type]
    if images.labels is None:
        raise InputError(f"{data.name} has no labels, without which nothing can be measured")
    if data.limit is not None and data.limit < len(images):
        positions = torch.linspace(0, len(images) - 1, data.limit).round().long()
        images = images.subset(positions.tolist())
    if corruption is None or published:
        return images
    return _corrupted(images, corruption, severity or 5)


def clean_images(root: Path, data: Data, crop: Crop | None) -> ImageSet | None:
    """The same images without a corruption, where they are known."""
    if data.clean is not None:
        if not (root / data.clean).exists():
            return None
        return open_cell_images(root, replaced(data, path=data.clean, layout="auto"), None, None, crop)
    return None if is_published(root, data) else open_cell_images(root, data, None, None, crop)


def labelled_by(network: nn.Module, images: ImageSet) -> ImageSet:
    """Images whose labels are outputs of the network; an error if they cannot be, or files are left out."""
    if images.left_out:
        name, reason = next(iter(images.left_out.items()))
        raise InputError(
            f"{counted(len(images.left_out), 'file')} would be left out of what is measured, such as {name}: "
            f"{reason}, or take them away"
        )
    stated = count_outputs(network)
    try:
        return labelled_for(images, stated or 0)
    except InputError:  # what the network's last layer says may be wrong
        with torch.no_grad():
            outputs = logits_of(network(images.batch([0]))).shape[1]
        if outputs == stated:
            raise
        return labelled_for(images, outputs)


def is_published(root: Path, data: Data) -> bool:
    """Whether corrupted images are there as they are; otherwise they are made on the way."""
    return not _is_function(data.path) and _found(root, data)[1] in CORRUPTED_ALREADY


def _is_function(path: str) -> bool:
    return ":" in path and "://" not in path


def _found(root: Path, data: Data) -> tuple[str | Path, str]:
    """Where data lie, and in which layout."""
    path = root / data.path if "://" not in data.path else data.path
    return path, find_layout(path) if data.layout == "auto" else data.layout


def replaced(data: Data, **changes: Any) -> Data:
    return data.model_copy(update=changes)


def part_of(images: ImageSet, subset: Subset | None, seed: int) -> ImageSet:
    """What is adapted to."""
    if subset is not None and subset.classes is not None:
        images = fraction_of_classes(images, subset.classes, seed=seed)
    if subset is not None and subset.samples is not None:
        images = fraction_of_samples(images, subset.samples, seed=seed)
    return images


def crop_of(network: nn.Module, data: Data) -> Crop | None:
    """As the spec says, or as the network's weights do."""
    if data.size is None:
        return trained_crop(network)
    return Crop(data.size) if data.size else None


def _from_function(path: str) -> ImageSet:
    """Images (n, channels, height, width) in [0, 1] and labels, as a function gives them."""
    module, _, name = path.partition(":")
    images, labels = getattr(importlib.import_module(module), name)()
    pixels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return _in_memory(pixels, labels)


def _in_memory(pixels: Bytes, labels: Tensor) -> ImageSet:
    return ImageSet(_Arrays(pixels), [str(i) for i in range(len(pixels))], "arrays", labels)


def _corrupted(images: ImageSet, corruption: str, severity: int) -> ImageSet:
    """Every image corrupted as `acclimate.corrupt` does it alone, with seed 0: all cells see the same."""
    first = images.read(0)
    if len(images) * first.nbytes > _AT_ONCE:
        raise InputError(
            f"{len(images):,} images are too many to corrupt on the way: make them with "
            "`acclimate corrupt` first"
        )
    pixels = np.empty((len(images), *first.shape), np.uint8)
    for start in range(0, len(images), _CHUNK):
        rows = range(start, min(start + _CHUNK, len(images)))
        batch = np.stack([images.read(row) for row in rows])
        pixels[start : rows.stop] = corrupt(batch, corruption, severity, index=start)
    return replace(images, read=_Arrays(pixels))

"""ImageNet-C: `corruption/severity/class/*.JPEG`."""

from __future__ import annotations

from pathlib import Path

from acclimate.data.folders import (
    PublishedReader,
    class_folders,
    labelled_folder,
    outputs_by_name,
    stated_classes,
)
from acclimate.data.image_set import ImageSet
from acclimate.data.request import Request
from acclimate.data.wnids import class_ranks
from acclimate.errors import InputError, listed

__all__ = ["is_imagenet_c", "open_imagenet_c"]

_SEVERITIES = ("1", "2", "3", "4", "5")


def _corruptions(path: Path) -> list[str]:
    """Folders with severities in them, and nothing else: digits from 0 to 9 are classes."""
    return [
        name
        for name in class_folders(path)
        if any((path / name / level).is_dir() for level in _SEVERITIES)
        and set(class_folders(path / name)) <= set(_SEVERITIES)
    ]


def is_imagenet_c(path: Path) -> bool:
    return path.is_dir() and bool(_corruptions(path))


def open_imagenet_c(request: Request) -> ImageSet:
    """One corruption at one severity; published images are cropped already and used as they are.

    Classes of one's own may be listed in `classes.txt` beside the corruptions, as for class folders.
    """
    corruption = request.chosen("corruption", _corruptions(request.folder))
    folder = request.folder / corruption
    severities = [name for name in class_folders(folder) if name in _SEVERITIES]
    if request.severity is not None and str(request.severity) not in severities:
        raise InputError(f"there is no {folder / str(request.severity)}: {folder} has {listed(severities)}")
    folder = folder / request.chosen("severity", severities)
    folders, names = class_folders(folder), stated_classes(request.folder)
    if names is None:
        outputs = class_ranks(folder, folders, partial=request.partial)
    else:
        outputs = outputs_by_name(request.folder, folders, names)
    return labelled_folder(folder, outputs, "imagenet-c", request.crop, PublishedReader, names)

"""Data sets on disk and elsewhere: one table of layouts, and `open_data`, which finds out which one it is.

What is opened holds images only, pixels in [0, 1]; labels are beside them, for whoever measures.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from acclimate.data.cifar_c import is_cifar_c, open_array, open_cifar_c
from acclimate.data.folders import (
    has_class_folders,
    is_imagenet,
    is_imagenet_r,
    open_class_folders,
    open_imagenet,
    open_imagenet_r,
    open_unlabelled,
)
from acclimate.data.hub import is_on_hub, open_hub
from acclimate.data.image_set import ImageSet
from acclimate.data.imagenet_c import is_imagenet_c, open_imagenet_c
from acclimate.data.pictures import SUFFIXES, Crop
from acclimate.data.request import Request
from acclimate.data.shards import are_shards, open_shards
from acclimate.data.visda_c import is_visda_c, open_visda_c
from acclimate.errors import AcclimateWarning, InputError, OptionError, counted, listed, shown, unknown

__all__ = [
    "ASSUMED",
    "LAYOUTS",
    "Crop",
    "ImageSet",
    "Layout",
    "checked_layout",
    "find_layout",
    "open_data",
]


@dataclass(frozen=True)
class Layout:
    """How a data set lies about."""

    summary: str
    recognise: Callable[[str], bool]
    open: Callable[[Request], ImageSet]


def _is_array(path: str) -> bool:
    return path.lower().endswith((".npy", ".npz"))


def _folder(recognise: Callable[[Path], bool]) -> Callable[[str], bool]:
    return lambda path: Path(path).is_dir() and recognise(Path(path))


_ROWS: Final = {
    "hub": Layout("hf:owner/name, an image data set of Hugging Face's hub", is_on_hub, open_hub),
    "shards": Layout(
        "WebDataset .tar files, {000..011} and *, here or at an address", are_shards, open_shards
    ),
    "arrays": Layout("a .npy or .npz file of 8-bit images, with or without labels", _is_array, open_array),
    "cifar-c": Layout(
        "CIFAR-10-C, CIFAR-100-C: corruption.npy and labels.npy", _folder(is_cifar_c), open_cifar_c
    ),
    "visda-c": Layout(
        "VisDA-C: class folders and image_list.txt, 12 classes", _folder(is_visda_c), open_visda_c
    ),
    "imagenet-r": Layout(
        "ImageNet-R: 200 classes of ImageNet's 1,000", _folder(is_imagenet_r), open_imagenet_r
    ),
    "imagenet": Layout(
        "ImageNet's validation images in 1,000 class folders", _folder(is_imagenet), open_imagenet
    ),
    "imagenet-c": Layout(
        "ImageNet-C: corruption/severity/class/*.JPEG", _folder(is_imagenet_c), open_imagenet_c
    ),
    "class-folders": Layout(
        "a folder of images for each class", _folder(has_class_folders), open_class_folders
    ),
    "unlabelled": Layout(
        "images without labels, in a folder and below it", _folder(Path.is_dir), open_unlabelled
    ),
}
ASSUMED: Final = Crop(assumed=True)
"""ImageNet's crop, until a network says which one it wants."""
LAYOUTS: Final[Mapping[str, Layout]] = MappingProxyType(_ROWS)
"""Every layout by name; where more than one fits, the first."""


def find_layout(path: str | Path) -> str:
    """The layout that the data at a path have."""
    for name, layout in LAYOUTS.items():
        if layout.recognise(str(path)):
            return name
    where = Path(path)
    if not where.exists():
        raise InputError(
            f"there is nothing at {shown(path)}: expected a folder of images, a .npy or a .npz file"
        )
    hint = ": give its folder" if where.suffix.lower() in SUFFIXES else ""
    raise InputError(f"expected a folder of images, a .npy or a .npz file, got {shown(path)}{hint}")


def open_data(
    path: str | Path,
    layout: str = "auto",
    *,
    crop: Crop | int | None = ASSUMED,
    corruption: str | None = None,
    severity: int | None = None,
    split: str | None = None,
    labels: bool = True,
    partial: bool = False,
    training: bool = False,
    warn: bool = True,
) -> ImageSet:
    """Open a data set.

    Args:
        path: a folder or a file.
        layout: a row of `LAYOUTS`; by default found from what is there.
        crop: how image files are cropped, or to which size; None leaves them. By default as for ImageNet,
            until a network that adapts to them says what it was trained on. Arrays are as they are.
        corruption: of ImageNet-C and CIFAR-C.
        severity: of ImageNet-C and CIFAR-C.
        split: of VisDA-C.
        labels: whether the labels of arrays are read.
        partial: whether classes of ImageNet may be missing.
        training: whether the split by default is that for training, not that for testing.
        warn: whether files that look like images and are not read are told by a warning; ``left_out`` of what
            is opened has them too.
    """
    name = checked_layout(path, layout)
    how = Crop(crop) if isinstance(crop, int) else crop
    request = Request(str(path), how, corruption, severity, split, labels, partial, training)
    found = LAYOUTS[name].open(request)
    if found.left_out and warn:
        suffixes = sorted({Path(file).suffix.lower() for file in found.left_out})
        warnings.warn(
            f"{counted(len(found.left_out), 'file')} of {shown(path)} left out, as files "
            f"{', '.join(suffixes)} are not read: {listed(found.left_out, 3)}",
            AcclimateWarning,
            stacklevel=2,
        )
    return found


def checked_layout(path: str | Path, layout: str = "auto") -> str:
    """The layout of the data at a path, found or as it is named; an error if nothing of the kind is there."""
    if layout != "auto" and layout not in LAYOUTS:
        raise OptionError(unknown("layout", layout, LAYOUTS))
    name = find_layout(path) if layout == "auto" else layout
    if name in ("hub", "shards"):
        return name
    if "://" in str(path):
        raise InputError(
            f"{shown(path)} is an address, from which shards can be read and the layout {name!r} cannot: "
            "bring the data to this machine first, as `acclimate fetch` does with published ones"
        )
    if name == "arrays" and not Path(path).is_file():
        raise InputError(f"there is no file {shown(path)}: expected an array of images")
    if name != "arrays" and not Path(path).is_dir():
        raise InputError(f"there is no folder {shown(path)}, as is expected of the layout {name!r}")
    return name

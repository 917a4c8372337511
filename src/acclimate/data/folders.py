"""Folders of image files: with a folder for each class, or without labels."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from acclimate.data.image_set import ImageSet
from acclimate.data.pictures import SUFFIXES, Bytes, Crop, files_below, read_image
from acclimate.data.request import Request
from acclimate.data.wnids import imagenet_r_wnids, imagenet_wnids, look_like_wnids, wnid_outputs
from acclimate.errors import InputError, listed

__all__ = [
    "FileReader",
    "PublishedReader",
    "class_folders",
    "has_class_folders",
    "image_names",
    "is_imagenet",
    "is_imagenet_r",
    "labelled_folder",
    "open_class_folders",
    "open_imagenet",
    "open_imagenet_r",
    "open_unlabelled",
]


@dataclass(frozen=True)
class FileReader:
    """Reads files of a folder."""

    folder: Path
    names: Sequence[str]
    crop: Crop | None
    decodes: ClassVar[bool] = True

    def __call__(self, position: int) -> Bytes:
        return read_image(self.folder / self.names[position], self.crop)


@dataclass(frozen=True)
class PublishedReader(FileReader):
    """Reads files that are cropped already: for a network of another size, they are resized."""

    def __call__(self, position: int) -> Bytes:
        crop = self.crop and replace(self.crop, resize=self.crop.size)
        return read_image(self.folder / self.names[position], crop)


def image_names(folder: Path) -> list[str]:
    """Relative paths of all images below a folder, sorted."""
    names = sorted(name for name in files_below(folder) if name.lower().endswith(SUFFIXES))
    if not names:
        shards = sorted(folder.glob("*.tar"))
        hint = f"; for its shards, give {folder}/*.tar" if shards else ""
        raise InputError(f"no images in {folder}: looked for {listed(SUFFIXES)} in it and below{hint}")
    return names


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in a folder."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def labelled_folder(
    folder: Path,
    outputs: Mapping[str, int],
    layout: str,
    crop: Crop | None,
    reader: type[FileReader] = FileReader,
) -> ImageSet:
    """Images of class folders; an image outside of them, or a class without any, is an error."""
    names = image_names(folder)
    tops = [name.partition("/")[0] if "/" in name else "" for name in names]
    outside = [name for name, top in zip(names, tops, strict=True) if top not in outputs]
    if outside:
        raise InputError(f"{folder / outside[0]} is in no class folder, as is expected of this layout")
    empty = sorted(outputs.keys() - set(tops))
    if empty:
        raise InputError(f"{folder / empty[0]} is a class folder without images")
    labels = torch.tensor([outputs[top] for top in tops])
    return ImageSet(reader(folder, names, crop), names, layout, labels, _named(outputs))


def _named(outputs: Mapping[str, int]) -> tuple[str, ...]:
    ranked = tuple(sorted(outputs, key=outputs.__getitem__))
    return imagenet_wnids() if look_like_wnids(ranked) and max(outputs.values()) >= len(ranked) else ranked


def _wnid_folder(folder: Path, inner: Sequence[str]) -> Path:
    """Where the class folders are: there, or one folder further down."""
    for candidate in (folder, *(folder / name for name in inner)):
        if candidate.is_dir() and look_like_wnids(class_folders(candidate)):
            return candidate
    return folder


def is_imagenet(path: Path) -> bool:
    """Class folders named by WordNet, but not those of ImageNet-R."""
    return look_like_wnids(class_folders(_wnid_folder(path, ("val",)))) and not is_imagenet_r(path)


def open_imagenet(request: Request) -> ImageSet:
    folder = _wnid_folder(request.folder, ("val",))
    expected: Collection[str] | None = None if request.partial else imagenet_wnids()
    outputs = wnid_outputs(folder, class_folders(folder), expected)
    return labelled_folder(folder, outputs, "imagenet", request.crop)


def is_imagenet_r(path: Path) -> bool:
    """The 200 classes of ImageNet-R, or nearly: what is wrong is told when it is opened."""
    found = set(class_folders(_wnid_folder(path, ("imagenet-r",))))
    return len(found) <= len(imagenet_r_wnids()) and len(found & set(imagenet_r_wnids())) > 0.9 * 200


def open_imagenet_r(request: Request) -> ImageSet:
    """Labels are outputs among the 1,000 of an ImageNet network, of which 200 can occur."""
    folder = _wnid_folder(request.folder, ("imagenet-r",))
    expected: Collection[str] | None = None if request.partial else imagenet_r_wnids()
    outputs = wnid_outputs(folder, class_folders(folder), expected)
    found = labelled_folder(folder, outputs, "imagenet-r", request.crop)
    classes = sorted(imagenet_wnids().index(wnid) for wnid in imagenet_r_wnids())
    return ImageSet(found.read, found.names, found.layout, found.labels, imagenet_wnids(), tuple(classes))


def has_class_folders(path: Path) -> bool:
    """Whether all images are in folders."""
    return path.is_dir() and bool(class_folders(path)) and all("/" in name for name in image_names(path))


def open_class_folders(request: Request) -> ImageSet:
    """A class for each folder, in the order of their names."""
    outputs = {name: rank for rank, name in enumerate(class_folders(request.folder))}
    return labelled_folder(request.folder, outputs, "class-folders", request.crop)


def open_unlabelled(request: Request) -> ImageSet:
    names = image_names(request.folder)
    return ImageSet(FileReader(request.folder, names, request.crop), names, "unlabelled")

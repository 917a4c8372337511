"""Folders of image files: with a folder for each class, or without labels."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import torch

from acclimate.data.image_set import ImageSet
from acclimate.data.pictures import SUFFIXES, UNREAD, Bytes, Crop, files_below, read_image
from acclimate.data.request import Request
from acclimate.data.wnids import imagenet_r_wnids, imagenet_wnids, look_like_wnids, wnid_outputs
from acclimate.errors import InputError, listed, said

__all__ = [
    "CLASSES",
    "FileReader",
    "Listing",
    "PublishedReader",
    "class_folders",
    "class_list",
    "has_class_folders",
    "image_names",
    "is_imagenet",
    "is_imagenet_r",
    "labelled_folder",
    "list_folder",
    "open_class_folders",
    "open_imagenet",
    "open_imagenet_r",
    "open_unlabelled",
    "outputs_by_name",
    "stated_classes",
]

CLASSES: Final = "classes.txt"
"""Beside class folders: names of all outputs of the network, in their order, one a line."""
_KNOWN_FILES: Final = (CLASSES, "Thumbs.db", "desktop.ini")


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


@dataclass(frozen=True)
class Listing:
    """All that lies in a folder and below it; relative paths, sorted."""

    images: list[str]
    unread: dict[str, str]
    """Files that look like images and are not read, and why."""
    beside: tuple[str, ...]
    """All other files, less those that name the classes."""
    empty: tuple[str, ...]
    """Folders right in it, in and below which there are no images."""

    @property
    def rest(self) -> dict[str, Any]:
        """What is no image, as an `ImageSet` tells it."""
        return {"left_out": self.unread, "beside": self.beside, "empty": self.empty}


def list_folder(folder: Path) -> Listing:
    """What lies in a folder; an error if there are no images."""
    images: list[str] = []
    unread: dict[str, str] = {}
    beside: list[str] = []
    for name in sorted(files_below(folder)):
        lower = name.lower()
        if lower.endswith(SUFFIXES):
            images.append(name)
        elif lower.endswith(UNREAD):
            suffix = Path(lower).suffix
            unread[name] = f"files {suffix} are not read: make them .png or .jpg"
        elif name not in _KNOWN_FILES:
            beside.append(name)
    if not images:
        shards = sorted(folder.glob("*.tar"))
        hint = f"; for its shards, give {folder}/*.tar" if shards else ""
        others = sorted({Path(name).suffix.lower() for name in unread})
        hint = f"; there are files {listed(others, 5)}, which are not read" if others else hint
        raise InputError(f"no images in {folder}: looked for {listed(SUFFIXES)} in it and below{hint}")
    tops = {name.partition("/")[0] for name in images}
    empty = tuple(name for name in class_folders(folder) if name not in tops)
    return Listing(images, unread, tuple(beside), empty)


def image_names(folder: Path) -> list[str]:
    """Relative paths of all images below a folder, sorted."""
    return list_folder(folder).images


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
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """Images of class folders; an image outside of them, or a class without any, is an error.

    ``classes`` are the names of all outputs, where others may have no folder.
    """
    listing = list_folder(folder)
    names = listing.images
    tops = [name.partition("/")[0] if "/" in name else "" for name in names]
    outside = [name for name, top in zip(names, tops, strict=True) if top not in outputs]
    if outside:
        raise InputError(f"{folder / outside[0]} is in no class folder, as is expected of this layout")
    empty = sorted(outputs.keys() - set(tops))
    if empty:
        raise InputError(
            f"{folder / empty[0]} is a class folder without images: take it away, and name all classes in "
            f"{folder / CLASSES}, a line for each output of the network"
        )
    labels = torch.tensor([outputs[top] for top in tops])
    named = _named(outputs) if classes is None else tuple(classes)
    return ImageSet(reader(folder, names, crop), names, layout, labels, named, **listing.rest)


def _named(outputs: Mapping[str, int]) -> tuple[str, ...]:
    """Names of all outputs: ImageNet's, if these are outputs of its networks."""
    known = imagenet_wnids()
    if look_like_wnids(outputs) and all(known[output] == wnid for wnid, output in outputs.items()):
        return known
    return tuple(sorted(outputs, key=outputs.__getitem__))


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
    return replace(found, class_names=imagenet_wnids(), classes=tuple(classes))


def has_class_folders(path: Path) -> bool:
    """Whether all images are in folders."""
    return path.is_dir() and bool(class_folders(path)) and all("/" in name for name in image_names(path))


def open_class_folders(request: Request) -> ImageSet:
    """A class for each folder, in the order of their names, or in that of the lines of `classes.txt`."""
    folders, names = class_folders(request.folder), stated_classes(request.folder)
    outputs = outputs_by_name(request.folder, folders, names or folders)
    return labelled_folder(request.folder, outputs, "class-folders", request.crop, classes=names)


def outputs_by_name(folder: Path, folders: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    """The output of each class folder, as the names of all outputs in their order say."""
    strange = sorted(set(folders) - set(names))
    if strange:
        raise InputError(f"{folder / CLASSES} does not name the class {listed(strange, 3)}")
    ranks = {name: rank for rank, name in enumerate(names)}
    return {name: ranks[name] for name in folders}


def stated_classes(folder: Path) -> tuple[str, ...] | None:
    """Names of a network's outputs, as `classes.txt` in the folder lists them; None where there is none."""
    return class_list(folder / CLASSES) if (folder / CLASSES).is_file() else None


def class_list(path: Path) -> tuple[str, ...]:
    """Names of a network's outputs, one a line, each once."""
    try:
        names = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {said(error)}") from error
    double = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if double or not names:
        raise InputError(
            f"{path} names {listed(double, 3)} more than once" if names else f"{path} names no classes"
        )
    return tuple(names)


def open_unlabelled(request: Request) -> ImageSet:
    listing = list_folder(request.folder)
    reader = FileReader(request.folder, listing.images, request.crop)
    return ImageSet(reader, listing.images, "unlabelled", **listing.rest)

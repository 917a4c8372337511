"""VisDA-C: class folders and `image_list.txt`, a line `class/file label` for each image."""

from __future__ import annotations

from pathlib import Path

import torch

from acclimate.data.folders import FileReader
from acclimate.data.image_set import ImageSet
from acclimate.data.request import Request
from acclimate.errors import InputError, OptionError, said, short

__all__ = ["VISDA_CLASSES", "is_visda_c", "open_visda_c"]

VISDA_CLASSES = (
    "aeroplane", "bicycle", "bus", "car", "horse", "knife",
    "motorcycle", "person", "plant", "skateboard", "train", "truck",
)  # fmt: skip
_LABELS = {str(output) for output in range(len(VISDA_CLASSES))}
_LIST = "image_list.txt"
_SPLITS = ("validation", "train", "test")


def is_visda_c(path: Path) -> bool:
    return path.is_dir() and any((path / split / _LIST).exists() for split in ("", *_SPLITS))


def open_visda_c(request: Request) -> ImageSet:
    """One split, by default validation, which the paper adapts to; or the folder of a split itself."""
    folder = request.folder
    if not (folder / _LIST).exists():
        found = [split for split in _SPLITS if (folder / split / _LIST).exists()]
        usual = [split for split in found if split == "train" or not request.training]
        folder = folder / request.chosen("split", usual[:1] if request.split is None else found)
    elif request.split not in (None, folder.name):
        raise OptionError(f"{folder} is itself a split: give the folder above it to choose {request.split!r}")
    names, labels = _listed(folder)
    reader = FileReader(folder, names, request.crop)
    return ImageSet(reader, names, "visda-c", torch.tensor(labels), VISDA_CLASSES)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a list: {said(error)}") from error


def _is_below(folder: Path, name: str) -> bool:
    """Whether there is such a file; those of other folders are none of this list's."""
    try:
        return ".." not in Path(name).parts and not Path(name).is_absolute() and (folder / name).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _listed(folder: Path) -> tuple[list[str], list[int]]:
    names: list[str] = []
    labels: list[int] = []
    seen: set[str] = set()
    path = folder / _LIST
    for number, line in enumerate(_lines(path), start=1):
        name, _, label = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not name or label not in _LABELS:
            got = short(repr(line))
            raise InputError(f"{path}, line {number}: expected a file and a label below 12, got {got}")
        top = name.partition("/")[0]
        if top in VISDA_CLASSES and VISDA_CLASSES.index(top) != int(label):
            raise InputError(
                f"{path}, line {number}: label {label} is {VISDA_CLASSES[int(label)]}, not {top}"
            )
        if name in seen:
            raise InputError(f"{path}, line {number}: {short(name)} is listed twice")
        if not _is_below(folder, name):
            raise InputError(f"{path}, line {number}: there is no file {short(folder / name)}")
        seen.add(name)
        names.append(name)
        labels.append(int(label))
    if not names:
        raise InputError(f"{path} lists no images")
    return names, labels

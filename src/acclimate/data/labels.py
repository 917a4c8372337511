"""Labels of images, as files and folders state them, and which outputs of a network they are."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from acclimate.data.folders import CLASSES, class_folders, class_list, stated_classes
from acclimate.data.image_set import ImageSet
from acclimate.data.wnids import imagenet_wnids, look_like_wnids
from acclimate.errors import InputError, counted, listed, said, short

__all__ = [
    "Numbers",
    "Stated",
    "labelled_for",
    "labels_in_file",
    "labels_of_set",
    "output_numbers",
    "whole_numbers",
]

_FILE = ("file", "filename", "file_name", "image", "path", "name", "id")
_LABEL = ("label", "class", "class_name", "target", "labels", "y")


@dataclass(frozen=True)
class Stated:
    """A label for each image: outputs of the network, or names of classes."""

    labels: Tensor | Sequence[str]
    classes: Sequence[str] | None = None
    """All classes that the labels are of, in their order; None where that is not known."""
    outputs: Sequence[str] | None = None
    """Names of the network's outputs, as somebody says."""
    origin: str = "the labels"

    def __len__(self) -> int:
        return len(self.labels)


def labels_of_set(images: ImageSet, names: Sequence[str] | None = None) -> Stated | None:
    """The labels that images have of their own, by a file or by their class folders; None without any.

    ``names`` are those of the network's outputs, if the user gives them.
    """
    known = images.class_names
    if images.labels is not None and (known is None or not _are_within(images.labels, len(known))):
        return Stated(images.labels)
    if images.labels is not None and known is not None:
        found = [known[label] for label in images.labels.tolist()]
        return Stated(
            found, known, names, "the class folders" if "folders" in images.layout else "the labels"
        )
    folder = getattr(images.read, "folder", None)
    if not isinstance(folder, Path) or not all("/" in name for name in images.names):
        return None
    tops = [name.partition("/")[0] for name in images.names]
    stated = names or stated_classes(folder)
    return Stated(tops, class_folders(folder), stated, f"the class folders of {folder}")


class Numbers(NamedTuple):
    """Labels as outputs of a network."""

    labels: Tensor
    names: Sequence[str] | None
    """Names of all outputs, if they are known."""
    how: str
    """Where the labels come from, and how an output was found for each."""


def output_numbers(stated: Stated, outputs: int) -> Numbers:
    """The output of a network with so many for each label; an error where a label can be none of them."""
    fit = stated.outputs is not None and len(stated.outputs) == outputs
    names = stated.outputs if fit else None
    if isinstance(stated.labels, Tensor):
        _check_range(stated.labels, outputs, stated.origin)
        return Numbers(stated.labels, names, stated.origin)
    order, how = _order(stated, outputs)
    number = {name: output for output, name in enumerate(order)}
    labels = torch.tensor([number[name] for name in stated.labels])
    return Numbers(labels, names or order, f"{stated.origin}, {how}")


def _order(stated: Stated, outputs: int) -> tuple[Sequence[str], str]:
    """Names of the outputs, among which all labels are, and how they were found."""
    known = list(stated.classes) if stated.classes is not None else sorted(set(stated.labels))
    wnids = imagenet_wnids()
    if outputs == len(wnids) and look_like_wnids(known) and set(known) <= set(wnids):
        return wnids, "by ImageNet's numbers"
    if stated.outputs is not None:
        _check_names(stated, outputs)
        return stated.outputs, "by the names of the outputs"
    if stated.classes is not None and len(known) == outputs:
        return known, f"in their order: output 0 is {known[0]!r}, output 1 {known[1]!r}, …"
    raise InputError(
        f"{stated.origin} name {len(known):,} class{'es' * (len(known) != 1)}, {listed(known, 3)}, "
        f"and the network has {outputs} outputs, so that nobody knows which output is which class: expected "
        f"{'numbers of outputs' if stated.classes is None else 'as many classes as outputs'}, ImageNet's "
        f"numbers as names (n01440764), or a {CLASSES} in the folder with the name of each output in its "
        "order, one a line"
    )


def _check_names(stated: Stated, outputs: int) -> None:
    assert stated.outputs is not None
    if len(stated.outputs) != outputs:
        raise InputError(
            f"expected a name for each of {outputs} outputs of the network, got {len(stated.outputs)}"
        )
    strange = sorted(set(stated.labels) - set(stated.outputs))
    if strange:
        raise InputError(
            f"{stated.origin} name {listed(strange, 3)}, not among the names of the outputs: "
            f"{listed(stated.outputs, 5)}"
        )


def labelled_for(images: ImageSet, outputs: int) -> ImageSet:
    """Images whose labels are outputs of a network that has so many; an error if they cannot be."""
    stated = labels_of_set(images)
    if stated is None or images.labels is None:
        return images
    labels = output_numbers(stated, outputs).labels
    return images if torch.equal(labels, images.labels) else replace(images, labels=labels)


def whole_numbers(values: Any, origin: str = "the labels") -> Tensor:
    """Labels as a tensor of whole numbers, one for each image."""
    try:
        found = values if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values))
    except (TypeError, ValueError) as error:
        raise InputError(f"{origin} must be whole numbers or names of classes: {said(error)}") from error
    found = found.detach().cpu()
    found = found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found
    if found.ndim != 1 or found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise InputError(
            f"{origin} must be one whole number for each image, an output of the network, got "
            f"{str(found.dtype).removeprefix('torch.')} of shape {tuple(found.shape)}"
        )
    return found.long()


def labels_in_file(path: Path, images: ImageSet | None, names: Sequence[str] | None) -> Stated:
    """Labels of a CSV file of ``file,label``, or of an array in a ``.npy`` file."""
    if not path.is_file():
        raise InputError(
            f"there is no file of labels at {path}: expected a CSV file of file,label, or a .npy"
        )
    if path.suffix.lower() == ".npy":
        try:
            array = np.load(path, allow_pickle=False)
        except Exception as error:  # numpy raises whatever it meets
            raise InputError(f"{path} cannot be read as an array: {said(error)}") from error
        return Stated(whole_numbers(array, f"the labels of {path}"), origin=f"the labels of {path}")
    if images is None:
        raise InputError(f"{path} has labels by the names of files, which these data have not: give an array")
    by_name = _rows(path, images.names)
    own = _matched(path, by_name, images)
    if all(re.fullmatch(r"-?[0-9]{1,18}", label) for label in own):
        return Stated(torch.tensor([int(label) for label in own]), origin=f"the labels of {path}")
    folder = getattr(images.read, "folder", None)
    stated = names or (stated_classes(folder) if isinstance(folder, Path) else None) or images.class_names
    beside = path.with_name(CLASSES)
    if stated is None and beside.is_file():
        stated = class_list(beside)
    return Stated(own, None, stated, f"the labels of {path}")


def _rows(path: Path, images: Sequence[str]) -> dict[str, str]:
    """The label of every file that a CSV file names."""
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            numbered = enumerate(csv.reader(file), start=1)
            rows = [(number, row) for number, row in numbered if any(cell.strip() for cell in row)]
    except (OSError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a CSV file: {said(error)}") from error
    if not rows:
        raise InputError(f"{path} is empty: expected lines of file,label")
    columns = _columns(path, rows[0][1], images)
    first, second = columns or (0, 1)
    found: dict[str, str] = {}
    for number, row in rows[columns is not None :]:
        if len(row) <= max(first, second) or not row[second].strip():
            raise InputError(f"{path}, row {number}: expected a file and a label, got {short(','.join(row))}")
        name, label = _plain(row[first]), row[second].strip()
        if found.setdefault(name, label) != label:
            raise InputError(f"{path} has two labels of {short(name)}: {found[name]} and {label}")
    return found


def _columns(path: Path, head: Sequence[str], images: Sequence[str]) -> tuple[int, int] | None:
    """Where the first row says that files and labels are; None if it is no header."""
    words = [cell.strip().lower() for cell in head]
    file, label = (
        next((words.index(word) for word in known if word in words), None) for known in (_FILE, _LABEL)
    )
    if file is not None and label is not None:
        return file, label
    if len(head) != 2:
        raise InputError(f"expected the columns file and label in {path}, got {listed(head, 5)}")
    name = _plain(head[0])  # of an image, whose class may be called "target"
    if any(name in (image, image.rpartition("/")[2]) for image in images):
        return None
    if label is not None:
        return 1 - label, label
    return None if file is None else (file, 1 - file)


def _plain(name: str) -> str:
    """The name of a file as images are named."""
    return name.strip().replace("\\", "/").removeprefix("./")


def _matched(path: Path, by_name: Mapping[str, str], images: ImageSet) -> list[str]:
    """The label of each image, by its path or, where no two have the same, by the name of its file.

    A file may have labels of other images too: of a whole data set, of which these are a part.
    """
    bases = [name.rpartition("/")[2] for name in images.names]
    unique = len(set(bases)) == len(bases)
    keys = [
        base if unique and name not in by_name else name
        for name, base in zip(images.names, bases, strict=True)
    ]
    missing = [name for name, key in zip(images.names, keys, strict=True) if key not in by_name]
    if missing:
        raise InputError(
            f"{path} has no label for {len(missing):,} of {counted(len(keys), 'image')}: {listed(missing, 3)}"
        )
    return [by_name[key] for key in keys]


def _are_within(labels: Tensor, outputs: int) -> bool:
    return not len(labels) or (int(labels.min()) >= 0 and int(labels.max()) < outputs)


def _check_range(labels: Tensor, outputs: int, origin: str) -> None:
    if not _are_within(labels, outputs):
        strange = sorted({label for label in labels.tolist() if not 0 <= label < outputs})
        raise InputError(
            f"{origin} must be from 0 to {outputs - 1}, the outputs of the network, got {listed(strange, 3)}"
        )

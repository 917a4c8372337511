"""The classes of ImageNet: WordNet's numbers in the order of the networks' outputs."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from importlib import resources
from pathlib import Path

from acclimate.errors import InputError, listed

__all__ = ["class_ranks", "imagenet_r_wnids", "imagenet_wnids", "look_like_wnids", "wnid_outputs"]


@cache
def imagenet_wnids() -> tuple[str, ...]:
    """All 1,000."""
    return _lines("imagenet_wnids.txt")


@cache
def imagenet_r_wnids() -> tuple[str, ...]:
    """The 200 of ImageNet-R."""
    return _lines("imagenet_r_wnids.txt")


def _lines(name: str) -> tuple[str, ...]:
    return tuple((resources.files(__package__) / name).read_text(encoding="ascii").split())


def look_like_wnids(names: Collection[str]) -> bool:
    """Whether all names are such as n01440764."""
    return bool(names) and all(re.fullmatch(r"n\d{8}", name) for name in names)


def wnid_outputs(folder: Path, names: Collection[str], expected: Collection[str] | None) -> dict[str, int]:
    """The output of each class folder; an error that names folders that are unknown or missing."""
    outputs = {wnid: output for output, wnid in enumerate(imagenet_wnids())}
    strange = sorted(set(names) - outputs.keys())
    if strange:
        raise InputError(f"{folder} has folders that are no class of ImageNet: {listed(strange, 3)}")
    missing = sorted(set(expected or ()) - set(names))
    if missing and expected is not None:
        raise InputError(
            f"{folder} has {len(names):,} of {len(expected):,} class folders: {listed(missing, 3)} missing "
            "(partial=True takes it as it is, the layout class-folders counts its classes from 0)"
        )
    surplus = sorted(set(names) - set(expected)) if expected is not None else []
    if surplus:
        raise InputError(f"{folder} has folders of classes that do not belong there: {listed(surplus, 3)}")
    return {name: outputs[name] for name in names}


def class_ranks(folder: Path, names: Collection[str], *, partial: bool) -> dict[str, int]:
    """The output of each class folder: ImageNet's where they are named so, otherwise their rank."""
    if look_like_wnids(names):
        return wnid_outputs(folder, names, None if partial else imagenet_wnids())
    return {name: rank for rank, name in enumerate(sorted(names))}

"""Image data sets of Hugging Face's hub, by name: `hf:owner/name`, or a folder that `datasets` saved."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from acclimate.data.image_set import ImageSet
from acclimate.data.pictures import Bytes, Crop, eight_bits
from acclimate.data.request import Request
from acclimate.errors import FetchError, InputError, listed

__all__ = ["is_on_hub", "open_hub"]

_PREFIX = "hf:"


@dataclass(frozen=True)
class RowReader:
    """Reads a column of images."""

    rows: Any
    column: str
    crop: Crop | None
    decodes: ClassVar[bool] = True

    def __call__(self, position: int) -> Bytes:
        try:
            image = eight_bits(self.rows[position][self.column])
        except (OSError, SyntaxError, ValueError, AttributeError) as error:
            raise InputError(f"row {position} cannot be read as an image: {error}") from error
        return np.asarray(image if self.crop is None else self.crop(image))


def is_on_hub(path: str) -> bool:
    return path.startswith(_PREFIX)


def open_hub(request: Request) -> ImageSet:
    """A split, by default test, validation or the only one, with the labels that it has."""
    name = request.path.removeprefix(_PREFIX)
    rows = _rows(name, request)
    columns: Sequence[str] = rows.column_names
    kinds = {column: type(feature).__name__ for column, feature in rows.features.items()}
    images = next((column for column, kind in kinds.items() if kind == "Image"), None)
    if images is None:
        raise InputError(f"{name} has no column of images: it has {listed(columns)}")
    labels = next((column for column, kind in kinds.items() if kind == "ClassLabel"), None)
    names = [f"{number:06d}" for number in range(len(rows))]
    own = None if labels is None else torch.tensor(rows[labels][:])
    if own is not None and (own < 0).all():  # as test splits hide them
        own = None
    known = None if labels is None else tuple(rows.features[labels].names)
    return ImageSet(RowReader(rows, images, request.crop), names, "hub", own, known)


def _rows(name: str, request: Request) -> Any:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # which the library reads when it is imported
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise FetchError(f"{request.path} needs datasets: pip install 'acclimate[data]'") from error
    try:
        load = datasets.load_from_disk if name.startswith((".", "/")) else datasets.load_dataset
        found = load(name)
    except Exception as error:  # whatever the library meets: no network, no such name, a script it refuses
        reason = str(error).partition("\n")[0]
        raise FetchError(f"{name} cannot be had from the hub: {reason}") from error
    if not isinstance(found, dict):
        return found
    first = ("train",) if request.training else ("test", "validation", *found)
    usual = [split for split in first if split in found]
    return found[request.chosen("split", usual[:1] if request.split is None else list(found))]

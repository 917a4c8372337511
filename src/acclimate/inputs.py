"""From what a user gives to images as a network wants them: found, cropped, readable, with a normalisation.

`acclimate.adapt`, `Adapter` and the commands all go this way, so that they feed a network the same.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from acclimate.data import ASSUMED, Crop, ImageSet, find_layout, open_data
from acclimate.data.image_set import unreadable, without
from acclimate.data.items import known_pixels
from acclimate.errors import AcclimateWarning, InputError, OptionError
from acclimate.mean_std import MeanStd, fitted, mean_and_std
from acclimate.normalization import normalization_of
from acclimate.prepare import model_info
from acclimate.ranks import Ranks

__all__ = ["Input", "cropped_for", "input_of", "open_images", "opened", "trained_crop"]


@dataclass(frozen=True)
class Input:
    """What an `Adapter` is given."""

    images: Any
    """An `ImageSet` wherever images are known to be pixels; otherwise the data as they came."""
    normalize: MeanStd | None
    left_out: Mapping[str, str]
    """Images that cannot be read, and why."""


def input_of(
    model: nn.Module,
    data: Any,
    *,
    size: int | None = None,
    normalize: str | MeanStd | None = None,
    ranks: str = "together",
) -> Input:
    """Images and their normalisation, read off the network where the user does not say.

    Args:
        data: a path, or what `Adapter.fit` takes.
        size: to which image files are cropped; 0 leaves them, None takes what the network says.
        normalize: as for `Adapter`; None takes what the network says, where images are known to be pixels.
        ranks: as for `Adapter`.
    """
    images = opened(data)
    if isinstance(images, ImageSet):
        normalize = normalization_of(model, normalize)  # first: what is wrong is told before files are read
        images, left_out = _fitting(model, images, size, Ranks(ranks))
        return Input(images, fitted(normalize, images.read(0).shape[-1]), left_out)
    if size is not None:
        raise OptionError(f"size is for image files, and {type(data).__name__} gives images that are ready")
    found, are_pixels = cropped_for(model, data)
    if are_pixels:
        return Input(found, normalization_of(model, normalize), {})
    return Input(found, None if normalize is None else mean_and_std(normalize), {})


def opened(data: Any, layout: str = "auto", **part: Any) -> Any:
    """An `ImageSet` of a path, and of all that is known to be pixels; otherwise the data as they came.

    Labels are not read, and classes may be missing. ``part`` is as for `acclimate.data.open_data`.
    """
    if not isinstance(data, (str, os.PathLike)):
        images = known_pixels(data, ASSUMED)
        return data if images is None else images
    path = os.fspath(data)
    found = find_layout(path) if layout == "auto" else layout
    found = "unlabelled" if found == "class-folders" else found
    return open_data(path, found, partial=True, labels=False, warn=False, **part)


def cropped_for(model: nn.Module, data: Any) -> tuple[Any, bool]:
    """Data with the crop that a network wants, where nobody asked for one, and whether they are pixels."""
    if isinstance(data, (str, os.PathLike)):
        raise InputError(f"expected images, got a path: acclimate.open_data({os.fspath(data)!r}) opens it")
    images = known_pixels(data, ASSUMED)
    if images is not None:
        return images.cropped(trained_crop(model)) if _is_assumed(images) else images, True
    if not (isinstance(data, DataLoader) and isinstance(data.dataset, ImageSet)):
        return data, False
    if _is_assumed(data.dataset) and data.dataset.cropped(trained_crop(model)) is not data.dataset:
        raise InputError(
            "the loader's images are not cropped as the network wants them: give the ImageSet itself, which "
            f"follows the network, or open it with crop={trained_crop(model).size}"
        )
    return data, True


def open_images(
    model: nn.Module,
    data: str | Path,
    *,
    size: int | None = None,
    layout: str = "auto",
    corruption: str | None = None,
    severity: int | None = None,
    split: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[ImageSet, dict[str, str]]:
    """Images as a network wants them, and what is wrong with those that cannot be read.

    Args:
        data: whatever `acclimate.data.open_data` takes. Labels are not needed, so that class folders need
            not be complete.
        size: to which images are cropped; 0 leaves them, None takes what the network says that it was
            trained on, or 224.
        layout: a row of `acclimate.data.LAYOUTS`.
        corruption: of ImageNet-C and CIFAR-C.
        severity: of ImageNet-C and CIFAR-C.
        split: of VisDA-C and of the hub.
    """
    images = opened(data, layout, corruption=corruption, severity=severity, split=split)
    return _fitting(model, images, size, Ranks(), progress)


def _fitting(
    model: nn.Module,
    images: ImageSet,
    size: int | None,
    ranks: Ranks,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[ImageSet, dict[str, str]]:
    """Images of the size that a network wants, and what is wrong with those that cannot be read."""
    if size is not None:
        images = images.cropped(Crop(size) if size else None)
    elif _is_assumed(images):
        images = images.cropped(trained_crop(model))
        if not _says_size(model):
            _tell_of_size(images)
    own = range(len(images))[ranks.share(len(images))]
    found, failed = without(images, ranks.merged(unreadable(images, own, progress)))
    _check_size(model, found)
    return found, {**images.left_out, **failed}


def _is_assumed(images: ImageSet) -> bool:
    return images.crop is not None and images.crop.assumed


def _check_size(model: nn.Module, images: ImageSet) -> None:
    """Images of another size than the published weights were trained on are most often a mistake."""
    info = model_info(model)
    height, width = images.read(0).shape[:2]
    if info is None or info.size is None or (height, width) == (info.size, info.size):
        return
    said = f"{info.origin} says {info.size} by {info.size} pixels, but the images have {width} by {height}"
    if info.assumed:
        warnings.warn(said, AcclimateWarning, stacklevel=3)
        return
    raise InputError(f"{said}: bring them to that size (for image files, leave size out)")


def _tell_of_size(images: ImageSet) -> None:
    """A network that does not say what it wants gets ImageNet's size, which may not be meant."""
    assert images.crop is not None
    wanted = images.crop.size
    try:
        height, width = images.cropped(None).read(0).shape[:2]
    except InputError:  # told of later, with all others that cannot be read
        return
    if (height, width) != (wanted, wanted):
        become = "enlarged" if min(height, width) < wanted else "cropped"
        warnings.warn(
            f"images of {width} by {height} pixels are {become} to {wanted}, as the network does not say "
            "what it was trained on: give their size, or 0 to leave them as they are (size, --size)",
            AcclimateWarning,
            stacklevel=4,
        )


def _says_size(model: nn.Module) -> bool:
    info = model_info(model)
    return info is not None and info.size is not None


def trained_crop(model: nn.Module) -> Crop:
    """The crop that a network was evaluated with, as its weights say; otherwise ImageNet's."""
    info = model_info(model)
    if info is None or info.size is None:
        return Crop()
    return Crop(info.size, info.resize, info.interpolation or "bilinear", squash=info.squash)

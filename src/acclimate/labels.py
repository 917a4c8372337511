"""Labels to measure by: what a user gives for them, or what the data have of their own.

They meet predictions in `acclimate.evaluation` only, after the network has predicted: nothing that adapts
imports this file or is given what it finds.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from acclimate.adapter import Adapter
from acclimate.batches import Batches
from acclimate.data import ImageSet, open_data
from acclimate.data.labels import (
    Numbers,
    Stated,
    labels_in_file,
    labels_of_set,
    output_numbers,
    whole_numbers,
)
from acclimate.errors import AcclimateWarning, InputError, counted, listed, said
from acclimate.prepare import possible_outputs

__all__ = ["OWN", "Numbers", "Truth", "count_logits", "labels_for", "notes_on", "statistics_of"]

OWN: Final = "auto"
"""Stands for the labels that the data have of their own."""
_KEYS: Final = ("labels", "label", "targets", "target", "y")
_NONE: Final = (
    "the data have no labels of their own: expected class folders, an array with labels, a data set or "
    "batches of (images, labels); or give the labels, one for each image, or a CSV file of file,label"
)
_CHUNK: Final = 64


@dataclass(frozen=True)
class Truth:
    """Labels of all images, of which some may turn out to be unreadable."""

    stated: Stated
    names: Sequence[str] | None
    """Names of all images; None where the data are batches or tensors."""

    def targets(self, images: Any, outputs: int) -> Numbers:
        """What a network with so many outputs should predict for each image that can be read."""
        found = output_numbers(self.stated, outputs)
        if self.names is None or not isinstance(images, ImageSet) or len(images) == len(found.labels):
            return found
        there = set(images.names)
        return found._replace(labels=found.labels[torch.tensor([name in there for name in self.names])])


def labels_for(
    asked: Any,
    images: Any,
    *,
    path: str | os.PathLike[str] | None = None,
    names: Sequence[str] | None = None,
    **part: Any,
) -> Truth:
    """Labels for images, one for each; an error in a sentence where there are none, too few or too many.

    Args:
        asked: ``"auto"`` takes what the data have of their own. Otherwise a path to a CSV file of file,label
            or to a `.npy` file, numbers, names of classes, or both by the names of the files.
        images: what they are of: what `acclimate.inputs.opened` gives, or what `Adapter.fit` takes.
        path: where the images were opened, if they were.
        names: of the network's outputs, if they are known.
        **part: which part of the data was opened: layout, corruption, severity, split.
    """
    given = images if isinstance(images, ImageSet) else None
    if isinstance(asked, str) and asked == OWN:
        stated = _own(images, path, names, part)
    elif isinstance(asked, (str, os.PathLike)):
        stated = labels_in_file(Path(asked), given, names)
    elif isinstance(asked, Mapping):
        stated = _by_name(asked, given, names)
    elif _are_names(asked):
        stated = Stated(list(asked), None, names or (given.class_names if given else None))
    else:
        stated = Stated(whole_numbers(asked))
    count = len(given) if given is not None else _count(images)
    if count is not None and len(stated) != count:
        what = "few" if len(stated) < count else "many"
        raise InputError(
            f"too {what} labels: expected one for each of {counted(count, 'image')}, got {len(stated):,}"
        )
    return Truth(stated, None if given is None else list(given.names))


def notes_on(images: Any, asked: Any = None) -> tuple[str, ...]:
    """What lies among the images and is not read, in sentences; ``asked`` is as for `labels_for`."""
    if not isinstance(images, ImageSet):
        return ()
    file = Path(asked).as_posix() if isinstance(asked, (str, os.PathLike)) else ""
    return images.notes([name for name in images.beside if f"/{file}".endswith(f"/{name}")])


def count_logits(model: nn.Module | Adapter, images: Any, device: Any = None) -> int:
    """How many outputs a network has, by its prediction of the first images."""
    if isinstance(model, Adapter) and model.options.classes is not None:
        return max([*possible_outputs(model._engine.prepared.model)[:1], max(model.options.classes) + 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)  # the work itself will tell
        own = model if isinstance(model, Adapter) else Adapter(model, "source", device=device, ranks="alone")
    with _random_states_kept():  # what a data set draws at random stays as it is without labels
        first = next(iter(Batches(images, 2, shuffle=False).epoch(0))).images[:2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AcclimateWarning)
            return int(own.predict(first).shape[1])


def statistics_of(adapter: Adapter, asked: str = "batch") -> str:
    """Which normalisation statistics an adapter predicts with, in words."""
    statistics = adapter._engine.prepared.statistics
    if not statistics.norms:
        return "no statistics of batches, as the network keeps none"
    if asked == "target" and statistics.policy != "source":
        return "the target's statistics, as exported"
    return {
        "source": "the source's statistics",
        "batch": "the statistics of each batch",
        "stream": "statistics of source and stream, mixed",
        "running": "a running average of statistics",
        "blend": "statistics of source and batch, blended",
    }[statistics.policy]


def _own(images: Any, path: Any, names: Sequence[str] | None, part: Mapping[str, Any]) -> Stated:
    if isinstance(images, ImageSet):
        stated = labels_of_set(images, names)
        if stated is None and path is not None:  # of arrays and shards, labels are read if they are wanted
            stated = labels_of_set(open_data(path, partial=True, warn=False, **part), names)
        if stated is None and hasattr(images.read, "items"):
            stated = _of_items(images.read.items)
    else:
        stated = _of_batches(images)
    if stated is None:
        raise InputError(_NONE)
    return stated


def _by_name(asked: Mapping[Any, Any], images: ImageSet | None, names: Sequence[str] | None) -> Stated:
    if images is None:
        raise InputError("labels by the names of files need images that have names: give one for each image")
    missing = [name for name in images.names if name not in asked]
    if missing:
        raise InputError(
            f"expected a label for the name of each of {len(images):,} images, got no label for "
            f"{listed(missing, 3)}"
        )
    values = [asked[name] for name in images.names]
    if _are_names(values):
        return Stated(values, None, names or images.class_names)
    return Stated(whole_numbers(values))


def _of_items(items: Any) -> Stated | None:
    """Read the labels of a list or a data set of pictures, such as torchvision's."""
    targets = getattr(items, "targets", None)
    if targets is None or len(targets) != len(items):
        with _random_states_kept():
            targets = []
            for position in range(len(items)):
                targets.append(_label_at(items, position))
                if targets[-1] is None:
                    return None
    if _are_names(targets):
        return Stated(list(targets))
    numbers = whole_numbers(targets)
    classes: Any = getattr(items, "classes", None)
    if not _are_names(classes) or len(numbers) == 0 or not 0 <= int(numbers.max()) < len(classes):
        return Stated(numbers)
    return Stated(
        [classes[label] for label in numbers.tolist()], list(classes), origin="the data set's classes"
    )


def _label_at(items: Any, position: int) -> Any:
    try:
        return _second(items[position])
    except Exception as error:  # of a damaged file, whatever the data set raises
        raise InputError(
            f"image {position} of the data cannot be read, nor its label: give the labels of all images"
        ) from error


def _of_batches(data: Any) -> Stated | None:
    """Read the labels of a loader, a list of batches or a data set of tensors, in the order of prediction."""
    if isinstance(data, Tensor):
        return None
    order = _order(data)
    images = data.dataset if isinstance(data, DataLoader) else None
    if isinstance(images, ImageSet) and order is not None:
        return labels_of_set(images.subset(order.tolist()))
    with _random_states_kept():
        found = _gathered(_parts(data, order))
        if found is not None and order is None:  # it has an order of its own, which may be another each time
            again = _gathered(_parts(data, order))
            if again is None or not torch.equal(found, again):
                raise InputError(
                    "these data come in another order each time, so that nobody knows which label is whose: "
                    "give a data set, or a loader that does not shuffle"
                )
    return None if found is None else Stated(found)


def _gathered(parts: Iterable[Any]) -> Tensor | None:
    found = []
    for part in parts:
        found.append(_second(part))
        if found[-1] is None:
            return None
    try:
        return whole_numbers(torch.cat([torch.as_tensor(part).reshape(-1).cpu() for part in found]))
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"what comes beside the images must be a number for each, to be their labels: {said(error)}"
        ) from error


def _parts(data: Any, order: Tensor | None) -> Iterable[Any]:
    """What the data give in this order, images with what is beside them."""
    if order is None or isinstance(data, (list, tuple)):
        return data  # type: ignore[no-any-return]
    chunks = [part.tolist() for part in torch.split(order, _CHUNK)]
    if not isinstance(data, DataLoader):
        return DataLoader(data, batch_sampler=chunks)
    return DataLoader(
        data.dataset,
        batch_sampler=chunks,
        num_workers=data.num_workers,
        collate_fn=data.collate_fn,
        worker_init_fn=data.worker_init_fn,
    )


def _second(part: Any) -> Any:
    """What comes beside the images in what a loader or a data set gives; None where nothing does."""
    if isinstance(part, Mapping):
        return next((part[key] for key in _KEYS if key in part), None)
    return part[1] if isinstance(part, (tuple, list)) and len(part) > 1 else None


def _are_names(values: Any) -> bool:
    listed_ = isinstance(values, (list, tuple)) and len(values) > 0
    return listed_ and all(isinstance(value, str) for value in values)


def _count(data: Any) -> int | None:
    """How many images there are, where that is known without reading them."""
    if isinstance(data, Tensor):
        return len(data)
    order = _order(data)
    return None if order is None else len(order)


def _order(data: Any) -> Tensor | None:
    with _random_states_kept():  # a loader draws a seed whenever somebody looks at it
        return Batches(data).order


@contextmanager
def _random_states_kept() -> Iterator[None]:
    """Within, data may be looked at: torch, Python and numpy draw after it what they would have drawn."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)

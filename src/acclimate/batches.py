"""From whatever holds images to `Batch(images, index)`, in an order drawn from a seed.

Batch statistics want batches with many classes, so that data which can be reached by position is
shuffled; the index of each image leads its result back to the user's order. A short last batch is
merged into the one before it. Whatever comes beside the images is ignored: labels cannot leak.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from acclimate.errors import InputError, OptionError
from acclimate.types import Batch

__all__ = ["Batches", "checked_images", "images_of", "in_order"]

IMAGE_KEYS: Final = ("images", "image", "pixel_values", "img", "inputs", "input", "x")


class Batches:
    """Data that can be gone through again and again, each time in the order of a seed.

    Takes a tensor of images, a map-style data set, a `DataLoader`, a list of batches, or anything
    else that can be iterated again and has a length (which then keeps its own order).

    >>> [batch.index.tolist() for batch in Batches(torch.rand(7, 3, 4, 4), 3).epoch(seed=0)]
    [[1, 5, 2], [4, 0, 6, 3]]
    """

    def __init__(self, data: Any, batch_size: int = 64, *, shuffle: bool = True) -> None:
        if batch_size < 1:
            raise OptionError(f"batch_size must be at least 1, got {batch_size}")
        self._shuffle = shuffle
        self._items: Any = None
        self._positions: list[int] | None = None
        self._fixed: list[list[int]] | None = None
        self._loader: DataLoader[Any] | None = None
        if isinstance(data, DataLoader):
            self._from_loader(data)
        elif isinstance(data, Tensor):
            self._items, self._batch_size = _Rows([data]), batch_size
        elif isinstance(data, Dataset) and not isinstance(data, IterableDataset) and isinstance(data, Sized):
            self._from_loader(DataLoader(data, batch_size))
        elif isinstance(data, (list, tuple)) and data:
            self._from_parts([images_of(part) for part in data])
        else:
            self._from_iterable(data)
        if len(self) == 0:
            raise InputError("there are no images in the data")

    @property
    def order(self) -> Tensor | None:
        """The index of every image in the user's order, or nothing where images have no index."""
        if self._items is None:
            return None
        return torch.arange(len(self._items)) if self._positions is None else torch.tensor(self._positions)

    def __len__(self) -> int:
        """Batches in an epoch; one too many where a short last batch of unknown length gets merged."""
        if self._items is None:
            return len(self._iterable)
        return len(self._plan(seed=0))

    def epoch(self, seed: int, *, start: int = 0) -> Iterator[Batch]:
        """All batches in the order of ``seed``, from batch ``start`` on."""
        if self._items is None:
            parts = (Batch(images_of(part)) for part in self._iterable)
            for number, batch in enumerate(_merge_short_last(parts)):
                if number >= start:
                    yield batch
            return
        plan = self._plan(seed)[start:]
        if self._loader is None:
            assert isinstance(self._items, _Rows)
            for rows in plan:
                yield Batch(self._items.gather(rows), torch.tensor(rows))
            return
        for rows, part in zip(plan, _reordered(self._loader, plan, seed), strict=True):
            yield Batch(images_of(part), torch.tensor(rows))

    def _from_loader(self, loader: DataLoader[Any]) -> None:
        by_position = not isinstance(loader.dataset, IterableDataset) and loader.batch_sampler is not None
        if not by_position:
            self._from_iterable(loader)
            return
        self._loader = loader
        self._items = loader.dataset
        sampler = getattr(loader.batch_sampler, "sampler", None)
        if loader.batch_size is None or sampler is None:
            # The user composes the batches: they are taken as they are.
            self._fixed = [list(rows) for rows in loader.batch_sampler or ()]
            self._positions = [row for rows in self._fixed for row in rows]
            return
        self._batch_size = loader.batch_size
        plain = isinstance(sampler, (SequentialSampler, RandomSampler))
        self._positions = None if plain else list(sampler)

    def _from_parts(self, parts: list[Tensor]) -> None:
        if parts[0].ndim == 3 and len(parts[0]) <= 4:
            raise InputError(
                f"a list must hold batches (N, C, H, W), got one of the shape {tuple(parts[0].shape)}: "
                "put single images together by torch.stack"
            )
        self._items, self._batch_size = _Rows(parts), len(parts[0])
        if not self._shuffle:
            ends = torch.tensor([len(part) for part in parts]).cumsum(0).tolist()
            self._fixed = _merged(
                [list(range(end - len(part), end)) for end, part in zip(ends, parts, strict=True)]
            )

    def _from_iterable(self, data: Any) -> None:
        if not isinstance(data, Iterable) or not isinstance(data, Sized):
            raise InputError(
                "the data must be images, a data set, a loader or another iterable that has a length and "
                f"can be iterated again, got {type(data).__name__}: a generator becomes one by list(...)"
            )
        self._iterable: Any = data

    def _plan(self, seed: int) -> list[list[int]]:
        """The rows of every batch."""
        if self._fixed is not None:
            return self._fixed
        order = list(range(len(self._items))) if self._positions is None else self._positions
        if self._shuffle:
            generator = torch.Generator().manual_seed(seed)
            order = [order[i] for i in torch.randperm(len(order), generator=generator).tolist()]
        return _merged([order[i : i + self._batch_size] for i in range(0, len(order), self._batch_size)])


def _merged(plan: list[list[int]]) -> list[list[int]]:
    """A short last batch goes into the one before it."""
    if len(plan) > 1 and len(plan[-1]) < len(plan[-2]):
        return [*plan[:-2], plan[-2] + plan[-1]]
    return plan


class _Rows:
    """Single images out of a list of batches, without putting the batches together."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self._parts = parts
        self._rows = [(part, row) for part, images in enumerate(parts) for row in range(len(images))]

    def __len__(self) -> int:
        return len(self._rows)

    def gather(self, positions: Sequence[int]) -> Tensor:
        if len(self._parts) == 1:
            return self._parts[0][torch.tensor(positions, device=self._parts[0].device)]
        return torch.stack([self._parts[part][row] for part, row in (self._rows[i] for i in positions)])


def images_of(part: Any) -> Tensor:
    """The images in what a loader gives: a tensor, the first of a tuple, or a dict's image entry."""
    if isinstance(part, Batch):
        part = part.images
    elif isinstance(part, Mapping):
        key = next((key for key in IMAGE_KEYS if key in part), None)
        if key is None:
            raise InputError(f"a batch that is a dict needs one of the keys {IMAGE_KEYS}, got {list(part)}")
        part = part[key]
    elif isinstance(part, (tuple, list)) and part:
        part = part[0]
    if not isinstance(part, Tensor) or part.ndim < 2:
        got = f"shape {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
        raise InputError(f"a batch must be a tensor of images, or hold one first or by name, got {got}")
    return part


def checked_images(images: Tensor, device: torch.device, dtype: torch.dtype, *, single: bool) -> Tensor:
    """Images on a device that can take part in a backward pass, or a clear error.

    ``single`` says whether the network can normalise a batch of one image.
    """
    if not isinstance(images, Tensor) or not images.is_floating_point():
        got = str(images.dtype) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(
            f"images must be a tensor of floating-point numbers, got {got}: "
            "bytes become pixels in [0, 1] by images.float() / 255"
        )
    if images.ndim < 2 or len(images) == 0:
        raise InputError(f"images must be a batch (N, C, H, W), got the shape {tuple(images.shape)}")
    if len(images) == 1 and not single:
        raise InputError(
            "a batch of one image has no batch statistics: give more images at once, or choose "
            'statistics="running" or statistics="blend", which work with single images'
        )
    with torch.inference_mode(False), torch.no_grad():
        images = images.clone() if images.is_inference() else images.detach()
        images = images.to(device, dtype)
        # a sum is not finite if one pixel is not, and needs no memory
        if not math.isfinite(
            images.sum(dtype=torch.float64 if dtype == torch.float64 else torch.float32).item()
        ):
            bad = (~torch.isfinite(images.flatten(1)).all(1)).nonzero().flatten().tolist()
            raise InputError(f"the images at positions {bad} of the batch hold NaN or infinite pixels")
    return images


def in_order(parts: Sequence[tuple[Tensor, Tensor | None]], order: Tensor | None) -> Tensor:
    """Put rows that came with an index back into the user's order."""
    rows = torch.cat([part for part, _ in parts])
    if order is None:
        return rows
    index = torch.cat([index for _, index in parts if index is not None])
    where = torch.empty(int(index.max()) + 1, dtype=torch.long)
    where[index] = torch.arange(len(index))
    return rows[where[order]]


def _merge_short_last(batches: Iterable[Batch]) -> Iterator[Batch]:
    previous: Batch | None = None
    last: Batch | None = None
    for batch in batches:
        if previous is not None:
            yield previous
        previous, last = last, batch
    if previous is not None and last is not None and len(last.images) < len(previous.images):
        yield Batch(torch.cat([previous.images, last.images]))
        return
    yield from (batch for batch in (previous, last) if batch is not None)


def _reordered(loader: DataLoader[Any], plan: list[list[int]], seed: int) -> Iterator[Any]:
    """The user's loader with our order: same data set, workers and collation."""
    generator = torch.Generator().manual_seed(seed)
    again: DataLoader[Any] = DataLoader(
        loader.dataset,
        batch_sampler=plan,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        generator=generator,
    )
    return iter(again)

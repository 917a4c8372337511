"""From whatever holds images to `Batch(images, index)`, in an order drawn from a seed.

Batch statistics want batches with many classes, so that data which can be reached by position is
shuffled; the index of each image leads its result back to the user's order. A short last batch is
merged into the one before it. Whatever comes beside the images is ignored: labels cannot leak.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from acclimate.errors import InputError, checked_count
from acclimate.images import images_of
from acclimate.ranks import ALONE, Ranks
from acclimate.types import Batch

__all__ = ["Batches", "in_order"]

Plan = list[list[int]]
"""The positions of the images of every batch of an epoch."""
_BORROWED: Final = threading.Lock()


class Batches:
    """Data that can be gone through again and again, each time in the order of a seed.

    Takes a tensor of images, a map-style data set, a `DataLoader`, a list of batches, or anything
    else that can be iterated again and has a length (which then keeps its own order). Every rank is
    given all of it, and gets its share of each batch; ``convert`` makes of it what the network takes.

    >>> [len(batch.images) for batch in Batches(torch.rand(7, 3, 4, 4), batch_size=3).epoch(seed=0)]
    [3, 4]
    """

    def __init__(
        self,
        data: Any,
        batch_size: int = 64,
        *,
        shuffle: bool = True,
        ranks: Ranks = ALONE,
        convert: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        checked_count("batch_size", batch_size)
        self._ranks = ranks
        self._convert = convert
        self.shuffle = shuffle
        self.order: Tensor | None = None
        """The index of every image in the user's order, or nothing where images have no index."""
        self._batch_size = batch_size
        self._compose: Callable[[int], Plan] | None = None
        self._fetch: Callable[[Plan, int], Iterator[Tensor]] | None = None
        if isinstance(data, Tensor):
            self._from_parts([data])
        elif isinstance(data, (list, tuple)) and data:
            parts = [images_of(part) for part in data]
            self._batch_size = len(parts[0])
            self._from_parts(parts)
        elif isinstance(data, Dataset) and callable(getattr(data, "batch", None)):
            self._from_positions(data)
        elif _is_map_style(data):
            self._from_loader(DataLoader(data, batch_size))
        elif isinstance(data, DataLoader) and _can_be_reordered(data):
            self._from_loader(data)
        else:
            self._from_iterable(data)
        if len(self) == 0:
            raise InputError("there are no images in the data")

    def __len__(self) -> int:
        """Batches in an epoch; one too many where a short last batch of unknown size gets merged."""
        return len(self._iterable) if self._fetch is None else len(self._plan(seed=0))

    def epoch(self, seed: int, *, start: int = 0) -> Iterator[Batch]:
        """All batches in the order of ``seed``, from batch ``start`` on; of each, what is this rank's."""
        found = self._shares(seed, start)
        if self._convert is not None:
            found = (Batch(self._convert(batch.images), batch.index) for batch in found)
        return self._ranks.every(found)

    def _shares(self, seed: int, start: int) -> Iterator[Batch]:
        share = self._ranks.share
        if self._fetch is None:
            parts = (Batch(images_of(part)) for part in self._iterable)
            for number, batch in enumerate(_merge_short_last(parts)):
                if number >= start:
                    yield Batch(batch.images[share(len(batch.images))])
            return
        plan = [rows[share(len(rows))] for rows in self._plan(seed)[start:]]
        for rows, images in zip(plan, self._fetch(plan, seed), strict=True):
            yield Batch(images, torch.tensor(rows))

    def _plan(self, seed: int) -> Plan:
        if self._compose is not None:
            return _merged(self._compose(seed))
        assert self.order is not None
        order = self.order
        if self.shuffle:
            order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))]
        return _merged([part.tolist() for part in torch.split(order, self._batch_size)]) if len(order) else []

    def _from_parts(self, parts: list[Tensor]) -> None:
        if len(parts) > 1 and parts[0].ndim == 3 and len(parts[0]) <= 4:
            raise InputError(
                f"a list must hold batches (N, C, H, W), got one of the shape {tuple(parts[0].shape)}: "
                "put single images together by torch.stack"
            )
        shapes = {tuple(part.shape[1:]) for part in parts}
        if len(shapes) > 1:
            raise InputError(f"the batches of a list must hold images of one size, got {sorted(shapes)}")
        rows = [(part, row) for part in parts for row in range(len(part))]
        self.order = torch.arange(len(rows))
        if len(parts) > 1 and not self.shuffle:
            sizes = [len(part) for part in parts]
            self._compose = lambda _: [part.tolist() for part in torch.split(torch.arange(len(rows)), sizes)]

        def gather(positions: list[int]) -> Tensor:
            if len(parts) == 1:
                return parts[0][torch.tensor(positions, device=parts[0].device)]
            return torch.stack([part[row] for part, row in (rows[i] for i in positions)])

        self._fetch = lambda plan, _: (gather(positions) for positions in plan)

    def _from_positions(self, data: Any) -> None:
        """A data set that gives whole batches by position; the next one is read while this one is used."""
        self.order = torch.arange(len(data))
        self._fetch = lambda plan, _: _read_ahead(data.batch, plan)

    def _from_loader(self, loader: DataLoader[Any]) -> None:
        if self._ranks.size > 1 and isinstance(loader.sampler, DistributedSampler):
            raise InputError(
                "every batch is shared out among the ranks here: give each of them a loader of all images, "
                "without a DistributedSampler"
            )
        self._fetch = lambda plan, seed: map(images_of, _collated(_reordered(loader, plan, seed)))
        if loader.batch_size is None:
            # The user composes the batches; a sampler that draws at random draws anew in every epoch.
            self._compose = lambda seed: [list(rows) for rows in _drawn(loader.batch_sampler, seed)]
            flat = [[i for rows in self._compose(seed) for i in rows] for seed in (0, 1)]
            self.order = torch.tensor(flat[0] if flat[0] == flat[1] else sorted(set(flat[0])))
            return
        self._batch_size = loader.batch_size
        if _covers_all(loader.sampler, loader.dataset):
            self.order = torch.arange(len(loader.dataset))  # type: ignore[arg-type]
            return
        draws = [_drawn(loader.sampler, seed) for seed in (0, 1)]
        # Where the sampler has no order of its own, results come in that of the data set.
        self.order = torch.tensor(draws[0] if draws[0] == draws[1] else sorted(draws[0]))

    def _from_iterable(self, data: Any) -> None:
        kind = type(data).__name__
        if not isinstance(data, Iterable):
            raise InputError(
                f"the data must be images, a data set, a loader or a list of batches, got {kind}"
            )
        try:
            len(data)  # type: ignore[arg-type]
        except TypeError:
            raise InputError(
                f"fit and predict need data with a length, which this {kind} has not: give a list of its "
                "batches, or adapt online, batch by batch"
            ) from None
        if iter(data) is data:
            raise InputError(f"this {kind} can be gone through only once: give the loader itself, or a list")
        self._iterable: Any = data


def in_order(parts: Sequence[tuple[Tensor, Tensor | None]], order: Tensor | None) -> Tensor:
    """Put rows that came with an index back into the user's order."""
    rows = torch.cat([part for part, _ in parts])
    if order is None:
        return rows
    index = torch.cat([index for _, index in parts if index is not None])
    where = torch.full((int(max(index.max(), order.max())) + 1,), -1)
    where[index] = torch.arange(len(index))
    if (where[order] < 0).any():
        order = index.sort().values  # a sampler drew other images this time: those, in the data set's order
    return rows[where[order]]


def _read_ahead(batch: Callable[[list[int]], Tensor], plan: Plan) -> Iterator[Tensor]:
    if not plan:  # interrupted after the last batch of an epoch: nothing of it is left
        return
    with ThreadPoolExecutor(1, thread_name_prefix="acclimate-read") as reader:
        waiting = [reader.submit(batch, plan[0])]
        for positions in [*plan[1:], None]:
            images = waiting.pop().result()
            if positions is not None:
                waiting.append(reader.submit(batch, positions))
            yield images


def _merged(plan: Plan) -> Plan:
    """A short last batch goes into the one before it."""
    if len(plan) > 1 and len(plan[-1]) < len(plan[-2]):
        return [*plan[:-2], plan[-2] + plan[-1]]
    return plan


def _merge_short_last(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same for batches that come one by one."""
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


def _is_map_style(data: Any) -> bool:
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return False
    return isinstance(data, Dataset) or not isinstance(data, Iterable)


def _can_be_reordered(loader: DataLoader[Any]) -> bool:
    """Whether a loader does no more than its parts say: a subclass may change what it gives."""
    own = type(loader).__iter__ is DataLoader.__iter__ and not isinstance(loader.dataset, IterableDataset)
    batches = loader.batch_sampler
    return own and batches is not None and (loader.batch_size is None or type(batches) is BatchSampler)


def _covers_all(sampler: Any, dataset: Any) -> bool:
    """Whether a sampler goes through the whole data set, in turn or in a random order."""
    if isinstance(sampler, RandomSampler):
        return not sampler.replacement and sampler.num_samples == len(dataset)
    return isinstance(sampler, SequentialSampler)


def _drawn(sampler: Any, seed: int) -> list[Any]:
    """What a sampler gives, drawn from a seed; torch's global generator is put back as it was.

    All threads share it, so that one of them borrows it at a time.
    """
    with _BORROWED, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return list(sampler)


def _collated(parts: Iterator[Any]) -> Iterator[Any]:
    """What a loader gives; in a sentence, if its data set gives pictures, which torch cannot put together."""
    try:
        yield from parts
    except TypeError as error:
        if "default_collate" not in str(error) or "PIL." not in str(error):
            raise
        raise InputError(
            "the loader's data set gives Pillow's images, which torch does not put together: give the data "
            "set itself, without a loader, or a transform that makes tensors of them"
        ) from error


def _reordered(loader: DataLoader[Any], plan: Plan, seed: int) -> Iterator[Any]:
    """The user's loader with our order: same data set, workers and collation."""
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
        generator=torch.Generator().manual_seed(seed),
    )
    return iter(again)

"""Processes that adapt one network together, each with its share of every batch, by `torch.distributed`.

Every rank holds the same parameters and makes the same steps. What a step takes from all images, it takes
over all ranks; what it does with its own images stays with it:

    mean            of one row per image: the value of all images, with the gradient of the rank's own
    sum_gradients   which so add up to the gradient that one process with all images would have
    combined        mean and variance of a batch norm's input
    rows            what every rank has found out about its own images, put together

One process alone is the usual case, in which nothing here costs anything.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from acclimate.errors import AcclimateError, InputError, OptionError, WorkerError, unknown

__all__ = ["ALONE", "RANKS", "Ranks"]

if dist.is_available():
    # Before there is a process group: functions of this module keep, as a default argument, the one that is
    # there when it is first imported (torch 2.13; torchvision imports it, by torch._dynamo). It then outlives
    # destroy_process_group, and so do gloo's threads. If one of them still drops a tensor while Python ends,
    # it is unwound through C++ destructors: "terminate called without an active exception", exit code -6.
    import torch.distributed.nn.functional

RANKS: Final = ("together", "local", "alone")
"""What the processes of a job do: adapt one network, with batch statistics of all images or of each one's
own; or each its own network."""

_Made = TypeVar("_Made")


class Ranks:
    """This process among those that adapt with it.

    >>> Ranks("together").size  # where nobody has called torch.distributed.init_process_group
    1
    """

    def __init__(self, mode: str = "together") -> None:
        if mode not in RANKS:
            raise OptionError(unknown("ranks", mode, RANKS))
        joined = mode != "alone" and dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if joined else 1
        self.rank = dist.get_rank() if joined else 0
        self.mode = mode if self.size > 1 else "alone"
        self.synchronised = self.mode == "together"
        """Whether batch statistics are those of all images."""
        self.side_by_side = int(os.environ.get("LOCAL_WORLD_SIZE", self.size)) if joined else 1
        """Ranks that share this machine's memory."""
        self.broken = False
        """Whether another rank is gone, so that this one is by itself."""
        self.counts: tuple[int, ...] = (1,) * self.size
        """Images that each rank has of the batch at hand."""
        self._weights: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        """The same as shares."""

    def __deepcopy__(self, memo: object) -> Ranks:
        return self  # a copy of an adapter is of the same job

    @property
    def writes(self) -> bool:
        """Whether files are this rank's to write: the first one's, and if a rank is gone, of who is left."""
        return self.rank == 0 or self.broken

    def share(self, count: int) -> slice:
        """Which images of a batch are this rank's.

        >>> ALONE.share(5)
        slice(0, 5, None)
        """
        if count < self.size:
            raise InputError(f"a batch of {count} images cannot be shared out among {self.size} ranks")
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def scaled(self, count: int) -> int:
        """How many of something there are on all ranks, which have it in proportion to their images."""
        return count * sum(self.counts) // self.counts[self.rank] if self.synchronised else count

    def meet(self, make: Callable[[], Tensor]) -> Tensor:
        """Make this rank's images of a batch, and wait for the others; if one cannot, all of them know."""
        if self.size == 1:
            return make()
        failure: AcclimateError | None = None
        images: Tensor | None = None
        try:
            images = make()
        except AcclimateError as error:
            failure = error
        count = torch.tensor([0 if images is None else len(images)], device=self._device)
        counts = tuple(self._gathered(count).flatten().tolist())
        if failure is not None:
            raise failure
        if 0 in counts:
            raise WorkerError(_refused(counts.index(0)))
        assert images is not None
        if counts != self.counts:
            self.counts = counts
            self._weights.clear()
        return images

    def every(self, parts: Iterator[_Made]) -> Iterator[_Made]:
        """The same, once every rank has the next of its own; if one cannot read it, all of them know."""
        if self.size == 1:
            yield from parts
            return
        while True:
            failure, part = None, None
            try:
                part = next(parts, None)
            except AcclimateError as error:
                failure = error
            flags = self._gathered(torch.tensor([int(failure is not None)], device=self._device)).flatten()
            if failure is not None:
                raise failure
            if flags.any():
                raise WorkerError(_refused(int(flags.argmax())))
            if part is None:
                return
            yield part

    def mean(self, values: Tensor) -> Tensor:
        """Over the rows of all ranks, in proportion to their images, with the gradient of the own rows.

        >>> ALONE.mean(torch.tensor([1.0, 2.0]))
        tensor(1.5000)
        """
        if self.size == 1:
            return values.mean() if values.ndim == 1 else values.mean(0)
        own = values.sum(0) / sum(self.counts)
        return self.sum(own.detach().clone()) + (own - own.detach())

    def sum(self, x: Tensor) -> Tensor:
        """Over all ranks, in place."""
        if self.size > 1:
            with self._answering():
                dist.all_reduce(x)
        return x

    def sums(self, *parts: Tensor) -> Sequence[Tensor]:
        """Of tensors of the same shape, each over all ranks, if batch statistics are."""
        return self.sum(torch.stack(parts)).unbind() if self.synchronised else parts

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Over all ranks; a parameter that got a gradient nowhere has none."""
        if self.size == 1:
            return
        moved = list(parameters)
        there = torch.tensor([float(p.grad is not None) for p in moved], device=moved[0].device)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in moved]
        flat = self.sum(torch.cat([*(part.reshape(-1) for part in parts), there]))
        *made, counts = torch.split(flat, [*(p.numel() for p in moved), len(moved)])
        missing = [p.grad is None for p in moved]
        anywhere = counts.tolist() if any(missing) else [1] * len(moved)
        for parameter, part, ranks in zip(moved, made, anywhere, strict=True):
            if ranks:
                parameter.grad = part.view_as(parameter).to(parameter.dtype)

    def combined(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of all images from those of each rank's own."""
        if not self.synchronised:
            return mean, var
        means, variances = self._gathered(torch.stack([mean, var])).unbind(1)
        key = (mean.dtype, mean.device)
        if key not in self._weights:  # once for a batch, and not for each of its norms
            self._weights[key] = mean.new_tensor(self.counts).div_(sum(self.counts)).unsqueeze(1)
        weights = self._weights[key]
        mean = (weights * means).sum(0)
        return mean, (weights * (variances + (means - mean).square())).sum(0)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of every channel, through which the gradient flows to all ranks."""
        dims = [0, *range(2, x.ndim)]
        if not self.synchronised:
            var, mean = torch.var_mean(x, dims, correction=0)
            return mean, var
        count = self.scaled(x.numel() // x.shape[1])
        mean = _Sum.apply(x.sum(dims), self) / count  # type: ignore[no-untyped-call]
        off = x - mean.view(1, -1, *[1] * (x.ndim - 2))
        return mean, _Sum.apply(off.square().sum(dims), self) / count  # type: ignore[no-untyped-call]

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Of tensors that every rank has from its own images, in proportion to these."""
        if self.size == 1 or not tensors:
            return list(tensors)
        share = self.counts[self.rank] / sum(self.counts)
        flat = self.sum(torch.cat([tensor.reshape(-1) for tensor in tensors]) * share)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def rows(self, x: Tensor) -> Tensor:
        """The rows of all ranks, the first rank's first."""
        if self.size == 1:
            return x
        lengths = self._gathered(torch.tensor([len(x)], device=self._device)).flatten().tolist()
        longest = torch.zeros(max(lengths), *x.shape[1:], dtype=x.dtype, device=self._device)
        longest[: len(x)] = x
        parts = self._gathered(longest)
        found = torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
        return found.to(x.device)

    def any(self, flags: Tensor) -> Tensor:
        """Which of them are set on any rank."""
        return flags if self.size == 1 else self.sum(flags.int()).bool()

    def least(self, value: float | None) -> float | None:
        """The smallest of all ranks; those that know none do not count."""
        if self.size == 1:
            return value
        own = torch.tensor([torch.inf if value is None else value], device=self._device, dtype=torch.float64)
        smallest = self._gathered(own).min().item()
        return None if smallest == torch.inf else smallest

    def most(self, value: int) -> int:
        """The largest of all ranks."""
        if self.size == 1:
            return value
        return int(self._gathered(torch.tensor([value], device=self._device)).max())

    def first(self, make: Callable[[], _Made]) -> _Made:
        """What the first rank makes, for all; its error is everybody's."""
        if self.size == 1:
            return make()
        given: list[Any] = [None, None]
        if self.rank == 0:
            try:
                given = [make(), None]
            except AcclimateError as error:
                given = [None, error]
        with self._answering():
            dist.broadcast_object_list(given, device=self._device)
        if given[1] is not None:
            raise given[1]
        made: _Made = given[0]
        return made

    def merged(self, own: dict[Any, _Made]) -> dict[Any, _Made]:
        """What every rank has found, in one."""
        if self.size == 1:
            return own
        found: list[Any] = [None] * self.size
        with self._answering():
            dist.all_gather_object(found, own)
        return {key: value for part in found for key, value in part.items()}

    def check_device(self, device: torch.device) -> None:
        """An error if the ranks cannot hand each other tensors of this device."""
        known = dist.get_backend_config() if self.size > 1 else ""
        if self.size > 1 and f"{device.type}:" not in known:
            raise OptionError(
                f"the ranks of this job talk by {known}, and the network is on {device.type}: give "
                f'device=, or a backend for both to init_process_group ("cpu:gloo,cuda:nccl")'
            )

    def check_same(self, what: str, value: object) -> None:
        """An error on all ranks if they do not have the same."""
        if self.size == 1:
            return
        found: list[Any] = [None] * self.size
        with self._answering():
            dist.all_gather_object(found, repr(value))
        other = next((rank for rank, text in enumerate(found) if text != found[0]), None)
        if other is not None:
            raise OptionError(
                f"all ranks must be given the same {what}, and rank {other} has another one than rank 0; "
                'ranks="alone" lets each adapt by itself'
            )

    def _gathered(self, x: Tensor) -> Tensor:
        """One of each rank, along a new first dimension."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        with self._answering():
            dist.all_gather(parts, x)
        return torch.stack(parts)

    @property
    def _device(self) -> torch.device:
        """Where the ranks can hand each other tensors."""
        return torch.device("cpu" if "gloo" in dist.get_backend_config() else "cuda")

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Within, another rank that is gone or does not answer is a clear error."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.broken = True
            # without the place in the backend's source, and its advice
            said = re.sub(r"^\[[^\]]*\]\s*", "", str(error).strip()).partition("\n")[0].partition(". ")[0]
            raise WorkerError(
                f"another rank died, or did not answer in time: rank {self.rank} of {self.size} ends ({said})"
            ) from error


def _refused(rank: int) -> str:
    return f"rank {rank} cannot use its images of this batch, and says why"


class _Sum(torch.autograd.Function):
    """Over ranks, of which each has its own part of the loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.sum(x.clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.sum(gradient.clone()), None


ALONE: Final = Ranks("alone")

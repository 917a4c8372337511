"""What a step shows of itself, as numbers of Python: by one transfer from the device, or by `measures.c`.

torch takes a call for every vector whose length is asked for, and a network has hundreds that adapt.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from acclimate.fast.compiling import compiled
from acclimate.ranks import ALONE, Ranks

__all__ = ["Measures", "NativeMeasures", "Numbers", "Shown", "native_measures"]


class Shown(NamedTuple):
    """The tensors of one step that are looked at."""

    loss: Tensor
    confidence: Tensor
    p: Tensor
    """The running class distribution."""
    gradients: Sequence[Tensor]
    now: Sequence[Tensor] = ()
    """Parameters."""
    source: Sequence[Tensor] = ()
    """The same, where they began."""
    logits: Tensor | None = None


class Numbers(NamedTuple):
    """What is seen of them."""

    loss: float
    confidence: float
    class_entropy: float
    """Of p."""
    gradient_norm: float
    """The length of all gradients, taken as one vector."""
    way: float
    """The length of the parameters' way from the source."""
    logit_norm: float | None
    """The mean length of the logits of an image, if there are any."""
    top_share: float
    """The largest entry of p."""


class Measures:
    """By torch, on any device, for the images of all ranks."""

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks

    def way(self, now: Sequence[Tensor], source: Sequence[Tensor]) -> float:
        """The length of the way from the source, taken as one vector."""
        norms = torch._foreach_norm(_ways(now, source))
        return math.hypot(*torch.stack(norms).tolist())

    def __call__(self, shown: Shown) -> Numbers:
        loss, confidence, p, gradients, now, source, logits = shown
        with torch.no_grad():
            moved = [*gradients, *_ways(now, source)]
            norms = torch._foreach_norm(moved) if moved else ()
            values = [loss, confidence, torch.special.entr(p).sum(), p.amax(), *norms]
            if logits is not None:
                values.append(self._ranks.mean(torch.linalg.vector_norm(logits, dim=1)))
            found: list[float] = torch.stack([v.float() for v in values]).tolist()
        length = None if logits is None else found.pop()
        end = 4 + len(gradients)
        lengths = math.hypot(*found[4:end]), math.hypot(*found[end:])
        return Numbers(found[0], found[1], found[2], *lengths, length, found[3])


class NativeMeasures(Measures):
    """By `measures.c`, of parameters that it can read; by torch, where there is something that it cannot."""

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__()
        self._measure = library.measure
        self._measure.argtypes, self._measure.restype = (ctypes.c_char_p, ctypes.c_void_p), None

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return _native_or_torchs, ()

    def way(self, now: Sequence[Tensor], source: Sequence[Tensor]) -> float:
        made = self._measured((), now, source, 0, 0, 0, 0, 0)
        return super().way(now, source) if made is None else made[1]

    def __call__(self, shown: Shown) -> Numbers:
        loss, confidence, p, gradients, now, source, logits = shown
        made = None
        if _is_readable(p) and (logits is None or _is_readable(logits)):
            rows = (0, 0, 0) if logits is None else (logits.data_ptr(), *logits.shape)
            made = self._measured(gradients, now, source, *rows, p.data_ptr(), p.numel())
        if made is None:
            return super().__call__(shown)
        gradient, way, length, entropy, top = made
        norm = None if logits is None else length
        return Numbers(loss.item(), confidence.item(), entropy, gradient, way, norm, top)

    def _measured(
        self, still: Sequence[Tensor], now: Sequence[Tensor], source: Sequence[Tensor], *rest: int
    ) -> list[float] | None:
        """None where a vector lies nowhere, as that of torch's which are zero as a whole."""
        vectors = [*still, *now]
        places = [x.data_ptr() for x in vectors]
        begins = [x.data_ptr() for x in source]
        if 0 in places or 0 in begins:
            return None
        count = len(vectors)
        sizes = [x.numel() for x in vectors]
        nowhere = [0] * len(still)
        given = _layout(count).pack(len(still), count, *rest, *places, *nowhere, *begins, *sizes)
        made = _Five()
        self._measure(given, ctypes.addressof(made))
        return list(made)


_Five: Final = ctypes.c_double * 5


@functools.cache
def _layout(count: int) -> struct.Struct:
    """Of what `measures.c` is given for so many vectors."""
    return struct.Struct(f"llPllPl{2 * count}P{count}l")


def _ways(now: Sequence[Tensor], source: Sequence[Tensor]) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return torch._foreach_sub(list(now), list(source)) if now else ()


def native_measures(parameters: Iterable[Tensor]) -> NativeMeasures | None:
    """For gradients and ways of these; None where they are not of the kind that it reads.

    A gradient lies in memory as its parameter does, and is of the same type: torch sees to that.
    """
    return _native() if all(map(_is_readable, parameters)) else None


def _is_readable(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.is_cpu and x.is_contiguous()


def _native_or_torchs() -> Measures:
    """For a copy: it may be made on another machine, without a compiler."""
    return _native() or Measures()


@functools.cache
def _native() -> NativeMeasures | None:
    """Compiled on the first call on this machine; None without a compiler that can."""
    library = compiled("measures.c")
    return None if library is None else NativeMeasures(library)

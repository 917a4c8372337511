"""Frozen weights in the form that the kernels want: made once, as they never change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.fast.checkpointed import CAN_TELL
from acclimate.fast.once import once_differentiable
from acclimate.fast.packing import (
    Geometry,
    can_pack,
    multiplied,
    pack,
    pack_linear,
    pack_transposed,
    pays_for_products,
)
from acclimate.fast.subpixels import Subpixels
from acclimate.fast.winograd import turned_padding
from acclimate.fast.winograd import winograd as find_winograd

__all__ = ["Weights", "is_packable", "is_plain"]

_MANY_PIXELS: Final = 4096
"""Of the outputs of a convolution: packing its weight is a few per cent of it then, for two more copies."""
_MOST_SHAPES: Final = 64
"""Times that a convolution's weight is packed: with ever other shapes a network is better off without."""


class Weights:
    """Remembers what it made of each weight.

    Args:
        packs: whether weights are packed for oneDNN, where it can be had.
        winograd: whether 3×3 convolutions are computed with fewer products, where that can be had.
    """

    def __init__(self, *, packs: bool = False, winograd: bool = False) -> None:
        self._packs = packs
        self._winograd = find_winograd() if winograd else None
        self._made: dict[tuple[int, str, torch.dtype], _Kept] = {}
        self._own: set[int] = set()
        """Ids of what was made and is kept."""

    def cast(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """A frozen weight in another precision."""
        if weight.dtype == dtype:
            return weight
        return self._kept(weight, "cast", dtype, lambda: _as_kernels_take_it(weight.to(dtype)))

    def stock(self, weight: Tensor, dtype: torch.dtype, form: torch.memory_format) -> Tensor:
        """A convolution's weight as torch wants it: it would lay it out anew in each pass."""
        cast = self.cast(weight, dtype)
        if form != torch.channels_last or cast.is_contiguous(memory_format=form):
            return cast
        return self._kept(cast, "laid out", dtype, lambda: cast.contiguous(memory_format=form))

    def flipped(self, weight: Tensor) -> Tensor:
        """A convolution's weight turned round in all its spatial dimensions."""
        return self._kept(weight, "flipped", weight.dtype, lambda: weight.flip(*range(2, weight.ndim)))

    def packed(self, weight: Tensor, geometry: Geometry, x: Tensor) -> Tensor | None:
        """A convolution's weight as oneDNN reads it for this input; None where that is not to be had."""
        if x.numel() // max(x.shape[1] * math.prod(geometry.stride), 1) > _MANY_PIXELS:
            self._drop(weight, "packed", x)
            return None

        def make(w: Tensor) -> Tensor | None:
            return pack(w, geometry, x.shape) if _fits(weight, geometry, x) else None

        return self._packed(weight, "packed", x, (x.shape, geometry), make, _MOST_SHAPES)

    def packed_transposed(
        self, weight: Tensor, geometry: Geometry, gradient: Tensor, size: Sequence[int]
    ) -> Tensor | None:
        """The same for the gradient of an input of this size."""
        if gradient.numel() // max(gradient.shape[1], 1) > _MANY_PIXELS:
            self._drop(weight, "transposed", gradient)
            return None
        use = (gradient.shape, geometry, size)

        def make(w: Tensor) -> Tensor:
            return pack_transposed(w.contiguous(), geometry, gradient.shape, size)

        return self._packed(weight, "transposed", gradient, use, make, _MOST_SHAPES)

    def packed_subpixels(
        self, weight: Tensor, geometry: Geometry, gradient: Tensor, size: Sequence[int]
    ) -> tuple[Subpixels, Tensor] | None:
        """The same for the gradient of images, and how it is made."""
        if not self.can_pack(weight, gradient):
            return None
        through = Subpixels(geometry, weight.shape[2:], gradient.shape[2:], size)
        use = (gradient.shape, geometry, size)

        def make(w: Tensor) -> Tensor:
            return pack(through.weight(w), through.geometry, gradient.shape)

        # however many shapes there are: what comes out must not depend on what came before
        packed = self._packed(weight, "subpixels", gradient, use, make, None)
        return None if packed is None else (through, packed)

    def convolved_by_winograd(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
    ) -> Tensor | None:
        """A convolution of what lies pixel by pixel; None where it is of another kind."""
        way = self._winograd
        if way is None or not is_plain(weight) or not way.pays(weight, geometry, x):
            return None
        packed = self._kept(weight, "winograd", x.dtype, lambda: way.pack(weight.detach()))
        return way.convolved(x, packed, bias, len(weight), geometry.padding)

    def transposed_by_winograd(self, gradient: Tensor, weight: Tensor, geometry: Geometry) -> Tensor | None:
        """The same for the gradient of its input: a convolution with the kernel turned round."""
        way = self._winograd
        if way is None or not is_plain(weight) or not way.pays(weight, geometry, gradient, turned=True):
            return None

        def make() -> Tensor:
            return way.pack(weight.detach().transpose(0, 1).flip(2, 3))

        packed = self._kept(weight, "winograd, turned", gradient.dtype, make)
        return way.convolved(gradient, packed, None, weight.shape[1], turned_padding(geometry))

    def for_autocast(self, x: Tensor) -> Tensor:
        """An activation in the precision that autocast asks for, if it does."""
        return x.to(torch.get_autocast_dtype(x.device.type)) if _wants_cast(x) else x

    def precision_of(self, x: Tensor) -> torch.dtype:
        """That which autocast asks for, or its own."""
        return torch.get_autocast_dtype(x.device.type) if _wants_cast(x) else x.dtype

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        """``F.linear`` with a weight that is cast or packed only once."""
        if weight.requires_grad or (bias is not None and bias.requires_grad):
            return NotImplemented
        dtype = self.precision_of(weight)
        x = self.for_autocast(x)
        if x.dtype != dtype or (bias is not None and self.precision_of(bias) != dtype):
            return NotImplemented
        bias = None if bias is None else self.cast(bias, dtype)
        # torch's own, which is not packed, where a network may run parts of itself again without our knowing
        fits = CAN_TELL and x.ndim > 1 and weight.ndim == 2 and x.shape[-1] == weight.shape[1] and x.numel()
        pays = pays_for_products(dtype) and x.is_contiguous()
        if fits and pays and is_packable(bias, weight) and self.can_pack(weight, x):
            return _Linear.apply(x, weight, bias, self)  # type: ignore[no-untyped-call]
        if weight.dtype == dtype:
            return NotImplemented
        return F.linear(x, self.cast(weight, dtype), bias)

    def rows(self, weight: Tensor, x: Tensor) -> Tensor:
        """A linear layer's weight as oneDNN reads it for such an input: in float32 it need not be packed."""
        return weight.detach() if weight.dtype == x.dtype else self._packed_linear(weight, "packed", x)

    def columns(self, weight: Tensor, gradient: Tensor) -> Tensor:
        """The same for the gradient of the input."""
        if weight.dtype == gradient.dtype:
            return weight.detach().T
        return self._packed_linear(weight, "transposed", gradient)

    def _packed_linear(self, weight: Tensor, form: str, x: Tensor) -> Tensor:
        def make(w: Tensor) -> Tensor:
            return pack_linear((w.T if form == "transposed" else w).contiguous())

        packed = self._packed(weight, form, x, (), make, None)
        if packed is not None:
            return packed
        cast = self.cast(weight, x.dtype)  # packing was switched off between both passes
        return cast.T if form == "transposed" else cast

    def _drop(self, weight: Tensor, form: str, x: Tensor) -> None:
        """What was packed for fewer pixels makes room."""
        self._made.pop((id(weight), form, x.dtype), None)

    def can_pack(self, weight: Tensor, x: Tensor) -> bool:
        """Whether a weight can be packed for such activations: if it is nothing but a parameter."""
        return self._packs and is_plain(weight) and can_pack(x)

    def _packed(
        self,
        weight: Tensor,
        form: str,
        x: Tensor,
        use: tuple[object, ...],
        make: Callable[[Tensor], Tensor | None],
        most: int | None,
    ) -> Tensor | None:
        """A weight, packed for this use in the precision of ``x``; for so many uses at the most."""
        if not self.can_pack(weight, x):
            return None
        dtype = x.dtype
        kept = self._made.get((id(weight), form, dtype))
        if kept is not None and kept.use == use and kept.state == _state(weight):
            return kept.made
        uses = 1 if kept is None else kept.uses + 1
        if most is not None and uses > most:
            return None
        with torch.no_grad():
            made = make(weight.detach().to(dtype))
        if made is not None:
            self._made[id(weight), form, dtype] = _Kept(weight, _state(weight), made, use, uses)
        return made

    def _kept(self, weight: Tensor, form: str, dtype: torch.dtype, make: Callable[[], Tensor]) -> Tensor:
        key = (id(weight), form, dtype)
        kept = self._made.get(key)
        if kept is not None:
            if kept.state == _state(weight):
                return kept.made
            self._own.discard(id(kept.made))
        with torch.no_grad():
            made = make()
        # Some layers compute their weight for every pass: what is made of such a one is not worth keeping.
        if isinstance(weight, nn.Parameter) or id(weight) in self._own:
            self._made[key] = _Kept(weight, _state(weight), made)
            self._own.add(id(made))
        return made


class _Kept(NamedTuple):
    weight: Tensor
    """Lives as long as what was made of it, so that its id stays its own."""
    state: tuple[int, int]
    made: Tensor
    use: tuple[object, ...] = ()
    """What it is packed for: shapes, and how a convolution goes over them."""
    uses: int = 0
    """How many there were."""


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weights: Weights) -> Tensor:
        ctx.weight, ctx.weights = weight, weights
        return multiplied(x, weights.rows(weight, x), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradient.contiguous()
        return multiplied(gradient, ctx.weights.columns(ctx.weight, gradient), None), None, None, None


def is_plain(weight: Tensor) -> bool:
    """Whether a weight is nothing but a parameter."""
    return type(weight) is nn.Parameter and weight.layout == torch.strided


def is_packable(bias: Tensor | None, weight: Tensor) -> bool:
    """Whether oneDNN takes the bias of a layer with this weight as it is."""
    return bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous())


def _fits(weight: Tensor, geometry: Geometry, x: Tensor) -> bool:
    """Whether there is anything to convolve: where not, torch has an error to tell."""
    if weight.ndim != 4 or x.shape[1] != weight.shape[1] * geometry.groups or not x.numel():
        return False
    sides = zip(x.shape[2:], geometry.padding, geometry.dilation, weight.shape[2:], strict=True)
    return all(size + 2 * p > d * (k - 1) for size, p, d, k in sides)


def _state(weight: Tensor) -> tuple[int, int]:
    """Another one when somebody has written other values into a weight."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _wants_cast(x: Tensor) -> bool:
    device = "cpu" if x.is_cpu else x.device.type
    if not torch.is_autocast_enabled(device):
        return False
    return x.is_floating_point() and x.dtype not in (torch.float64, torch.get_autocast_dtype(device))


def _as_kernels_take_it(weight: Tensor) -> Tensor:
    is_image_kernel = weight.ndim == 4 and weight.device.type == "cpu"
    return weight.contiguous(memory_format=torch.channels_last) if is_image_kernel else weight

"""A part of a forward pass that keeps nothing but its input, and runs again when backward asks for more.

This is what ``torch.utils.checkpoint`` does, for parts that need not be a function: the beginning of a
module's forward can be run again too, as running stops when all is there that was asked for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_flatten, tree_unflatten

from acclimate.errors import ModelError
from acclimate.fast.lean import Lean

__all__ = ["SecondPass"]

_modes: Callable[[], list[object]] = _get_current_function_mode_stack


class _Place:
    """Stands in the graph for a tensor that was not kept."""

    __slots__ = ("__weakref__", "form", "tensor")

    def __init__(self, x: Tensor) -> None:
        self.form = (x.shape, x.dtype)
        self.tensor: Tensor | None = None


class _Enough(Exception):  # noqa: N818 - not an error: the rest of the part is not needed
    """Everything that was asked for is there."""


class SecondPass:
    """Within, ``function`` runs, or begins to run, with the arguments that come with it, for the first time.

    Args:
        function: what is run again, in the modes, the precision and the random state of the first time.
        args: what it is called with.
        kwargs: likewise.
        around: makes a context for the second time.
    """

    def __init__(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        around: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._function = function
        # taken apart, as a list of tensors may be longer when it is needed again
        leaves, self._form = tree_flatten((args, kwargs))
        self._leaves = [_detached(leaf) for leaf in leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._versions = [x._version for x in tensors]
        self._lean = [mode for mode in _modes() if isinstance(mode, Lean)]
        self._as_before = _surroundings(tensors[0].device, self._lean, around)
        self._random: _Random | None = _random_state(tensors[0].device)
        self._places: list[weakref.ref[_Place]] = []
        self._is_done = False
        # as the second time: without what a tensor remembers of where it is from
        self._first = tuple(map(_alias, args)), {name: _alias(value) for name, value in kwargs.items()}
        self._hooks: saved_tensors_hooks | None = None

    def __enter__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for lean in self._lean:
            lean.in_parts += 1
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        first, self._first = self._first, ((), {})
        return first

    def __exit__(self, *_: object) -> None:
        for lean in self._lean:
            lean.in_parts -= 1
        assert self._hooks is not None
        self._hooks.__exit__()
        self._hooks = None  # it holds this object, which shall go with the graph
        if self._random is not None and self._random.is_now():
            self._random = None  # it drew nothing: the generators, which all threads share, are left alone

    def _pack(self, x: Tensor) -> _Place:
        place = _Place(x)
        # autograd alone holds it, and drops it with the tensor as soon as it is used
        self._places.append(weakref.ref(place))
        return place

    def _unpack(self, place: _Place) -> Tensor:
        if not self._is_done:
            self._run_again()
        assert place.tensor is not None
        return place.tensor

    def _run_again(self) -> None:
        args, kwargs = tree_unflatten(self._leaves, self._form)
        if [leaf._version for leaf in self._leaves if isinstance(leaf, Tensor)] != self._versions:
            raise _different("changed the input of a layer in place")
        waiting = iter(self._places)

        def pack(x: Tensor) -> None:
            position = next(waiting, None)
            place = None if position is None else position()
            if place is not None:
                if place.form != (x.shape, x.dtype):
                    raise _different(f"made {(x.shape, x.dtype)} where it had made {place.form}")
                place.tensor = x.detach()
            if position is self._places[-1]:
                raise _Enough

        try:
            drawing = nullcontext() if self._random is None else self._random.again()
            with saved_tensors_hooks(pack, _unused), torch.enable_grad(), drawing, self._as_before():
                self._function(*args, **kwargs)
            raise _different("kept less than before")
        except _Enough:
            self._is_done = True
        self._leaves, self._function = [], _unused


def _detached(leaf: Any) -> Any:
    return leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf


def _alias(argument: Any) -> Any:
    # with the strides that it has: a view of one channel may have others
    return torch.ops.aten.alias(argument) if isinstance(argument, Tensor) else argument


def _surroundings(
    device: torch.device, lean: Sequence[Lean], around: Callable[[], AbstractContextManager[None]]
) -> Callable[[], AbstractContextManager[None]]:
    """What makes again the context of the caller, which backward does not have."""
    kind = device.type
    is_cast, precision = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    @contextmanager
    def as_before() -> Iterator[None]:
        with (
            torch.autocast(kind, precision, enabled=is_cast),
            around(),
            lean[0].in_part() if lean else nullcontext(),
        ):
            yield

    return as_before


@dataclass(frozen=True)
class _Random:
    """Where torch's generators stood."""

    cpu: Tensor
    on_gpu: dict[torch.device, Tensor]

    def is_now(self) -> bool:
        """Whether they stand there still."""
        now = _random_state(*self.on_gpu)
        same = [torch.equal(state, now.on_gpu[device]) for device, state in self.on_gpu.items()]
        return torch.equal(self.cpu, now.cpu) and all(same)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within, they go on from there; then they stand where they stood before."""
        with torch.random.fork_rng(list(self.on_gpu)):
            torch.set_rng_state(self.cpu)
            for device, state in self.on_gpu.items():
                torch.cuda.set_rng_state(state, device)
            yield


def _random_state(*devices: torch.device) -> _Random:
    on_gpu = {device: torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"}
    return _Random(torch.get_rng_state(), on_gpu)


def _unused(*_: object) -> Any:
    raise AssertionError("nothing is asked of a second pass")


def _different(how: str) -> ModelError:
    return ModelError(
        f"a part of the network that was run a second time to save memory {how}: take memory='off'"
    )

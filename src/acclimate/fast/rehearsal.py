"""What a forward pass keeps for backward, module by module, and the stages into which that divides.

A stage that is computed a second time in backward keeps its input only. While that happens it needs all
that it would have kept, but by then what came after it is gone. So long stages leave little behind, and
short ones need little at once: a network is divided where that lowers the highest need.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

__all__ = ["Rehearsal", "Stage", "patched"]


@dataclass(frozen=True)
class Stage:
    """A part of the network that can be computed a second time."""

    owner: str
    """A module, by its name: all of it, unless the next two say otherwise."""
    layers: tuple[str, ...]
    """The layers of a Sequential that are meant, one after the other."""
    until: str
    """The module before which it ends."""
    inner: frozenset[nn.Module]
    """All modules that run in it."""
    start: int
    end: int
    """What it keeps: a range of what the whole network keeps."""
    inputs: tuple[int, ...]
    """What it was given: addresses in memory."""

    @property
    def first(self) -> str:
        """The module that it begins with."""
        return f"{self.owner}.{self.layers[0]}" if self.layers else self.owner


@dataclass(frozen=True)
class _Call:
    """What a module was called with, and the range of what it kept."""

    start: int
    end: int
    inputs: tuple[Tensor, ...]
    versions: tuple[int, ...]
    is_plain: bool
    """Whether it took nothing but tensors, lists of them and plain values."""

    @property
    def is_repeatable(self) -> bool:
        """Whether what it took is still what it was: layers that work in place change it."""
        same = all(x._version == version for x, version in zip(self.inputs, self.versions, strict=True))
        return self.is_plain and same


class Rehearsal:
    """Runs a network, and finds its stages.

    >>> layers = [layer for _ in range(8) for layer in (nn.Linear(8, 8), nn.Sigmoid())]
    >>> network = nn.Sequential(nn.Sequential(*layers))
    >>> found = Rehearsal(network, lambda: network(torch.rand(2, 8)), images=2)
    >>> [stage.first for stage in found.stages]
    ['0.0', '0.8', '0.12']
    >>> found.peak([], images=64) > found.peak(found.stages, images=64)
    True
    """

    def __init__(self, network: nn.Module, run: Callable[[], object], images: int) -> None:
        self._images = images
        opaque = [module for module in network.modules() if _is_opaque(module)]
        hidden = {inner for module in opaque for inner in module.modules()}
        self._modules = {name: m for name, m in network.named_modules() if m not in hidden}
        self._names = {module: name for name, module in self._modules.items()}
        self._calls: defaultdict[str, list[_Call]] = defaultdict(list)
        self._begun: Counter[str] = Counter()
        self._kept: list[int] = []
        self._sizes = {_MARK: 0}
        try:
            self._record(run)
            self.stages = self._divide()
            """In the order in which they run."""
        finally:
            self._calls.clear()  # with the tensors they hold, whose graph holds this by its hooks
        self.repeats = any(self._begun[name] > 1 for name, _ in network.named_children())
        """Whether the network began more than once."""

    def peak(self, stages: Sequence[Stage], images: int) -> float:
        """Bytes that so many images need at most if these stages, in order, are computed a second time."""
        again, most = self._needs(stages, working=_WORKING)
        return max([*again, most]) * images / self._images

    def _record(self, run: Callable[[], object]) -> None:
        network = self._modules[""]
        fixed = {_address(x) for x in (*network.parameters(), *network.buffers())}
        forms = {_form(x) for x in network.parameters()}
        alive: list[object] = []  # so that no address is given away twice

        def pack(x: Tensor) -> Tensor:
            # neither weights nor casts of them and statistics, of which there is one for all images
            if _address(x) not in fixed and _form(x) not in forms:
                alive.append(x)
                self._kept.append(self._piece(x))
            return x.detach()  # one with a history would hold the node that keeps it

        watching = {module: self._watched(name, module) for name, module in self._modules.items() if name}
        try:
            with patched(watching), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                alive.append(run())
        finally:
            alive.clear()  # the graph holds the hook, and the hook this: nobody else would ever free them

    def _watched(self, name: str, module: nn.Module) -> Callable[..., Any]:
        plain, parent = module.forward, self._modules[_owner(name)]
        can_begin = (
            _has(module.parameters())
            and (_has(module.children()) or _is_sequential(parent))
            and not module._forward_pre_hooks  # which run before the stage, on statistics that are in it
        )

        @functools.wraps(plain)
        def forward(*args: Any, **kwargs: Any) -> Any:
            self._begun[name] += 1
            given = tree_leaves((args, kwargs))
            inputs = tuple(x for x in given if can_begin and isinstance(x, Tensor))
            versions, start = tuple(x._version for x in inputs), len(self._kept)
            self._kept.append(_MARK)
            out = plain(*args, **kwargs)
            self._kept.append(_MARK)
            is_plain = all(isinstance(x, _PLAIN) for x in given)
            self._calls[name].append(_Call(start, len(self._kept), inputs, versions, is_plain))
            return out

        return forward

    def _piece(self, x: Tensor) -> int:
        storage = x.untyped_storage()
        self._sizes[storage.data_ptr()] = storage.nbytes()
        return storage.data_ptr()

    def _bytes(self, pieces: Iterable[int]) -> int:
        return sum(self._sizes[piece] for piece in pieces)

    def _needs(self, stages: Sequence[Stage], *, working: int = 0) -> tuple[list[int], int]:
        """Bytes at most while each of some stages is computed again, and at any other time.

        ``working`` is how much a layer needs beside what is kept, in pieces of the size of its own.
        """
        held: set[int] = set()
        again, count, position, highest = [], 0, 0, 0
        for stage in stages:
            count, most = self._hold(self._kept[position : stage.start], held, count, working)
            highest = max(highest, most)
            count, _ = self._hold(stage.inputs, held, count)
            again.append(self._hold(self._kept[stage.start : stage.end], set(held), count, working)[1])
            position = stage.end
        _, most = self._hold(self._kept[position:], held, count, working)
        return again, max(highest, most)

    def _hold(self, pieces: Iterable[int], held: set[int], count: int, working: int = 0) -> tuple[int, int]:
        """The bytes that are held after these pieces as well, and the most until then."""
        most = count
        for piece in pieces:
            count += 0 if piece in held else self._sizes[piece]
            held.add(piece)
            most = max(most, count + working * self._sizes[piece])
        return count, most

    def _divide(self) -> tuple[Stage, ...]:
        """Split the stage that needs most, again and again, and take the division that needs least."""
        stages = self._within("")
        tried: list[tuple[Stage, ...]] = [()]
        needs = [self._needs(())[1]]
        while stages:
            again, most = self._needs(stages)
            tried.append(tuple(stages))
            needs.append(max([*again, most]))
            widest = max(range(len(stages)), key=again.__getitem__)
            parts = self._split(stages[widest])
            if not parts or most >= min(needs):
                break
            stages = _in_order([*stages[:widest], *parts, *stages[widest + 1 :]])
        return tried[needs.index(min(needs))]

    def _split(self, stage: Stage) -> list[Stage]:
        """A module into what is within, layers in two where the larger part is smallest."""
        if stage.until:
            return []
        if not stage.layers:
            return self._within(stage.owner)
        names = [f"{stage.owner}.{layer}" for layer in stage.layers]
        cuts = [i for i in range(1, len(names)) if self._begins(names[i])]
        if not cuts:
            return []
        cut = min(cuts, key=lambda i: max(self._own(names[:i]), self._own(names[i:])))
        parts = stage.layers[:cut], stage.layers[cut:]
        return [found for part in parts for found in self._run(stage.owner, part)]

    def _own(self, names: Sequence[str]) -> int:
        start, end = self._calls[names[0]][0].start, self._calls[names[-1]][0].end
        return self._bytes(set(self._kept[start:end]))

    def _within(self, owner: str) -> list[Stage]:
        """Stages in a module: those of its children, and what runs before them."""
        names = [self._names[child] for child in self._modules[owner].children() if child in self._names]
        own = [name for name in names if _owner(name) == owner]  # others are found where they are named
        found = _in_order([stage for name in own for stage in self._unit(name)])
        head = self._head(owner, found[0]) if found and self._begins(owner) else None
        return found if head is None else [head, *found]

    def _unit(self, name: str) -> list[Stage]:
        """A module as a stage, or else what can be found within."""
        module = self._modules[name]
        layers = tuple(module._modules) if _is_sequential(module) else ()
        if layers and all(len(self._calls[f"{name}.{layer}"]) == 1 for layer in layers):
            return self._run(name, layers) or self._within(name)
        found = None
        if self._begins(name):
            call = self._calls[name][0]
            found = self._stage(name, list(module.modules()), call, call.end)
        return [found] if found else self._within(name)

    def _run(self, owner: str, layers: tuple[str, ...]) -> list[Stage]:
        """Layers of a Sequential as a stage."""
        names = [f"{owner}.{layer}" for layer in layers]
        if len(layers) == 1:
            return self._unit(names[0])
        if not self._begins(names[0]):
            return []
        inner = [module for name in names for module in self._modules[name].modules()]
        first, last = self._calls[names[0]][0], self._calls[names[-1]][0]
        found = self._stage(owner, inner, first, last.end, layers=layers)
        return [found] if found else []

    def _head(self, owner: str, following: Stage) -> Stage | None:
        """The beginning of a module as a stage, up to another in it."""
        call = self._calls[owner][0]
        if not call.start < following.start < call.end:
            return None
        inner = [
            module
            for module in self._modules[owner].modules()
            if any(call.start < following.start for call in self._calls[self._names.get(module, "")])
        ]
        return self._stage(owner, inner, call, following.start, until=following.first)

    def _stage(
        self,
        owner: str,
        inner: Sequence[nn.Module],
        begin: _Call,
        end: int,
        *,
        layers: tuple[str, ...] = (),
        until: str = "",
    ) -> Stage | None:
        """A stage, if it finds again what it found and keeps more than it is given."""
        stateful = [self._names.get(m, "") for m in inner if _has(m.buffers(recurse=False))]
        if any(len(self._calls[name]) > 1 for name in stateful):
            return None  # a second call may find other statistics than those that the step began with
        inputs = tuple(self._piece(x) for x in begin.inputs)
        stage = Stage(owner, layers, until, frozenset(inner), begin.start, end, inputs)
        others = {*self._kept[: stage.start], *self._kept[stage.end :]}
        own = set(self._kept[stage.start : stage.end])
        return stage if self._bytes(own - others) > self._bytes({*inputs} - others) else None

    def _begins(self, name: str) -> bool:
        """Whether a stage can begin with a module."""
        calls = self._calls[name]
        return len(calls) == 1 and bool(calls[0].inputs) and calls[0].is_repeatable


@contextlib.contextmanager
def patched(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Within, some modules have another ``forward``."""
    before = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module, own in before.items():
            if own is None:
                vars(module).pop("forward", None)
            else:
                vars(module)["forward"] = own


_WORKING = 4
"""Beside what is kept, there is what a layer takes and makes, and the gradients of both."""

_MARK = 0
"""Stands where a call begins and ends among what is kept: at no address, of no size."""

_PLAIN = (Tensor, bool, int, float, str, type(None))


def _in_order(stages: Iterable[Stage]) -> list[Stage]:
    """One after the other: a module may run in another than the one that owns it."""
    found: list[Stage] = []
    for stage in sorted(stages, key=lambda stage: stage.start):
        if not found or stage.start >= found[-1].end:
            found.append(stage)
    return found


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _form(x: Tensor) -> tuple[int, ...]:
    return tuple(sorted(x.shape))


def _has(things: Iterable[object]) -> bool:
    return any(True for _ in things)


def _is_sequential(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _is_opaque(module: nn.Module) -> bool:
    """Whether a module was scripted or compiled, so that Python does not see what happens within."""
    compiled = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
    return compiled or isinstance(module, torch.jit.ScriptModule)

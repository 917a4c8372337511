"""Stages of a network that are computed a second time in backward, instead of being kept until then.

By default that is done only if a batch would not fit into memory, and only with as many of the first
stages as it takes: the first ones keep most, and are computed fastest. How much a network keeps is
measured by a rehearsal on two images, unless there is far more memory than any network would need.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from acclimate.available import available_bytes
from acclimate.errors import AcclimateError, AcclimateWarning
from acclimate.fast.recycling import release_memory
from acclimate.fast.rehearsal import Rehearsal, Stage, patched
from acclimate.fast.second_pass import SecondPass
from acclimate.ranks import ALONE, Ranks

__all__ = ["Checkpoints"]

_SHARE: Final = 0.8
"""Of the memory that is free, for what is kept; the rest is for what comes and goes."""
_FEW: Final = 2
"""Images of a rehearsal."""
_MOST_VALUES: Final = 16_384
"""More than networks keep per pixel of an image: a stock ResNet-50 has 430, a WideResNet-28-10 4,500."""

_Shape = tuple[torch.Size, torch.dtype]
_KEEP_ALL: Final = nullcontext()

_Forwards = Mapping[nn.Module, Callable[..., Any]]
_Again = Callable[[Collection[nn.Module]], AbstractContextManager[None]]


@dataclass(frozen=True)
class _Decision:
    stages: tuple[Stage, ...] = ()
    forwards: _Forwards = field(default_factory=dict)
    """What modules do instead of their forward."""
    note: str = ""


class Checkpoints:
    """Decides for every shape of a batch which stages are computed a second time.

    Args:
        network: what is divided into stages.
        memory: ``"auto"``, ``"low"`` (all stages) or ``"off"`` (none).
        rehearse: runs the network as a step does, and leaves no trace.
        again: makes a context in which some modules run as they did the first time in this step.
        ranks: which decide together, each for the largest share and the least memory of any.
    """

    def __init__(
        self,
        network: nn.Module,
        memory: str,
        *,
        rehearse: Callable[[Tensor], object],
        again: _Again,
        ranks: Ranks = ALONE,
    ) -> None:
        self._network = network
        self._memory = memory
        self._rehearse = rehearse
        self._again = again
        self._ranks = ranks
        self._rehearsals: dict[_Shape, Rehearsal | None] = {}
        self._decided: dict[_Shape, _Decision] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For copies: what was decided calls functions of this network, and not of the copy's."""
        return {**vars(self), "_rehearsals": {}, "_decided": {}}

    @property
    def notes(self) -> tuple[str, ...]:
        """What was decided, one sentence for every shape of a batch for which it is not the usual."""
        return tuple(decision.note for decision in self._decided.values() if decision.note)

    def __call__(self, images: Tensor) -> AbstractContextManager[None]:
        """Within, a forward pass of these images leaves out what shall be computed a second time."""
        if self._memory == "off":
            return _KEEP_ALL
        key = (self._shape(images), images.dtype)
        decision = self._decided.get(key)
        if decision is None:
            decision = self._decided[key] = self._decide(images)
        return patched(decision.forwards) if decision.forwards else nullcontext()

    def _decide(self, images: Tensor) -> _Decision:
        is_auto = self._memory == "auto"
        rehearsal = None if is_auto and self._is_plenty(images) else self._rehearsal(images)
        if rehearsal is None:
            return _Decision()
        stages, why = self._fitting(rehearsal, images) if is_auto else (rehearsal.stages, "")
        told = f"{len(stages)} of {len(rehearsal.stages)} stages are computed a second time{why}"
        note = f"for batches of {tuple(images.shape)}, {told}" if stages or not is_auto else ""
        return _Decision(stages, self._make_forwards(stages), note)

    def _shape(self, images: Tensor) -> torch.Size:
        """Of the largest share of any rank."""
        own = images.shape
        return own if self._ranks.size == 1 else torch.Size((max(self._ranks.counts), *own[1:]))

    def _is_plenty(self, images: Tensor) -> bool:
        """Whether memory is plenty for any network, or nobody knows how much there is."""
        pixels = self._shape(images).numel() // (images.shape[1] if images.ndim > 2 else 1)
        budget = self._budget(images.device)
        return budget is None or pixels * images.element_size() * _MOST_VALUES <= budget

    def _fitting(self, rehearsal: Rehearsal, images: Tensor) -> tuple[tuple[Stage, ...], str]:
        """As few of the first stages as let the batch fit, and a clause that says why."""
        release_memory()  # what malloc keeps for the next step is free as well
        budget = self._budget(images.device)
        if budget is None:
            return (), ""
        stages = rehearsal.stages
        needs = [rehearsal.peak(stages[:count], self._shape(images)[0]) for count in range(len(stages) + 1)]
        why = f", as all of it would need {_size(needs[0])} and can have {_size(budget)}"
        enough = next((count for count, need in enumerate(needs) if need <= budget), None)
        # ranks may measure differently, and must do the same
        most = self._ranks.most(len(needs) if enough is None else enough)
        if most < len(needs):
            return stages[:most], why
        warnings.warn(
            f"a batch of {len(images)} images needs about {_size(needs[-1])}, even if the network's stages "
            f"are computed a second time, and can have {_size(budget)}: give fewer images at once",
            AcclimateWarning,
            stacklevel=2,
        )
        return stages, why

    def _budget(self, device: torch.device) -> float | None:
        available = available_bytes(device)
        if available is not None and device.type == "cpu":
            available //= self._ranks.side_by_side
        return self._ranks.least(None if available is None else available * _SHARE)

    def _rehearsal(self, images: Tensor) -> Rehearsal | None:
        key = (images.shape[1:], images.dtype)
        if key not in self._rehearsals:
            self._rehearsals[key] = self._rehearsed(images[:_FEW].clone())
        return self._rehearsals[key]

    def _rehearsed(self, images: Tensor) -> Rehearsal | None:
        try:
            found = Rehearsal(self._network, lambda: self._rehearse(images), len(images))
            if found.repeats:  # it refused the layout of its images, and gets another from here on
                found = Rehearsal(self._network, lambda: self._rehearse(images), len(images))
        except AcclimateError:
            raise
        except Exception as error:
            warnings.warn(
                f"what the network keeps could not be measured, as {len(images)} images alone fail "
                f"({error}): nothing is computed a second time",
                AcclimateWarning,
                stacklevel=2,
            )
            return None
        return found

    def _make_forwards(self, stages: Sequence[Stage]) -> _Forwards:
        """What modules do, so that these stages are computed a second time."""
        heads = {stage.until: _Head() for stage in stages if stage.until}
        begins: dict[str, Callable[..., Any]] = {}  # by the module that a stage begins with
        for stage in stages:
            make = functools.partial(SecondPass, around=functools.partial(self._again, stage.inner))
            begins[stage.first] = (heads[stage.until].of if stage.until else _whole)(self._plain(stage), make)
        for name, head in heads.items():
            begins[name] = head.ended_by(begins.get(name, self._network.get_submodule(name).forward))
        runs = [stage for stage in stages if stage.layers]
        forwards = {stage.owner: self._sequence(stage.owner, runs, begins) for stage in runs}
        forwards |= {name: begins[name] for name in begins.keys() - {stage.first for stage in runs}}
        return {self._network.get_submodule(name): forward for name, forward in forwards.items()}

    def _plain(self, stage: Stage) -> Callable[..., Any]:
        owner = self._network.get_submodule(stage.owner)
        layers = [owner.get_submodule(layer) for layer in stage.layers]
        return _chain(layers) if layers else owner.forward

    def _sequence(
        self, owner: str, stages: Sequence[Stage], begins: Mapping[str, Callable[..., Any]]
    ) -> Callable[[Tensor], Tensor]:
        """The forward of a Sequential of which some layers make up stages."""
        own = [stage.layers for stage in stages if stage.owner == owner]
        instead = {layers[0]: begins[f"{owner}.{layers[0]}"] for layers in own}
        done = {layer for layers in own for layer in layers[1:]}
        layers = self._network.get_submodule(owner).named_children()
        return _chain([instead.get(name, layer) for name, layer in layers if name not in done])


class _Head:
    """The beginning of a function as a stage, which ends when another function is called."""

    def __init__(self) -> None:
        self._open: SecondPass | None = None

    def of(self, function: Callable[..., Any], make: Callable[..., SecondPass]) -> Callable[..., Any]:
        """The function that begins with the stage."""

        @functools.wraps(function)
        def forward(*args: Any, **kwargs: Any) -> Any:
            self._open = make(function, args, kwargs)
            args, kwargs = self._open.__enter__()
            try:
                return function(*args, **kwargs)
            finally:
                self._end()

        return forward

    def ended_by(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function that comes after the stage."""

        @functools.wraps(function)
        def forward(*args: Any, **kwargs: Any) -> Any:
            self._end()
            return function(*args, **kwargs)

        return forward

    def _end(self) -> None:
        if self._open is not None:
            self._open.__exit__()
            self._open = None


def _whole(function: Callable[..., Any], make: Callable[..., SecondPass]) -> Callable[..., Any]:
    """A function that is a stage."""

    @functools.wraps(function)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with make(function, args, kwargs) as (args, kwargs):
            return function(*args, **kwargs)

    return forward


def _chain(steps: Sequence[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    def chain(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    return chain


def _size(count: float) -> str:
    """Bytes in words.

    >>> _size(2.5e9), _size(3e6)
    ('2.5 GB', '3.0 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"

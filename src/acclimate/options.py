"""What an `Adapter` is asked for beside its method: checked once, in a form that a file can hold."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from acclimate.diversity import ClassDistribution
from acclimate.errors import OptionError, listed, unknown
from acclimate.fast import MEMORY, chosen_tricks
from acclimate.mean_std import mean_and_std

__all__ = ["Options", "changed_options", "checked_memory", "make_options"]


@dataclass(frozen=True)
class Options:
    """The keywords of `Adapter` that decide what it does."""

    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None
    freeze: str | tuple[str, ...]
    classes: tuple[int, ...] | None
    prior: tuple[float, ...] | None
    statistics: str
    episodic: bool
    features: str | None
    steps: int | None
    seed: int
    fast: bool | tuple[str, ...] = True
    precision: str = "fp32"
    memory: str = "auto"
    ranks: str = "together"
    guard: bool = True
    calibrate: bool = False

    @property
    def tricks(self) -> frozenset[str]:
        """The savings that ``fast`` stands for."""
        return chosen_tricks(self.fast)


def make_options(
    *,
    normalize: Any,
    freeze: str | Sequence[str],
    classes: Sequence[int] | None,
    prior: Sequence[float] | Tensor | None,
    outputs: Sequence[int] = (),
    fast: bool | Iterable[str] = True,
    memory: str = "auto",
    **others: Any,
) -> Options:
    """Options from what a user gives, refused at once where they can never fit.

    ``outputs`` are the numbers of logits that the network may have, if that is known.
    """
    chosen = None if classes is None else _checked_classes(classes)
    tricks = chosen_tricks(fast)
    return Options(
        normalize=None if normalize is None else mean_and_std(normalize),
        freeze=freeze if isinstance(freeze, str) else tuple(freeze),
        classes=chosen,
        prior=None if prior is None else _checked_prior(prior, outputs, chosen),
        fast=fast if isinstance(fast, bool) else tuple(sorted(tricks)),
        memory=checked_memory(memory),
        **others,
    )


def checked_memory(asked: str) -> str:
    """A name of `acclimate.fast.MEMORY`.

    >>> checked_memory("low")
    'low'
    """
    if asked not in MEMORY:
        raise OptionError(unknown("memory", asked, MEMORY))
    return asked


def changed_options(**asked: Any) -> dict[str, Any]:
    """Those of them that are not what an `Adapter` takes by itself.

    >>> changed_options(precision="bf16", memory="auto")
    {'precision': 'bf16'}
    """
    return {name: value for name, value in asked.items() if value != getattr(Options, name)}


def _checked_classes(classes: Sequence[int]) -> tuple[int, ...]:
    try:
        chosen = tuple(operator.index(c) for c in classes)
    except TypeError as error:
        raise OptionError(f"classes must be whole numbers, the outputs that can occur: {error}") from error
    twice = sorted({c for c in chosen if chosen.count(c) > 1}) if len(set(chosen)) < len(chosen) else []
    if twice:
        raise OptionError(f"classes names some outputs twice: {listed(twice, 5)}")
    if len(chosen) < 2 or min(chosen) < 0:
        raise OptionError(f"classes must be at least two outputs, counted from 0, got {listed(chosen, 5)}")
    return chosen


def _checked_prior(
    prior: Sequence[float] | Tensor, outputs: Sequence[int], classes: Sequence[int] | None
) -> tuple[float, ...]:
    given = len(prior)
    if classes is None and outputs and given not in outputs:
        raise OptionError(
            f"prior must have one entry for each of the {outputs[0]} outputs of the network, got {given}: "
            f"if only {given} can occur, say which by classes="
        )
    ClassDistribution(given if classes is None else len(classes), target=prior)
    return tuple(float(p) for p in prior)

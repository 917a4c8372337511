"""The one table of adaptation methods.

A name is a row of METHODS, then any of ``+it`` (input transformation), ``+shot`` (SHOT's centroid
labels) and ``-div`` (without L_div): ``slr+it``, ``hlr+shot``, ``slr-div``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final

from acclimate.errors import OptionError, listed, unknown
from acclimate.losses import LOSSES

__all__ = ["METHODS", "SETTINGS", "Method", "chosen_setting", "parse_method"]


def _one_of(kind: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(unknown(kind, value, known))


def _within(name: str, value: float, low: float, high: float, *, open_end: bool = False) -> None:
    if isinstance(value, (int, float)) and low <= value <= high and not (open_end and value == high):
        return
    end = "" if high == float("inf") else f" and {'below' if open_end else 'at most'} {high}"
    raise OptionError(f"{name} must be a number, at least {low}{end}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A recipe: L = [L_div] + delta * mean(L_conf) + pseudo_label_weight * CE, and how it is minimised."""

    name: str = field(metadata={"fixed": True})
    summary: str = field(metadata={"fixed": True})
    adapts_parameters: bool = True
    """Whether affine parameters adapt."""
    adapts_statistics: bool = True
    """Whether normalisation statistics adapt."""
    confidence: str | None = None
    """A loss of `acclimate.losses`."""
    delta: float = 1.0
    diversity: bool = False
    """Whether L_div is part of the loss."""
    kappa: float = 0.9
    freeze_top: bool = True
    optimizer: str = "sgd"
    lr: float = 2.5e-4
    full_batch: int = 0
    """Images from which on a batch takes the whole ``lr``; a smaller one takes less. 0: any takes all."""
    momentum: float = 0.9
    """Of SGD; Adam has its own."""
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    schedule: str = "constant"
    """``constant``, or ``cosine`` from lr to 0 over all steps."""
    pseudo_label_weight: float = 0.0
    """Weight of the cross-entropy with SHOT's centroid labels; 0 leaves them out."""
    pseudo_label_set: str = "fixed"
    """Classes that may be labels: ``fixed`` by the predictions, or ``recomputed`` before the second round."""
    input_transform: bool = False
    width: int = 32
    """Channels inside the input transformation."""
    depth: int = 2
    """Hidden layers of the input transformation."""
    statistics_momentum: float = 0.1
    """Share of a new batch under ``statistics="running"``."""
    pseudo_count: float = 16.0
    """Images that the source statistics count for under ``statistics="blend"``."""

    def __post_init__(self) -> None:
        _one_of("optimizer", self.optimizer, ("sgd", "adam"))
        _one_of("schedule", self.schedule, ("constant", "cosine"))
        _one_of("pseudo_label_set", self.pseudo_label_set, ("fixed", "recomputed"))
        if self.confidence is not None:
            _one_of("confidence loss", self.confidence, tuple(LOSSES))
        for name in ("lr", "full_batch", "delta", "weight_decay", "pseudo_label_weight", "pseudo_count"):
            _within(name, getattr(self, name), 0, float("inf"))
        for name in ("kappa", "momentum"):
            _within(name, getattr(self, name), 0, 1, open_end=True)
        _within("statistics_momentum", self.statistics_momentum, 0, 1)
        if self.input_transform and not self.has_loss:
            raise OptionError(f"{self.name!r} has no loss that could train an input transformation")

    @property
    def has_loss(self) -> bool:
        return self.confidence is not None or self.diversity or self.pseudo_label_weight > 0

    def override(self, changes: Mapping[str, Any], also: Iterable[str] = ()) -> Method:
        """The same method with other hyperparameters; ``also`` are names that a typo may have meant.

        >>> METHODS["slr"].override({"lr": 1e-3}).lr
        0.001
        """
        known = [item.name for item in fields(self) if not item.metadata.get("fixed")]
        for name in changes:
            if name not in known:
                everything = list(dict.fromkeys([*known, *also]))
                raise OptionError(
                    f"{unknown('option', name, everything)} (all of them: {listed(everything, 99)})"
                )
        # numbers of numpy and torch become Python's, which a file can hold
        plain = {name: value.item() if hasattr(value, "item") else value for name, value in changes.items()}
        return replace(self, **plain)


_TENT: Final = Method(
    name="tent",
    summary="entropy minimisation over all affine parameters",
    confidence="entropy",
    freeze_top=False,
)
_TENT_PLUS: Final = replace(
    _TENT,
    name="tent+",
    summary="TENT with the running class-distribution regulariser and a frozen top",
    diversity=True,
    freeze_top=True,
)
_SLR: Final = Method(
    name="slr",
    summary="soft likelihood ratio: a confidence loss whose gradient does not vanish",
    confidence="soft_likelihood_ratio",
    delta=0.025,
    diversity=True,
    optimizer="adam",
    lr=6e-4,
    full_batch=64,  # Adam's steps are as long for a gradient of noise: benchmarks/small_batches.py
    schedule="cosine",
)
_ROWS: Final = (
    Method(name="source", summary="the network as it is", adapts_parameters=False, adapts_statistics=False),
    Method(name="bn", summary="statistics of the target, nothing else", adapts_parameters=False),
    _TENT,
    _TENT_PLUS,
    replace(
        _SLR,
        name="pl",
        summary="hard pseudo-labels: cross-entropy with the network's own predictions",
        confidence="pseudo_label",
        delta=1.0,
        diversity=False,
    ),
    replace(
        _SLR,
        name="hlr",
        summary="hard likelihood ratio: a gradient of one at the top logit, at any confidence",
        confidence="hard_likelihood_ratio",
    ),
    _SLR,
    replace(
        _TENT_PLUS,
        name="shot",
        summary="TENT+ with SHOT's centroid labels from the second epoch on",
        pseudo_label_weight=0.3,
    ),
)

METHODS: Final[Mapping[str, Method]] = MappingProxyType({row.name: row for row in _ROWS})
"""Every method by name, with the paper's hyperparameters."""


@dataclass(frozen=True)
class Setting:
    """A set of hyperparameters."""

    summary: str
    changes: Mapping[str, Mapping[str, Any]]
    """By row of METHODS, what is other than there."""


_FEW: Final = {"hlr": {"lr": 1e-2}, "slr": {"lr": 1e-2, "delta": 0.05}}
_VISDA: Final = {"lr": 2e-5, "delta": 0.25, "kappa": 0.0}
_VISDA_TENT: Final = {"optimizer": "adam", "lr": 2e-5, "schedule": "cosine", "kappa": 0.0}
SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "paper": Setting("the paper's for ImageNet, chosen for 1,000 classes", {}),
        "few": Setting("for few classes, found by benchmarks/few.py on validation corruptions", _FEW),
        "visda-c": Setting(
            "the paper's for the 12 classes of VisDA-C", {"hlr": _VISDA, "slr": _VISDA, "tent+": _VISDA_TENT}
        ),
    }
)
"""Every set of hyperparameters by name."""
_MANY_CLASSES: Final = 64  # from here on, `setting="auto"` is the paper's, which was chosen for 1,000

_SUFFIXES: Final[dict[str, dict[str, Any]]] = {
    "+it": {"input_transform": True},
    "+shot": {"pseudo_label_weight": 0.3},
    "-div": {"diversity": False},
}


def chosen_setting(setting: str, outputs: int | None) -> str:
    """The setting itself, or for ``auto`` the one for so many outputs; the paper's if they are unknown.

    >>> chosen_setting("auto", 10), chosen_setting("auto", 1000), chosen_setting("paper", 10)
    ('few', 'paper', 'paper')
    """
    _one_of("setting", setting, ("auto", *SETTINGS))
    if setting != "auto":
        return setting
    return "few" if outputs is not None and outputs < _MANY_CLASSES else "paper"


def parse_method(name: str | Method, setting: str = "paper") -> Method:
    """The method that a name with its suffixes stands for, in a setting.

    >>> method = parse_method("slr+it")
    >>> method.confidence, method.input_transform
    ('soft_likelihood_ratio', True)
    """
    if isinstance(name, Method):
        return name
    if not isinstance(name, str):
        raise OptionError(f"method must be a name or a Method, got {type(name).__name__}")
    suffix = "|".join(re.escape(key) for key in _SUFFIXES)
    for row in METHODS.values():
        match = re.fullmatch(rf"{re.escape(row.name)}((?:{suffix})*)", name)
        if match is None:
            continue
        added = re.findall(suffix, match[1])
        if added and not row.has_loss:
            raise OptionError(f"{row.name!r} has no loss, so that {listed(added)} cannot be added to it")
        changes = dict(SETTINGS[setting].changes.get(row.name, {}))
        changes |= {key: value for part in added for key, value in _SUFFIXES[part].items()}
        return replace(row, name=name, **changes)
    plain = not set("+-") & set(name)
    known = list(METHODS) if plain else [row + part for row in METHODS for part in _SUFFIXES]
    raise OptionError(
        f"{unknown('method', name, known)} (rows: {listed(METHODS)}; suffixes: {listed(_SUFFIXES)})"
    )

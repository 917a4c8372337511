"""What watches an adaptation, and takes back what alarms.

A model that changes itself can get worse, and nobody tells it. Every step shows a few numbers that need no
label, and that come from the device with the loss, in one transfer. Out of bounds, they are an alarm:

    finite      loss, gradient or parameters are no numbers
    stride      one update has moved the parameters by a large part of their own length
    drift       all updates together have moved them farther than that length
    entropy     the predictions fall on few classes, by the entropy of p_t
    share       one class takes half of the predictions, and five times what the prior says
    logits      logits have become several times as long, or as short, as they were at the beginning
    gradient    the gradient is a thousand times what it was at the beginning

The network then goes back to the last state that had nothing to be said against it (a few are kept, each a
small delta; in the end the source itself), and the learning rate falls to a tenth. If the same images are an
alarm there too, the images are to blame: nothing is learned from them, and what was learned stays. After some
alarms the parameters are the source's for good, and only statistics adapt.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from acclimate.diversity import ClassDistribution
from acclimate.fast.measures import Numbers
from acclimate.types import Alarm

__all__ = ["SIGNALS", "Guard", "Look", "look_at"]

State = dict[str, Tensor]

_KEPT = 3  # states to go back to, besides the source
_EVERY = 10  # updates between two of them
_FALLS = 4  # of the learning rate, each to a tenth; the next alarm is the last
_PATIENCE = 10  # batches in a row that are taken to be odd themselves, before the network is doubted again
_BEGINNING = 10  # steps that say how long logits and gradients are
_ENOUGH = 16  # images whose mean length of the logits tells one network from another


class Look(NamedTuple):
    """What one step shows, before its update."""

    drift: float
    """Length of the parameters' way from the source, as a part of their own length there."""
    loss: float = 0.0
    confidence: float = 0.0
    class_entropy: float = 0.0
    gradient_norm: float = 0.0
    logit_norm: float | None = None
    top_share: float | None = None
    """Share of the commonest class in p_t; if it is too large, but not many times its prior, 0."""
    possible_entropy: float = 0.0
    """Of p_t, for so many images and this prior."""
    images: int = 0
    """Images of the batch, on all ranks."""


def look_at(numbers: Numbers, followed: ClassDistribution, guard: Guard, images: int) -> Look:
    """What a guard wants to know of a step, from what was measured of it."""
    share = numbers.top_share
    if share > SIGNALS["share"].high:  # which is rare, and worth another transfer
        share = followed.common_share().item()
    return Look(
        guard.drift_of(numbers.way),
        *numbers[:4],
        numbers.logit_norm,
        share,
        followed.possible_entropy(images),
        images,
    )


class _Seen(NamedTuple):
    """A look, and what came before it."""

    now: Look
    drift_before: float | None
    logit_norm: float | None
    """At the beginning, as the next one."""
    gradient_norm: float | None


class Signal(NamedTuple):
    """A number that must lie between two others."""

    what: str
    value: Callable[[_Seen], float | None]
    low: float = -math.inf
    high: float = math.inf
    advice: str = "lower lr"


def _times(now: float | None, before: float | None) -> float | None:
    return None if now is None or not before else now / before


def _is_broken(seen: _Seen) -> float:
    values = (seen.now.loss, seen.now.gradient_norm, seen.now.drift)
    return float(not all(math.isfinite(value) for value in values))


def _entropy_left(seen: _Seen) -> float | None:
    possible = seen.now.possible_entropy
    return seen.now.class_entropy / possible if possible > 0 and seen.now.logit_norm is not None else None


_FEW_CLASSES: Final = "lower lr; if the images are really of few classes, give prior= or classes="
SIGNALS: Final[Mapping[str, Signal]] = {
    "finite": Signal("loss, gradient or parameters are no finite numbers", _is_broken, high=0.5),
    "stride": Signal(
        "one update has moved the parameters by this part of their length",
        lambda seen: None if seen.drift_before is None else seen.now.drift - seen.drift_before,
        high=0.1,
    ),
    "drift": Signal("the parameters are so many lengths away", lambda seen: seen.now.drift, high=1.0),
    "entropy": Signal(
        "the entropy of the predicted classes, as a part of what is possible, has fallen",
        _entropy_left,
        low=0.5,
        advice=_FEW_CLASSES,
    ),
    "share": Signal(
        "one class has this share of the predictions",
        lambda seen: seen.now.top_share,
        high=0.5,
        advice=_FEW_CLASSES,
    ),
    "logits": Signal(
        "the length of the logits, in units of what it was at the beginning, has changed",
        lambda seen: _times(seen.now.logit_norm, seen.logit_norm),
        low=1 / 3,
        high=3.0,
    ),
    "gradient": Signal(
        "the gradient is so many times as long as at the beginning",
        lambda seen: _times(seen.now.gradient_norm, seen.gradient_norm),
        high=1000.0,
    ),
}
"""In the order in which they are looked at."""
_OF_PARAMETERS: Final = ("stride", "drift")  # which no images can be to blame for


class Guard:
    """Judges every step of one adaptation, and remembers where to go back to.

    The parameters' way is measured from where they are when the guard is made.
    """

    def __init__(self, parameters: Iterable[Tensor], *, active: bool) -> None:
        self._parameters = list(parameters)
        self.active = active and bool(self._parameters)
        self._source = [p.detach().clone() for p in self._parameters] if self.active else []
        self._length = math.hypot(*torch._foreach_norm(self._source)) if self.active else 0.0
        self.restart()

    def restart(self) -> None:
        """Forget everything: the parameters are the source's again."""
        self.rate = 1.0
        """What learning rates are multiplied by."""
        self.stopped = False
        """Whether parameters are left alone from here on."""
        self.unchecked = False
        """Whether an update was made that nobody has looked at."""
        self.alarms: list[Alarm] = []
        self._kept: deque[tuple[int, State]] = deque(maxlen=_KEPT)
        self._falls = 0
        self._odd_batches = 0  # in a row, from which nothing was learned
        self._drift: float | None = 0.0
        self._logit_norm: float | None = None  # of the last steps, smoothed
        self._lengths: list[tuple[float, float]] = []  # of logits and gradients, at the beginning
        self._means: tuple[int, float | None, float | None] = (0, None, None)  # of so many of them

    @property
    def way(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The parameters, and the same at the source."""
        return self._parameters, self._source

    def drift_of(self, way: float) -> float:
        """The way's length as a part of the source's."""
        return way / max(self._length, 1e-12)

    def finding(self, look: Look) -> str | None:
        """The first signal that is out of bounds; without one, what is looked at becomes part of the past."""
        self.unchecked = False
        logit_norm = self._smoothed(look)
        seen = _Seen(look._replace(logit_norm=logit_norm), self._drift, *self._beginning())
        for name, signal in SIGNALS.items():
            value = signal.value(seen)
            if value is not None and not signal.low <= value <= signal.high:
                self._found = (name, value, signal)
                return name
        self._drift = look.drift
        if look.logit_norm is not None:
            self._odd_batches, self._logit_norm = 0, logit_norm
            if len(self._lengths) < _BEGINNING:
                self._lengths.append((look.logit_norm, look.gradient_norm))
        return None

    def _smoothed(self, look: Look) -> float | None:
        """The length of the logits, averaged over about `_ENOUGH` images where a batch has fewer.

        That of one image may be several times that of another, which says nothing of the network.
        """
        now, before = look.logit_norm, self._logit_norm
        if now is None or before is None or not math.isfinite(now):
            return now
        return before + min(1.0, look.images / _ENOUGH) * (now - before)

    def keep(self, step: int, make: Callable[[], State]) -> None:
        """Remember a state that had nothing to be said against it, if none is recent."""
        if not self._kept or step - self._kept[-1][0] >= _EVERY:
            self._kept.append((step, make()))

    def react(self, step: int) -> State | None:
        """What to put back because of the last finding; an empty state is the source.

        None, where images were to blame a moment ago and still may be: nothing is learned from these either.
        """
        certain = self._found[0] in _OF_PARAMETERS
        if not certain and 0 < self._odd_batches < _PATIENCE:
            self._odd_batches += 1
            return None
        self._before = None if certain else (self.rate, self._falls, list(self._kept), self._drift)
        self._odd_batches = 0
        self._falls += 1
        self._drift = None
        self.stopped = self._falls > _FALLS
        self.rate *= 0.1
        back_to, state = self._kept.pop() if self._kept and not self.stopped else (0, {})
        if self.stopped:
            self._note(step, "the parameters are the source's again, and only statistics adapt from here on")
        else:
            where = f"what it was at step {back_to}" if back_to else "the source"
            self._note(step, f"went back to {where}, with {self.rate:.0e} of the learning rate")
        return state

    def blame_images(self, step: int) -> bool:
        """The images are odd for an earlier state, too; whether the network was not to blame at all."""
        self._odd_batches = 1
        if self._before is None:
            return False
        self.rate, self._falls, kept, self._drift = self._before
        self._kept.clear()
        self._kept.extend(kept)
        self.alarms.pop()
        if self._found[0] != "finite":  # which is an error by itself
            self._note(step, "it is so for an earlier state too: nothing was learned from these images")
        return True

    def state(self) -> State:
        """All of it as tensors."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        kept = [step for step, _ in self._kept]
        document = {**numbers, "kept": kept, "alarms": [dataclasses.asdict(alarm) for alarm in self.alarms]}
        tensors = {"document": torch.frombuffer(bytearray(json.dumps(document).encode()), dtype=torch.uint8)}
        for number, (_, state) in enumerate(self._kept):
            tensors |= {f"{number}.{name}": tensor for name, tensor in state.items()}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`; nothing, from a file that knows no guard."""
        self.restart()
        if "document" not in tensors:
            return
        found: dict[str, Any] = json.loads(bytes(tensors["document"].tolist()))
        for name in _NUMBERS:
            setattr(self, name, found[name])
        self._lengths = [(logits, gradient) for logits, gradient in found["_lengths"]]
        self._means = (0, None, None)
        self.alarms = [Alarm(**alarm) for alarm in found["alarms"]]
        for number, step in enumerate(found["kept"]):
            head = f"{number}."
            state = {n.removeprefix(head): t for n, t in tensors.items() if n.startswith(head)}
            self._kept.append((step, state))

    def _beginning(self) -> tuple[float | None, float | None]:
        """Mean lengths of logits and gradients in the first steps."""
        if self._means[0] != len(self._lengths):
            logits, gradients = zip(*self._lengths, strict=True)
            count = len(self._lengths)
            self._means = (count, math.fsum(logits) / count, math.fsum(gradients) / count)
        return self._means[1:]

    def _note(self, step: int, action: str) -> None:
        name, value, signal = self._found
        limit = signal.low if value < signal.low else signal.high
        bound = "" if name == "finite" else f": {value:.3g}, where the limit is {limit:.3g}"
        message = f"after step {step}, {signal.what}{bound}; {action} ({signal.advice})"
        self.alarms.append(Alarm(step, name, value, limit, action, message))


_NUMBERS: Final = (
    "rate",
    "stopped",
    "unchecked",
    "_falls",
    "_odd_batches",
    "_drift",
    "_logit_norm",
    "_lengths",
)

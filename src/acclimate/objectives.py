"""What adaptation minimises: L = L_div + delta * mean(L_conf) + weight * CE(centroid labels)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.diversity import ClassDistribution
from acclimate.errors import InputError, OptionError, listed
from acclimate.losses import LOSSES, LOSSES_OF_LOG_CONFIDENCES, log_confidences
from acclimate.methods import Method
from acclimate.ranks import ALONE, Ranks

__all__ = ["External", "Objective", "of_logits_and_index"]

_NO_LABEL: Final = -100  # as torch has it

External = Callable[[Tensor, "Tensor | None"], Tensor]
"""An objective from outside: logits and the samples' positions to a scalar."""


@dataclass(frozen=True)
class _OfLogits:
    """A function of logits alone as one of logits and positions."""

    function: Callable[[Tensor], Tensor]

    def __call__(self, logits: Tensor, index: Tensor | None) -> Tensor:
        return self.function(logits)


def of_logits_and_index(objective: Callable[..., Tensor]) -> External:
    """An objective from outside as one of (logits, index), which it may be, or of logits alone.

    A second parameter that has a default is the index only if it is called so.

    >>> of_logits_and_index(lambda logits: logits.mean())(torch.ones(2, 3), None)
    tensor(1.)
    """
    if not callable(objective):
        raise OptionError(f"objective must be a function of logits, got {type(objective).__name__}")
    asked = objective.forward if isinstance(objective, nn.Module) else objective
    try:
        parameters = list(inspect.signature(asked).parameters.values())
    except (TypeError, ValueError):  # not written in Python
        return objective
    positional = [p for p in parameters if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL or p.name == "index" for p in positional[:2]):
        return objective
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if not positional or len(needed) > 2:
        raise OptionError(f"objective must take logits, or (logits, index), but needs {listed(needed)}")
    return objective if len(needed) == 2 else _OfLogits(objective)


class Objective(nn.Module):
    """Logits ``(N, n)`` and the samples' positions to the scalar that a method minimises.

    Follows the running class distribution whether or not L_div is part of the loss. ``labels`` are
    SHOT's, one per position, once there are any.

    >>> from acclimate.methods import METHODS
    >>> objective = Objective(METHODS["tent"], num_classes=4)
    >>> objective(torch.zeros(2, 4)).exp()
    tensor(4.)
    """

    labels: Tensor | None

    def __init__(
        self,
        method: Method,
        num_classes: int,
        *,
        prior: Tensor | Sequence[float] | None = None,
        external: External | None = None,
        shared: bool = False,
        dtype: torch.dtype = torch.float32,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__()
        self.method = method
        self._shared = shared and external is None and method.confidence in LOSSES_OF_LOG_CONFIDENCES
        self.external = external
        self._ranks = ranks
        self.distribution = ClassDistribution(num_classes, method.kappa, prior, dtype=dtype, ranks=ranks)
        self.register_buffer("labels", None)

    def forward(self, logits: Tensor, index: Tensor | None = None) -> Tensor:
        method = self.method
        confidence: Tensor | None
        if self._shared:
            divergence, confidence = self._from_one_softmax(logits)
        else:
            # The class distribution is followed in any case; its gradient is wanted only as L_div.
            with torch.set_grad_enabled(torch.is_grad_enabled() and method.diversity):
                divergence = self.distribution(logits)
            if self.external is not None:
                return self._of_all(self.external(logits, index), len(logits))
            confidence = None if method.confidence is None else LOSSES[method.confidence](logits)
        loss = divergence if method.diversity else torch.zeros_like(divergence)
        if confidence is not None:
            loss = loss + method.delta * self._ranks.mean(confidence)
        if method.pseudo_label_weight > 0 and self.labels is not None:
            loss = loss + method.pseudo_label_weight * self._label_loss(logits, index)
        return loss

    def _from_one_softmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The divergence and the confidence loss per sample."""
        assert self.method.confidence is not None
        log_p = log_confidences(logits)
        p = log_p.exp()
        divergence = self.distribution.follow(p if self.method.diversity else p.detach())
        return divergence, LOSSES_OF_LOG_CONFIDENCES[self.method.confidence](logits, log_p, p)

    def _label_loss(self, logits: Tensor, index: Tensor | None) -> Tensor:
        if index is None:
            raise InputError(
                "centroid labels need to know which sample is which, and these batches do not say"
            )
        assert self.labels is not None
        wide = logits if logits.dtype == torch.float64 else logits.float()
        labels = self.labels[index.to(self.labels.device)]
        if self._ranks.size == 1:
            return F.cross_entropy(wide, labels)
        losses = F.cross_entropy(wide, labels, reduction="none")
        return self._ranks.mean(losses) / self._ranks.mean(labels.ne(_NO_LABEL).to(losses.dtype))

    def _of_all(self, loss: Tensor, count: int) -> Tensor:
        """What is a mean over so many images here, over those of all ranks."""
        return loss if self._ranks.size == 1 or loss.ndim else self._ranks.mean(loss.expand(count))

"""The running class distribution p_t and its divergence from the target distribution: L_div.

    p_t = kappa * p_{t-1} + (1 - kappa) * mean over the batch of softmax(logits)
    L_div = KL(p_t || target) = sum_c p_t,c (log p_t,c - log target_c)

p_{t-1} carries no gradient. p_0 is the target. kappa = 0 is the batch-wise regulariser.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from acclimate.errors import InputError, OptionError
from acclimate.ranks import ALONE, Ranks

__all__ = ["ClassDistribution"]


class ClassDistribution(nn.Module):
    """Called with logits ``(N, n)``, updates p_t and returns KL(p_t || target), a scalar.

    ``target`` is uniform unless given; it is scaled to sum to 1. The state is in ``state_dict``.

    >>> distribution = ClassDistribution(4)
    >>> distribution(torch.zeros(8, 4)).item()
    0.0
    """

    p: Tensor
    target: Tensor
    confidence: Tensor | None = None
    """Of the last batch: the mean over its images of the highest confidence."""
    _target_entropy: float | None = None
    _common: tuple[tuple[float, int, int], Tensor] | None = None
    """So many times the target: made once for each target."""

    def __init__(
        self,
        num_classes: int,
        kappa: float = 0.9,
        target: Tensor | Sequence[float] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__()
        if num_classes < 2:
            raise OptionError(f"a class distribution needs at least 2 classes, got {num_classes}")
        if not 0 <= kappa < 1:
            raise OptionError(f"kappa must be at least 0 and below 1, got {kappa}")
        self.kappa = kappa
        self._ranks = ranks
        self.register_buffer("target", _checked_target(num_classes, target).to(dtype))
        self.register_buffer("p", self.target.clone())

    def forward(self, logits: Tensor) -> Tensor:
        if logits.ndim != 2 or logits.shape[1] != len(self.target) or not len(logits):
            raise InputError(
                f"logits must have the shape (samples, {len(self.target)}) and at least one sample, "
                f"got {tuple(logits.shape)}"
            )
        return self.follow(logits.to(self.p.dtype).softmax(1))

    def follow(self, confidences: Tensor) -> Tensor:
        """The same, from the confidences ``(N, n)`` themselves."""
        p = self.kappa * self.p + (1 - self.kappa) * self._ranks.mean(confidences)
        self.p = p.detach()
        # past the checks of a module's attributes, which take longer than it does
        vars(self)["confidence"] = self._ranks.mean(confidences.detach().amax(1))
        return _divergence(p, self.target)

    def entropy(self) -> Tensor:
        """Entropy of p_t in nats, a scalar; low where the predictions have collapsed."""
        parts: Tensor = torch.special.entr(self.p)
        return parts.sum()

    def possible_entropy(self, images: int) -> float:
        """The most that p_t can have after many batches of so many images, if these follow the target.

        p_t weighs as many images as a mean over images * (1 + kappa) / (1 - kappa) of them.
        """
        if self._target_entropy is None:
            vars(self)["_target_entropy"] = torch.special.entr(self.target).sum().item()
        weighed = images * (1 + self.kappa) / (1 - self.kappa)
        assert self._target_entropy is not None
        return min(self._target_entropy, math.log(weighed))

    def common_share(self, times: float = 5.0) -> Tensor:
        """The largest share in p_t of a class that has so many times its share in the target, or 0."""
        p, target = self.p, self.target
        of = (times, target.data_ptr(), target._version)
        if self._common is None or self._common[0] != of:
            vars(self)["_common"] = (of, times * target)
        assert self._common is not None
        return (p * (p > self._common[1])).amax()

    def restart(self) -> None:
        """Forget the history: p_t is the target again."""
        self.p = self.target.clone()

    def extra_repr(self) -> str:
        return f"{len(self.target)}, kappa={self.kappa}"


def _divergence(p: Tensor, target: Tensor) -> Tensor:
    # 0 log 0 = 0, in value and in gradient: a class whose mass has underflowed adds nothing.
    log_p = torch.where(p > 0, p, 1.0).log()
    return (p * (log_p - target.log())).sum()


def _checked_target(num_classes: int, target: Tensor | Sequence[float] | None) -> Tensor:
    if target is None:
        return torch.full((num_classes,), 1 / num_classes, dtype=torch.float64)
    prior = torch.as_tensor(target, dtype=torch.float64).detach().cpu()
    if prior.shape != (num_classes,):
        raise OptionError(
            f"prior must have one entry for each of the {num_classes} classes, got "
            f"{len(prior) if prior.ndim == 1 else tuple(prior.shape)}"
        )
    if not bool(torch.isfinite(prior).all() and (prior > 0).all()):
        where = (
            torch.nonzero(~(prior > 0)).flatten().tolist()
            or torch.nonzero(~prior.isfinite()).flatten().tolist()
        )
        raise OptionError(
            f"every entry of a prior must be a positive number, which is not so at {where}: "
            "leave classes that cannot occur out by `classes=`"
        )
    return prior / prior.sum()

"""The four confidence losses: logits ``(N, n)`` to a loss per sample ``(N,)``.

With logits o, confidences p = softmax(o) and the top class ``*`` = argmax o:

    entropy                  - sum_c p_c log p_c
    pseudo_label             - log p_*
    hard_likelihood_ratio    R_*                  where R_c = - o_c + log sum_{i != c} exp(o_i)
    soft_likelihood_ratio    sum_c p_c R_c

float64 stays float64, every other precision is computed in float32. Values and gradients are exact
for any finite logits, in O(N n) time and memory, without a clamp on p and without an epsilon: within
1e-6 * max(1, |value|) of float64. Entropy is computed in its plain form up to 2,048 classes; there, with
many hundreds of classes, torch's softmax can miss that by up to a factor of two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from acclimate.errors import InputError

__all__ = [
    "LOSSES",
    "LOSSES_OF_LOG_CONFIDENCES",
    "entropy",
    "hard_likelihood_ratio",
    "log_confidences",
    "pseudo_label",
    "soft_likelihood_ratio",
]


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the prediction: TENT's loss. Its gradient vanishes as p_* tends to 1.

    >>> entropy(torch.zeros(1, 4)).exp()
    tensor([4.])
    """
    logits = _checked(logits)
    if logits.shape[1] > _MANY:
        log_p = _log_p(logits)
        return _entropy(logits, log_p, log_p.exp())
    # The plain form, so that TENT is the TENT of the literature to the last bit.
    relative = _relative_to_top(logits)
    return -(relative.softmax(1) * relative.log_softmax(1)).sum(1)


def pseudo_label(logits: Tensor) -> Tensor:
    """Cross-entropy with the network's own top class. Its gradient vanishes as p_* tends to 1.

    >>> pseudo_label(torch.zeros(1, 4)).exp()
    tensor([4.])
    """
    return -_log_p(_checked(logits)).gather(1, _top(logits)).squeeze(1)


def hard_likelihood_ratio(logits: Tensor) -> Tensor:
    """Negative log likelihood ratio of the top class to all others. Its gradient at o_* is -1.

    >>> hard_likelihood_ratio(torch.tensor([[3.0, 1.0]]))
    tensor([-2.])
    """
    return _ratio_of_top(_checked(logits))


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """Likelihood ratio of every class, weighted by its confidence; tends to the hard one as p_* tends to 1.

    >>> soft_likelihood_ratio(torch.zeros(1, 5)).exp()
    tensor([4.])
    """
    logits = _checked(logits)
    log_p = _log_p(logits)
    return _soft_likelihood_ratio(logits, log_p, log_p.exp())


def log_confidences(logits: Tensor) -> Tensor:
    """log p, from which some losses and the class distribution can be had together."""
    return _log_p(_checked(logits))


def _entropy(logits: Tensor, log_p: Tensor, p: Tensor) -> Tensor:
    return -(p * log_p).sum(1)


def _soft_likelihood_ratio(logits: Tensor, log_p: Tensor, p: Tensor) -> Tensor:
    logits = _checked(logits)
    # p without its top entry: what is left is at most 1/2, so that log1p(-p) is well conditioned.
    p_below = p.scatter(1, _top(logits), 0.0)
    ratio_below = torch.log1p(-p_below) - log_p
    ratio_of_top = _ratio_of_top(logits)
    # sum_c p_c R_c with p_* = 1 - sum of the others: nothing cancels as p_* tends to 1.
    return ratio_of_top + (p_below * (ratio_below - ratio_of_top.unsqueeze(1))).sum(1)


LOSSES: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "entropy": entropy,
    "pseudo_label": pseudo_label,
    "hard_likelihood_ratio": hard_likelihood_ratio,
    "soft_likelihood_ratio": soft_likelihood_ratio,
}


LOSSES_OF_LOG_CONFIDENCES: Final[dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "entropy": _entropy,
    "soft_likelihood_ratio": _soft_likelihood_ratio,
}
"""Those that are made of log p and p, which they are given beside the logits."""

_MANY: Final = 2048
"""Classes above which torch's softmax has lost a digit too many."""


def _ratio_of_top(logits: Tensor) -> Tensor:
    """R_* = -o_* + log sum_{i != *} exp(o_i)."""
    top = _top(logits)
    others = logits.scatter(1, top, -torch.inf)
    second = others.detach().amax(1, keepdim=True)
    top_logit = logits.gather(1, top)
    # Both terms are taken relative to the second logit: o_* and the others may lie far apart, and
    # the differences between the others must survive that.
    gap = (top_logit.detach() - second).clamp(max=_largest(logits))
    gap = gap + (top_logit - top_logit.detach())  # zero in value, one in gradient
    return (others - second).logsumexp(1) - gap.squeeze(1)


def _log_p(logits: Tensor) -> Tensor:
    """log softmax; torch's own adds up many classes with fewer digits than its logsumexp does."""
    relative = _relative_to_top(logits)
    return relative - relative.logsumexp(1, keepdim=True)


def _relative_to_top(logits: Tensor) -> Tensor:
    """o - o_*, so that large common offsets cost no digits. Softmax does not see the shift."""
    return (logits - logits.detach().amax(1, keepdim=True)).clamp(min=-_largest(logits))


def _largest(logits: Tensor) -> float:
    """Differences of logits saturate here, where p is 0 long since and two of them still add up."""
    return torch.finfo(logits.dtype).max / 4


def _top(logits: Tensor) -> Tensor:
    return logits.detach().argmax(1, keepdim=True)


def _checked(logits: Tensor) -> Tensor:
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        got = str(logits.dtype) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"logits must be a tensor of floating-point numbers, got {got}")
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise InputError(
            "logits must have the shape (samples, classes) with at least 2 classes, "
            f"got {tuple(logits.shape)}"
        )
    return logits if logits.dtype == torch.float64 else logits.float()

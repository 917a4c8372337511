"""The paper's figure of the losses: value and gradient against confidence, for two classes."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from acclimate.losses import LOSSES

__all__ = ["losses_against_confidence", "losses_figure"]

_TITLES = {
    "entropy": "entropy (TENT)",
    "pseudo_label": "pseudo-label",
    "hard_likelihood_ratio": "hard likelihood ratio (HLR)",
    "soft_likelihood_ratio": "soft likelihood ratio (SLR)",
}


def losses_against_confidence(
    points: int = 400, largest: float = 0.9999
) -> tuple[torch.Tensor, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """Confidences of the top class of two, and each loss with its gradient at the top logit.

    >>> confidence, curves = losses_against_confidence()
    >>> bool((curves["hard_likelihood_ratio"][1] == -1).all())  # does not vanish as confidence grows
    True
    """
    confidence = torch.linspace(0.5 + 1e-6, largest, points, dtype=torch.float64)
    curves = {}
    for name, loss in LOSSES.items():
        logits = torch.stack((torch.logit(confidence), torch.zeros_like(confidence)), dim=1)
        logits.requires_grad_()
        value = loss(logits)
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        curves[name] = (value.detach(), gradient[:, 0])
    return confidence, curves


def losses_figure() -> Figure:
    """Losses to the left, the size of their gradients to the right: entropy's vanishes, HLR's does not."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    confidence, curves = losses_against_confidence()
    for name, (value, gradient) in curves.items():
        left.plot(confidence, value, label=_TITLES[name])
        right.plot(confidence, gradient.abs(), label=_TITLES[name])
    left.set(xlabel="confidence of the top class", ylabel="loss", title="two classes: losses")
    right.set(xlabel="confidence of the top class", ylabel="|gradient| at the top logit", title="gradients")
    right.set_ylim(0, 1.6)
    left.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return figure

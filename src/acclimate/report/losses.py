"""The paper's figure of the losses: value and gradient against confidence, for two classes."""

from __future__ import annotations

from typing import Final

import torch
from matplotlib.figure import Figure

from acclimate.losses import LOSSES
from acclimate.report.palette import color_of
from acclimate.report.style import PAGE, new_figure, style

__all__ = ["losses_against_confidence", "losses_figure"]

_TITLES: Final = {
    "entropy": ("tent", "entropy (TENT)"),
    "pseudo_label": ("pl", "pseudo-label (PL)"),
    "hard_likelihood_ratio": ("hlr", "hard likelihood ratio (HLR)"),
    "soft_likelihood_ratio": ("slr", "soft likelihood ratio (SLR)"),
}
"""The method whose colour a loss has, and its name."""
_LOWEST: Final = -5.5  # likelihood ratios go on without end


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
    """Losses to the left, each with its maximum at 0, their gradients to the right: entropy's vanishes."""
    with style():
        figure = new_figure(PAGE, 2.5)
        left, right = figure.subplots(1, 2)
        confidence, curves = losses_against_confidence()
        for name, (value, gradient) in curves.items():
            method, title = _TITLES[name]
            color = color_of(method)
            left.plot(confidence, value - value.max(), label=title, color=color)
            right.plot(confidence, gradient, label=title, color=color)
        left.set(ylabel="loss, its maximum at 0", ylim=(_LOWEST, 0.3))
        right.set(ylabel="gradient at the first logit")
        for axes in (left, right):
            axes.set(xlabel="confidence of the first of two classes", xlim=(0.5, 1))
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure

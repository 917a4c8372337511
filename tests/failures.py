"""Networks that end a cell in one way or another."""

from __future__ import annotations

import os
import signal

import torch

from acclimate.demo.bundle import bundled_model


def failing_network() -> torch.nn.Module:
    """Its logits are no numbers."""
    model = bundled_model()
    with torch.no_grad():
        model.linear.weight.mul_(float("nan"))
    return model


def killing_network() -> torch.nn.Module:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def hungry_network() -> torch.nn.Module:
    torch.empty(2**46)
    raise AssertionError

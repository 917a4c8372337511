"""The same mathematics in less time and memory.

Adaptation needs the gradient of norm parameters only, and knows which weights never change. What stock
layers keep for other gradients, and what they do for other trainings, is left out here. `TRICKS` names
every saving; each can be left out by itself, and none changes a result beyond rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from acclimate.errors import OptionError, unknown

__all__ = ["MEMORY", "TRICKS", "chosen_tricks"]

TRICKS: Final = {
    "layout": "images lie in memory pixel by pixel (channels last), the fastest for CPUs",
    "recycling": "memory that one step frees stays with the process for the next step (glibc, CPU)",
    "weights": "layers with a frozen weight keep no input; its layout and low precision are made only once",
    "packing": "frozen weights lie as the kernels of oneDNN read them, for both passes (CPU)",
    "winograd": "3×3 convolutions of float32 take 2.25 times fewer products, by our own kernel (CPU)",
    "trained": "3×3 convolutions of the input transformation, in float32, by our own kernels (CPU)",
    "norms": "batch and group norms keep their input only; an activation behind one is made again from it",
    "native": "norms and activations by our own kernels, which the machine's C compiler makes once (CPU)",
    "fusion": "an addition or a clamp right behind a norm is made in the pass that writes the norm (CPU)",
    "concatenations": "a concatenation that grows, as in dense blocks, is copied and kept once (CPU)",
    "activations": "other ReLU-like activations keep one bit per element",
    "pooling": "pooling keeps positions, not pixels",
    "exchange": "a 1×1 convolution right before an average pooling is made behind it, of fewer pixels",
    "optimizer": "one fused update of all parameters",
    "measures": "what the guard looks at is measured by our own kernel, in a few calls (CPU)",
    "objective": "confidence and diversity share one softmax",
}
"""Every saving by name, with what it does."""

MEMORY: Final = ("auto", "low", "off")
"""When the network's first stages are computed a second time in backward, instead of being kept."""


def chosen_tricks(fast: bool | Iterable[str]) -> frozenset[str]:
    """The names that ``fast`` stands for: all, none, or those given.

    >>> sorted(chosen_tricks(["layout", "norms"]))
    ['layout', 'norms']
    """
    if isinstance(fast, bool):
        return frozenset(TRICKS) if fast else frozenset()
    if isinstance(fast, str) or not isinstance(fast, Iterable):
        raise OptionError(f"fast must be True, False or a list of names out of {list(TRICKS)}, got {fast!r}")
    names = frozenset(fast)
    for name in sorted(names - TRICKS.keys()):
        raise OptionError(unknown("saving of fast=", name, TRICKS))
    return names

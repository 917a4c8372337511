"""What the demo measures: every method on the bundled images under some corruptions, without a label."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from acclimate.adapter import Adapter
from acclimate.corruptions import corrupt
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model

__all__ = ["CORRUPTIONS", "METHODS", "QUICK_CORRUPTIONS", "Cell", "accuracy", "measure", "shifted_images"]

METHODS = ("source", "bn", "tent", "tent+", "hlr", "slr", "slr+it")
CORRUPTIONS = ("impulse_noise", "defocus_blur", "fog", "contrast")
QUICK_CORRUPTIONS = ("impulse_noise", "contrast")
SEVERITY = 5
_SHOWN = 6  # images of the gallery


@dataclass(frozen=True)
class Cell:
    """One method on one corruption."""

    method: str
    corruption: str
    over_epochs: tuple[float, ...]
    """Accuracy in % after each epoch (one, where nothing is trained); labels serve for this only."""
    histogram: tuple[int, ...]
    """How often each class was predicted at the end."""
    seconds: float
    gallery: tuple[Tensor, Tensor, Tensor]
    """Some images: clean, corrupted, and what the input transformation makes of them."""

    @property
    def accuracy(self) -> float:
        return self.over_epochs[-1]


def shifted_images(count: int, corruption: str, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Clean images, corrupted images, labels."""
    images, labels = (part[:count] for part in bundled_images())
    pixels = (images * 255).round().to(torch.uint8)
    return images, corrupt(pixels, corruption, SEVERITY, seed=seed).float() / 255, labels


def accuracy(logits: Tensor, labels: Tensor) -> float:
    return 100 * logits.argmax(1).eq(labels).float().mean().item()


def measure(
    corruptions: Sequence[str] = CORRUPTIONS,
    methods: Sequence[str] = METHODS,
    *,
    count: int,
    epochs: int,
    seed: int = 0,
) -> Iterator[Cell]:
    """Every method under every corruption, one after the other, each from the source network."""
    for corruption in corruptions:
        for method in methods:
            yield _cell(method, corruption, count, epochs, seed)


def _cell(method: str, corruption: str, count: int, epochs: int, seed: int) -> Cell:
    clean, shifted, labels = shifted_images(count, corruption, seed)
    adapter = Adapter(bundled_model(), method, normalize=(MEAN, STD), seed=seed)
    passes: list[Tensor] = []
    started, evaluating = time.perf_counter(), 0.0

    def evaluate(adapter: Adapter) -> None:
        nonlocal evaluating
        begun = time.perf_counter()
        passes.append(adapter.predict(shifted, batch_size=64))
        evaluating += time.perf_counter() - begun

    if adapter.method.has_loss:
        adapter.fit(shifted, epochs, progress=False, on_epoch=evaluate)
    else:  # all epochs are alike
        evaluate(adapter)
        if adapter.method.adapts_statistics:
            evaluating = 0.0  # the pass itself adapts
    seconds = time.perf_counter() - started - evaluating
    predicted = passes[-1].argmax(1)
    return Cell(
        method=method,
        corruption=corruption,
        over_epochs=tuple(accuracy(logits, labels) for logits in passes),
        histogram=tuple(predicted.bincount(minlength=10).tolist()),
        seconds=seconds,
        gallery=(clean[:_SHOWN], shifted[:_SHOWN], adapter.transformed(shifted[:_SHOWN])),
    )

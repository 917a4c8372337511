"""A model adapted in one call, and whether that did it any harm."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
from torch import nn

from acclimate.adapter import FIT_ONLY, Adapter, keywords
from acclimate.errors import AcclimateWarning, OptionError, unknown
from acclimate.gate import IMAGES, judge
from acclimate.methods import Method
from acclimate.types import AdaptationResult, Verdict

__all__ = ["adapt", "judged"]


def adapt(
    model: nn.Module,
    data: Any,
    method: str | Method = "slr",
    *,
    epochs: int = 5,
    batch_size: int = 64,
    shuffle: bool = True,
    progress: bool | None = None,
    gate: bool = True,
    **options: Any,
) -> AdaptationResult[Adapter]:
    """Adapt a model to unlabelled images and predict them: `Adapter`, `fit` and `predict` in one call.

    ``options`` are those of `Adapter`; the rest are those of `Adapter.fit`. With ``gate``, the result has a
    verdict: whether the adapted network seems better than the source, and a warning if it does not.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 10))
    >>> adapt(net, torch.rand(100, 3, 8, 8), method="tent", epochs=2, gate=False).predictions.shape
    torch.Size([100])
    """
    known = [*(item.name for item in dataclasses.fields(Method)), *keywords(), *FIT_ONLY]
    for name in options:
        if name not in known:
            raise OptionError(unknown("option", name, known))
    adapter = Adapter(model, method, **options)
    history = adapter.fit(data, epochs, batch_size=batch_size, shuffle=shuffle, progress=progress)
    logits = adapter.predict(data, batch_size=batch_size)
    assert adapter.classes is not None
    predictions = torch.tensor(adapter.classes)[logits.argmax(1).cpu()]
    verdict = judged(model, adapter, data, batch_size=batch_size) if gate else None
    if verdict is not None and not verdict.accepted:
        warnings.warn(verdict.reason, AcclimateWarning, stacklevel=2)
    return AdaptationResult(adapter, history, logits, predictions, verdict)


def judged(model: nn.Module, adapter: Adapter, data: Any, *, batch_size: int = 64) -> Verdict | None:
    """Whether an adapted network seems better than the model it was; None where it is the same.

    `acclimate.gate` says how that is judged, on at most the first 1,000 images.
    """
    if not adapter.adapting:
        return None
    options = adapter.options
    source = Adapter(
        model,
        "source",
        normalize=options.normalize,
        classes=options.classes,
        precision=options.precision,
        ranks=options.ranks,
        seed=options.seed,
        device=adapter.device,
    )
    before, after = (one.views(data, batch_size=batch_size, images=IMAGES) for one in (source, adapter))
    prior = None if options.prior is None else torch.tensor(options.prior)
    return judge(before, after, prior)

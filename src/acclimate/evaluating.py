"""How right a network or an adapter is on labelled images: `acclimate.evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from acclimate.adapter import Adapter
from acclimate.data import ImageSet
from acclimate.errors import OptionError, listed
from acclimate.evaluation import Evaluation, columns_of, evaluated
from acclimate.inputs import input_of, opened
from acclimate.labels import OWN, count_logits, labels_for, statistics_of
from acclimate.mean_std import MeanStd
from acclimate.one_call import path_of, tell_left_out

__all__ = ["evaluate"]


def evaluate(
    model: nn.Module | Adapter,
    data: Any,
    labels: Any = None,
    *,
    normalize: str | MeanStd | None = None,
    size: int | None = None,
    classes: Sequence[int] | None = None,
    batch_size: int = 64,
    statistics: str = "batch",
    device: torch.device | str | None = None,
) -> Evaluation:
    """Measure how right a network or an adapter is on labelled images; neither of them changes.

    Args:
        model: a network, which predicts as it is, or an `Adapter`, which predicts as `Adapter.predict` does.
        data: as for `acclimate.adapt`.
        labels: by default those that the data have of their own; otherwise as for `acclimate.adapt`. Numbers
            are outputs of the network, also where ``classes`` are some of them.
        normalize: as for `acclimate.adapt`; an `Adapter` has its own.
        size: as for `acclimate.adapt`.
        classes: the outputs that can occur; an `Adapter` has its own.
        batch_size: images in a batch.
        statistics: as for `Adapter.predict`.
        device: where to compute, if not where the network is; an `Adapter` has its own.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    >>> evaluate(net, torch.rand(30, 3, 2, 2), torch.arange(30) % 3).images
    30
    """
    given = {"normalize": normalize, "classes": classes, "device": device}
    own = [name for name, value in given.items() if value is not None]
    if isinstance(model, Adapter) and own:
        raise OptionError(f"an Adapter has {listed(own)} of its own: give it to the Adapter")
    network = model._engine.prepared.model if isinstance(model, Adapter) else model
    normalize = model.options.normalize if isinstance(model, Adapter) else normalize
    found = opened(data)
    truth = labels_for(OWN if labels is None else labels, found, path=path_of(data))
    feed = input_of(network, found, size=size, normalize=normalize)
    images = feed.images
    tell_left_out(feed)
    targets = truth.targets(images, count_logits(model, images, device))
    if isinstance(model, Adapter):
        adapter = model
    else:
        chosen = images.classes if classes is None and isinstance(images, ImageSet) else classes
        adapter = Adapter(model, "source", normalize=feed.normalize, classes=chosen, device=device)
    columns_of(targets.labels, adapter.options.classes)  # what is wrong is told before the work
    return evaluated(
        adapter.predict(images, batch_size=batch_size, statistics=statistics),
        targets.labels,
        statistics=statistics_of(adapter, statistics),
        classes=adapter.options.classes,
        names=targets.names,
        origin=targets.how,
    )

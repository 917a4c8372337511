"""SHOT's centroid labels of a whole data set, by a pass over it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from acclimate.errors import ModelError
from acclimate.network import Network
from acclimate.pseudo_labels import centroid_labels
from acclimate.ranks import Ranks
from acclimate.types import Batch

__all__ = ["label_table"]


def label_table(
    batches: Iterable[Batch],
    forward: Callable[[Tensor], Tensor],
    network: Network,
    label_set: str,
    *,
    ranks: Ranks,
) -> Tensor:
    """A label for every position in the data; -100, as torch has it, for those that a sampler leaves out.

    ``forward`` gives the logits of images, by way of ``network``.
    """
    confidences, index = [], []
    waiting = iter(batches)
    first = next(waiting)
    forward(first.images)  # after which the network knows its outputs, by which it finds the classifier
    with network.features() as features:
        for batch in itertools.chain([first], waiting):
            assert batch.index is not None
            confidences.append(forward(batch.images).float().softmax(1))
            index.append(batch.index)
    if [len(part) for part in features] != [len(part) for part in index]:
        raise ModelError("the classifier layer is not called once for every image: name it by features=")
    labels = centroid_labels(torch.cat(features).float(), torch.cat(confidences), label_set, ranks=ranks)
    labels, rows = (ranks.rows(part) for part in (labels, torch.cat(index).to(labels.device)))
    table = torch.full((int(rows.max()) + 1,), -100, device=labels.device)
    return table.scatter(0, rows, labels)

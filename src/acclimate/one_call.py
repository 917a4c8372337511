"""A model adapted in one call, and whether that did it any harm.

`acclimate.adapt` and the command `acclimate adapt` are made of the same parts: `acclimate.inputs`, the
`Adapter`, and the two functions below that hold what was before beside what came out.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.adapter import FIT_ONLY, Adapter, keywords
from acclimate.data import ImageSet
from acclimate.errors import (
    AcclimateError,
    AcclimateWarning,
    InputError,
    OptionError,
    checked_count,
    listed,
    unknown,
)
from acclimate.evaluation import Comparison, columns_of, compared
from acclimate.gate import GATES, IMAGES, checked_gate, judge
from acclimate.inputs import Input, input_of, opened
from acclimate.labels import Numbers, count_logits, labels_for, notes_on, statistics_of
from acclimate.mean_std import MeanStd
from acclimate.methods import Method
from acclimate.normalization import may_be_normalised_otherwise
from acclimate.probe import probe_normalization
from acclimate.result import AdaptationResult
from acclimate.types import Verdict

__all__ = ["adapt", "before_adapting", "concluded", "judged", "measured", "path_of", "tell_left_out"]


def adapt(
    model: nn.Module,
    data: Any,
    method: str | Method = "slr",
    *,
    normalize: str | MeanStd | None = None,
    size: int | None = None,
    epochs: int = 5,
    batch_size: int = 64,
    shuffle: bool = True,
    progress: bool | None = None,
    gate: str = GATES[0],
    labels: Any = None,
    **options: Any,
) -> AdaptationResult:
    """Adapt a model to unlabelled images and predict them, as the command `acclimate adapt` does.

    Args:
        model: as for `Adapter`.
        data: a path, or what `acclimate.open_data` gives; images as uint8 (arrays ``(N, H, W, C)``, tensors
            ``(N, C, H, W)``) or as Pillow's, in a list or a data set; float tensors, a loader, a list of
            batches. Whatever comes beside the images is ignored.
        method: as for `Adapter`.
        normalize: as for `Adapter`. If it is not given, files, bytes and Pillow's images, which are known to
            be pixels, are normalised as the network's weights say, and it is an error if these do not;
            float tensors go to the model as they are.
        size: side to which image files and Pillow's images are cropped; 0 leaves them. By default what the
            network's weights say, or 224.
        epochs: how many times to go through the images.
        batch_size: as for `Adapter.fit`.
        shuffle: as for `Adapter.fit`.
        progress: as for `Adapter.fit`.
        gate: whether the adapted network is held against the source: ``"warn"`` tells of harm, ``"refuse"``
            also gives the source's predictions, ``"off"`` does not ask.
        labels: to measure by, before and after; they decide nothing else. ``"auto"`` takes those that the
            data have of their own (class folders, arrays with labels, data sets and batches with labels).
            Or a CSV file of file,label, an array or a list of outputs of the network or names of classes.
        **options: of `Adapter`.

    Files that cannot be read are left out: a warning names them, and so does the result.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 10))
    >>> adapt(net, torch.rand(100, 3, 8, 8), method="tent", epochs=2, gate="off").predictions.shape
    torch.Size([100])
    """
    known = [*(item.name for item in dataclasses.fields(Method)), *keywords(), *FIT_ONLY]
    for name in options:
        if name not in known:
            raise OptionError(unknown("option", name, known))
    checked_gate(gate)
    checked_count("epochs", epochs)
    found = opened(data)
    truth = None if labels is None else labels_for(labels, found, path=path_of(data))
    given = input_of(model, found, size=size, normalize=normalize, ranks=options.get("ranks", "together"))
    images = given.images
    tell_left_out(given)
    targets = (
        None if truth is None else truth.targets(images, count_logits(model, images, options.get("device")))
    )
    if isinstance(images, ImageSet):
        options.setdefault("classes", images.classes)
    adapter = Adapter(model, method, normalize=given.normalize, **options)
    if targets is not None:
        columns_of(targets.labels, adapter.options.classes)  # what is wrong is told before the work
    source, before = before_adapting(model, adapter, images, batch_size=batch_size)
    adapter.fit(images, epochs, batch_size=batch_size, shuffle=shuffle, progress=progress)
    result = concluded(
        adapter, source, before, images, batch_size=batch_size, gate=gate, left_out=given.left_out
    )
    notes = notes_on(images, labels)
    result = dataclasses.replace(result, notes=notes, evaluation=measured(result, source, targets))
    if result.verdict is not None and not result.verdict.accepted:
        warnings.warn(result.verdict.reason, AcclimateWarning, stacklevel=2)
    return result


def tell_left_out(given: Input) -> None:
    """Warn of images that cannot be read; to be called by what the user calls."""
    if given.left_out:
        count = len(given.left_out)
        warnings.warn(
            f"{count:,} of {count + len(given.images):,} images cannot be read and are left out: "
            f"{listed(given.left_out, 3)}",
            AcclimateWarning,
            stacklevel=3,
        )


def path_of(data: Any) -> str | None:
    """The path, if data are given by one."""
    return os.fspath(data) if isinstance(data, (str, os.PathLike)) else None


def measured(result: AdaptationResult, source: Adapter, targets: Numbers | None) -> Comparison | None:
    """How right predictions were before and are after, if there are labels to tell it by."""
    if targets is None:
        return None
    ours = source if result.refused else result.adapter
    return compared(
        result.source_logits,
        result.logits,
        targets.labels,
        statistics=(statistics_of(source), statistics_of(ours)),
        classes=result.adapter.options.classes,
        names=targets.names,
        origin=targets.how,
    )


def before_adapting(
    model: nn.Module, adapter: Adapter, images: Any, *, batch_size: int = 64
) -> tuple[Adapter, Tensor]:
    """The model as an adapter that never adapts, and its logits.

    Where its weights do not say what it was trained with, a probe warns of a doubtful normalisation.
    """
    source = _source_of(model, adapter)
    try:
        logits = source.predict(images, batch_size=batch_size)
    except AcclimateError:
        raise
    except RuntimeError as error:
        if not isinstance(images, ImageSet):
            raise
        shape, reason = tuple(images.batch([0]).shape[1:]), str(error).partition("\n")[0]
        raise InputError(
            f"the network cannot take images of the shape {shape} (channels, height, width): {reason}"
        ) from error
    if isinstance(images, ImageSet) and may_be_normalised_otherwise(model):
        caution = probe_normalization(model, images.sample(), adapter.options.normalize).caution
        if caution is not None:
            warnings.warn(caution, AcclimateWarning, stacklevel=3)
    return source, logits


def concluded(
    adapter: Adapter,
    source: Adapter,
    before: Tensor,
    images: Any,
    *,
    batch_size: int = 64,
    gate: str = GATES[0],
    left_out: Mapping[str, str] | None = None,
) -> AdaptationResult:
    """The result of an adapter that has adapted; `before_adapting` gave ``source`` and ``before``."""
    verdict = None if gate == "off" else judged(adapter, source, images, batch_size=batch_size)
    refused = gate == "refuse" and verdict is not None and not verdict.accepted
    logits = before if refused else adapter.predict(images, batch_size=batch_size)
    return AdaptationResult(
        adapter,
        copy.deepcopy(adapter.history),
        logits,
        before,
        statistics="source" if refused else adapter.predicts_by,
        classes=adapter.classes or tuple(range(before.shape[1])),
        steps=adapter.step,
        verdict=verdict,
        refused=refused,
        names=images.names if isinstance(images, ImageSet) else None,
        left_out=dict(left_out or {}),
    )


def judged(adapter: Adapter, source: Adapter, data: Any, *, batch_size: int = 64) -> Verdict | None:
    """Whether an adapted network seems better than the source; None where nothing adapts.

    `acclimate.gate` says how that is judged, on at most the first 1,000 images.
    """
    if not adapter.adapting:
        return None
    before, after = (one.views(data, batch_size=batch_size, images=IMAGES) for one in (source, adapter))
    prior = None if adapter.options.prior is None else torch.tensor(adapter.options.prior)
    return judge(before, after, prior)


def _source_of(model: nn.Module, adapter: Adapter) -> Adapter:
    options = adapter.options
    return Adapter(
        model,
        "source",
        normalize=options.normalize,
        classes=options.classes,
        precision=options.precision,
        ranks=options.ranks,
        seed=options.seed,
        device=adapter.device,
    )

"""A model adapted in one call, and whether that did it any harm.

`acclimate.adapt` and the command `acclimate adapt` are made of the same parts: `acclimate.inputs`, the
`Adapter`, and the two functions below that hold what was before beside what came out.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.adapter import FIT_ONLY, Adapter, keywords
from acclimate.data import ImageSet
from acclimate.errors import AcclimateError, AcclimateWarning, InputError, OptionError, listed, unknown
from acclimate.gate import GATES, IMAGES, checked_gate, judge
from acclimate.inputs import input_of
from acclimate.mean_std import MeanStd
from acclimate.methods import Method
from acclimate.normalization import may_be_normalised_otherwise
from acclimate.probe import probe_normalization
from acclimate.result import AdaptationResult
from acclimate.types import Verdict

__all__ = ["adapt", "before_adapting", "concluded", "judged"]


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
    given = input_of(model, data, size=size, normalize=normalize, ranks=options.get("ranks", "together"))
    images = given.images
    if given.left_out:
        count = len(given.left_out)
        warnings.warn(
            f"{count:,} of {count + len(images):,} images cannot be read and are left out: "
            f"{listed(given.left_out, 3)}",
            AcclimateWarning,
            stacklevel=2,
        )
    if isinstance(images, ImageSet):
        options.setdefault("classes", images.classes)
    adapter = Adapter(model, method, normalize=given.normalize, **options)
    source, before = before_adapting(model, adapter, images, batch_size=batch_size)
    adapter.fit(images, epochs, batch_size=batch_size, shuffle=shuffle, progress=progress)
    result = concluded(
        adapter, source, before, images, batch_size=batch_size, gate=gate, left_out=given.left_out
    )
    if result.verdict is not None and not result.verdict.accepted:
        warnings.warn(result.verdict.reason, AcclimateWarning, stacklevel=2)
    return result


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
    return AdaptationResult(
        adapter,
        adapter.history,
        before if refused else adapter.predict(images, batch_size=batch_size),
        before,
        verdict,
        refused,
        images.names if isinstance(images, ImageSet) else None,
        dict(left_out or {}),
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

"""Predictions of new images with a network that adapted before: what `acclimate predict` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.utils.data import Dataset

from acclimate.adapter import PREDICTS_BY, Adapter
from acclimate.data import ImageSet
from acclimate.delta import is_delta
from acclimate.errors import DeltaError, OptionError, unknown
from acclimate.files import check_writable
from acclimate.mean_std import MeanStd, fitted, mean_and_std
from acclimate.models.load import load_model
from acclimate.network import Normalization
from acclimate.normalization import normalization_of
from acclimate.outcome import (
    format_counts,
    format_left_out,
    format_statistics,
    output_names,
    write_predictions,
)
from acclimate.prepare import move_to

__all__ = ["Adapted", "PredictOutcome", "format_outcome", "load_adapted", "predict_images"]


_EXPECTED: Final = "expected what `acclimate adapt` wrote to --out or --export"


@dataclass(frozen=True)
class Adapted:
    """A network that adapted, from either of the files that an adaptation can leave."""

    network: nn.Module
    """The source network for a delta, the adapted one for exported weights."""
    adapter: Adapter | None
    """What the delta holds; None for exported weights."""


@dataclass(frozen=True)
class PredictOutcome:
    """What was predicted, in numbers."""

    adapted_by: str | None
    """The method; exported weights do not say it."""
    images: int
    statistics: str
    """Which statistics the predictions are by: a key of `acclimate.outcome.STATISTICS`."""
    confidence: float
    """Mean confidence."""
    histogram: dict[str, int]
    """How often each class was predicted; those that never were are left out."""


def load_adapted(
    path: str | Path, model: str, weights: str | Path | None = None, *, device: str | None = None
) -> Adapted:
    """The network of a name with what adapted, from a delta or from exported weights.

    Args:
        path: what `Adapter.save` (``acclimate adapt --out``) or ``--export`` wrote.
        model: a name that `acclimate.load_model` takes.
        weights: a file of the source's weights, on which the delta was made; exported weights need none.
        device: where to predict.
    """
    kind = _kind_of(Path(path))
    if kind == "delta":
        network = load_model(model, weights)
        return Adapted(network, Adapter.load(path, network, device=device))
    if kind == "whole":
        raise DeltaError(
            f"{path} holds what goes before the network too (an input transformation, a normalisation), "
            "which no stock network has: give the delta that `acclimate adapt` wrote to --out"
        )
    network = load_model(model, path)
    move_to(device, network)
    return Adapted(network, None)


def predict_images(
    adapted: Adapted,
    images: ImageSet,
    *,
    statistics: str = "target",
    normalize: str | MeanStd | None = None,
    batch_size: int = 64,
    classes: Sequence[str] | None = None,
    predictions: Path | None = None,
) -> PredictOutcome:
    """Predict images with a network that adapted, write what was asked for, and say what came out.

    Args:
        adapted: what `load_adapted` gives.
        images: what `acclimate.inputs.open_images` gives.
        statistics: as for `Adapter.predict`: ``"target"``, those that are exported, or ``"batch"``.
        normalize: what the network's input is normalised with, where the delta does not say it.
        batch_size: images in a batch.
        classes: names of the network's outputs.
        predictions: a CSV file of the predictions.
    """
    if statistics not in PREDICTS_BY:
        raise OptionError(unknown("statistics of predictions", statistics, PREDICTS_BY))
    check_writable(predictions)
    adapter, prepared = _adapter_and_input(adapted, images, statistics, normalize)
    logits = adapter.predict(prepared, batch_size=batch_size, statistics=statistics)
    names = output_names(classes, adapter.options.classes, logits.shape[1])
    taken = "target" if statistics == "target" else adapter.predicts_by
    if predictions is not None:
        write_predictions(predictions, images.names, names, logits, statistics=taken)
    sure, top = logits.float().softmax(1).max(1)
    counts = top.bincount(minlength=len(names)).tolist()
    return PredictOutcome(
        adapted_by=None if adapted.adapter is None else adapter.method.name,
        images=len(logits),
        statistics=taken,
        confidence=float(sure.mean()),
        histogram={name: count for name, count in zip(names, counts, strict=True) if count},
    )


def format_outcome(outcome: PredictOutcome, failed: Mapping[str, str]) -> str:
    """The outcome for people."""
    by = "exported weights" if outcome.adapted_by is None else f"adapted by {outcome.adapted_by}"
    common = sorted(outcome.histogram.items(), key=lambda item: -item[1])
    lines = [
        f"{outcome.images:,} images, {by}",
        format_statistics(outcome.statistics),
        f"mean confidence: {outcome.confidence:.3f}",
        f"classes predicted: {len(common)}",
        *format_counts([f"{name}: {count}" for name, count in common]),
        *format_left_out(failed),
    ]
    return "\n".join(lines)


def _kind_of(path: Path) -> str:
    """``delta``, ``weights``, or ``whole``: an export with what goes before the network."""
    if not path.is_file():
        raise DeltaError(f"there is no file {path}: {_EXPECTED}")
    if is_delta(path):
        return "delta"
    with path.open("rb") as file:
        start = file.read(9)
    if start.endswith(b"{") and len(start) == 9:
        with suppress(SafetensorError), safe_open(path, framework="pt") as weights:
            parts = {name.partition(".")[0] for name in weights.keys()}  # noqa: SIM118 - not a dict
            return "whole" if parts == {"input", "model"} else "weights"
    elif not start.startswith((b"PK", b"\x80")):  # a zip file or a pickle, as torch.save writes them
        raise DeltaError(f"{path} is neither a delta nor weights: {_EXPECTED}")
    return "weights"


def _adapter_and_input(
    adapted: Adapted, images: ImageSet, statistics: str, normalize: str | MeanStd | None
) -> tuple[Adapter, Dataset[Tensor]]:
    """What predicts, and the images as it takes them."""
    adapter, network = adapted.adapter, adapted.network
    if adapter is not None and normalize is None:
        return adapter, images
    given = mean_and_std(fitted(normalization_of(network, normalize), images.batch([0]).shape[1]))
    if adapter is None:
        if statistics == "batch":
            own = Adapter(network, "bn", statistics="batch", normalize=given, classes=images.classes)
        else:  # the statistics of this network are those that were exported
            own = Adapter(network, "source", normalize=given, classes=images.classes)
        return own, images
    if adapter.options.normalize is None:
        return adapter, _Normalized(images, given)
    if adapter.options.normalize != given:
        raise OptionError(
            f"the delta was adapted with the normalisation {adapter.options.normalize}, and --normalize says "
            f"{given}: leave it out"
        )
    return adapter, images


class _Normalized(Dataset[Tensor]):
    """Images for an adapter that normalises none itself."""

    def __init__(self, images: ImageSet, normalize: MeanStd) -> None:
        self._images, self._normalization = images, Normalization(*normalize)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, position: int) -> Tensor:
        return self.batch([position])[0]

    def batch(self, positions: Sequence[int]) -> Tensor:
        normalized: Tensor = self._normalization(self._images.batch(positions))
        return normalized

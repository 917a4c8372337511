"""What can be said of an adaptation: in numbers, in words and as a file."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from acclimate.errors import InputError, counted, listed
from acclimate.evaluation import Comparison
from acclimate.files import whole_file
from acclimate.types import Verdict

__all__ = [
    "STATISTICS",
    "AdaptOutcome",
    "format_counts",
    "format_left_out",
    "format_statistics",
    "headlines",
    "outcome_of",
    "output_names",
    "told",
    "write_predictions",
]

STATISTICS: Final = {
    "batch": "each image by those of its batch; `acclimate predict` has those of the exported network",
    "target": "those that are exported: an image is predicted the same whatever comes with it",
    "source": "those of the network as it was given",
}
"""Which statistics predictions are by, and what that means."""

_SHOWN = 10  # classes
_COLLAPSED = 0.5  # share of its largest value below which the entropy of the predictions is an alarm


@dataclass(frozen=True)
class AdaptOutcome:
    """What can be said of an adaptation: all but the last without a label."""

    method: str
    setting: str | None
    images: int
    changed: int
    """Images whose predicted class is another than before."""
    confidence: tuple[float, float]
    """Mean confidence before and after."""
    histogram: tuple[dict[str, int], dict[str, int]]
    """How often each class was predicted, before and after; those that never were are left out."""
    cautions: list[str] = field(default_factory=list)
    verdict: Verdict | None = None
    """Whether the adapted network seems better than the source, if that was asked."""
    refused: bool = False
    """Whether the verdict was acted upon: predictions are the source's, and nothing was exported."""
    statistics: str = "batch"
    """Which statistics the predictions are by: a key of `STATISTICS`."""
    notes: tuple[str, ...] = ()
    """What lies among the images and was not read, in sentences."""
    evaluation: Comparison | None = None
    """Accuracy before and after, if there were labels to measure by."""


def headlines(outcome: AdaptOutcome) -> list[str]:
    """The outcome in four lines: what adapted, images, confidence and classes."""
    share = 100 * outcome.changed / outcome.images
    before, after = outcome.histogram
    own = "its own" if outcome.setting is None else f"the setting {outcome.setting!r}"
    return [
        f"{outcome.method}, hyperparameters of {own}",
        f"{outcome.images:,} images: the prediction of {outcome.changed:,} ({share:.1f}%) has changed",
        f"mean confidence: {outcome.confidence[0]:.3f} before, {outcome.confidence[1]:.3f} after",
        f"classes predicted: {len(before)} before, {len(after)} after",
    ]


def told(outcome: AdaptOutcome, failed: Mapping[str, str]) -> str:
    """The outcome for people."""
    lines = headlines(outcome)
    lines.insert(2, format_statistics(outcome.statistics))
    before, after = outcome.histogram
    counts = {name: (before.get(name, 0), after.get(name, 0)) for name in (*after, *before)}
    common = sorted(counts, key=lambda name: -max(counts[name]))
    lines += format_counts([f"{name}: {counts[name][0]} before, {counts[name][1]} after" for name in common])
    if outcome.verdict is not None and outcome.verdict.accepted:
        lines.append(outcome.verdict.reason)
    if outcome.evaluation is not None:
        lines.append(str(outcome.evaluation))
    lines += [f"caution: {caution}" for caution in outcome.cautions]
    lines += format_left_out(failed)
    lines += [f"note: {note}" for note in outcome.notes]
    return "\n".join(lines)


def format_counts(classes: Sequence[str]) -> list[str]:
    """A line for each of the first classes."""
    lines = [f"  {line}" for line in classes[:_SHOWN]]
    return lines if len(classes) <= _SHOWN else [*lines, f"  and {len(classes) - _SHOWN} more classes"]


def format_statistics(statistics: str) -> str:
    """One line for people: which statistics the predictions are by."""
    return f"statistics of the predictions: {statistics}, {STATISTICS[statistics]}"


def format_left_out(failed: Mapping[str, str]) -> list[str]:
    """A line for each reason why files were left out, with their names where it does not say them.

    >>> format_left_out({"a.png": "it is empty", "b.png": "it is empty", "c.png": "c.png is cut off"})
    ["left out: 2 files, 'a.png', 'b.png': it is empty", 'left out: c.png is cut off']
    """
    files: dict[str, list[str]] = {}
    for name, reason in sorted(failed.items()):
        files.setdefault(reason, []).append(name)
    return [
        f"left out: {reason}"
        if any(name in reason for name in names)
        else f"left out: {counted(len(names), 'file')}, {listed(names, 3)}: {reason}"
        for reason, names in files.items()
    ]


def write_predictions(
    path: Path,
    files: Sequence[str],
    names: list[str],
    logits: Tensor,
    *,
    statistics: str,
    before: Tensor | None = None,
) -> None:
    """Write a row for each image; ``before`` are the source's logits, where they are known."""
    sides = {"": logits} if before is None else {"": logits, "source_": before}
    tops = [side.float().softmax(1).max(1) for side in sides.values()]
    columns = [f"{prefix}{what}" for prefix in sides for what in ("class", "confidence")]
    with (
        whole_file(path) as part,
        part.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["file", "index", *columns, "statistics"])
        for i, name in enumerate(files):
            cells = (cell for sure, top in tops for cell in (names[int(top[i])], f"{sure[i]:.6f}"))
            writer.writerow([name, i, *cells, statistics])


def output_names(classes: Sequence[str] | None, kept: Sequence[int] | None, columns: int) -> list[str]:
    """A name for each column of the logits, which may be some of the network's outputs only."""
    expected = columns if kept is None else max(kept) + 1
    if classes is not None and (len(classes) < expected or (kept is None and len(classes) != columns)):
        least = "" if kept is None else "at least "
        raise InputError(f"expected a name for each of {least}{expected} outputs, got {len(classes)}")
    outputs = list(range(columns)) if kept is None else list(kept)
    return [str(output) if classes is None else classes[output] for output in outputs]


def outcome_of(
    before: Tensor,
    after: Tensor,
    names: list[str],
    *,
    method: str = "",
    setting: str | None = None,
    cautions: Sequence[str] = (),
    verdict: Verdict | None = None,
    refused: bool = False,
    statistics: str = "batch",
    notes: Sequence[str] = (),
    evaluation: Comparison | None = None,
) -> AdaptOutcome:
    """Compare what was predicted before and after; ``names`` has one for each column."""
    tops = [logits.argmax(1) for logits in (before, after)]
    counts = [top.bincount(minlength=len(names)) for top in tops]
    entropies = [_entropy(count) for count in counts]
    entropy, possible = entropies[1], math.log(min(len(names), len(after)))
    found = list(cautions)
    if entropy < _COLLAPSED * possible:
        already = " (as they did before)" if entropies[0] < _COLLAPSED * possible else ""
        found.append(
            f"the predictions fall on few classes{already}: entropy {entropy:.2f} of at most {possible:.2f}. "
            "This may be a collapse, unless the images are of few classes"
        )
    first, second = ({names[i]: int(n) for i, n in enumerate(count.tolist()) if n} for count in counts)
    means = [logits.float().softmax(1).amax(1).mean().item() for logits in (before, after)]
    return AdaptOutcome(
        method=method,
        setting=setting,
        images=len(after),
        changed=int(tops[0].ne(tops[1]).sum()),
        confidence=(means[0], means[1]),
        histogram=(first, second),
        cautions=found,
        verdict=verdict,
        refused=refused,
        statistics=statistics,
        notes=tuple(notes),
        evaluation=evaluation,
    )


def _entropy(counts: Tensor) -> float:
    shares = counts.double() / counts.sum()
    return abs(float(torch.special.xlogy(shares, shares).sum()))

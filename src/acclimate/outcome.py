"""What can be said of an adaptation without a label: in numbers, in words and as a file."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from acclimate.files import whole_file
from acclimate.types import Verdict

__all__ = ["AdaptOutcome", "headlines", "outcome_of", "told", "write_predictions"]

_SHOWN = 10  # classes
_COLLAPSED = 0.5  # share of its largest value below which the entropy of the predictions is an alarm


@dataclass(frozen=True)
class AdaptOutcome:
    """What can be said of an adaptation without a label."""

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
    before, after = outcome.histogram
    counts = {name: (before.get(name, 0), after.get(name, 0)) for name in (*after, *before)}
    common = sorted(counts, key=lambda name: -max(counts[name]))
    lines += [f"  {name}: {counts[name][0]} before, {counts[name][1]} after" for name in common[:_SHOWN]]
    if len(common) > _SHOWN:
        lines.append(f"  and {len(common) - _SHOWN} more classes")
    if outcome.verdict is not None and outcome.verdict.accepted:
        lines.append(outcome.verdict.reason)
    lines += [f"caution: {caution}" for caution in outcome.cautions]
    lines += [f"left out: {reason}" for _, reason in sorted(failed.items())]
    return "\n".join(lines)


def write_predictions(
    path: Path, files: Sequence[str], names: list[str], before: Tensor, after: Tensor
) -> None:
    columns = ["file", "index", "class", "confidence", "source_class", "source_confidence"]
    (sure, top), (source_sure, source_top) = (logits.float().softmax(1).max(1) for logits in (after, before))
    with (
        whole_file(path) as part,
        part.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(columns)
        for i, name in enumerate(files):
            own = (names[int(top[i])], f"{sure[i]:.6f}")
            writer.writerow([name, i, *own, names[int(source_top[i])], f"{source_sure[i]:.6f}"])


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
    )


def _entropy(counts: Tensor) -> float:
    shares = counts.double() / counts.sum()
    return abs(float(torch.special.xlogy(shares, shares).sum()))

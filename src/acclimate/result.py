"""What `acclimate.adapt` gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from acclimate.adapter import Adapter
from acclimate.errors import counted
from acclimate.evaluation import Comparison
from acclimate.outcome import AdaptOutcome, headlines, outcome_of
from acclimate.types import History, Verdict

__all__ = ["AdaptationResult"]


@dataclass(frozen=True, eq=False, repr=False)
class AdaptationResult:
    """An adapted network, its predictions and those of the source; `print` says whether to trust it.

    What it says stays what it was when the result was made, whatever happens to ``adapter`` after that.
    """

    adapter: Adapter
    history: History
    logits: Tensor
    """Of every image after the last epoch, in the order of the data; the source's, if it was refused."""
    source_logits: Tensor
    """The same before the first epoch."""
    statistics: str
    """Which statistics `logits` are by: ``"batch"``, ``"source"``, or ``"target"`` (as exported).

    ``result.adapter.predict(images, statistics="target")`` gives what the exported network predicts.
    """
    classes: tuple[int, ...]
    """The outputs of the network that the columns of `logits` stand for."""
    steps: int
    """Updates that were made."""
    verdict: Verdict | None = None
    """Whether the adapted network seems better than the source, if that was asked."""
    refused: bool = False
    """Whether the verdict was acted upon, so that predictions are the source's."""
    names: Sequence[str] | None = None
    """Of the images: files, or positions in what was given. None where the data are batches or tensors."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Images that could not be read, and why: there are no predictions of them."""
    notes: tuple[str, ...] = ()
    """What else lies among the images and was not read, in sentences."""
    evaluation: Comparison | None = None
    """Accuracy before and after, if labels were given to measure by."""

    @property
    def predictions(self) -> Tensor:
        """The predicted class of every image: an output of the network, as `classes` counts them."""
        return self._classes_of(self.logits)

    @property
    def source_predictions(self) -> Tensor:
        """What the network predicted before it adapted."""
        return self._classes_of(self.source_logits)

    def _classes_of(self, logits: Tensor) -> Tensor:
        return torch.tensor(self.classes)[logits.argmax(1).cpu()]

    def outcome(self) -> AdaptOutcome:
        """What changed, in numbers."""
        return outcome_of(
            self.source_logits,
            self.logits,
            [str(output) for output in self.classes],
            method=self.adapter.method.name,
            setting=self.adapter.setting,
            verdict=self.verdict,
            refused=self.refused,
            statistics=self.statistics,
            notes=self.notes,
            evaluation=self.evaluation,
        )

    def __str__(self) -> str:
        """Five lines: what adapted and changed, whether to trust it; then what was measured and not read."""
        method, images, confidence, classes = headlines(self.outcome())
        left_out = f"; {len(self.left_out):,} that cannot be read are left out" if self.left_out else ""
        alarms = counted(len(self.history.alarms), "alarm") if self.history.alarms else "no alarm"
        judged = "not judged" if self.verdict is None else self.verdict.reason
        steps = counted(self.steps, "step")
        return "\n".join(
            [
                f"{method}, {steps}; predictions by statistics: {self.statistics}",
                f"{images}{left_out}",
                confidence,
                f"{classes}; {alarms}",
                f"{judged}, so that predictions are the source's" if self.refused else judged,
                *([] if self.evaluation is None else [str(self.evaluation)]),
                *self.notes,
            ]
        )

    def __repr__(self) -> str:
        verdict = "not judged" if self.verdict is None else self.verdict.reason.partition(":")[0]
        return f"AdaptationResult({self.adapter.method.name!r}, {len(self.logits):,} images, {verdict})"

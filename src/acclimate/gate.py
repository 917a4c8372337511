"""Whether an adapted network does no harm: a comparison with the source that needs no label.

Both predict the same images and a second view of each (`acclimate.stability`). The adapted network is
accepted if it agrees with itself as often as the source does, in proportion to how evenly its predictions
fall on the classes: a network that calls everything a shirt agrees with itself always.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor

from acclimate.errors import OptionError, unknown
from acclimate.stability import Views
from acclimate.types import Verdict

__all__ = ["GATES", "IMAGES", "checked_gate", "judge"]

GATES: Final = ("warn", "refuse", "off")
"""What is done with a verdict: told, acted upon, or not asked for."""
IMAGES: Final = 1000
"""That are looked at, if there are so many."""
_MANY_CLASSES = 64  # from here on, a refusal is not to be relied on: docs/trust.md
_MARGIN = 0.005  # of the score, within which two networks are alike


def checked_gate(asked: str) -> str:
    """A name of `GATES`.

    >>> checked_gate("refuse")
    'refuse'
    """
    if asked not in GATES:
        raise OptionError(unknown("gate", asked, GATES))
    return asked


def judge(source: Views, adapted: Views, prior: Tensor | None = None) -> Verdict:
    """Accept or refuse the adapted network, and say why."""
    before, after = (views.agreement * views.evenness(prior) for views in (source, adapted))
    kept = adapted.logits.argmax(1).eq(source.logits.argmax(1))[source.stable].double()
    accepted = after >= before - _MARGIN
    figures = {
        "source_agreement": source.agreement,
        "adapted_agreement": adapted.agreement,
        "source_evenness": source.evenness(prior),
        "adapted_evenness": adapted.evenness(prior),
        "source_score": before,
        "adapted_score": after,
        "source_stable_confidence": source.confidence(source.stable),
        "adapted_stable_confidence": adapted.confidence(adapted.stable),
        "stable_predictions_kept": kept.mean().item() if len(kept) else None,
    }
    return Verdict(accepted, _reason(accepted, source, adapted, (before, after), prior), figures)


def _reason(
    accepted: bool, source: Views, adapted: Views, scores: tuple[float, float], prior: Tensor | None
) -> str:
    told = [
        f"agrees with itself on {100 * views.agreement:.1f}% of {len(views.logits):,} images, evenness "
        f"{views.evenness(prior):.2f}: score {score:.3f}"
        for views, score in zip((source, adapted), scores, strict=True)
    ]
    verdict = "accepted" if accepted else "refused"
    advice = "" if accepted else "; the source's predictions are probably better"
    classes = source.logits.shape[1]
    if not accepted and classes >= _MANY_CLASSES:
        advice = (
            f"; but this rule was set on ten classes, and at {classes:,} it has refused networks that were "
            "much better: measure with some labels (labels=, --evaluate)"
        )
    return f"{verdict}: the adapted network {told[1]}; the source {told[0]}{advice}"

"""Tables of the docs from the record of `agreement.py`: networks down, what is compared across."""

from __future__ import annotations

from typing import Any

from pages import table

TEXT = (
    "Logits, gradients and parameters of one step by SGD, with all savings and by the plain loop, in "
    "float32. An error is the largest |difference| / max(1, |value|), that of a gradient the largest "
    "|difference| over the largest |value|. Two results in float32 cannot be expected to agree better than "
    "either agrees with the exact one, and torch does not with itself: its own loop in another memory layout "
    "(channels last) and without oneDNN stand beside ours.\n\n"
    "A gradient jumps where a unit crosses the kink of its ReLU. Wherever a few of millions of units lie on "
    "the other side for rounding alone, gradients differ by far more than by rounding, in any two "
    "computations. So they are shown as they are, and with all units of the second of a pair held on the "
    "sides that they had in the first; so are parameters after an update with a learning rate of 1. "
    "`benchmarks/agreement.py` fails where ours are off by more than 1e-5 and by more than twice what the "
    "plain loop is off itself, in logits and with kinks held."
)
MEASURES = {
    "logits": "Logits",
    "gradient": "Gradient, as it is",
    "gradient_held": "Gradient, kinks held",
    "parameters_held": "Parameters after the update, kinks held",
}


def agreements(record: dict[str, Any]) -> str:
    rows = record["rows"]
    pairs = list(dict.fromkeys(row["pair"] for row in rows))
    cells = {(row["network"], row["batch"], row["method"], row["pair"]): row for row in rows}
    steps = list(dict.fromkeys(cell[:3] for cell in cells))
    parts = []
    for measure, title in MEASURES.items():
        lines = []
        for network, batch, method in steps:
            own = [cells[network, batch, method, pair] for pair in pairs]
            more = [_short(own[0]["gradient_largest"])] if measure == "gradient" else []
            more += (
                [f"{own[0]['units_turned']:,} of {own[0]['units']:,}"] if measure == "gradient_held" else []
            )
            lines.append([network, method, str(batch), *(_short(row[measure]) for row in own), *more])
        heads = ["network", "method", "batch", *pairs]
        heads += {"gradient": ["its largest element"], "gradient_held": ["units turned, ours"]}.get(
            measure, []
        )
        parts.append(f"**{title}**\n\n{table(heads, lines, words=2)}")
    return "\n\n".join(parts)


def _short(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-") if value else "0"

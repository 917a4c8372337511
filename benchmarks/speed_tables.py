"""Tables of the docs from the records of `speed.py` and `scaling.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from pages import table
from records import RESULTS

from acclimate.fast import TRICKS

Row = dict[str, Any]

STEPS = (
    "Seconds of one online step of the plain TENT loop (eager, float32, as published), and how many times "
    "faster each of the others is: the median over rounds of the ratio within a round, in brackets its "
    "quartiles. All variants take turns, one process each; a step that is not timed goes before each. "
    "*Forward* is the untouched network in evaluation mode without gradients, *forward, fast* "
    "`adapter.predict`."
)
TRICK_TEXT = (
    "TENT with all savings and with none, against the plain loop as above; and how many times as long a step "
    "takes without one of them, where steps with and without it take turns in one process. "
    "*Kept* is what a step keeps for its backward pass, counted by autograd's hooks on saved tensors; "
    "*alive* is all memory that malloc has given out when the backward pass begins; both are what each "
    "further image adds."
)
KEPT_TEXT = (
    "`recycling` is a setting of malloc, for the whole process: a plain loop that runs behind an adapter in "
    "the same process has it, too, and is faster than one that runs by itself, which is what the others are "
    "compared with above. Here it has the setting in a process of its own: what is left is due to all other "
    "savings. *Times* are those of the medians."
)
MEMORY = (
    "What a step of TENT keeps for its backward pass per image, as above, and the resident memory of a "
    "fresh process before its first step and at its peak in six."
)
SCALING = (
    "Seconds against size: the exponent b of t = a·x^b over the upper half of the sizes (1 is linear), and "
    "the line t = fixed + x · per unit over all of them."
)


def speed_sections() -> str:
    """A section for each part of the records that is there."""
    parts = []
    for name, sections in RECORDS.items():
        path = RESULTS / f"{name}.json"
        record = json.loads(path.read_text()) if path.exists() else {"rows": []}
        for part, title, text, show in sections:
            rows = [row for row in record["rows"] if row["part"] == part]
            if rows:
                parts.append("\n\n".join([f"## {title}", text, show(rows), *_errors(rows)]))
        if record["rows"]:
            parts.append(_protocol(record))
    parts += _on_other_machines()
    return "\n\n".join(parts) + "\n"


def headline(batch: int = 16) -> str:
    """What a step takes and keeps, for those who only want to know whether it is worth reading on."""
    rows = json.loads((RESULTS / "speed.json").read_text())["rows"]
    found = {(row["part"], row["network"], row["batch"], row["variant"]): row for row in rows}
    variants = ("tent", "tent bf16")
    lines = []
    for network in dict.fromkeys(row["network"] for row in rows):
        steps, kept = (
            [found[part, network, batch, name] for name in ("plain", *variants)]
            for part in ("steps", "memory")
        )
        times = [f"{row['ratio']:.1f}×" for row in steps[1:]]
        lines.append(
            [network, f"{steps[0]['seconds']:.2f}", *times]
            + [f"{row['kept_mib_per_image']:.0f}" for row in kept]
        )
    heads = [
        "network",
        "plain loop, s",
        "fp32, faster",
        "bf16, faster",
        "plain loop, MiB",
        "fp32, MiB",
        "bf16, MiB",
    ]
    return table(heads, lines)


def _on_other_machines() -> list[str]:
    """What gains most depends on the processor: the same tables from others."""
    parts = []
    for name, (title, text) in OTHERS.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            record = json.loads(path.read_text())
            parts += [f"## {title}", text]
            for part, what, _, show in SPEED_SECTIONS:
                rows = [row for row in record["rows"] if row["part"] == part]
                parts += [f"### {what}, there", show(rows)] if rows else []
            parts.append(_protocol(record))
    return parts


def steps(rows: list[Row]) -> str:
    """A table for float32 and one for bfloat16: networks and batches down, variants across."""
    found = _by_variant(rows)
    low = [name for name in found if name.endswith(" bf16")]
    full = [name for name in found if name not in ("plain", *low)]
    networks = list(dict.fromkeys(row["network"] for row in rows))
    cells = sorted(
        {(row["network"], row["batch"]) for row in rows}, key=lambda c: (networks.index(c[0]), c[1])
    )

    def shown(variants: list[str]) -> str:
        lines = []
        for cell in cells:
            plain = found.get("plain", {}).get(cell, {})
            ratios = [_ratio(found[name].get(cell, {})) for name in variants]
            lines.append([cell[0], str(cell[1]), str(plain.get("rounds", "")), _seconds(plain), *ratios])
        heads = [name.removesuffix(" bf16") for name in variants]
        return table(["network", "batch", "rounds", "plain s", *heads], lines)

    parts = [f"**fp32**\n\n{shown(full)}", f"**bf16** (the plain loop stays in fp32)\n\n{shown(low)}"]
    return "\n\n".join(parts if low else parts[:1])


def tricks(rows: list[Row]) -> str:
    """A table for each network."""
    heads = ["savings", "what is left out", "s", "times plain", "times as long", "kept MiB/image"]
    heads.append("alive MiB/image")
    parts = []
    for cell in dict.fromkeys((row["network"], row["batch"]) for row in rows):
        own = [row for row in rows if (row["network"], row["batch"]) == cell]
        lines = [
            [row["variant"], _left_out(row["variant"].removeprefix("without ")), _seconds(row),
             _ratio(row), _ratio(row, "cost"), *_kept(row)]
            for row in own
        ]  # fmt: skip
        parts.append(f"**{cell[0]}**, batch {cell[1]}\n\n{table(heads, lines, words=2)}")
    return "\n\n".join(parts)


def _left_out(name: str) -> str:
    return TRICKS.get(name, "")


def kept(rows: list[Row]) -> str:
    """Seconds, and how many times as fast as the plain loop with the setting."""
    found, heads = _by_variant(rows), ["network", "batch", "rounds", "plain s", "plain, memory kept s"]
    lines = []
    for cell, plain in found["plain"].items():
        base = found["plain, memory kept"][cell]
        line = [cell[0], str(cell[1]), str(plain["rounds"]), _seconds(plain), _seconds(base)]
        for name in ("tent", "tent bf16"):
            row = found.get(name, {}).get(cell)
            line += ["", ""] if row is None else [_seconds(row), f"{base['seconds'] / row['seconds']:.2f}"]
        lines.append(line)
    return table([*heads, "tent s", "times", "tent bf16 s", "times"], lines)


def memory(rows: list[Row]) -> str:
    heads = ["network", "variant", "batch", "kept MiB/image", "alive MiB/image", "before MiB", "peak MiB"]
    lines = [
        [row["network"], row["variant"], str(row["batch"]), *_kept(row)]
        + [str(row.get(f"resident_mib_{when}", "")) for when in ("before", "peak")]
        for row in rows
    ]
    return table(heads, lines, words=2)


def curves(rows: list[Row]) -> str:
    heads = ["what", "against", "from", "to", "exponent", "fixed ms", "µs per unit"]
    lines = []
    for row in rows:
        points = [f"{int(x):,}: {_digits(1e3 * t)} ms" for x, t in row["seconds"].items()]
        fits = [f"{row['exponent']:.2f}", f"{row['fixed_ms']:.1f}", _digits(row["us_per_unit"])]
        lines.append([row["what"], row["unit"], points[0], points[-1], *fits])
    return table(heads, lines, words=2)


def share(rows: list[Row]) -> str:
    heads = ["what", "precision", "objective ms", "step ms", "share %"]
    names = ("what", "precision", "objective_ms", "step_ms", "percent")
    return table(heads, [[str(row.get(name, "")) for name in names] for row in rows], words=2)


def alone(rows: list[Row]) -> str:
    heads = ["what", "saving", "turns", "with µs", "without µs", "times as long"]
    lines = [
        [
            *(str(row[name]) for name in ("what", "saving", "turns", "with_us", "without_us")),
            _ratio(row, "cost"),
        ]
        for row in rows
    ]
    return table(heads, lines, words=2)


def overhead(rows: list[Row]) -> str:
    heads = ["what", "steps", "`Adapter` µs", "by hand µs", "difference µs"]
    names = ("what", "steps", "adapter_us", "by_hand_us", "difference_us")
    return table(heads, [[str(row[name]) for name in names] for row in rows])


Section = tuple[str, str, str, Callable[[list[Row]], str]]
SPEED_SECTIONS: tuple[Section, ...] = (
    ("steps", "The time of a step", STEPS, steps),
    ("tricks", "What each saving is worth", TRICK_TEXT, tricks),
    ("memory", "The memory of a step", MEMORY, memory),
)
SCALING_SECTIONS: tuple[Section, ...] = (
    ("curves", "How the time of a step grows", SCALING, curves),
    ("share", "The share of the objective", "SLR with L_div, forward and backward, in a whole step.", share),
    (
        "alone",
        "Savings by themselves",
        "Those that are too small a part of a step to be seen in it, with and without taking turns.",
        alone,
    ),
    (
        "overhead",
        "What `Adapter` adds to a step",
        "Beyond forward, objective, backward and update written out by hand; taking turns, medians.",
        overhead,
    ),
)
KEPT_SECTIONS: tuple[Section, ...] = (("kept", "Beside a plain loop that keeps its memory", KEPT_TEXT, kept),)
OTHERS = {
    "speed_batches": (
        "Single images and batches of 64",
        "The same on such a processor, by an earlier version, whose input transformation was torch's own.",
    ),
    "speed_avx2": (
        "On a processor without AVX-512",
        "The same on one that has AVX2 only, and no bfloat16 by itself. Our kernels take two registers there "
        "where they have one above; linear layers in float32 are left to torch.",
    ),
    "speed_xeon": (
        "On a processor with matrix units",
        "The same, by an earlier version, on one that has such for bfloat16 (AMX).",
    ),
}
"""Records of `speed.py --name`, and what is told of them."""
RECORDS = {"speed": SPEED_SECTIONS, "speed_kept": KEPT_SECTIONS, "scaling": SCALING_SECTIONS}


def _by_variant(rows: Iterable[Row]) -> dict[str, dict[tuple[str, int], Row]]:
    found: dict[str, dict[tuple[str, int], Row]] = {}
    for row in rows:
        found.setdefault(row["variant"], {})[row["network"], row["batch"]] = row
    return found


def _seconds(row: Row) -> str:
    return _digits(row["seconds"]) if "seconds" in row else _failed(row)


def _ratio(row: Row, kind: str = "ratio") -> str:
    if kind not in row:
        return _failed(row)
    low, high = row[f"{kind}_iqr"]
    digits = 3 if kind == "cost" else 2
    return f"{row[kind]:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def _kept(row: Row) -> list[str]:
    values = [row.get(f"{kind}_mib_per_image") for kind in ("kept", "alive")]
    return ["" if value is None else f"{value:.1f}" for value in values]


def _failed(row: Row) -> str:
    return "failed" if "error" in row else ""


def _errors(rows: list[Row]) -> list[str]:
    failed: dict[str, list[str]] = {}
    for row in rows:
        if "error" in row:
            who = [row.get("network"), row.get("batch"), row.get("variant", row.get("precision"))]
            failed.setdefault(row["error"], []).append(" ".join(str(part) for part in who if part))
    return [f"Failed: {', '.join(who)}: {error}." for error, who in failed.items()]


def _digits(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{float(f'{value:.3g}')}"


def _protocol(record: dict[str, Any]) -> str:
    facts = {**record["protocol"], **record["origin"]}
    told = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
    return f"Protocol: {told}."

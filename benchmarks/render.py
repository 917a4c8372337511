"""Render docs/results.md from benchmarks/results/*.json."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from records import RESULTS

README = Path(__file__).parents[1] / "README.md"
TARGET = Path(__file__).parents[1] / "docs" / "results.md"
HEAD = """# Results

Rendered by `make docs` from the records in `benchmarks/results/`; do not edit.
"""


def mean_and_spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def cells(rows: list[dict[str, Any]], epoch: int) -> dict[tuple[str, str], list[dict[str, Any]]]:
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if len(row["after_epoch"]) > epoch or row["method"] == "source":
            grouped.setdefault((row["method"], row["corruption"]), []).append(row)
    return grouped


def one_epoch(record: dict[str, Any]) -> str:
    grouped = cells(record["rows"], 0)
    corruptions = list(dict.fromkeys(corruption for _, corruption in grouped))
    lines = [
        "| method | " + " | ".join(f"{c}: adapter | {c}: exported" for c in corruptions) + " |",
        "|---|" + "---:|" * (2 * len(corruptions)),
    ]
    for method in dict.fromkeys(method for method, _ in grouped):
        shown = []
        for corruption in corruptions:
            rows = grouped.get((method, corruption), [])
            for pick in (lambda row: row["after_epoch"][0], lambda row: row["exported"]):
                shown.append(mean_and_spread([pick(row) for row in rows]) if rows else "")
        lines.append(f"| `{method}` | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def over_epochs(record: dict[str, Any]) -> str:
    grouped = cells(record["rows"], 0)
    epochs = record["protocol"]["epochs"]
    lines = [
        "| method | " + " | ".join(f"epoch {e + 1}" for e in range(epochs)) + " |",
        "|---|" + "---:|" * epochs,
    ]
    for (method, _), rows in grouped.items():
        if method == "source":
            continue
        values = [mean_and_spread([row["after_epoch"][e] for row in rows]) for e in range(epochs)]
        lines.append(f"| `{method}` | " + " | ".join(values) + " |")
    return "\n".join(lines)


def protocol(record: dict[str, Any]) -> str:
    seeds = sorted({row["seed"] for row in record["rows"] if "seed" in row})
    facts = {**record["protocol"], **({"seeds": seeds} if seeds else {}), **record["origin"]}
    return (
        "Protocol: " + "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()) + "."
    )


SECTIONS = {
    "cifar10_epoch1": (
        "CIFAR-10, validation corruptions, one epoch",
        "Accuracy in %, mean ± standard deviation over seeds. *Adapter* predicts with the statistics of each "
        "batch of 64; *exported* is the stock network in evaluation mode, with statistics averaged over all "
        "batches of the epoch, which are less noisy.",
        one_epoch,
    ),
    "cifar10_epoch10": (
        "CIFAR-10, speckle noise, many epochs",
        "Accuracy in % after each epoch: entropy minimisation without L_div against SLR with it.",
        over_epochs,
    ),
    "export": (
        "Stock networks, adapted and exported",
        "Networks fitted to half of the bundled images for this purpose only, adapted by SLR to a noisy copy "
        "of the other half; accuracy in % on it.",
        None,
    ),
}


def plain(record: dict[str, Any]) -> str:
    names = list(record["rows"][0])
    lines = [
        "| " + " | ".join(name.replace("_", " ") for name in names) + " |",
        "|---|" + "---:|" * (len(names) - 1),
    ]
    lines += ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in record["rows"]]
    return "\n".join(lines)


def main() -> None:
    parts = [HEAD]
    for name, (title, text, table) in SECTIONS.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            record = json.loads(path.read_text())
            parts.append(f"## {title}\n\n{text}\n\n{(table or plain)(record)}\n\n{protocol(record)}\n")
    TARGET.write_text("\n".join(parts))
    demo = json.loads((RESULTS / "demo.json").read_text())
    before, _, rest = README.read_text().partition("<!-- demo -->\n")
    _, mark, after = rest.partition("<!-- /demo -->")
    README.write_text(f"{before}<!-- demo -->\n{plain(demo)}\n{mark}{after}")


if __name__ == "__main__":
    main()

"""Render the tables of the docs from benchmarks/results/*.json."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import agreement_tables
import cluster_tables
import command_line
import experiments
import reference_tables
import trust_tables
from grid_tables import grid_sections, mean_and_spread
from normalisation_tables import normalisation
from pages import DOCS, filled, of_which_images
from records import RESULTS
from speed_tables import headline, speed_sections

from acclimate.corruptions import CORRUPTIONS

README = Path(__file__).parents[1] / "README.md"
TARGET = DOCS / "results.md"
MODULES = (experiments, reference_tables, command_line, cluster_tables, trust_tables)
"""Those that render pages of their own."""
HEAD = """# Results

Rendered by `make docs` from the records in `benchmarks/results/`; do not edit.
"""


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


def hyperparameters(config: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in config.items() if key != "method") or "the paper's"


def searched(record: dict[str, Any]) -> str:
    """Every method with the paper's hyperparameters and with the best that were tried."""
    lines = ["| method | hyperparameters | mean accuracy | configurations tried |", "|---|---|---:|---:|"]
    for method in dict.fromkeys(row["config"]["method"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["config"]["method"] == method]
        paper = [row for row in rows if len(row["config"]) == 1]
        for row in dict.fromkeys(map(id, [*paper, max(rows, key=lambda row: row["mean"])])):
            found = next(r for r in rows if id(r) == row)
            lines.append(
                f"| `{method}` | {hyperparameters(found['config'])} | {found['mean']:.2f} | {len(rows)} |"
            )
    return "\n".join(lines)


def tested(record: dict[str, Any]) -> str:
    """For each network, every corruption under every configuration; below, means and spread over seeds."""
    parts = []
    for network in record["protocol"]["networks"]:
        heads = [_configured(row["config"]) for row in record["rows"]]
        lines = [f"| {network} | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
        for corruption in record["protocol"]["corruptions"]:
            means = [statistics.mean(_over_seeds(row, network, corruption)) for row in record["rows"]]
            lines.append(f"| {corruption} | " + " | ".join(f"{mean:.1f}" for mean in means) + " |")
        corruptions = record["protocol"]["corruptions"]
        shown = []
        for row in record["rows"]:
            by_seed = zip(*(_over_seeds(row, network, name) for name in corruptions), strict=True)
            shown.append(mean_and_spread([statistics.mean(run) for run in by_seed]))
        lines.append("| **mean** | " + " | ".join(shown) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _over_seeds(row: dict[str, Any], network: str, corruption: str) -> list[float]:
    return [v for key, v in row["accuracy"].items() if key.startswith(f"{network} {corruption} ")]


def _configured(config: dict[str, Any]) -> str:
    options = ", ".join(f"{value}" for key, value in config.items() if key != "method")
    return f"`{config['method']}`" + (f" ({options})" if options else "")


def searched_all(record: dict[str, Any]) -> str:
    lines = ["| method | hyperparameters | mean accuracy |", "|---|---|---:|"]
    for row in record["rows"]:
        lines.append(
            f"| `{row['config']['method']}` | {hyperparameters(row['config'])} | {row['mean']:.2f} |"
        )
    return "\n".join(lines)


FEW_TEST = (
    'Accuracy in % with `setting="few"` as it was frozen after the search below, on images that the search '
    "has not seen: mean over seeds, and in the last row its standard deviation over them, if there are more "
    "than one. TENT and TENT+ as in the paper; with the optimiser and learning rate that were best for them "
    "in the short runs of the search, which are as long as these; and, where it differs, with the rate that "
    "serves long runs as well, by the rule that chose that of SLR."
)


def precisions(record: dict[str, Any]) -> str:
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in record["rows"]:
        found.setdefault((row["network"], row["precision"], row["corruption"]), []).append(row["accuracy"])
    means = {key: statistics.mean(values) for key, values in found.items()}
    lines = ["| network | fp32 | bf16 | difference | largest |", "|---|---:|---:|---:|---:|"]
    for network in dict.fromkeys(network for network, _, _ in means):
        one, other = (
            {c: mean for (n, p, c), mean in means.items() if (n, p) == (network, precision)}
            for precision in ("fp32", "bf16")
        )
        gaps = [other[corruption] - one[corruption] for corruption in one]
        wide, low = statistics.mean(one.values()), statistics.mean(other.values())
        largest = max(gaps, key=abs)
        lines.append(f"| {network} | {wide:.2f} | {low:.2f} | {low - wide:+.2f} | {largest:+.2f} |")
    return "\n".join(lines)


SECTIONS = {
    "few_test_bundled": ("The bundled network, fifteen test corruptions", FEW_TEST, tested),
    "few_test_cifar10_resnet20": ("CIFAR-10 ResNet-20, fifteen test corruptions", FEW_TEST, tested),
    "few_clean": (
        "Ten classes, clean images",
        "Accuracy in % after adapting to images without a shift, mean over three seeds and its standard "
        "deviation: what adaptation costs where there is nothing to adapt to.",
        tested,
    ),
    "few_long": (
        "Ten classes, ten times the images",
        "Accuracy in % of the best of the search below, over 785 steps instead of 32.",
        searched_all,
    ),
    "few_search": (
        'Hyperparameters for few classes (`setting="few"`)',
        "Mean accuracy in % over two networks of ten classes and the four validation corruptions; a search "
        "by `benchmarks/few.py`, in stages.",
        searched,
    ),
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
    "loader": (
        "Reading images",
        "Images per second into a network that does nothing, against torchvision's `ImageFolder` in a "
        "`DataLoader` with as many workers as we have threads; interleaved, median of the rounds.",
        None,
    ),
    "agreement": (
        "Whether a fast step and a plain one are the same",
        agreement_tables.TEXT,
        agreement_tables.agreements,
    ),
    "precision": (
        "Accuracy in bfloat16",
        "SLR on the validation corruptions after one epoch: mean accuracy in % over corruptions and seeds, "
        "and the largest difference of a single corruption's mean.",
        precisions,
    ),
    "compiled": (
        "torch.compile, which is not used",
        "Seconds of the first step, with the compilation in it, and of the others: the plain loop compiled, "
        "beside the adapter.",
        None,
    ),
    "bench_overhead": (
        "What the benchmark adds to a step",
        "Timed by itself on one thread.",
        None,
    ),
    "bench_kills": (
        "A grid that is killed and goes on",
        "`kill -9` at random moments of a grid, each time resumed; afterwards the records are compared with "
        "those of an undisturbed run.",
        None,
    ),
    "report": (
        "A report of ten thousand records",
        "Made records of 6 networks, 19 corruptions, 5 severities, 9 methods and 2 seeds; in Chromium, from "
        "opening the page to the table sorted by a column.",
        None,
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


def names() -> str:
    lines = ["| name | kind | for | what |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | {row.kind} | {'validation' if row.validation else 'test'} | {row.summary} |"
        for name, row in CORRUPTIONS.items()
    ]
    return "\n".join(lines)


def agreement(record: dict[str, Any]) -> str:
    text = (
        "Two figures in each cell: at 32 and at 224 pixels. For corruptions that are not random they are the "
        "pixels, in %, that lie within one grey level of the published output. For random ones, in brackets, "
        "four statistics are compared with those of the published generator: mean, standard deviation, "
        "gradient, and SSIM to the clean image. A difference of 3%, or of twice the spread of repeats if "
        "that is larger (at 224 pixels of three published ones, at 32, where there is one, of six of ours), "
        "counts as 1, and the largest of the four is shown: below 1 they agree.\n\n"
    )
    lines = [
        "| corruption | " + " | ".join(f"severity {s}" for s in range(1, 6)) + " |",
        "|---|" + "---|" * 5,
    ]
    rows = {(row["corruption"], row["severity"], row["size"]): row for row in record["rows"]}
    for name in dict.fromkeys(row["corruption"] for row in record["rows"]):
        cells = [" · ".join(_agreed(rows[name, s, size]) for size in (32, 224)) for s in range(1, 6)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    facts = {"frost": record["protocol"]["frost"], **record["origin"]}
    shown = "; ".join(f"{key} {value}" for key, value in facts.items())
    return text + "\n".join(lines) + f"\n\n{shown[0].upper()}{shown[1:]}."


def _agreed(row: dict[str, Any]) -> str:
    if row["within_one_level"] is not None:
        return f"{row['within_one_level']:.2f}"
    return f"({max(abs(row[key]) for key in ('mean', 'std', 'gradient', 'ssim')):.2f})"


def _record(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def corruptions() -> dict[str, str]:
    """The parts of their page, each between comments of its own."""
    parts = {"names": names()}
    for mark, table in (("agreement", agreement), ("accuracy", None), ("speed", None), ("memory", None)):
        if record := _record(f"corruptions_{mark}"):
            parts[mark] = table(record) if table else f"{plain(record)}\n\n{protocol(record)}"
    return parts


CIFAR10 = (
    "few_test_cifar10_resnet20", "few_clean", "few_long", "few_search", "cifar10_epoch1", "cifar10_epoch10",
    "precision",
)  # fmt: skip
"""Records of CIFAR-10's images, alone or beside others."""


def results() -> str:
    parts = [HEAD, *grid_sections()]
    for name, (title, text, table) in SECTIONS.items():
        if record := _record(name):
            if name in CIFAR10 and (told := of_which_images(record)):
                text = f"{text}\n\n{told}"
            parts.append(f"## {title}\n\n{text}\n\n{(table or plain)(record)}\n\n{protocol(record)}\n")
    return "\n".join(parts)


def pages() -> dict[Path, str]:
    """All that are made of records only, or in part, as they should be."""
    demo = plain(json.loads((RESULTS / "demo.json").read_text()))
    parts = {
        README: {"demo": demo, "speed": headline()},
        DOCS / "index.md": {"demo": demo},
        DOCS / "corruptions.md": corruptions(),
        DOCS / "failures.md": {"normalisation": normalisation()},
        DOCS / "fast.md": {"speed": speed_sections().rstrip()},
    }
    made = {TARGET: results()}
    for path, own in parts.items():
        made[path] = path.read_text(encoding="utf-8")
        for mark, part in own.items():
            made[path] = filled(made[path], mark, part)
    return made


def main() -> None:
    # one after the other: some of them fill other parts of the same page
    for render in (pages, *(module.pages for module in MODULES)):
        for path, text in render().items():
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

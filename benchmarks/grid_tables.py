"""Tables of the docs from the records of grids."""

from __future__ import annotations

import statistics
from typing import Any

from records import RESULTS

from acclimate.bench.compare import judge
from acclimate.bench.scores import Figure, Side, by_corruption, common, figures
from acclimate.bench.spec import ORACLE
from acclimate.corruptions import CORRUPTIONS
from acclimate.methods import METHODS
from acclimate.records import read_records

GRIDS = {
    "bench_demo": (
        "Every experiment of the paper on the bundled network",
        "`acclimate bench demo`, then `acclimate compare`. Mean ± standard deviation over seeds after five "
        "epochs, severity 5; the last columns are means over corruptions.",
    ),
    "bench_cifar10": (
        "CIFAR-10, ResNet-20, validation corruptions",
        "`acclimate bench benchmarks/cifar10.yaml`. The images went through JPEG once. Mean ± standard "
        "deviation over seeds after five epochs, severity 5; the last columns are means over corruptions.",
    ),
    "bench_imagenet": (
        "ImageNet-C's preset on a small tree",
        "`acclimate bench imagenet-c` with EfficientNet-Lite0 on corrupted copies of one image per class: "
        "too few images for a thousand classes, and there to show that the preset runs.",
    ),
}
EXPERIMENTS = {
    "kappa": "κ, and no L_div, on the validation corruptions",
    "freeze": "A frozen top or none, on the validation corruptions",
    "pseudo_label_weight": "The weight of SHOT's pseudo labels, on the validation corruptions",
    "lr": "TENT's optimiser and learning rate, on the validation corruptions",
}


def mean_and_spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def grid_sections() -> list[str]:
    """A section for each grid whose records are there."""
    found = {name: RESULTS / f"{name}.jsonl.gz" for name in GRIDS}
    return [_section(read_records(path), *GRIDS[name]) for name, path in found.items() if path.exists()]


def _section(records: list[dict[str, Any]], title: str, text: str) -> str:
    found = [figure for figure in figures(records) if figure.corruption]
    parts = [f"## {title}", text, headline(found)]
    for name, what in EXPERIMENTS.items():
        if table := variants(found, name):
            parts += [f"### {what}", table]
    if len({figure.corruption for figure in found}) > 4:
        parts += ["### The paper's claims", claims(records)]
    sample = next(record for record in records if "result" in record)
    facts = {**{key: sample["spec"][key] for key in ("images", "setting", "threads")}, **sample["origin"]}
    told = "; ".join(f"{key} {value}" for key, value in facts.items())
    return "\n\n".join([*parts, f"{len(records)} records; {told}.", ""])


def headline(found: list[Figure]) -> str:
    """After the last epoch for each corruption; means also online and after the first."""
    own = [figure for figure in found if figure.plain and not figure.modified]
    own = [figure for figure in own if "shot" not in figure.method and "-div" not in figure.method]
    last: dict[str, dict[str, list[float]]] = {}
    for figure in own:
        if figure.epoch == -1:
            last.setdefault(figure.method, {}).setdefault(figure.corruption, []).append(figure.accuracy)
    most = max(len(values) for values in last.values())
    methods = [method for method, values in last.items() if len(values) > most // 2]
    methods.sort(key=lambda method: (*METHODS, "slr+it", ORACLE).index(method))
    chosen = [name for name in CORRUPTIONS if all(name in last[method] for method in methods)]
    names = [*(name.replace("_", " ") for name in chosen), "mean", "epoch 1", "online"]
    lines = ["| accuracy % | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for method in methods:
        cells = [mean_and_spread(last[method][name]) for name in chosen]
        for epoch in (-1, 1, 0):
            means = common(by_corruption(own, method, epoch=epoch, where=lambda f: f.corruption in chosen))
            cells.append(f"{means[0]:.2f}" if means else "")
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def variants(found: list[Figure], name: str) -> str:
    """A method with other values of an option, on the corruptions that all of them have."""
    lines = ["| method | variant | accuracy % | length of the logits |", "|---|---|---:|---:|"]
    for method in dict.fromkeys(figure.method for figure in found if name in dict(figure.overrides)):
        names = (method, f"{method}-div") if name == "kappa" else (method,)
        own = [f for f in found if f.method in names and f.classes == f.samples == 1 and not f.modified]
        kinds = [(f.method, f.overrides) for f in own if not f.overrides or name in dict(f.overrides)]
        sides = {kind: _side(own, *kind) for kind in sorted(set(kinds), key=repr)}
        shared = set.intersection(*(set(accuracies) for accuracies, _ in sides.values()))
        for (own_name, changes), measured in sides.items():
            told = ", ".join(f"{key} {value}" for key, value in changes) or "default"
            seeds = {key: set.intersection(*(set(side[key]) for side, _ in sides.values())) for key in shared}
            means = [
                statistics.fmean(values[key][seed] for key in shared for seed in seeds[key])
                for values in measured
            ]
            lines.append(f"| `{own_name}` | {told} | {means[0]:.2f} | {means[1]:.2f} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _side(own: list[Figure], method: str, changes: Any) -> tuple[Side, Side]:
    def these(figure: Figure) -> bool:
        return figure.overrides == changes

    return (
        by_corruption(own, method, where=these),
        by_corruption(own, method, where=these, of=lambda figure: figure.values["logit_norm"]),
    )


def claims(records: list[dict[str, Any]]) -> str:
    lines = ["| claim | holds here | figures, accuracy in % |", "|---|---|---|"]
    lines += [f"| {v.claim} | {v.word} | {v.figures} |" for v in judge(records)]
    return "\n".join(lines)

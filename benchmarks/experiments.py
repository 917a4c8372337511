"""Fill the pages on the paper's experiments: one for each preset, its prose by hand, the rest from here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from experiment_tables import (
    clean,
    corrupted,
    found,
    pseudo_labelled,
    published,
    subsets,
    transformation,
    varied,
)
from pages import DOCS, code, filled, table
from records import RESULTS

from acclimate.bench import PRESETS, Verdict, judge, read_records
from acclimate.bench.presets import Preset
from acclimate.bench.spec import Network, Spec
from acclimate.corruptions import NAMES, VALIDATION_NAMES

PAGES = DOCS / "experiments"
BUNDLED = "The bundled network's part of it: `acclimate bench demo`, {images} images, "
FIVE = "mean ± standard deviation over seeds after five epochs, severity 5."
ONE = "one seed, after five epochs, severity 5."
Part = tuple[str, str, Callable[[], str]]
"""A grid whose records are in the repository, what is shown of it, and the table."""

MEASURED: dict[str, tuple[Part, ...] | str] = {
    "imagenet-c": (
        ("demo", BUNDLED + FIVE, partial(corrupted, "demo")),
        (
            "imagenet",
            "EfficientNet-Lite0 on {images} images, corrupted copies of one image per class: too few for a "
            "thousand classes, and there to show that the preset runs.",
            partial(corrupted, "imagenet"),
        ),
    ),
    "imagenet-r": "ImageNet-R and the five networks' weights were not at hand",
    "imagenet": (("demo", BUNDLED + "mean ± standard deviation over seeds.", clean),),
    "subsets": (("demo", BUNDLED + "accuracy in % on all of them, means over corruptions, " + ONE, subsets),),
    "input-transformation": (("demo", BUNDLED + FIVE, transformation),),
    "kappa": (("demo", BUNDLED + "means over corruptions and seeds, severity 5.", varied("kappa")),),
    "shot": (("demo", BUNDLED + "means over the test corruptions, " + ONE, pseudo_labelled),),
    "visda-c": "VisDA-C and a ResNet-101 trained on it were not at hand",
    "cifar-10-c": (
        (
            "cifar10",
            "The preset's network on the validation corruptions, made from {images} of CIFAR-10's test "
            "images, of copies that had been through JPEG: `acclimate bench benchmarks/cifar10.yaml`, "
            + FIVE
            + " The published arrays were not at "
            "hand. [Results](../results.md#cifar-10-resnet-20-fifteen-test-corruptions) has the fifteen test "
            "corruptions, by another script.",
            partial(corrupted, "cifar10"),
        ),
    ),
    "cifar-100-c": "CIFAR-100-C and RobustBench's weights were not at hand",
    "ablation": (
        ("demo", BUNDLED + "a frozen top or none, means over corruptions, " + ONE, varied("freeze")),
        ("demo", "The weight of SHOT's pseudo labels.", varied("pseudo_label_weight")),
        ("demo", "TENT's optimiser and learning rate.", varied("lr")),
    ),
    "demo": (("demo", "{images} images, " + FIVE, partial(corrupted, "demo")),),
}
"""What the committed records say of each preset; a reason where they say nothing."""

PUBLISHED: dict[str, tuple[tuple[str, str], ...]] = {
    "imagenet-c": (("imagenet_c_resnet50_severity5", "Table 1, ResNet-50, severity 5"),),
    "input-transformation": (("input_transformation_resnet50", "Table 2, ResNet-50, severity 5"),),
    "shot": (
        ("pseudo_labelling_resnet50", "Table A2, ResNet-50"),
        ("pseudo_labelling_modified_resnet50_epochs", "Table A3, modified ResNet-50"),
        ("pseudo_labelling_modified_resnet50", "Table A4, modified ResNet-50"),
    ),
    "visda-c": (("visda_c", "Table A5, VisDA-C"),),
}
CLAIMS: dict[str, tuple[str, ...]] = {
    "imagenet-c": ("on corrupted images", "hard pseudo labels", "from epoch 1", "robust network"),
    "imagenet-r": ("on ImageNet-R",),
    "imagenet": ("on clean images",),
    "subsets": ("with more data", "on a fraction of"),
    "input-transformation": ("the input transformation",),
    "kappa": ("L_div",),
    "shot": ("a stock network", "help a modified network", "does not help either"),
    "visda-c": ("VisDA-C",),
}
"""What the paper claims of each experiment, by words of `acclimate.bench.CLAIMS`."""


def protocol(preset: Preset) -> str:
    """What a preset runs: a row for each of its specs, then what they have in common."""
    heads = ["networks", "methods", "shift", "severities", "seeds", "variants", "setting"]
    rows = [_choices(spec) for spec in preset.specs]
    cells = list(preset.cells())
    (epochs, batch), *others = {(spec.epochs, spec.batch_size) for spec in preset.specs}
    assert not others
    after = sorted({epoch for spec in preset.specs for epoch in spec.evaluate}) or "every epoch"
    told = after if isinstance(after, str) else "epochs " + " and ".join(map(str, after))
    shared = ", each run once where rows share it" if len(rows) > 1 else ""
    return (
        f"{table(heads, rows, words=len(heads))}\n\n{len(cells):,} cells{shared}: {epochs} epochs of batches "
        f"of {batch}, measured online and after {told}. Every cell starts from the pretrained weights."
    )


def _choices(spec: Spec) -> list[str]:
    return [
        "<br>".join(_network(network) for network in spec.networks),
        code(spec.methods),
        _shifts(spec.corruptions),
        ", ".join(map(str, spec.severities)) if spec.corruptions != (None,) else "",
        ", ".join(map(str, spec.seeds)),
        _variants(spec),
        code(spec.settings),
    ]


def _network(network: Network) -> str:
    return f"`{network.name}`" + ("" if network.weights is None else f" with `{network.weights}`")


def _shifts(corruptions: Sequence[str | None]) -> str:
    known: dict[tuple[str | None, ...], str] = {
        (None,): "the data as they are",
        tuple(NAMES): "the 15 test corruptions",
        tuple(VALIDATION_NAMES): "the 4 validation corruptions",
    }
    return known.get(tuple(corruptions)) or code(corruptions)


def _variants(spec: Spec) -> str:
    """Values of one option together, of more than one each by itself."""
    values: dict[str, list[str]] = {}
    for own in spec.overrides:
        names = ", ".join(f"{name} {value}" for name, value in list(own.items())[:-1])
        for name, value in list(own.items())[-1:]:
            values.setdefault(f"{names}, {name}" if names else name, []).append(f"{value}")
    for subset in spec.subsets:
        for name, share in ({} if subset is None else subset.model_dump(exclude_none=True)).items():
            values.setdefault(f"share of the {name}", []).append(f"{share:g}")
    return "; ".join(f"{name} {', '.join(own)}" for name, own in values.items())


def measured(name: str) -> str:
    own = MEASURED[name]
    if isinstance(own, str):
        return f"Not measured here: {own}."
    told = [text.format(images=found(grid)[0].images) for grid, text, _ in own]
    return "\n\n".join(f"{text}\n\n{part()}" for text, (*_, part) in zip(told, own, strict=True))


@cache
def _verdicts() -> tuple[Verdict, ...]:
    return tuple(judge(read_records(RESULTS / "bench_demo.jsonl.gz")))


def claims(name: str) -> str:
    """The paper's claims on an experiment, and whether they hold on the bundled network."""
    rows = []
    for words in CLAIMS[name]:
        (verdict,) = (one for one in _verdicts() if words in one.claim)
        rows.append([verdict.claim, verdict.word, verdict.figures])
    return table(["claim", "holds on the bundled network", "figures, accuracy in %"], rows, words=3)


def refuted() -> str:
    """Claims that do not hold on the bundled network, and those that were not measured."""
    rows = [[verdict.claim, verdict.figures] for verdict in _verdicts() if verdict.holds is False]
    unknown = [verdict.claim for verdict in _verdicts() if verdict.holds is None]
    told = f"\n\nNot measured: {'; '.join(unknown)}." if unknown else ""
    return table(["claim", "figures, accuracy in %"], rows, words=2) + told


def overview() -> str:
    rows = []
    for name, preset in PRESETS.items():
        said = "no" if isinstance(MEASURED[name], str) else "yes" if name == "demo" else "in part"
        rows.append([f"[{name}]({name}.md)", preset.summary, said, f"{len(list(preset.cells())):,}"])
    return table(["experiment", "what", "measured here", "cells"], rows, words=3)


def pages() -> dict[Path, str]:
    """Every page of an experiment, and the one on what fails, as they should be."""
    failures = DOCS / "failures.md"
    made = {
        _path("index"): filled(_read("index"), "overview", overview()),
        failures: filled(failures.read_text(encoding="utf-8"), "refuted", refuted()),
    }
    for name, preset in PRESETS.items():
        needed = f"`--data` leads to {preset.data}." if preset.data else "Nothing is needed."
        text = filled(_read(name), "data", needed)
        text = filled(text, "protocol", protocol(preset))
        text = filled(text, "measured", measured(name))
        if name in PUBLISHED:
            tables = [published(*which) for which in PUBLISHED[name]]
            text = filled(text, "published", "\n\n".join(tables))
        if name in CLAIMS:
            text = filled(text, "claims", claims(name))
        made[_path(name)] = text
    return made


def _path(name: str) -> Path:
    return PAGES / f"{name}.md"


def _read(name: str) -> str:
    return _path(name).read_text(encoding="utf-8")

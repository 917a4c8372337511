"""Records sorted as people look at them: what was measured where, by which variant of a method, over seeds.

Nothing is averaged over different protocols: what differs in more than its seed is another variant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from acclimate.bench.scores import FIXED
from acclimate.bench.spec import ORACLE, Network
from acclimate.corruptions import CORRUPTIONS
from acclimate.methods import METHODS
from acclimate.records import Record

__all__ = [
    "LAST",
    "ONLINE",
    "Gathered",
    "Place",
    "Series",
    "Variant",
    "gather",
    "network_of",
    "slim",
    "spoken",
]

ONLINE: Final = 0
LAST: Final = -1
"""Stands for the last epoch of a run, whichever that is."""


@dataclass(frozen=True)
class Place:
    """Where something was measured."""

    network: str
    data: str
    corruption: str
    """Empty where there is none."""
    severity: int


@dataclass(frozen=True)
class Variant:
    """A method with all that sets it apart from others in the same place."""

    method: str
    changes: tuple[tuple[str, str], ...] = ()
    """Hyperparameters that are not the method's own."""
    classes: float = 1.0
    samples: float = 1.0
    protocol: str = ""
    """Only said where runs of one network on the same data differ in it."""

    @property
    def plain(self) -> bool:
        return not self.changes and self.classes == self.samples == 1

    @property
    def whole(self) -> bool:
        """Adapted to all images."""
        return self.classes == self.samples == 1

    @property
    def label(self) -> str:
        changes = "".join(f", {name.replace('_', ' ')} {value}" for name, value in self.changes)
        part = "".join(
            f" on {fraction:g} of the {what}"
            for what, fraction in (("classes", self.classes), ("samples", self.samples))
            if fraction != 1
        )
        return f"{self.method}{changes}{part}" + (f" ({self.protocol})" if self.protocol else "")

    @property
    def rank(self) -> tuple[int, str, tuple[float, ...]]:
        """Methods in the order of their table, the true labels last."""
        known = [*METHODS, ORACLE]
        base = max((name for name in known if self.method.startswith(name)), key=len, default=ORACLE)
        return known.index(base), self.label, (self.classes, self.samples)


@dataclass
class Series:
    """One variant in one place, a run for each seed."""

    place: Place
    variant: Variant
    modified: bool = False
    runs: dict[int, Record] = field(default_factory=dict)

    def evaluations(self, epoch: int) -> dict[int, dict[str, Any]]:
        """What was measured after an epoch, or online, by seed; what learns nothing is the same always."""
        found = {seed: _evaluation(run["result"], epoch, self.fixed) for seed, run in self.runs.items()}
        return {seed: values for seed, values in found.items() if values is not None}

    def accuracies(self, epoch: int) -> dict[int, float]:
        """In %, by seed."""
        return {seed: 100 * values["accuracy"] for seed, values in self.evaluations(epoch).items()}

    @property
    def fixed(self) -> bool:
        return self.variant.method in FIXED

    @property
    def epochs(self) -> list[int]:
        """After which all runs were measured."""
        each = [{int(epoch) for epoch in run["result"]["after_epoch"]} for run in self.runs.values()]
        return sorted(set.intersection(*each)) if each else []


def _evaluation(result: Mapping[str, Any], epoch: int, fixed: bool) -> dict[str, Any] | None:
    after: Mapping[str, dict[str, Any]] = result["after_epoch"]
    if epoch == LAST or fixed:
        return after[max(after, key=int)]
    found: dict[str, Any] | None = result["online"] if epoch == ONLINE else after.get(str(epoch))
    return found


@dataclass
class Gathered:
    """All that there is to show."""

    series: list[Series]
    unlabelled: list[Record]
    """Adaptations to images without labels."""
    failed: list[Record]
    notes: list[str]
    """What a reader should know of the records themselves."""

    @property
    def networks(self) -> list[str]:
        return list(dict.fromkeys(series.place.network for series in self.series))

    @property
    def corruptions(self) -> list[str]:
        """In the order of their table."""
        there = {series.place.corruption for series in self.series} - {""}
        return [name for name in CORRUPTIONS if name in there]


def gather(records: Iterable[Record]) -> Gathered:
    """Sort records; of those that are there twice the last one counts."""
    all_records = list(records)
    unique = {json.dumps(record["cell"], sort_keys=True): record for record in all_records}
    notes = []
    if twice := len(all_records) - len(unique):
        notes.append(f"Records that are there more than once: {twice:,}; the last of each counts.")
    measured = [record for record in unique.values() if "online" in record.get("result", {})]
    notes += _different(measured)
    protocols = _protocols(measured)
    images = _image_counts(measured)
    series: dict[tuple[Place, Variant], Series] = {}
    for record in measured:
        place = _place(record, images)
        variant = _variant(record, protocols)
        own = series.setdefault((place, variant), Series(place, variant, _modified(record)))
        own.runs[record["cell"]["seed"]] = record
    order = {name: number for number, name in enumerate(CORRUPTIONS)}
    ranked = sorted(series.values(), key=lambda s: (s.variant.rank, order.get(s.place.corruption, -1)))
    return Gathered(
        series=ranked,
        unlabelled=[record for record in unique.values() if "before" in record.get("result", {})],
        failed=[record for record in unique.values() if "error" in record],
        notes=notes,
    )


def slim(record: Record) -> Record:
    """A record less what no report shows: for many classes that is most of it."""
    result = record.get("result", {})
    after = result.get("after_epoch", {})
    last = max(after, key=int, default="")
    for epoch, values in {**after, "online": result.get("online", {})}.items():
        if record["cell"]["data"]["name"] != "visda-c":  # whose accuracy is the mean over classes
            values.pop("per_class", None)
        if epoch != last:
            for name in ("histogram", "bins"):
                values.pop(name, None)
    return record


def _different(records: Sequence[Record]) -> list[str]:
    """Names that stand for several weights or images are told of: their figures do not belong together."""
    found: dict[tuple[str, ...], set[str]] = {}
    for record in records:
        cell, spec = record["cell"], record["spec"]
        network, data = network_of(record), cell["data"]["name"]
        found.setdefault(("weights", network), set()).add(spec["weights"])
        shift = f"{data} {cell['corruption'] or ''} {cell['severity'] or ''} {spec['images']}".strip()
        found.setdefault(("images", shift), set()).add(spec["data"])
    return [
        f"{len(digests)} different {what} are called {name}: their figures do not belong together."
        for (what, name), digests in found.items()
        if len(digests) > 1
    ]


def network_of(record: Record) -> str:
    """What tells a network from others."""
    return Network(**record["cell"]["network"]).title


def _modified(record: Record) -> bool:
    """Whether the network has SHOT's head; early records do not say so but by its name."""
    return bool(record["spec"].get("modified", network_of(record).endswith("-shot")))


def _learns(record: Record) -> bool:
    return record["cell"]["method"] not in FIXED


def _protocols(records: Iterable[Record]) -> dict[tuple[str, str], dict[str, set[Any]]]:
    """Settings, epochs and batch sizes with which each network learned on each data."""
    found: dict[tuple[str, str], dict[str, set[Any]]] = {}
    for record in filter(_learns, records):
        own = found.setdefault((network_of(record), record["cell"]["data"]["name"]), {})
        for name, value in _protocol(record).items():
            own.setdefault(name, set()).add(value)
    return found


def _protocol(record: Record) -> dict[str, Any]:
    cell = record["cell"]
    return {
        "setting": record["spec"]["setting"],
        "epochs": cell["epochs"],
        "batch size": cell["batch_size"],
    }


def _image_counts(records: Iterable[Record]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for record in records:
        found.setdefault(record["cell"]["data"]["name"], set()).add(record["spec"]["images"])
    return found


def _place(record: Record, images: Mapping[str, set[int]]) -> Place:
    cell = record["cell"]
    name = cell["data"]["name"]
    many = len(images[name]) > 1 and cell["corruption"] is not None
    data = f"{name}, {record['spec']['images']:,} images" if many else name
    return Place(network_of(record), data, cell["corruption"] or "", cell["severity"] or 0)


def _variant(record: Record, protocols: Mapping[tuple[str, str], Mapping[str, set[Any]]]) -> Variant:
    cell = record["cell"]
    subset = cell.get("subset") or {}
    said = ""
    if _learns(record):
        seen = protocols[network_of(record), cell["data"]["name"]]
        own = _protocol(record)
        said = ", ".join(f"{name} {value}" for name, value in own.items() if len(seen[name]) > 1)
    return Variant(
        method=cell["method"],
        changes=tuple((name, str(value)) for name, value in sorted((cell.get("overrides") or {}).items())),
        classes=subset.get("classes") or 1.0,
        samples=subset.get("samples") or 1.0,
        protocol=said,
    )


def spoken(name: str) -> str:
    """A name of the tables as people say it."""
    return name.replace("_", " ")

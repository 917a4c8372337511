"""Records sorted as people look at them: what was measured where, by which variant of a method, over seeds.

Nothing is averaged over different protocols: what differs in more than its seed is another variant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from acclimate.bench.scores import FIXED, class_mean
from acclimate.bench.spec import ORACLE
from acclimate.corruptions import CORRUPTIONS
from acclimate.methods import METHODS
from acclimate.records import Record
from acclimate.report.reading import by_class, data_of, is_modified, is_sound, learns, network_of, shift_of

__all__ = ["LAST", "ONLINE", "Gathered", "Place", "Series", "Variant", "gather"]

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
        """What was measured after an epoch, or online, by seed; what learns nothing is the same always.

        Online, who adapts to a part is measured on that part: no figure to put beside the others.
        """
        if epoch == ONLINE and not self.variant.whole:
            return {}
        found = {seed: _evaluation(run["result"], epoch, self.fixed) for seed, run in self.runs.items()}
        return {seed: values for seed, values in found.items() if values is not None}

    def accuracies(self, epoch: int) -> dict[int, float]:
        """In %, by seed; of VisDA-C the mean over classes, as it is reported.

        The last digits, those of the multiplication, are cut: the page starts from the same numbers.
        """
        classes = by_class(next(iter(self.runs.values())))
        return {
            seed: round(100 * (class_mean(values) if classes else values["accuracy"]), 6)
            for seed, values in self.evaluations(epoch).items()
        }

    @property
    def images(self) -> int | None:
        """How many images an accuracy is of; None where it is a mean over classes, which is no share."""
        record = next(iter(self.runs.values()))
        return None if by_class(record) else int(record["spec"]["images"])

    @property
    def fixed(self) -> bool:
        return self.variant.method in FIXED

    @property
    def epochs(self) -> list[int]:
        """After which runs were measured."""
        return sorted({int(epoch) for run in self.runs.values() for epoch in run["result"]["after_epoch"]})


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
    records: list[Record]
    """All of these, each once."""
    notes: list[str]
    """What a reader should know of the records themselves."""

    @property
    def networks(self) -> list[str]:
        return list(dict.fromkeys(series.place.network for series in self.series))

    @property
    def corruptions(self) -> list[str]:
        """In the order of their table."""
        there = {series.place.corruption for series in self.series} - {""}
        return [*(name for name in CORRUPTIONS if name in there), *sorted(there - set(CORRUPTIONS))]


def gather(records: Iterable[Record]) -> Gathered:
    """Sort records; of those that are there twice the last one counts."""
    given = list(records)
    everything = [record for record in given if _is_understood(record)]
    unique = list({_identity(record): record for record in everything}.values())
    notes = []
    if damaged := len(given) - len(everything):
        notes.append(f"Records that are damaged, which are left out: {damaged:,}.")
    if twice := len(everything) - len(unique):
        notes.append(f"Records that are there more than once: {twice:,}; the last of each counts.")
    labelled = [record for record in unique if "online" in record.get("result", {})]
    measured = [record for record in labelled if is_sound(record)]
    if odd := [record for record in labelled if not is_sound(record)]:
        first = f"{network_of(odd[0])} {odd[0]['cell']['method']} on {shift_of(odd[0])}"
        notes.append(f"Records without usable accuracies, which are left out: {len(odd):,} ({first} …).")
    names = _Names(measured)
    series: dict[tuple[Place, Variant], Series] = {}
    taken = 0
    for record in measured:
        place, variant = names.place(record), names.variant(record)
        own = series.setdefault((place, variant), Series(place, variant, is_modified(record)))
        taken += record["cell"]["seed"] in own.runs
        own.runs[record["cell"]["seed"]] = record
    if taken:
        notes.append(f"Runs that differ in device, threads or evaluations only: {taken:,}; the last counts.")
    order = {name: number for number, name in enumerate(CORRUPTIONS)}
    ranked = sorted(series.values(), key=lambda s: (s.variant.rank, order.get(s.place.corruption, -1)))
    return Gathered(
        series=ranked,
        unlabelled=[record for record in unique if "before" in record.get("result", {})],
        failed=[record for record in unique if "error" in record],
        records=[record for record in unique if "online" not in record.get("result", {}) or is_sound(record)],
        notes=[*notes, *names.notes],
    )


def _is_understood(record: Record) -> bool:
    """Whether a record has the form that all of a report relies on: somebody may have changed it."""
    try:
        _identity(record)
        result, cell = record.get("result", {}), record["cell"]
        if "online" in result and is_sound(record):
            names = _Names([record])
            json.dumps([str(names.place(record)), str(names.variant(record)), is_modified(record)])
        json.dumps([learns(record), shift_of(record), cell["seed"], *result.get("alarms", ())])
        return all(isinstance(part, dict) for part in (result, cell, record["origin"], record["cost"]))
    except Exception:  # whatever a value of any type gives rise to
        return False


def _identity(record: Record) -> str:
    """What was asked for, and of what: the same cell on other images is another record."""
    spec = record.get("spec", {})
    found = [spec.get(name) for name in ("weights", "data", "images")]
    return json.dumps([record["cell"], *found, spec.get("options", {}).get("normalize")], sort_keys=True)


class _Names:
    """What records are called, so that no two that differ in more than their seed are called the same.

    What all records of a network on the same data have in common is left out of the names.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._seen: dict[tuple[str, ...], set[str]] = {}
        for record in records:
            for key, value in {
                **self._network(record),
                **self._data(record),
                **self._protocol(record),
            }.items():
                self._seen.setdefault(key, set()).add(value)

    @staticmethod
    def _network(record: Record) -> dict[tuple[str, ...], str]:
        network, spec, asked = network_of(record), record["spec"], record["cell"].get("network") or {}
        return {
            ("name", network): str(asked.get("name")),
            ("file", network): str(asked.get("weights")),
            ("weights", network): f"weights {spec.get('weights')}",
            ("normalised", network): f"normalised by {json.dumps(spec.get('options', {}).get('normalize'))}",
        }

    @staticmethod
    def _data(record: Record) -> dict[tuple[str, ...], str]:
        spec = record["spec"]
        count = f"{spec['images']:,} images"
        where = ("fingerprint", shift_of(record), count)
        return {("images", data_of(record)): count, where: f"fingerprint {spec.get('data')}"}

    @staticmethod
    def _protocol(record: Record) -> dict[tuple[str, ...], str]:
        """What decides a run besides its method; batches decide the statistics of all but the source."""
        cell, network, data = record["cell"], network_of(record), data_of(record)
        found: dict[tuple[str, ...], str] = {}
        if learns(record):
            found["setting", network, data] = f"setting {record['spec']['setting']}"
            found["epochs", network, data] = f"epochs {cell['epochs']}"
        if cell["method"] != "source":
            found["batch", network, data] = f"batch size {cell['batch_size']}"
        return found

    def _telling(self, facts: Mapping[tuple[str, ...], str]) -> list[str]:
        return [value for key, value in facts.items() if len(self._seen[key]) > 1]

    def place(self, record: Record) -> Place:
        cell = record["cell"]
        network = ", ".join([network_of(record), *self._telling(self._network(record))])
        data = ", ".join([data_of(record), *self._telling(self._data(record))])
        return Place(network, data, cell["corruption"] or "", cell["severity"] or 0)

    def variant(self, record: Record) -> Variant:
        cell = record["cell"]
        subset = cell.get("subset") or {}
        changes = (cell.get("overrides") or {}).items()
        return Variant(
            method=cell["method"],
            changes=tuple((name, str(value)) for name, value in sorted(changes)),
            classes=subset.get("classes") or 1.0,
            samples=subset.get("samples") or 1.0,
            protocol=", ".join(self._telling(self._protocol(record))),
        )

    @property
    def notes(self) -> list[str]:
        """Names that stand for several weights or images are told of: most often that is a mistake."""
        what = {"weights": "weights", "fingerprint": "sets of images"}
        return [
            f"{len(values)} different {what[kind]} are called {name}."
            for (kind, name, *_), values in self._seen.items()
            if kind in what and len(values) > 1
        ]

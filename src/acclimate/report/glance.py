"""What worked, where it failed and whether to trust it: in sentences, each from the records."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from acclimate.bench.compare import Verdict
from acclimate.bench.scores import COLLAPSED, evenness
from acclimate.bench.spec import ORACLE
from acclimate.corruptions import VALIDATION_NAMES
from acclimate.errors import counted
from acclimate.records import Record
from acclimate.report.gather import LAST, Gathered, Place, Series
from acclimate.report.headline import entry, gain_entry, mean_entry
from acclimate.report.reading import data_of, network_of, spoken
from acclimate.report.tables import Entry, apart

__all__ = ["Sentence", "collapses", "glance"]

_NAMED = 4  # things that a sentence names


@dataclass(frozen=True)
class Sentence:
    """What a reader should know."""

    kind: str
    """``good``, ``bad`` or ``note``."""
    text: str


def glance(found: Gathered, verdicts: list[Verdict]) -> list[Sentence]:
    """The most important first."""
    told = [sentence for group in _groups(found) for sentence in _best(*group)]
    told += [_adaptation(record) for record in found.unlabelled[:_NAMED]]
    told += _collapsed(found)
    if found.failed:
        told.append(Sentence("bad", f"{counted(len(found.failed), 'cell')} failed; why is told below."))
    told += _guarded(found)
    told += [Sentence("note", note) for note in found.notes]
    judged = [verdict.holds for verdict in verdicts if verdict.holds is not None]
    if judged:
        told.append(
            Sentence(
                "note",
                f"The paper's claims on these records: {sum(judged)} hold, {len(judged) - sum(judged)} not; "
                f"not measured: {len(verdicts) - len(judged)}.",
            )
        )
    return told


def _groups(found: Gathered) -> Iterator[tuple[str, str, dict[str, dict[Place, Series]]]]:
    """Plain methods of each network and data: on the test corruptions, on the others, on none."""
    groups: dict[tuple[str, str, str], dict[str, dict[Place, Series]]] = {}
    for series in found.series:
        place = series.place
        if not series.variant.plain:
            continue
        kind = (
            "" if not place.corruption else "validation" if place.corruption in VALIDATION_NAMES else "test"
        )
        rows = groups.setdefault((place.network, place.data, kind), {})
        rows.setdefault(series.variant.label, {})[place] = series
    kinds = ("test", "validation", "")  # what is not shifted comes last
    for (network, data, kind), rows in sorted(groups.items(), key=lambda item: kinds.index(item[0][2])):
        yield f"{network} on {data}", kind, rows


def _best(where: str, kind: str, rows: Mapping[str, dict[Place, Series]]) -> Iterator[Sentence]:
    """The best method on the mean over all places, if all of them are there, against no adaptation."""
    places = list(dict.fromkeys(place for row in rows.values() for place in row))
    means: dict[str, Entry] = {}
    for label, row in rows.items():
        mean = mean_entry([row.get(place) for place in places])
        if mean is not None and next(iter(row.values())).variant.method != ORACLE:
            means[label] = mean
    source = means.pop("source", None)
    if not means or source is None:
        return
    best = max(means, key=lambda label: means[label].value)
    shifts = len({place.corruption for place in places} - {""})
    over = f" over {counted(shifts, f'{kind} corruption')}{_severities(places)}" if shifts else ""
    clean = "" if shifts else " (no corruption)"
    found, told = _judged(best, means, source, over)
    yield Sentence(found, f"{where}{clean}: {told}.")
    if shifts:
        yield from _losses(best, rows[best], rows["source"])
        yield from _calibration(best, rows[best], rows["source"])


def _judged(best: str, means: Mapping[str, Entry], source: Entry, over: str) -> tuple[str, str]:
    """What can be said of the highest mean: "best" only where that is more than chance."""
    own = means[best]
    gain = gain_entry(own, source)
    assert gain is not None
    against = f"% after the last epoch against {source.value:.2f} % without adaptation ({_gained(gain)})"
    if gain.value <= 0:
        nearest = f"{best} comes nearest with {_said(own)} % after the last epoch ({_gained(gain)})"
        return "bad", f"nothing beats no adaptation{over}, {source.value:.2f} %; {nearest}"
    if gain.chance:
        return "note", f"no gain is more than chance{over}: {best} has {_said(own)} {against}"
    falling = sorted(means, key=lambda label: -means[label].value)
    rivals = [label for label in falling if label != best and not apart(means[label], own)]
    word = "highest" if rivals or own.interval is None else "best"
    named = ", ".join(f"{label} ({means[label].plain} %)" for label in rivals[:_NAMED])
    more = f" and {len(rivals) - _NAMED} more" if len(rivals) > _NAMED else ""
    doubt = f"; within chance of it: {named}{more}" if rivals else ""
    return "good", f"{best} is {word}{over}, {_said(own)} {against}{doubt}"


def _severities(places: list[Place]) -> str:
    found = sorted({place.severity for place in places})
    return f" at severity {found[0]}" if len(found) == 1 else f" and severities {found[0]} to {found[-1]}"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _gained(gain: Entry) -> str:
    """A difference with its interval, and whether it is chance."""
    if gain.interval is None:
        return _signed(gain.value)
    low, high = (f"{end:+.1f}".replace("-", "−") for end in gain.interval)
    return f"{_signed(gain.value)}, 95%: {low} to {high}{', within chance' if gain.chance else ''}"


def _said(entry: Entry) -> str:
    return entry.plain if entry.spread is None else f"{entry.plain} ± {entry.spread:.2f}"


def _losses(best: str, row: Mapping[Place, Series], source: Mapping[Place, Series]) -> Iterator[Sentence]:
    """Where the best method is worse than nothing by more than chance."""
    gains = {place: gain_entry(entry(series), entry(source[place])) for place, series in row.items()}
    lost = {place: gain.value for place, gain in gains.items() if gain and gain.value < 0 and not gain.chance}
    worst = sorted(lost, key=lambda place: lost[place])
    if worst:
        told = ", ".join(f"{spoken(place.corruption)} {_signed(lost[place])}" for place in worst[:_NAMED])
        more = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
        yield Sentence("bad", f"{best} loses to no adaptation on {told}{more}.")


def _calibration(
    best: str, row: Mapping[Place, Series], source: Mapping[Place, Series]
) -> Iterator[Sentence]:
    sides = [
        [100 * values["ece"] for place in row for values in side[place].evaluations(LAST).values()]
        for side in (source, row)
    ]
    before, after = map(statistics.fmean, sides)
    told = f"Calibration error (ECE) {before:.1f} % without adaptation, {after:.1f} % with {best}"
    yield Sentence("good" if after <= before else "bad", f"{told}: mean over the same corruptions.")


def collapses(found: Gathered) -> list[tuple[Series, float]]:
    """Where predictions fall on few classes after adapting, and how even they are; the source may, too."""
    fallen = []
    for series in found.series:
        if series.variant.method == "source":
            continue
        evaluations = series.evaluations(LAST).values()
        even = min(evenness(values["histogram"]) for values in evaluations)
        if even < COLLAPSED:
            fallen.append((series, even))
    return sorted(fallen, key=lambda pair: pair[1])


def _collapsed(found: Gathered) -> list[Sentence]:
    fallen = collapses(found)
    if not found.series:
        return []
    if not fallen:
        return [Sentence("good", "No adaptation has collapsed: predictions stay spread over the classes.")]
    named = ", ".join(
        f"{series.variant.label} on {spoken(series.place.corruption) or series.place.data} "
        f"({series.place.network}, {100 * even:.0f} % of the largest entropy)"
        for series, even in fallen[:_NAMED]
    )
    more = f" and {len(fallen) - _NAMED} more" if len(fallen) > _NAMED else ""
    return [Sentence("bad", f"Predictions have collapsed onto few classes: {named}{more}.")]


def _guarded(found: Gathered) -> list[Sentence]:
    """What the guard did, where runs had one."""
    watched = [r["result"]["alarms"] for r in found.records if "alarms" in r.get("result", {})]
    alarmed = [alarms for alarms in watched if alarms]
    if not watched:
        return []
    if not alarmed:
        return [Sentence("good", f"The guard watched {counted(len(watched), 'run')} and saw nothing wrong.")]
    count = sum(map(len, alarmed))
    runs = f"{len(alarmed):,} of {counted(len(watched), 'run')}"
    told = f"The guard has stepped in {counted(count, 'time')}, in {runs}"
    return [Sentence("bad", f"{told}: what it saw and did is told below.")]


def _adaptation(record: Record) -> Sentence:
    """Of images without labels: what changed, and what there is to worry about."""
    result, images = record["result"], record["spec"]["images"]
    after = result["after_epoch"][max(result["after_epoch"], key=int)]
    sides = [side["confidence"] for side in (result["before"], after)]
    sure = [f"{value:.3f}" if value is not None else "not a number" for value in sides]
    cautions = " ".join(f"Caution: {caution}." for caution in result.get("cautions", ()))
    if left_out := result.get("left_out"):
        cautions = f"Images that could not be read and were left out: {len(left_out):,}. {cautions}"
    accuracy = ""
    if measured := result.get("evaluation"):
        shares = [f"{100 * measured[side]['accuracy']:.1f} %" for side in ("before", "after")]
        accuracy = f"Accuracy, by labels that decided nothing: {shares[0]} before and {shares[1]} after. "
    return Sentence(
        "bad" if cautions else "note",
        f"{network_of(record)} adapted by {record['cell']['method']} to {images:,} images of "
        f"{data_of(record)}, without labels: {result['changed']:,} predictions "
        f"({100 * result['changed'] / images:.1f} %) changed, mean confidence {sure[0]} before and "
        f"{sure[1]} after. {accuracy}{cautions}".strip(),
    )

"""Images before and after the input transformation, beside the clean ones where these are known."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from acclimate.records import Record
from acclimate.report.formats import escaped
from acclimate.report.gather import Gathered
from acclimate.report.reading import SHOWN_IMAGES, data_of, network_of, spoken

__all__ = ["gallery_section"]

_CARDS = 40
_KINDS = ("clean", "shifted", "transformed")


def gallery_section(found: Gathered) -> Iterator[str]:
    """A card for each network, corruption and severity: the first seed's images."""
    cards = list(itertools.islice(_cards(found), _CARDS + 1))
    if not cards:
        return
    more = f'<p class="note">The first {_CARDS}.</p>' if len(cards) > _CARDS else ""
    content = f'<div class="gallery">{"".join(cards[:_CARDS])}</div>{more}'
    yield f'<section id="gallery"><h2>Input transformation</h2>{content}</section>'


def _cards(found: Gathered) -> Iterator[str]:
    for series in found.series:
        if series.variant.plain:
            record = series.runs[min(series.runs)]
            place = series.place
            where = f"{spoken(place.corruption) or place.data} {place.severity or ''}".strip()
            runs = list(series.runs.values())
            yield from _card(record, f"{where} · {series.variant.label} · {place.network}", runs)
    for record in found.unlabelled:
        yield from _card(
            record, f"{data_of(record)} · {record['cell']['method']} · {network_of(record)}", [record]
        )


def _card(record: Record, title: str, runs: Sequence[Record]) -> Iterator[str]:
    images = record["result"].get("gallery") or []
    if not images:
        return
    rows = "".join(_row(image) for image in images[:SHOWN_IMAGES])
    caption = f"<figcaption><b>{escaped(title)}</b><br>{_similar(runs)}</figcaption>"
    yield f'<figure class="card">{rows}{caption}</figure>'


def _similar(runs: Sequence[Record]) -> str:
    """To the clean images, over all that were compared: mean over seeds, while the images are of one."""
    pairs = [run["result"].get("ssim") or {} for run in runs]
    known = [
        (pair["before"], pair["after"])
        for pair in pairs
        if None not in (pair.get("before"), pair.get("after"))
    ]
    if not known:
        return ""
    before, after = (statistics.fmean(values) for values in zip(*known, strict=True))
    over = f", mean over {len(known)} seeds" if len(known) > 1 else ""
    return f"SSIM to clean {before:.3f} → {after:.3f} ({after - before:+.3f}){over}"


def _row(image: dict[str, Any]) -> str:
    """Pictures are those that a record holds: addresses with their content, and nothing else is shown."""
    shown = []
    for kind in _KINDS:
        address = image.get(kind) or ""
        if address.startswith("data:image/"):
            name = escaped(f"{kind}: {image['name']}")
            own = f'<img src="{escaped(address)}" alt="{name}" title="{name}">'
            shown.append(f"<span>{own}<small>{kind}</small></span>")
    values = image.get("ssim") or (None, None)
    pair = "" if None in values else f"<small>SSIM {values[0]:.2f} → {values[1]:.2f}</small>"
    return f'<div class="three">{"".join(shown)}</div>{pair}'

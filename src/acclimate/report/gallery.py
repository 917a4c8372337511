"""Images before and after the input transformation, beside the clean ones where these are known."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
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
            yield from _card(record, f"{where} · {series.variant.label} · {place.network}")
    for record in found.unlabelled:
        yield from _card(record, f"{data_of(record)} · {record['cell']['method']} · {network_of(record)}")


def _card(record: Record, title: str) -> Iterator[str]:
    images = record["result"].get("gallery") or []
    if not images:
        return
    ssim = record["result"].get("ssim")
    similar = ""
    if ssim and None not in (ssim["before"], ssim["after"]):
        change = ssim["after"] - ssim["before"]
        similar = f"SSIM to clean {ssim['before']:.3f} → {ssim['after']:.3f} ({change:+.3f})"
    rows = "".join(_row(image) for image in images[:SHOWN_IMAGES])
    caption = f"<figcaption><b>{escaped(title)}</b><br>{similar}</figcaption>"
    yield f'<figure class="card">{rows}{caption}</figure>'


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

"""The contact sheet of corruptions: nineteen rows, five severities, beside the clean image."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from acclimate.corruptions import CORRUPTIONS, SEVERITIES, corrupt

__all__ = ["contact_sheet"]

_MARGIN, _GAP, _TITLE = 12, 4, 28
_INK, _PALE, _PAPER = (25, 25, 25), (120, 120, 120), (255, 255, 255)


def contact_sheet(image: Image.Image, *, seed: int = 0, tile: int | None = None) -> Image.Image:
    """Every corruption at every severity of one RGB image, each shown ``tile`` pixels wide."""
    width = tile or max(96, image.width)
    height = round(width * image.height / image.width)
    font, small = (ImageFont.load_default(max(10, width // part)) for part in (14, 18))
    label = int(max(font.getlength(name) for name in CORRUPTIONS)) + 2 * _MARGIN
    across, down = width + _GAP, height + _GAP
    size = (label + across * (1 + len(SEVERITIES)) + _MARGIN, _TITLE + down * len(CORRUPTIONS) + _MARGIN)
    sheet = Image.new("RGB", size, _PAPER)
    pen = ImageDraw.Draw(sheet)
    for column, title in enumerate(("clean", *(f"severity {severity}" for severity in SEVERITIES))):
        pen.text((label + column * across + width / 2, _TITLE / 2), title, _INK, font, "mm")
    pixels = np.asarray(image)
    for row, (name, corruption) in enumerate(CORRUPTIONS.items()):
        top = _TITLE + row * down
        kind = f"{corruption.kind}, validation" if corruption.validation else corruption.kind
        pen.text((_MARGIN, top + height / 2), name, _INK, font, "ls")
        pen.text((_MARGIN, top + height / 2 + 4), kind, _PALE, small, "la")
        made = (pixels, *(corrupt(pixels, name, severity, seed=seed) for severity in SEVERITIES))
        for column, shown in enumerate(made):
            picture = Image.fromarray(shown).resize((width, height), Image.Resampling.LANCZOS)
            sheet.paste(picture, (label + column * across, top))
    return sheet

"""Draw docs/corruptions.jpg: all corruptions of a scene that is itself drawn, so that it is free."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from acclimate.report.contact_sheet import contact_sheet

TARGET = Path(__file__).parents[1] / "docs" / "corruptions.jpg"
SIDE = 896  # drawn four times as large and shrunk, for smooth edges


def scene() -> Image.Image:
    """Hills under an evening sky, a house, a tree and a fence."""
    rng = np.random.default_rng(7)
    height = np.linspace(0, 1, SIDE)[:, None, None]
    sky = (1 - height) * np.array([70, 120, 200]) + height * np.array([255, 190, 120])
    canvas = Image.fromarray(np.broadcast_to(sky, (SIDE, SIDE, 3)).astype(np.uint8))
    pen = ImageDraw.Draw(canvas)
    pen.ellipse((640, 120, 780, 260), (255, 240, 190))
    x = np.arange(0, SIDE + 1, 8)
    for base, colour in ((480, (96, 110, 150)), (560, (70, 110, 90)), (640, (60, 130, 50))):
        ridge = base + 40 * np.sin(x / 130 + base) + 18 * np.sin(x / 47 + 2 * base)
        pen.polygon([(0, SIDE), *zip(x.tolist(), ridge.tolist(), strict=True), (SIDE, SIDE)], colour)
    for _ in range(5000):  # grass
        left, top = rng.uniform(0, SIDE), rng.uniform(690, SIDE)
        shade = int(rng.uniform(70, 170))
        pen.line((left, top, left + rng.uniform(-6, 6), top - rng.uniform(8, 26)), (shade // 2, shade, 30), 2)
    pen.rectangle((150, 500, 430, 740), (200, 80, 60))
    pen.polygon([(120, 510), (290, 370), (460, 510)], (90, 50, 45))
    for left in (190, 330):
        pen.rectangle((left, 560, left + 60, 630), (250, 230, 150), (60, 30, 20), 6)
    pen.rectangle((265, 640, 320, 740), (80, 50, 30))
    pen.rectangle((655, 520, 690, 740), (90, 60, 35))
    for _ in range(700):  # leaves
        angle, reach = rng.uniform(0, 2 * np.pi), 130 * np.sqrt(rng.uniform())
        left, top, size = 672 + reach * np.cos(angle), 440 + reach * np.sin(angle), rng.uniform(6, 16)
        shade = int(rng.uniform(60, 190))
        pen.ellipse((left, top, left + size, top + size), (shade // 3, shade, shade // 4))
    for left in range(0, SIDE, 56):
        pen.rectangle((left, 770, left + 16, 860), (235, 225, 210))
    pen.rectangle((0, 795, SIDE, 809), (235, 225, 210))
    return canvas.resize((SIDE // 4, SIDE // 4), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    contact_sheet(scene(), seed=3, tile=112).save(TARGET, quality=80)

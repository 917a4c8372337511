"""The filters against scipy, ImageMagick, and plain loops that say what is meant."""

from __future__ import annotations

import colorsys
import heapq
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage, stats

from acclimate.corruptions import blur, corrupt, digital, filters, liquid, warp
from acclimate.corruptions.plasma import plasma
from acclimate.corruptions.poisson import poisson_counts
from acclimate.corruptions.streams import Streams


def planes(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.0, 1.5, 1.7, 3.0, 6.0])
@pytest.mark.parametrize("size", [(40, 33), (20, 600)])
def test_gaussian_is_scipys(sigma: float, size: tuple[int, int]) -> None:
    x = planes(2, 3, *size)
    expected = ndimage.gaussian_filter(x.astype(np.float64), (0, 0, sigma, sigma), mode="nearest", truncate=4)
    np.testing.assert_allclose(filters.gaussian(x, sigma), expected, atol=2e-6)


@pytest.mark.parametrize("sigma", [0.96, 2.44, 19.52, 170.8])
def test_smooth_is_scipys_with_mirrored_edges(sigma: float) -> None:
    x = planes(1, 2, 64, 50) - np.float32(0.5)
    expected = ndimage.gaussian_filter(x.astype(np.float64), (0, 0, sigma, sigma), mode="reflect", truncate=3)
    np.testing.assert_allclose(filters.smooth(x, sigma), expected, atol=1e-6)


@pytest.mark.parametrize(("size", "filled"), [(3, 1.0), (5, 0.5), (7, 1.0), (21, 0.9), (17, 0.05)])
def test_correlate_is_scipys(size: int, filled: float) -> None:
    # few taps are added one by one, many go through a Fourier transform
    rng = np.random.default_rng(1)
    kernel = rng.random((size, size)) * (rng.random((size, size)) < filled)
    kernel[size // 2, 0] = 0.5
    x = planes(2, 3, 37, 50)
    expected = ndimage.correlate(x.astype(np.float64), kernel[None, None], mode="mirror")
    np.testing.assert_allclose(filters.correlate(x, kernel), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.11, 1.25, 1.3, 2.25, 4.5])
@pytest.mark.parametrize("size", [(32, 32), (224, 224), (61, 40)])
def test_zoom_is_scipys_zoom_of_a_centre_crop(factor: float, size: tuple[int, int]) -> None:
    x = planes(1, 1, *size)
    crops = [math.ceil(side / factor) for side in size]
    starts = [(side - crop) // 2 for side, crop in zip(size, crops, strict=True)]
    inner = x[0, 0, starts[0] : starts[0] + crops[0], starts[1] : starts[1] + crops[1]]
    large = ndimage.zoom(inner.astype(np.float64), factor, order=1)
    trims = [(made - side) // 2 for made, side in zip(large.shape, size, strict=True)]
    expected = large[trims[0] : trims[0] + size[0], trims[1] : trims[1] + size[1]]
    np.testing.assert_allclose(filters.zoom(x, factor)[0, 0], expected, atol=1e-6)


@pytest.mark.parametrize(("edge", "mode"), [(warp.mirrored, "mirror"), (warp.mirrored_edge, "reflect")])
def test_sampled_is_scipys_map_coordinates(edge: object, mode: str) -> None:
    x = planes(2, 3, 20, 30)
    rng = np.random.default_rng(2)
    rows = rng.uniform(-70, 90, (2, 20, 30)).astype(np.float32)
    columns = rng.uniform(-70, 100, (2, 20, 30)).astype(np.float32)
    made = warp.sampled(x, rows, columns, edge)  # type: ignore[arg-type]
    for i in range(2):
        for channel in range(3):
            plane = x[i, channel].astype(np.float64)
            expected = ndimage.map_coordinates(plane, (rows[i], columns[i]), order=1, mode=mode)
            np.testing.assert_allclose(made[i, channel], expected, atol=3e-5)


def test_affine_positions_move_three_points_as_asked() -> None:
    shifts = np.float32([[(3, -2), (1, 4), (-5, 0)]])
    rows, columns = warp.affine_positions(shifts, 60, 90)
    for (x, y), (right, down) in zip([(65, 50), (65, 10), (25, 10)], shifts[0], strict=True):
        moved = int(y + down), int(x + right)
        assert rows[0][moved] == pytest.approx(y, abs=1e-4)
        assert columns[0][moved] == pytest.approx(x, abs=1e-4)


def magick() -> str | None:
    """ImageMagick's convert: other programs have that name too."""
    for name in ("magick", "/usr/bin/convert", "convert"):
        if path := shutil.which(name):
            said = subprocess.run([path, "-version"], capture_output=True, check=False).stdout
            if b"ImageMagick" in said:
                return path
    return None


@pytest.mark.skipif(magick() is None, reason="ImageMagick is not installed")
@pytest.mark.parametrize("angle", [-135, -90.5, -45, -17.3, 0, 30, 45])
@pytest.mark.parametrize(("radius", "sigma"), [(6, 1), (9, 2.5), (10, 3), (15, 12), (20, 15), (12, 12)])
@pytest.mark.parametrize("size", [(32, 32), (100, 160)])
def test_motion_blur_is_imagemagicks(
    angle: float, radius: float, sigma: float, size: tuple[int, int], tmp_path: Path
) -> None:
    image = (ndimage.gaussian_filter(planes(*size, 3), (2, 2, 0)) * 255).astype(np.uint8)
    image = ((image - image.min()) * (255 / np.ptp(image))).astype(np.uint8)
    Image.fromarray(image).save(tmp_path / "in.png")
    command = [str(magick()), tmp_path / "in.png", "-motion-blur", f"{radius}x{sigma}{angle:+}"]
    subprocess.run([*command, f"PNG24:{tmp_path / 'out.png'}"], check=True)
    expected = np.asarray(Image.open(tmp_path / "out.png")).astype(int)
    x = image.transpose(2, 0, 1)[np.newaxis].astype(np.float32)
    made = np.floor(filters.motion(x, radius, sigma, [angle]) + np.float32(1 / 514))[0].transpose(1, 2, 0)
    assert np.abs(made - expected).max() <= 1
    assert (made == expected).mean() > 0.9995


def test_motion_blur_of_no_length_changes_nothing() -> None:
    x = planes(1, 3, 16, 16)
    np.testing.assert_allclose(filters.motion(x, 3, 1e-3, [10.0]), x)


@pytest.mark.parametrize(("reach", "rounds"), [(1, 1), (2, 3), (4, 2)])
def test_glass_blur_is_the_published_loop(reach: int, rounds: int) -> None:
    x = np.floor(planes(2, 3, 24, 30) * 255) / np.float32(255)
    made = blur.glass_blur(x, Streams(0, [4, 9], "glass_blur"), 0.05, reach, rounds)
    for i, index in enumerate((4, 9)):
        pixels = x[i].transpose(1, 2, 0).copy()
        streams = Streams(0, [index], "glass_blur")
        for _ in range(rounds):
            shift = streams.integers(2 * reach, 2, 24 - 2 * reach, 30 - 2 * reach)[0] - reach
            for row in range(24 - reach, reach, -1):
                for column in range(30 - reach, reach, -1):
                    down, right = shift[:, row - reach - 1, column - reach - 1]
                    other = row + down, column + right
                    pixels[row, column], pixels[other] = pixels[other], pixels[row, column]
        np.testing.assert_array_equal(made[i], pixels.transpose(2, 0, 1))


def test_a_defocused_point_is_a_disc() -> None:
    x = np.zeros((1, 1, 61, 61), dtype=np.float32)
    x[0, 0, 30, 30] = 1
    disc = blur.defocus_blur(x, Streams(0, [0], "defocus_blur"), 10, 0.5)[0, 0]
    rows, columns = np.mgrid[-30:31, -30:31]
    distance = np.hypot(rows, columns)
    assert disc[distance > 13].max() < 1e-7
    np.testing.assert_allclose(disc[distance < 8], 1 / 317, rtol=1e-4)
    # the published kernel mirrors at its own border and so weighs a little more than one
    assert disc.sum() == pytest.approx(1.012, abs=0.002)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_chamfer_distance_is_the_shortest_path(seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = rng.random((1, 1, 14, 27)) < rng.choice([0.0, 0.01, 0.1])
    knight = 2.197
    steps = dict.fromkeys(((0, 1), (1, 0), (0, -1), (-1, 0)), 1.0)
    steps |= {(r, c): 1.4 for r in (-1, 1) for c in (-1, 1)}
    steps |= {s: knight for r in (-1, 1) for c in (-2, 2) for s in ((r, c), (c, r))}
    best = np.full((14, 27), 20.0)
    heap = [(0.0, int(r), int(c)) for r, c in np.argwhere(edges[0, 0])]
    for _, r, c in heap:
        best[r, c] = 0
    while heap:
        length, r, c = heapq.heappop(heap)
        for (down, right), step in steps.items():
            row, column, total = r + down, c + right, length + step
            if 0 <= row < 14 and 0 <= column < 27 and total < best[row, column] - 1e-9:
                best[row, column] = total
                heapq.heappush(heap, (total, row, column))
    np.testing.assert_allclose(liquid.chamfer_distance(edges)[0, 0], best, atol=1e-4)


def test_canny_finds_the_outline_of_a_square() -> None:
    level = np.zeros((1, 1, 30, 30), dtype=np.float32)
    level[0, 0, 8:20, 10:22] = 200
    edges = liquid.canny(level, 50, 150)[0, 0]
    assert 40 <= edges.sum() <= 52  # twelve on each side, one pixel thin
    assert not edges[10:18, 12:20].any()
    assert not edges[:6].any()
    assert not liquid.canny(level / 20, 50, 150).any()  # too faint


def test_canny_keeps_a_faint_edge_that_hangs_on_to_a_strong_one() -> None:
    level = np.zeros((1, 1, 20, 40), dtype=np.float32)
    level[..., 10:, :] = np.linspace(15, 60, 40)  # ever stronger to the right: 4 * 15 is above 50
    edges = liquid.canny(level, 50, 150)[0, 0]
    assert edges[8:12, 2:-2].any(axis=0).all()
    faint = level.clip(0, 30)
    assert not liquid.canny(faint, 50, 150).any()


def test_equalized_spreads_the_levels_evenly() -> None:
    level = np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8)
    made = liquid.equalized(level)[0, 0].ravel()
    np.testing.assert_array_equal(made, np.rint(np.arange(64) * 255 / 63))
    flat = np.full((1, 1, 4, 4), 7, dtype=np.float32)
    np.testing.assert_array_equal(liquid.equalized(flat), flat)


def test_a_dry_lens_stays_dry() -> None:
    assert liquid.water_drops(np.zeros((2, 1, 16, 16), dtype=np.float32)).max() == 0


def published_plasma(draws: np.ndarray, size: int, decay: float) -> np.ndarray:
    """Point by point: the mean of four corners or neighbours, round the edges, and noise."""
    field, strength, step, used = np.zeros((size, size)), 100.0, size, iter(draws.tolist())
    at = lambda row, column: field[row % size, column % size]  # noqa: E731
    while step >= 2:
        half, places = step // 2, range(0, size, step)
        noise = lambda: strength**2 * (2 * next(used) - 1)  # noqa: B023, E731
        for r in places:
            for c in places:
                corners = at(r, c) + at(r + step, c) + at(r, c + step) + at(r + step, c + step)
                field[r + half, c + half] = corners / 4 + noise()
        for r in places:
            for c in places:
                near = at(r + half, c + half) + at(r - half, c + half) + at(r, c) + at(r, c + step)
                field[r, c + half] = near / 4 + noise()
        for r in places:
            for c in places:
                near = at(r + half, c + half) + at(r + half, c - half) + at(r, c) + at(r + step, c)
                field[r + half, c] = near / 4 + noise()
        step, strength = half, strength / decay
    return (field - field.min()) / np.ptp(field)


@pytest.mark.parametrize(("size", "decay"), [(8, 3.0), (32, 1.75)])
def test_plasma_is_the_diamond_square_algorithm(size: int, decay: float) -> None:
    draws = planes(2, size * size)
    made = plasma(draws, size, decay)
    for i in range(2):
        np.testing.assert_allclose(made[i], published_plasma(draws[i], size, decay), atol=1e-5)


@given(st.lists(st.integers(0, 255), min_size=3, max_size=3), st.sampled_from([(0.05,), (0.3,), (0.5,)]))
@settings(max_examples=200, deadline=None)
def test_brightness_adds_to_the_value(rgb: list[int], parameters: tuple[float]) -> None:
    h, s, v = colorsys.rgb_to_hsv(*(level / 255 for level in rgb))
    expected = colorsys.hsv_to_rgb(h, s, min(1, v + parameters[0]))
    x = np.float32(rgb).reshape(1, 3, 1, 1) / np.float32(255)
    made = digital.brightness(x, Streams(0, [0], ""), *parameters)
    np.testing.assert_allclose(made.ravel(), expected, atol=1e-6)


@given(
    st.lists(st.integers(0, 255), min_size=3, max_size=3),
    st.sampled_from([(0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2)]),
)
@settings(max_examples=300, deadline=None)
def test_saturate_changes_the_saturation(rgb: list[int], parameters: tuple[float, float]) -> None:
    h, s, v = colorsys.rgb_to_hsv(*(level / 255 for level in rgb))
    expected = colorsys.hsv_to_rgb(h, min(1, max(0, s * parameters[0] + parameters[1])), v)
    x = np.float32(rgb).reshape(1, 3, 1, 1) / np.float32(255)
    made = digital.saturate(x, Streams(0, [0], ""), *parameters)
    np.testing.assert_allclose(made.ravel(), expected, atol=2e-6)


@pytest.mark.parametrize("photons", [3.0, 60.0, 500.0])
def test_poisson_counts_are_scipys_quantiles(photons: float) -> None:
    rng = np.random.default_rng(3)
    levels = rng.integers(0, 256, 20000)
    draws = rng.random(20000, dtype=np.float32)
    draws[:3] = (0, 0.5, 1 - 2**-24)
    made = poisson_counts(levels, draws, photons)
    # where single precision decides between two counts, either is right
    low, high = (stats.poisson.ppf(draws.astype(float) + e, photons * levels / 255) for e in (-1e-6, 1e-6))
    inside = (draws > 1e-5) & (draws < 1 - 1e-5)
    assert (made[inside] >= low[inside]).all()
    assert (made[inside] <= high[inside]).all()
    assert np.isfinite(made).all()


def test_noise_has_the_published_distribution() -> None:
    flat = np.full((400, 400, 3), 0.4, dtype=np.float32)
    normal = (corrupt(flat, "gaussian_noise", 1) - 0.4) / 0.08
    assert stats.kstest(normal.ravel()[:20000], "norm").pvalue > 1e-3
    speckle = (corrupt(flat, "speckle_noise", 1) / 0.4 - 1) / 0.15
    assert stats.kstest(speckle.ravel()[:20000], "norm").pvalue > 1e-3
    photons = corrupt(flat, "shot_noise", 3) * 12
    counts = np.bincount(photons.round().astype(int).ravel(), minlength=16)[:12]
    expected = stats.poisson.pmf(np.arange(12), 12 * 0.4) * photons.size
    np.testing.assert_allclose(counts, expected, atol=5 * np.sqrt(expected.max()))
    # floats between the levels are drawn one by one
    between = np.full((400, 400, 3), 0.4007, dtype=np.float32)
    assert (corrupt(between, "shot_noise", 3) * 12).mean() == pytest.approx(12 * 0.4007, rel=0.002)
    salted = corrupt(flat, "impulse_noise", 5)
    assert (salted == 0).mean() == pytest.approx(0.135, abs=0.003)
    assert (salted == 1).mean() == pytest.approx(0.135, abs=0.003)

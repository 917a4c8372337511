"""`corrupt`: every corruption, for every kind of image, the same in any batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import acclimate
from acclimate.corruptions import CORRUPTIONS, NAMES, VALIDATION_NAMES, corrupt, frost
from acclimate.corruptions.arrays import CUT
from acclimate.corruptions.parameters import PARAMETERS, parameters
from acclimate.errors import InputError, OptionError
from corruption_kinds import FIXED

ALL = tuple(CORRUPTIONS)


def scene(count: int = 5, height: int = 32, width: int = 32, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth colours with a few edges, a flat patch, black and white."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (count, 5, 5, channels))
    rows = np.linspace(0, 4, height).round().astype(int)
    columns = np.linspace(0, 4, width).round().astype(int)
    images = coarse[:, rows][:, :, columns] + rng.normal(0, 12, (count, height, width, channels))
    images[:, :6, :6] = 0
    images[:, -6:, :6] = 255
    images[:, -6:, -6:] = 120
    return np.clip(images, 0, 255).astype(np.uint8)


def test_the_table() -> None:
    assert len(NAMES) == 15
    assert VALIDATION_NAMES == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    assert set(PARAMETERS) == set(NAMES + VALIDATION_NAMES) == set(ALL)
    assert acclimate.corrupt is corrupt
    for row in CORRUPTIONS.values():
        assert row.kind in ("noise", "blur", "weather", "digital")
        assert row.summary.endswith(".")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("size", [(32, 32), (50, 41), (230, 224)])
def test_the_same_alone_in_a_batch_and_on_other_threads(
    name: str, severity: int, size: tuple[int, int]
) -> None:
    images = scene(100 if size == (32, 32) else 3, *size)
    whole = corrupt(images, name, severity, seed=3)
    for i in (0, 1, len(images) - 1):
        np.testing.assert_array_equal(corrupt(images[i], name, severity, seed=3, index=i), whole[i])
    pair = corrupt(images[[2, 0]], name, severity, seed=3, index=[2, 0])
    np.testing.assert_array_equal(pair, whole[[2, 0]])
    np.testing.assert_array_equal(corrupt(images[1:], name, severity, seed=3, index=1), whole[1:])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        np.testing.assert_array_equal(corrupt(images[:3], name, severity, seed=3), whole[:3])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ALL)
def test_every_container_gives_the_same_pixels_in_kind(name: str) -> None:
    images = scene(3)
    expected = corrupt(images, name, 4)
    before = images.copy()
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2)
    made = corrupt(tensor, name, 4)
    assert made.dtype == torch.uint8
    np.testing.assert_array_equal(made.permute(0, 2, 3, 1).numpy(), expected)
    np.testing.assert_array_equal(corrupt(tensor[0], name, 4).permute(1, 2, 0).numpy(), expected[0])
    picture = corrupt(Image.fromarray(images[0]), name, 4)
    assert isinstance(picture, Image.Image)
    np.testing.assert_array_equal(np.asarray(picture), expected[0])
    np.testing.assert_array_equal(images, before)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_the_same_before_the_cut_to_bytes(name: str, dtype: type) -> None:
    images = scene(3)
    floats = images.astype(np.float32) / np.float32(255)
    given = floats.astype(dtype)
    made = corrupt(given, name, 3)
    assert made.dtype == dtype
    assert made.min() >= 0
    assert made.max() <= 1
    if dtype != np.float16:
        levels = np.floor(made.astype(np.float32) * np.float32(255) + CUT)
        np.testing.assert_array_equal(levels, corrupt(images, name, 3))
    np.testing.assert_array_equal(given, floats.astype(dtype))


def test_bfloat16_and_devices_come_back() -> None:
    tensor = torch.rand(2, 3, 32, 32).bfloat16()
    made = corrupt(tensor, "fog", 2)
    assert made.dtype == torch.bfloat16
    assert made.device == tensor.device


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", [(8, 8), (9, 31), (28, 28), (50, 37), (200, 300), (20, 400)])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_and_grey(name: str, size: tuple[int, int], channels: int) -> None:
    images = scene(2, *size, channels)
    for severity in (1, 5):
        made = corrupt(images, name, severity)
        assert made.shape == images.shape
        if severity == 5 and min(size) >= 28 and not (name == "saturate" and channels == 1):
            assert (made != images).any()  # on less, a blur may be shorter than a pixel
    if channels == 1:
        np.testing.assert_array_equal(
            corrupt(images[0, ..., 0], name, 5), corrupt(images, name, 5)[0, ..., 0]
        )


@pytest.mark.parametrize("name", ALL)
def test_seed_and_index_decide_what_is_random(name: str) -> None:
    images = np.repeat(scene(1), 2, axis=0)
    first, second = corrupt(images, name, 5)
    again = corrupt(images[0], name, 5)
    other = corrupt(images[0], name, 5, seed=1)
    np.testing.assert_array_equal(first, again)
    assert (name in FIXED) == (first == second).all() == (first == other).all()


def test_corruptions_and_seeds_do_not_share_their_noise() -> None:
    flat = np.full((1, 64, 64, 3), 0.5, dtype=np.float32)
    patterns = [
        corrupt(flat, "gaussian_noise", 1, seed=0),
        corrupt(flat, "gaussian_noise", 1, seed=1),
        corrupt(flat, "gaussian_noise", 1, index=1),
        corrupt(flat, "speckle_noise", 1),
    ]
    correlations = np.corrcoef([pattern.ravel() for pattern in patterns])
    assert np.abs(correlations - np.eye(4)).max() < 0.05
    # severities do: more of the same
    stronger = corrupt(flat, "gaussian_noise", 2)
    assert np.corrcoef(patterns[0].ravel(), stronger.ravel())[0, 1] > 0.99


@pytest.mark.parametrize(
    "name", sorted(set(ALL) - {"saturate", "glass_blur", "elastic_transform", "pixelate"})
)
def test_higher_severities_are_further_from_the_image(name: str) -> None:
    images = scene(8, 224, 224)
    distance = [np.abs(corrupt(images, name, s).astype(float) - images).mean() for s in (1, 3, 5)]
    assert distance == sorted(distance)


@pytest.mark.parametrize(
    "name", ["defocus_blur", "gaussian_blur", "motion_blur", "glass_blur", "snow", "spatter"]
)
@pytest.mark.parametrize("severity", [1, 3, 4, 5])
def test_twice_the_size_looks_the_same(name: str, severity: int) -> None:
    # the same scene at 224 and 448 pixels, compared at 224
    images = scene(12, 224, 224)
    large = images.repeat(2, axis=1).repeat(2, axis=2)
    small = corrupt(images, name, severity).astype(float)
    shrunk = corrupt(large, name, severity).astype(float)
    shrunk = shrunk.reshape(12, 224, 2, 224, 2, 3).mean((2, 4))
    changed, changed_large = (np.abs(made - images).mean() for made in (small, shrunk))
    assert changed_large == pytest.approx(changed, rel=0.12)
    assert shrunk.std() == pytest.approx(small.std(), rel=0.05)


def test_parameters_of_published_sizes_are_as_published() -> None:
    for size in (32, 64, 224):
        for name, table in PARAMETERS.items():
            for severity in range(1, 6):
                assert parameters(name, severity, size, size) == table[size][severity - 1]
                assert len(table[size]) == 5
    assert parameters("pixelate", 5, 448, 448) == (0.125,)
    assert parameters("elastic_transform", 5, 64, 48) == pytest.approx((10.24 * 0.5625, 1.44, 0.96))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("contrast", 0), "severity must be 1 to 5, got 0"),
        (("contrast", 6), "severity must be 1 to 5, got 6"),
        (("contrast", True), "severity must be 1 to 5, got True"),
        (("contrast", 2.5), "severity must be 1 to 5, got 2.5"),
        (("contrast", 3.0), "severity must be 1 to 5, got 3.0"),
        (("gausian_noise", 1), "unknown corruption 'gausian_noise': did you mean 'gaussian_noise'"),
        (("jpeg", 1), "did you mean 'jpeg_compression'"),
        ((["fog"], 1), "expected the name of a corruption, got list"),
        (("xyzzy", 1), "unknown corruption 'xyzzy': known are 'brightness'"),
    ],
)
def test_unknown_names_and_severities(arguments: tuple[str, int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        corrupt(scene(1), *arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index": [1, 2]}, "expected an index for each of 3 images, got 2"),
        ({"index": -1}, "must not be negative"),
        ({"seed": -1}, "must not be negative"),
        ({"index": [0.5, 1, 2]}, "index must be a whole number, got 0.5"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
    ],
)
def test_bad_seeds_and_indices(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        corrupt(scene(3), "fog", 1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.full((32, 32, 3), np.nan), "got NaN or infinity"),
        (np.full((32, 32, 3), 1.5), "got values from 1.5 to 1.5: divide 0 to 255 by 255"),
        (np.full((32, 32, 3), -0.1, dtype=np.float32), "got values from -0.1"),
        (
            np.zeros((32, 32, 4), dtype=np.uint8),
            "expected 1 or 3 channels .* got 4 .* the alpha channel",
        ),
        (torch.zeros(32, 32, 3), "got 32 in .*: in tensors channels come first, so permute it"),
        (np.zeros((3, 32, 32)), "got 32 in .*: in arrays channels come last, so transpose it"),
        (np.zeros((9, 32, 32)), "a batch of grey images needs a channel axis of 1"),
        (np.zeros((32, 32, 3), dtype=np.uint16), "got uint16: divide 16 bits by 65535"),
        (
            np.zeros((32, 32, 3), dtype=np.int64),
            "got int64: convert 0 to 255 to uint8",
        ),
        (np.zeros((7, 32, 3), dtype=np.uint8), "at least 8 by 8 pixels, got \\(7, 32, 3\\)"),
        (np.zeros(32, dtype=np.uint8), "expected images of shape"),
        (Image.new("RGBA", (32, 32)), "mode L or RGB, got RGBA: convert it first"),
        (Image.new("I;16", (32, 32)), "numpy.asarray.image. / 65535"),
        (Image.new("F", (32, 32)), "brought to .0, 1., as an array"),
        ("photo.jpg", "expected a PIL image, an array or a tensor, got str"),
    ],
)
def test_bad_images(images: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        corrupt(images, "contrast", 1)  # type: ignore[type-var]


def test_an_empty_batch_stays_empty() -> None:
    assert corrupt(np.zeros((0, 32, 32, 3), dtype=np.uint8), "snow", 1).shape == (0, 32, 32, 3)


@pytest.fixture
def _photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with six photographs, whose code must not run."""
    package = tmp_path / "imagecorruptions"
    (package / "frost").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    information = tmp_path / "imagecorruptions-1.1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: imagecorruptions\nVersion: 1.1.2\n")
    for number in range(1, 7):
        colour = (40 * number, 0, 0)  # each its own red, so that one can tell which was drawn
        suffix = "png" if number < 4 else "jpg"
        Image.new("RGB", (400, 300), colour).save(package / f"frost/frost{number}.{suffix}", quality=100)
    monkeypatch.syspath_prepend(tmp_path)
    frost._photographs.cache_clear()
    yield
    frost._photographs.cache_clear()


@pytest.mark.usefixtures("_photographs")
def test_frost_takes_installed_photographs() -> None:
    assert acclimate.corruptions.frost_source() == "photographs"
    black = np.zeros((200, 32, 32, 3), dtype=np.uint8)
    reds = np.unique(corrupt(black, "frost", 5)[..., 0])
    # amount 0.45 of the first five reds, cut; the published generators never draw the sixth
    assert reds.tolist() == pytest.approx([18, 36, 54, 72, 90], abs=1)
    assert "imagecorruptions" not in sys.modules


def test_frost_is_drawn_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frost, "_photographs", tuple)
    assert acclimate.corruptions.frost_source() == "crystals"
    for pane in frost.frost_panes():
        assert 0.3 < pane.mean() < 0.9
        assert pane.std() > 0.05
        assert frost.part_of_pane(pane, 1000, 100, 0.9, 0.9).shape == (3, 1000, 100)


def test_a_part_of_a_pane_is_what_resizing_it_whole_would_give() -> None:
    pane = np.random.default_rng(0).random((3, 300, 400), dtype=np.float32)
    # at a fifth, every fifth pixel
    part = frost.part_of_pane(pane, 32, 32, 0.5, 0.25)
    np.testing.assert_allclose(part, pane[:, 2::5, 2::5][:, 14:46, 12:44], atol=1e-5)
    np.testing.assert_array_equal(frost.part_of_pane(pane, 224, 224, 0, 0), pane[:, :224, :224])


@pytest.mark.parametrize("shape", [(16400, 8, 3), (8, 20000, 3)])
@pytest.mark.parametrize("name", ["spatter", "fog", "frost", "elastic_transform"])
def test_very_long_images(name: str, shape: tuple[int, ...]) -> None:
    image = np.full(shape, 100, dtype=np.uint8)
    assert corrupt(image, name, 3).shape == shape


def test_jpeg_has_a_largest_size() -> None:
    with pytest.raises(InputError, match="JPEG holds at most 65500 pixels a side"):
        corrupt(np.zeros((8, 70000, 3), dtype=np.uint8), "jpeg_compression", 1)


def test_almost_black_floats_stay_finite() -> None:
    image = np.zeros((8, 8, 3), dtype=np.float32)
    image[..., 0] = 1e-40
    for name in ALL:
        assert np.isfinite(corrupt(image, name, 5)).all()


@pytest.mark.parametrize("index", [3, np.int64(3), np.array(3), torch.tensor(3)])
def test_an_index_may_be_any_whole_number(index: int) -> None:
    image = scene(1)[0]
    np.testing.assert_array_equal(corrupt(image, "fog", 1, index=index), corrupt(image, "fog", 1, index=3))

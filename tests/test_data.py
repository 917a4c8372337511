"""Every layout: a tree is made, read, counted and labelled right; a wrong tree is told by its file."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from acclimate import corrupt
from acclimate.data import LAYOUTS, Crop, ImageSet, find_layout, open_data
from acclimate.data.subsets import first, fraction_of_classes, fraction_of_samples
from acclimate.data.visda_c import VISDA_CLASSES
from acclimate.data.wnids import imagenet_r_wnids, imagenet_wnids
from acclimate.errors import InputError, OptionError


def colour(number: int) -> tuple[int, int, int]:
    return (number % 251, number // 251, 77)


def save(path: Path, number: int, size: tuple[int, int] = (16, 16)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour(number)).save(path)


def seen(images: ImageSet, position: int) -> int:
    """The number that an image was made from."""
    red, green, _ = (images[position][:, 0, 0] * 255).round().int().tolist()
    return int(red + 251 * green)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of 1,000 classes, one image each, whose colour is the class."""
    folder = tmp_path_factory.mktemp("imagenet")
    for number, wnid in enumerate(imagenet_wnids()):
        save(folder / wnid / "a.png", number)
    return folder


def test_imagenet(imagenet: Path) -> None:
    assert find_layout(imagenet) == "imagenet"
    images = open_data(imagenet, crop=None)
    assert len(images) == 1000
    assert images.labels is not None
    assert images.labels.tolist() == list(range(1000))
    assert [seen(images, position) for position in (0, 500, 999)] == [0, 500, 999]
    assert images.class_names == imagenet_wnids()
    assert images.classes is None


def test_imagenet_lacks_a_class(tmp_path: Path) -> None:
    for number, wnid in enumerate(imagenet_wnids()):
        (tmp_path / "val" / wnid).mkdir(parents=True)
        if number != 7:
            save(tmp_path / "val" / wnid / "a.png", number)
    with pytest.raises(InputError, match=rf"{imagenet_wnids()[7]} is a class folder without images"):
        open_data(tmp_path)
    (tmp_path / "val" / imagenet_wnids()[7]).rmdir()
    with pytest.raises(InputError, match=rf"999 of 1,000 class folders: '{imagenet_wnids()[7]}' missing"):
        open_data(tmp_path)
    partial = open_data(tmp_path, partial=True)
    assert partial.labels is not None
    assert partial.labels.tolist() == [number for number in range(1000) if number != 7]
    save(tmp_path / "val" / "n99999999" / "a.png", 0)
    with pytest.raises(InputError, match=r"no class of ImageNet: 'n99999999'"):
        open_data(tmp_path, partial=True)


def test_imagenet_r_is_200_of_1000_outputs(tmp_path: Path) -> None:
    for wnid in imagenet_r_wnids():
        save(tmp_path / "imagenet-r" / wnid / "art_0.png", imagenet_wnids().index(wnid))
    assert find_layout(tmp_path) == "imagenet-r"
    images = open_data(tmp_path, crop=None)
    assert images.labels is not None
    assert images.classes is not None
    assert len(images.classes) == len(images) == 200
    assert images.classes == tuple(sorted(imagenet_wnids().index(wnid) for wnid in imagenet_r_wnids()))
    for position in range(0, 200, 23):
        assert seen(images, position) == images.labels[position]
    save(tmp_path / "imagenet-r" / imagenet_wnids()[0] / "a.png", 0)  # tench is no class of ImageNet-R
    with pytest.raises(InputError, match=r"do not belong there: 'n01440764'"):
        open_data(tmp_path, "imagenet-r")


def test_the_published_wnids() -> None:
    assert len(imagenet_wnids()) == len(set(imagenet_wnids())) == 1000
    assert list(imagenet_wnids()) == sorted(imagenet_wnids())
    # tench, goldfish, great white shark; canoe; toilet tissue
    assert imagenet_wnids()[:3] == ("n01440764", "n01443537", "n01484850")
    assert (imagenet_wnids()[472], imagenet_wnids()[999]) == ("n02951358", "n15075141")
    assert len(imagenet_r_wnids()) == len(set(imagenet_r_wnids())) == 200
    assert set(imagenet_r_wnids()) < set(imagenet_wnids())


def test_imagenet_c(tmp_path: Path) -> None:
    for c, corruption in enumerate(("fog", "snow")):
        for severity in (1, 3):
            for label, name in enumerate(("cat", "dog")):
                for k in range(2):
                    save(
                        tmp_path / corruption / str(severity) / name / f"{k}.png",
                        100 * c + 10 * severity + label,
                    )
    assert find_layout(tmp_path) == "imagenet-c"
    images = open_data(tmp_path, corruption="snow", severity=3, crop=None)
    assert len(images) == 4
    assert images.labels is not None
    assert images.labels.tolist() == [0, 0, 1, 1]
    assert [seen(images, i) for i in range(4)] == [130, 130, 131, 131]
    assert images.class_names == ("cat", "dog")
    with pytest.raises(InputError, match=r"there is no .*snow/2: .* has '1', '3'"):
        open_data(tmp_path, corruption="snow", severity=2)
    with pytest.raises(OptionError, match="more than one corruption: give one of 'fog', 'snow'"):
        open_data(tmp_path, severity=3)
    with pytest.raises(OptionError, match="more than one severity"):
        open_data(tmp_path, corruption="fog")
    with pytest.raises(OptionError, match="did you mean 'snow'"):
        open_data(tmp_path, corruption="snoww", severity=3)


def test_published_images_are_not_resized_again(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    (tmp_path / "fog/5/cat").mkdir(parents=True)
    Image.fromarray(noise).save(tmp_path / "fog/5/cat/a.png")
    images = open_data(tmp_path)
    np.testing.assert_array_equal((images[0] * 255).round().byte().permute(1, 2, 0).numpy(), noise)


def test_crops_are_those_of_torchvision() -> None:
    from acclimate.models.vision import import_torchvision

    transforms = import_torchvision().transforms
    for crop, resize, mode in ((224, 256, "bilinear"), (224, 232, "bicubic"), (64, 73, "bilinear")):
        for size in ((301, 477), (294, 196), (196, 294), (500, 375)):
            image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
            expected = transforms.CenterCrop(crop)(
                transforms.Resize(resize, transforms.InterpolationMode(mode))(image)
            )
            np.testing.assert_array_equal(np.asarray(Crop(crop, resize, mode)(image)), np.asarray(expected))


def cifar(folder: Path, count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5 * count, 32, 32, 3), dtype=np.uint8)
    labels = np.tile(rng.integers(0, 10, count), 5)
    np.save(folder / "fog.npy", images)
    np.save(folder / "labels.npy", labels)
    return images, labels


def test_cifar_c(tmp_path: Path) -> None:
    pixels, labels = cifar(tmp_path)
    assert find_layout(tmp_path) == "cifar-c"
    images = open_data(tmp_path, severity=4)
    assert len(images) == 20
    assert images.labels is not None
    assert images.labels.tolist() == labels[60:80].tolist()
    expected = torch.from_numpy(pixels[60:80]).permute(0, 3, 1, 2) / 255
    assert torch.equal(images.batch(range(20)), expected)
    with pytest.raises(OptionError, match="more than one severity"):
        open_data(tmp_path)
    np.save(tmp_path / "labels.npy", labels[:-1])
    with pytest.raises(InputError, match=r"label of each of the 100 images of .*fog.npy"):
        open_data(tmp_path, severity=1)
    np.save(tmp_path / "fog.npy", pixels[:-1])
    with pytest.raises(InputError, match=r"five severities of equal length in .*fog.npy, got 99"):
        open_data(tmp_path, severity=1)


def visda(folder: Path) -> Path:
    lines = []
    for label, name in enumerate(VISDA_CLASSES):
        save(folder / "validation" / name / "a b.png", label)
        lines.append(f"{name}/a b.png {label}")
    (folder / "validation/image_list.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_visda_c(tmp_path: Path) -> None:
    visda(tmp_path)
    assert find_layout(tmp_path) == find_layout(tmp_path / "validation") == "visda-c"
    images = open_data(tmp_path, crop=None)
    assert images.labels is not None
    assert images.labels.tolist() == list(range(12))
    assert [seen(images, i) for i in range(12)] == list(range(12))
    assert images.class_names == VISDA_CLASSES
    with pytest.raises(OptionError, match="unknown split 'train'"):
        open_data(tmp_path, split="train")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("horse/a b.png 4", "line 13: horse/a b.png is listed twice"),
        ("horse/none.png 4", "line 13: there is no file"),
        ("horse/a b.png 5", "line 13: label 5 is knife, not horse"),
        ("horse/a b.png 12", "expected a file and a label below 12"),
        ("horse", "expected a file and a label below 12"),
    ],
)
def test_visda_c_with_a_wrong_line(tmp_path: Path, line: str, message: str) -> None:
    path = visda(tmp_path) / "validation/image_list.txt"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InputError, match=message):
        open_data(tmp_path)


def test_class_folders_and_unlabelled_images(tmp_path: Path) -> None:
    for label, name in enumerate(("b", "a", "c")):
        save(tmp_path / name / "x" / "1.png", label)
    assert find_layout(tmp_path) == "class-folders"
    images = open_data(tmp_path, crop=None)
    assert images.class_names == ("a", "b", "c")
    assert [seen(images, i) for i in range(3)] == [1, 0, 2]
    (tmp_path / "d").mkdir()
    with pytest.raises(InputError, match="d is a class folder without images"):
        open_data(tmp_path)
    save(tmp_path / "loose.png", 9)
    assert find_layout(tmp_path) == "unlabelled"
    loose = open_data(tmp_path, crop=None)
    assert (len(loose), loose.labels) == (4, None)
    with pytest.raises(InputError, match=r"loose.png is in no class folder"):
        open_data(tmp_path, "class-folders")


def test_arrays(tmp_path: Path) -> None:
    grey = np.arange(3 * 64, dtype=np.uint8).reshape(3, 8, 8)
    np.savez(tmp_path / "a.npz", images=np.repeat(grey[..., None], 3, axis=3), labels=np.array([2, 0, 1]))
    images = open_data(tmp_path / "a.npz")
    assert images.labels is not None
    assert images.labels.tolist() == [2, 0, 1]
    assert images[1].shape == (3, 8, 8)


def test_what_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is nothing at"):
        open_data(tmp_path / "none")
    (tmp_path / "a.txt").touch()
    with pytest.raises(InputError, match="expected a folder of images"):
        open_data(tmp_path / "a.txt")
    with pytest.raises(InputError, match="no images in"):
        open_data(tmp_path)
    with pytest.raises(OptionError, match="did you mean 'imagenet-c'"):
        open_data(tmp_path, "imagenet_c")
    assert all(layout.summary for layout in LAYOUTS.values())


def test_images_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 0)
    (tmp_path / "b.png").touch()
    images = open_data(tmp_path, crop=None)
    with pytest.raises(InputError, match=r"b.png cannot be read as an image"):
        images.batch([0, 1])
    (tmp_path / "b.png").unlink()
    with pytest.raises(InputError, match=r"b.png cannot be read: No such file"):
        images.batch([0, 1])
    save(tmp_path / "b.png", 0, (20, 16))
    with pytest.raises(InputError, match=r"one size, got a.png \(16, 16, 3\) and b.png \(16, 20, 3\)"):
        images.batch([0, 1])


@pytest.fixture
def labelled() -> ImageSet:
    pixels = np.arange(100, dtype=np.uint8).repeat(64 * 3).reshape(100, 8, 8, 3)
    return ImageSet(pixels.__getitem__, [str(i) for i in range(100)], labels=torch.arange(100) // 10)


def test_subsets(labelled: ImageSet) -> None:
    assert first(labelled, 7).names == [str(i) for i in range(7)]
    assert len(first(labelled, 700)) == 100
    some = fraction_of_classes(labelled, 0.3, seed=1)
    assert some.labels is not None
    kept = sorted(set(some.labels.tolist()))
    assert len(kept) == 3
    assert len(some) == 30
    assert some.names == fraction_of_classes(labelled, 0.3, seed=1).names
    assert kept != sorted(set(fraction_of_classes(labelled, 0.3, seed=2).labels.tolist()))  # type: ignore[union-attr]
    each = fraction_of_samples(labelled, 0.25, seed=1)
    assert each.labels is not None
    assert each.labels.bincount().tolist() == [2] * 10
    assert each.names != fraction_of_samples(labelled, 0.25, seed=2).names
    assert [int(image[0, 0, 0] * 255 + 0.5) for image in (each[i] for i in range(20))] == [
        int(n) for n in each.names
    ]
    assert fraction_of_samples(labelled, 0.01).labels.bincount().tolist() == [1] * 10  # type: ignore[union-attr]
    for fraction in (0, 1.1):
        with pytest.raises(OptionError, match="above 0 and at most 1"):
            fraction_of_classes(labelled, fraction)
    with pytest.raises(OptionError, match="at least 1"):
        first(labelled, 0)
    with pytest.raises(InputError, match="needs labels"):
        fraction_of_classes(ImageSet(labelled.read, labelled.names), 0.5)


def test_fingerprints(labelled: ImageSet) -> None:
    assert labelled.fingerprint() == labelled.fingerprint()
    others = [first(labelled, 99), ImageSet(labelled.read, labelled.names)]
    others.append(ImageSet(lambda i: labelled.read(i) + np.uint8(1), labelled.names, labels=labelled.labels))
    assert len({labelled.fingerprint(), *(other.fingerprint() for other in others)}) == 4


def test_labels_of_another_length(labelled: ImageSet) -> None:
    with pytest.raises(InputError, match="expected a label for each of 100 images, got 99"):
        ImageSet(labelled.read, labelled.names, labels=torch.arange(99))


def test_an_image_set_goes_to_other_processes(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 3)
    images = open_data(tmp_path, crop=None).subset([0, 0])
    again = pickle.loads(pickle.dumps(images))
    assert torch.equal(again.batch([0, 1]), images.batch([0, 1]))


def test_adapt_on_a_part_and_evaluate_on_all() -> None:
    from acclimate import Adapter
    from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model

    pixels, labels = bundled_images()
    shifted = corrupt((pixels[:300] * 255).round().byte(), "impulse_noise", 5).permute(0, 2, 3, 1).numpy()
    images = ImageSet(shifted.__getitem__, [str(i) for i in range(300)], labels=labels[:300])
    source, adapter = (Adapter(bundled_model(), m, normalize=(MEAN, STD)) for m in ("source", "slr"))
    adapter.fit(fraction_of_samples(images, 0.5, seed=1), 1)
    assert adapter.step == 2
    before, after = (
        network.predict(images, batch_size=64).argmax(1).eq(labels[:300]).float().mean().item()
        for network in (source, adapter)
    )
    assert after > before + 0.15


def test_accuracy_on_restricted_logits_by_hand() -> None:
    """Outputs 0 to 5, of which 1, 3 and 4 can occur: the best of these counts, whatever the others say."""
    from acclimate import Adapter

    logits = torch.tensor([[9.0, 1, 0, 2, 0, 0], [0, 5, 9, 4, 0, 0], [0, 0, 9, 0, 1, 9.0]])
    adapter = Adapter(_Table(logits), "source", classes=(1, 3, 4))
    found = adapter.predict(torch.arange(3.0).view(3, 1, 1, 1))
    assert torch.equal(found, logits[:, [1, 3, 4]])
    assert [adapter.classes[i] for i in found.argmax(1)] == [3, 1, 4]  # type: ignore[index]


class _Table(torch.nn.Module):
    """Answers with a row of a table."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits[x.flatten().long()]


def test_an_image_set_has_ends(tmp_path: Path) -> None:
    """Beyond them are the images of other severities."""
    pixels, _ = cifar(tmp_path)
    images = open_data(tmp_path, severity=2)
    assert len(list(images)) == len(images) == 20
    assert torch.equal(images[-1], torch.from_numpy(pixels[39]).permute(2, 0, 1) / 255)
    for position in (20, -21):
        with pytest.raises(IndexError, match=f"20 images, and none at {position}"):
            images[position]
    with pytest.raises(IndexError):
        images.batch([0, 20])


def test_one_severity_as_corrupt_writes_it(tmp_path: Path) -> None:
    pixels, labels = cifar(tmp_path)
    (tmp_path / "fog.npy").unlink()
    np.save(tmp_path / "labels.npy", labels[:20])
    np.save(tmp_path / "fog_5.npy", pixels[:20])
    images = open_data(tmp_path)
    assert len(images) == 20
    assert images.names[0] == "fog/5/00000"
    with pytest.raises(OptionError, match="unknown severity '3'"):
        open_data(tmp_path, corruption="fog", severity=3)
    np.save(tmp_path / "fog.npy", pixels[:20])
    np.save(tmp_path / "labels.npy", np.arange(20) % 10)
    with pytest.raises(InputError, match=r"a file of one severity is called fog_5.npy"):
        open_data(tmp_path, corruption="fog", severity=1)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_workers_of_a_loader_read_after_the_parent_did(tmp_path: Path) -> None:
    for number in range(8):
        save(tmp_path / f"{number}.png", number)
    images = open_data(tmp_path, crop=None)
    expected = images.batch(range(8))  # threads are running now
    loader = DataLoader(images, batch_size=4, num_workers=2, timeout=60, multiprocessing_context="fork")
    assert torch.equal(torch.cat(list(loader)), expected)


def test_published_crops_are_resized_for_networks_of_another_size(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8))
    (tmp_path / "fog/5/cat").mkdir(parents=True)
    noise.save(tmp_path / "fog/5/cat/a.png")
    images = open_data(tmp_path, crop=Crop(299, 342))
    whole = np.asarray(noise.resize((299, 299), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(images.read(0), whole)


def test_squashed_images_keep_their_edges() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8))
    expected = np.asarray(image.resize((24, 24), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(np.asarray(Crop(24, 27, "bicubic", squash=True)(image)), expected)


def test_digits_are_classes_not_severities(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for digit in range(10):
            save(tmp_path / split / str(digit) / "a.png", digit)
    assert find_layout(tmp_path) == "class-folders"
    with pytest.raises(InputError, match="has no corruption: its layout is another one"):
        open_data(tmp_path, "imagenet-c")
    with pytest.raises(InputError, match="there is no folder"):
        open_data(tmp_path / "none", "imagenet-r")


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("hub", "shards")])
def test_an_address_is_no_folder(layout: str) -> None:
    with pytest.raises(InputError, match="is an address, from which shards can be read") as said:
        open_data("http://me:hidden@host/images", layout)
    assert repr(layout) in str(said.value)
    assert "hidden" not in str(said.value)


def test_the_split_for_training(tmp_path: Path) -> None:
    folder = visda(tmp_path)
    save(folder / "train/car/b.png", 3)
    (folder / "train/image_list.txt").write_text("car/b.png 3\n")
    assert len(open_data(folder)) == 12
    assert list(open_data(folder, training=True).names) == ["car/b.png"]
    with pytest.raises(OptionError, match="is itself a split"):
        open_data(folder / "validation", split="train")


def test_some_of_imagenets_classes_counted_from_0(tmp_path: Path) -> None:
    for number, wnid in enumerate(("n02123045", "n01440764")):
        save(tmp_path / wnid / "a.png", number)
    images = open_data(tmp_path, "class-folders")
    assert images.labels is not None
    assert (images.labels.tolist(), images.class_names) == ([0, 1], ("n01440764", "n02123045"))


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_folder_goes_by_its_own_name_not_by_a_links(tmp_path: Path) -> None:
    save(tmp_path / "b/a.png", 1)
    (tmp_path / "a").symlink_to(tmp_path / "b")
    assert list(open_data(tmp_path, "unlabelled").names) == ["b/a.png"]


def test_an_image_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        Image.fromarray(np.full((8, 8, 3), ord(name), np.uint8)).save(tmp_path / f"{name}.png")
    images = open_data(tmp_path, crop=None)
    first = images.batch([0, 1]).clone()
    monkeypatch.setattr("acclimate.data.folders.read_image", lambda *_: pytest.fail("was decoded again"))
    assert torch.equal(images.batch([0, 1]), first)

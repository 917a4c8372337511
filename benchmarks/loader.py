"""How fast images come: ours against torchvision's ImageFolder in a DataLoader, with no network to wait for.

Interleaved in one run, median of several, as many workers as we have threads; the pixels are compared.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from cifar import DATA
from PIL import Image
from records import write
from torch import Tensor
from torch.utils.data import DataLoader

from acclimate.batches import Batches
from acclimate.data import open_data
from acclimate.data.pictures import read_image
from acclimate.models.vision import import_torchvision

ROUNDS, BATCH, WORKERS = 9, 64, torch.get_num_threads()


def plain(folder: Path) -> Iterator[Tensor]:
    torchvision = import_torchvision()
    transforms = torchvision.transforms
    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
    if Image.open(next(folder.rglob("*.*"))).size == (224, 224):
        steps = steps[2:]  # as everybody does with ImageNet-C
    data = torchvision.datasets.ImageFolder(folder, transforms.Compose(steps))
    for images, _ in DataLoader(data, BATCH, num_workers=WORKERS):
        yield images


def ours(folder: Path) -> Iterator[Tensor]:
    for batch in Batches(open_data(folder), BATCH, shuffle=False).epoch(0):
        yield batch.images


def seconds(loader: Iterator[Tensor]) -> float:
    started = time.perf_counter()
    for images in loader:
        images[-1, -1, -1, -1].item()  # a network that does nothing
    return time.perf_counter() - started


def cropped(folder: Path, target: Path) -> Path:
    """The same images as ImageNet-C has them: 224 by 224."""
    for path in folder.rglob("*.JPEG"):
        out = target / path.relative_to(folder)
        out.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(read_image(path, 224)).save(out, "JPEG", quality=85)
    return target


def main() -> None:
    sample = DATA / "imagenet_sample"
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, folder in (("256, cropped to 224", sample), ("224", cropped(sample, Path(scratch)))):
            same = torch.equal(torch.cat(list(plain(folder))), torch.cat(list(ours(folder))))
            times = [(seconds(plain(folder)), seconds(ours(folder))) for _ in range(ROUNDS)]
            ratio = statistics.median(theirs / own for theirs, own in times)
            rates = [round(1000 / statistics.median(column)) for column in zip(*times, strict=True)]
            rows.append(
                {"images": name, "plain img/s": rates[0], "acclimate img/s": rates[1],
                 "ratio": round(ratio, 2), "pixels identical": same}
            )  # fmt: skip
            print(rows[-1], flush=True)
    protocol = {"data": "1,000 JPEG files", "batch_size": BATCH, "workers": WORKERS, "rounds": ROUNDS}
    write("loader", protocol, rows)


if __name__ == "__main__":
    main()

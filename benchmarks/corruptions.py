"""Corruptions: speed beside imagecorruptions, agreement with the published generators, and memory.

Runs in an environment with `benchmarks/peers.txt` (`make bench` makes it), where frost comes from the
published photographs. Looks for data where ACCLIMATE_DATA says, or beside the project in `../shared/data`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cifar import DATA, IMAGES, NORMALIZE, load_images, load_model
from PIL import Image
from records import write

from acclimate.corruptions import CORRUPTIONS, SEVERITIES, corrupt, frost, frost_source
from acclimate.data.pictures import read_image
from acclimate.metrics import structural_similarity

# Accuracy in % of the unadapted ResNet-20 on all test images, and on those of the published CIFAR-C generator
# at severity 5.
CLEAN_ACCURACY = 91.7
PUBLISHED_ACCURACY = {
    "gaussian_noise": 24.2, "shot_noise": 30.3, "impulse_noise": 22.4, "defocus_blur": 58.5,
    "glass_blur": 41.8, "motion_blur": 59.8, "zoom_blur": 59.2, "snow": 69.2, "frost": 53.8, "fog": 65.5,
    "brightness": 86.9, "contrast": 26.6, "elastic_transform": 69.6, "pixelate": 39.3,
    "jpeg_compression": 70.3, "speckle_noise": 35.0, "gaussian_blur": 40.7, "spatter": 70.8,
    "saturate": 84.4,
}  # fmt: skip


SLOW = {"glass_blur": 1, "zoom_blur": 3}  # imagecorruptions takes most of a second, a tenth of one


def imagenet_images(count: int) -> np.ndarray:
    folders = sorted((DATA / "imagenet_sample").iterdir())[:: 1000 // count]
    return np.stack([read_image(next(folder.iterdir()), 224) for folder in folders[:count]])


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def speed(rounds: int = 15, count: int = 4) -> None:
    """Both on the same 224-pixel images, one after the other in one process; medians of ratios."""
    from peers import peer_corrupt  # the other parts need no more of the peers than their photographs

    images = imagenet_images(count)
    rows = []
    for name in CORRUPTIONS:
        ours, theirs, ratios = [], [], []
        for severity in SEVERITIES:
            corrupt(images[:1], name, severity), peer_corrupt(images[0], name, severity)  # warm up
            for _ in range(SLOW.get(name, rounds)):
                peer = seconds(lambda: [peer_corrupt(image, name, severity) for image in images])  # noqa: B023
                own = seconds(lambda: corrupt(images, name, severity))  # noqa: B023
                ours.append(own), theirs.append(peer), ratios.append(peer / own)
        row = {
            "corruption": name,
            "acclimate_ms": round(1000 * statistics.median(ours) / count, 2),
            "imagecorruptions_ms": round(1000 * statistics.median(theirs) / count, 2),
            "ratio": round(statistics.median(ratios), 2),
            "rounds": SLOW.get(name, rounds),
        }
        rows.append(row)
        print(row, flush=True)
    mean = math.exp(statistics.mean(math.log(row["ratio"]) for row in rows))
    protocol = {
        "images": f"{count} of 224 by 224 pixels, uint8, all five severities",
        "geometric_mean_of_ratios": round(mean, 2),
        "smallest_ratio": min(row["ratio"] for row in rows),
        "imagecorruptions": version("imagecorruptions"),
        "note": "imagecorruptions patched where it raises on current releases of numpy, scipy, scikit-image",
    }
    write("corruptions_speed", protocol, rows)
    print(protocol)


def agreement() -> None:
    """Each figure of ours beside the published one.

    At 224 pixels the published statistics are those of three repeats. Those at 32 pixels are of images that
    had been through JPEG and are gone: statistics are taken of the one published output that there is.
    """
    statistics_224 = json.loads((DATA / "corruption_statistics.json").read_text())["size_224"]["corruptions"]
    rows = []
    for size in (32, 224):
        with np.load(DATA / f"corruptions_{size}.npz") as found:
            outputs = dict(found)
        clean = outputs["clean"] if size == 32 else imagenet_images(10)
        published = statistics_of(outputs) if size == 32 else statistics_224
        for name in CORRUPTIONS:
            rows += compared(size, clean, outputs, published, name, name)
        with without_photographs():
            rows += compared(size, clean, outputs, published, "frost", "frost (crystals)")
    protocol = {
        "frost": frost_source(),
        "within_one_level": "share of pixels, in %, that differ by at most one grey level from the published "
        "output; of random corruptions only the statistics are compared",
        "statistics": "mean over our seeds minus mean over published repeats, as a share of what is "
        "allowed, 3% or twice the spread of repeats: at 224 pixels of three published ones, against three "
        "seeds; at 32 of six seeds, as there is one published output, of 48 images",
    }
    write("corruptions_agreement", protocol, rows)


def compared(
    size: int, clean: np.ndarray, outputs: Any, published: dict[str, Any], name: str, shown: str
) -> list[dict[str, Any]]:
    rows = [
        {"size": size, "corruption": shown, "severity": severity}
        | difference(outputs["clean"], outputs[name][severity - 1], name, severity)
        | deviation(clean, published[name][severity - 1], name, severity)
        for severity in SEVERITIES
    ]
    print(rows[-1], flush=True)
    return rows


def statistics_of(outputs: dict[str, np.ndarray]) -> dict[str, list[dict[str, list[float]]]]:
    """Of a single output of the published generators, in the form of the published statistics."""
    return {
        name: [
            {key: [value] for key, value in image_statistics(images, outputs["clean"]).items()}
            for images in outputs[name]
        ]
        for name in CORRUPTIONS
    }


@contextmanager
def without_photographs() -> Iterator[None]:
    """As where imagecorruptions is not installed."""
    photographs, frost._photographs = frost._photographs, tuple
    yield
    frost._photographs = photographs


def difference(clean: np.ndarray, expected: np.ndarray, name: str, severity: int) -> dict[str, float | None]:
    made = [corrupt(clean, name, severity, seed=seed) for seed in (0, 1)]
    if (made[0] != made[1]).any():
        return {"within_one_level": None}
    near = np.abs(made[0].astype(int) - expected.astype(int)) <= 1
    return {"within_one_level": round(100 * float(near.mean()), 3)}


def deviation(
    clean: np.ndarray, published: dict[str, list[float]], name: str, severity: int
) -> dict[str, float]:
    alone = len(next(iter(published.values()))) == 1
    seeds = range(6 if alone else 3)
    runs = [image_statistics(corrupt(clean, name, severity, seed=seed), clean) for seed in seeds]
    found = {}
    for key, repeats in published.items():
        own, theirs = [run[key] for run in runs], statistics.mean(repeats)
        ours, repeated = statistics.mean(own), own if alone else repeats
        allowed = max(0.03 * abs(theirs), 2 * (max(repeated) - min(repeated)))
        found[key] = round((ours - theirs) / allowed, 3)
    return found


def image_statistics(images: np.ndarray, clean: np.ndarray) -> dict[str, float]:
    gray = images.mean(axis=3)
    x, y = (torch.from_numpy(pixels).permute(0, 3, 1, 2) for pixels in (clean, images))
    return {
        "mean": float(images.mean()),
        "std": float(images.reshape(len(images), -1).std(axis=1).mean()),
        "gradient": float(sum(np.abs(np.diff(gray, axis=axis)).mean() for axis in (1, 2))),
        "ssim": structural_similarity(x, y, span=255).mean().item(),
    }


def accuracy() -> None:
    """The unadapted ResNet-20 on all 10,000 images, clean and at severity 5; kept after every corruption."""
    model = load_model(20)
    images, labels = load_images()
    pixels = (images * 255).round().to(torch.uint8)
    protocol = {"data": IMAGES, "images": len(images), "severity": 5, "seed": 0,
                "model": "ResNet-20, unadapted", "metric": "accuracy %"}  # fmt: skip
    rows: list[dict[str, Any]] = []

    def measure(source: str, shifted: torch.Tensor, published: float) -> None:
        ours = round(scored(model, shifted, labels), 2)
        rows.append({"corruption": source, "acclimate": ours, "published": published,
                     "difference": round(ours - published, 2)})  # fmt: skip
        print(rows[-1], flush=True)
        write("corruptions_accuracy", protocol, rows)

    measure("clean", pixels, CLEAN_ACCURACY)
    for name in CORRUPTIONS:
        source = f"frost ({frost_source()})" if name == "frost" else name
        measure(source, corrupt(pixels, name, 5), PUBLISHED_ACCURACY[name])
    with without_photographs():
        measure(f"frost ({frost_source()})", corrupt(pixels, "frost", 5), PUBLISHED_ACCURACY["frost"])
    assert all(abs(row["difference"]) <= 1 for row in rows if "crystals" not in row["corruption"]), rows


@torch.inference_mode()
def scored(model: torch.nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> float:
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in NORMALIZE)
    predicted = [model((part / 255 - mean) / std).argmax(1) for part in pixels.split(500)]
    return 100 * torch.cat(predicted).eq(labels).double().mean().item()


PEAK = """
import sys
from pathlib import Path
from typing import Any
from acclimate.corruptions.generate import corrupt_dataset
corrupt_dataset(sys.argv[1], sys.argv[2], severities=(3,), workers=1)
status = Path("/proc/self/status").read_text()
print(status.partition("VmHWM:")[2].split()[0])
"""


def memory() -> None:
    """Peak resident memory of one process that corrupts a folder, by the number of images in it."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count in (5, 50, 500):
            source, target = Path(folder, f"{count}"), Path(folder, f"{count}-c")
            source.mkdir()
            for number in range(count):
                noise = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(noise).resize((256, 256)).save(source / f"{number}.png")
            command = [sys.executable, "-c", PEAK, str(source), str(target)]
            started = time.perf_counter()
            peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            elapsed = round(time.perf_counter() - started, 1)
            rows.append({"images": count, "peak_MiB": round(peak / 1024), "seconds": elapsed})
            print(rows[-1], flush=True)
    write("corruptions_memory", {"task": "all corruptions at severity 3 of PNG files, one process"}, rows)


PARTS = {"speed": speed, "agreement": agreement, "accuracy": accuracy, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    for part in parser.parse_args().parts:
        PARTS[part]()


if __name__ == "__main__":
    main()

"""Online accuracy of small batches, under the default statistics, beside the source's and batches of 64.

    python benchmarks/small_batches.py                              # three networks, 13 kinds of images
    python benchmarks/small_batches.py --networks bundled --images 500 --name trial

A stream has clean images and the four validation corruptions at severities 1, 3 and 5: "shuffled", or "in
turn", one kind after the other in a random order, without a reset. Accuracies are counted by kind, and
compared with the source's on the same images. Rows that are in the record are not measured again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import cifar
import imagenet
import numpy as np
import torch
from records import RESULTS, write
from torch import Tensor, nn

from acclimate import Adapter, corrupt
from acclimate.chance import compare_paired
from acclimate.corruptions import VALIDATION_NAMES
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model

KINDS = [("clean", 0), *((name, severity) for name in VALIDATION_NAMES for severity in (1, 3, 5))]
STREAMS = ("in turn", "shuffled")
RUNS = [("source", 64), ("bn", 64), *((method, batch) for batch in (16, 4, 1) for method in ("bn", "slr"))]
SEED = 2020


class Network(NamedTuple):
    make: Callable[[], nn.Module]
    images: Callable[[int], tuple[Tensor, Tensor]]
    """The first so many, as bytes, and their labels."""
    normalize: Any
    images_of_each_kind: int


def _first(images: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))[:count]
    return (images[chosen] * 255).round().to(torch.uint8), labels[chosen]


def _of_imagenet(count: int) -> tuple[Tensor, Tensor]:
    data = imagenet.open_images()
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED))[:count].tolist()
    pixels = torch.stack([data[i] for i in chosen])
    return (pixels * 255).round().to(torch.uint8), torch.as_tensor(data.labels)[chosen]


_LITE = ((127 / 255,) * 3, (128 / 255,) * 3)
NETWORKS = {
    "bundled": Network(bundled_model, lambda n: _first(*bundled_images(), n), (MEAN, STD), 2000),
    "cifar10_resnet20": Network(
        cifar.load_model, lambda n: _first(*cifar.load_images(), n), cifar.NORMALIZE, 2000
    ),
    "efficientnet_lite0": Network(imagenet.lite0, _of_imagenet, _LITE, 1000),
}


@cache
def kinds_of(network: str, count: int) -> tuple[list[Tensor], Tensor]:
    """Images of every kind, as bytes, and the labels that all kinds share."""
    clean, labels = NETWORKS[network].images(count)
    kinds = [
        clean if name == "clean" else corrupt(clean, name, severity, seed=SEED) for name, severity in KINDS
    ]
    return kinds, labels


def order_of(stream: str, count: int) -> list[tuple[int, int]]:
    """Kind and image of every position."""
    rng = np.random.default_rng(SEED)
    turn = [(int(kind), int(i)) for kind in rng.permutation(len(KINDS)) for i in rng.permutation(count)]
    return turn if stream == "in turn" else [turn[i] for i in rng.permutation(len(turn))]


def right_answers(network: str, stream: str, method: str, batch: int, count: int, **options: Any) -> Tensor:
    """Whether each image was right as it came, (kinds, images)."""
    kinds, labels = kinds_of(network, count)
    adapter = Adapter(
        NETWORKS[network].make(), method, normalize=NETWORKS[network].normalize, seed=SEED, **options
    )
    right = torch.zeros(len(KINDS), count, dtype=torch.bool)
    order = order_of(stream, count)
    for start in range(0, len(order), batch):
        kind, image = torch.tensor(order[start : start + batch]).unbind(1)
        pixels = torch.stack([kinds[k][i] for k, i in zip(kind.tolist(), image.tolist(), strict=True)])
        right[kind, image] = adapter(pixels.float() / 255).argmax(1).eq(labels[image])
    return right


def row_of(right: Tensor, source: Tensor) -> dict[str, Any]:
    """Accuracies by kind, and what is gained on the source with its 95% interval, in points."""
    compared = [compare_paired(before, after) for before, after in zip(source, right, strict=True)]
    return {
        "accuracy": [round(100 * kind.double().mean().item(), 2) for kind in right],
        "gain": [round(100 * pair.difference, 2) for pair in compared],
        "interval": [[round(100 * end, 2) for end in pair.interval] for pair in compared],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--images", type=int, help="of each kind; by default 2,000, and 1,000 of ImageNet's")
    parser.add_argument("--name", default="small_batches")
    args = parser.parse_args()
    path = RESULTS / f"{args.name}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    for network in args.networks:
        count = args.images or NETWORKS[network].images_of_each_kind
        for stream in args.streams:
            source: Tensor | None = None
            for method, batch in RUNS:
                key = {
                    "network": network, "stream": stream, "method": method, "batch": batch, "images": count
                }  # fmt: skip
                if any(key.items() <= row.items() for row in rows):
                    continue
                if source is None:
                    source = right_answers(network, stream, "source", 64, count)
                right = source if method == "source" else right_answers(network, stream, method, batch, count)
                rows.append({**key, **row_of(right, source)})
                print(key, rows[-1]["gain"], flush=True)
                write(args.name, _protocol(), rows)


def _protocol() -> dict[str, Any]:
    return {
        "protocol": "online", "statistics": "the default",
        "kinds": [f"{name} {severity}".removesuffix(" 0") for name, severity in KINDS],
        "streams": "shuffled; in turn: one kind after the other in a random order, without a reset",
        "seed": SEED, "gain": "on the source, points, with its 95% interval for paired images",
    }  # fmt: skip


if __name__ == "__main__":
    main()

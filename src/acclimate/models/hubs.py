"""Networks of other libraries' hubs: Hugging Face's image classifiers, RobustBench's zoo."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import nn

from acclimate.errors import ModelError

__all__ = ["from_hugging_face", "from_robustbench", "without_retries"]

_PATIENCE = 10  # seconds for the hub to answer at all


@contextlib.contextmanager
def without_retries() -> Iterator[None]:
    """While Hugging Face's hub does not answer, take its files from the cache, or fail at once.

    Its library would ask for each file six times, with pauses that add up to a minute. Whether the hub
    answers is asked once; the library's own setting is put back in the end.
    """
    try:
        constants: Any = importlib.import_module("huggingface_hub.constants")
        session = importlib.import_module("huggingface_hub.utils").get_session()
    except (ImportError, AttributeError):  # not there, or of another version: it does as it does
        yield
        return
    before = constants.HF_HUB_OFFLINE
    try:
        session.head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception:  # of whichever library it uses for HTTP
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def from_hugging_face(name: str) -> nn.Module:
    """An image classifier of the hub, or of a folder that `save_pretrained` wrote."""
    transformers = _library("transformers", name)
    try:
        with contextlib.nullcontext() if os.path.isdir(name) else without_retries():
            model = transformers.AutoModelForImageClassification.from_pretrained(name)
            processor = transformers.AutoImageProcessor.from_pretrained(name)
    except Exception as error:  # whatever the library meets: no network, no such name, no classifier
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"{name} cannot be had from Hugging Face's hub ({reason}): fetch its folder and give hf:./FOLDER"
        ) from error
    assert isinstance(model, nn.Module)
    mean, std = (getattr(processor, f"image_{part}", None) for part in ("mean", "std"))
    if mean is not None and std is not None:
        said: dict[str, Any] = {"mean": tuple(mean), "std": tuple(std)}
        said |= _geometry(processor)
        model.pretrained_cfg = said  # type: ignore[assignment]
    return model


def _geometry(processor: Any) -> dict[str, Any]:
    """Size, crop and interpolation, as timm's networks say them."""
    size, crop = (getattr(processor, name, None) for name in ("size", "crop_size"))
    cropped = getattr(processor, "do_center_crop", crop is not None) and crop is not None
    side = _side(crop if cropped else size)
    if side is None:
        return {}
    said: dict[str, Any] = {"input_size": (3, side, side)}
    if cropped and _side(size) is not None:
        said["resize"] = _side(size)
    elif not cropped and isinstance(size, Mapping) and "shortest_edge" not in size:
        said["crop_mode"] = "squash"  # to the square itself, whatever the proportions
    elif not cropped:
        said["resize"] = side
    resample = getattr(processor, "resample", None)
    if resample is not None:
        said["interpolation"] = Image.Resampling(int(resample)).name.lower()
    return said


def _side(size: Any) -> int | None:
    """The side of a square, in the ways in which processors say it."""
    if isinstance(size, Mapping):
        return next((int(size[key]) for key in ("height", "shortest_edge") if key in size), None)
    if isinstance(size, Sequence):
        return int(size[0])
    return None if size is None else int(size)


def from_robustbench(name: str) -> nn.Module:
    """A network of RobustBench's zoo, `dataset/threat/name`; its networks take pixels in [0, 1]."""
    parts = name.split("/")
    if len(parts) != 3:
        raise ModelError(
            f"expected robustbench:DATASET/THREAT/NAME, such as cifar10/corruptions/…, got {name!r}"
        )
    utils = _library("robustbench.utils", name)
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise ModelError(
            f"{name} needs torch 2.6 or newer, got {torch.__version__}: with an older one, RobustBench's "
            "files could run code"
        )
    dataset, threat, own = parts
    try:
        model = utils.load_model(model_name=own, dataset=dataset, threat_model=threat)
    except Exception as error:  # an unknown name is a KeyError there, and its downloads fail in many ways
        raise ModelError(f"{name} cannot be had from RobustBench: {type(error).__name__}: {error}") from error
    assert isinstance(model, nn.Module)
    model.pretrained_cfg = {"mean": (0.0,) * 3, "std": (1.0,) * 3}  # type: ignore[assignment]
    return model


def _library(module: str, name: str) -> Any:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # which the library reads when it is imported
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        raise ModelError(f"{name} needs {library}, which is not installed: pip install {library}") from error

"""torchvision and timm, imported so that a mismatched torchvision does not take everything down.

torchvision's wheels are built against one build of torch. Beside another (its CUDA build beside a
CPU-only torch, most often) its native library does not load, and then ``import torchvision`` dies
with "operator torchvision::nms does not exist", although its networks and transforms need none of
it. Declaring the two operators that it asks for, before the import, makes both work; the operators
themselves stay unavailable. timm imports torchvision. Import both from here only.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

import torch

from acclimate.errors import ModelError

__all__ = ["import_timm", "import_torchvision"]

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a library's operators live as long as it does


def import_torchvision() -> ModuleType:
    """torchvision, whichever torch it was built for; from here on ``import torchvision`` works too."""
    try:
        importlib.import_module("torchvision.models")
    except ModuleNotFoundError as error:
        raise ModelError("torchvision is not installed: pip install 'acclimate[vision]'") from error
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        _declare_operators()
        importlib.import_module("torchvision.models")
    return importlib.import_module("torchvision")


def _declare_operators() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # what the failed import left behind
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)


def import_timm() -> ModuleType:
    """timm, with torchvision below it."""
    import_torchvision()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # which its hub reads when it is imported
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise ModelError("timm is not installed: pip install 'acclimate[vision]'") from error

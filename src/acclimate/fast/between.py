"""Whether anything is computed between two calls that a mode sees: scripts and extensions do not ask it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Between"]


class Between(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what is computed, by whomever, down from what is expected."""

    def __init__(self, calls: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls -= 1
        with torch._C.DisableTorchFunction():  # it was called already: not the next call
            return func(*args, **(kwargs or {}))

"""Whether a network keeps little by itself: by ``torch.utils.checkpoint``, which runs a part of it again.

It runs it again in the backward pass, where none of our modes is active, and wants to see the same tensors
saved as before: so what it runs must be torch's own both times.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.utils import checkpoint

__all__ = ["CAN_TELL", "is_checkpointed"]

_top: Final = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
"""The hooks that are active; torch before 2.8 does not tell."""
CAN_TELL: Final = _top is not None
"""Whether this torch does."""


def is_checkpointed() -> bool:
    """Whether what runs now will run again."""
    hooks = None if _top is None else _top(True)
    return hooks is not None and getattr(hooks[0], "__module__", None) == checkpoint.__name__

"""Whether a network keeps little by itself: by ``torch.utils.checkpoint``, which runs a part of it again.

It runs it again in the backward pass, where none of our modes is active, and wants to see the same tensors
saved as before: so what it runs must be torch's own both times.
"""

from __future__ import annotations

import torch
from torch.utils import checkpoint

__all__ = ["is_checkpointed"]


def is_checkpointed() -> bool:
    """Whether what runs now will run again."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and hooks[0].__module__ == checkpoint.__name__

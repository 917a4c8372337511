"""The precision in which a network computes; losses, statistics and updates stay in float32."""

from __future__ import annotations

import functools
import platform
import subprocess
import sys
from pathlib import Path
from typing import Final

import torch

from acclimate.errors import OptionError, unknown

__all__ = [
    "PRECISIONS",
    "LossScale",
    "checked_precision",
    "chosen_precision",
    "precision_fault",
    "precision_taken",
]

PRECISIONS: Final = ("fp32", "auto", "bf16", "fp16")
"""What can be asked for; the first is the default."""
_NAMES: Final = {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}

_BROKEN: Final = (
    "this processor announces AMX, but the first product in bfloat16 would end the process here, as on some "
    "virtual machines: start Python with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in its environment, or take "
    'precision="fp32"'
)

_PROBE: Final = """
import resource, torch
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # dying leaves no file behind
a = torch.ones(64, 64, dtype=torch.bfloat16)
a @ a
"""


def checked_precision(asked: str) -> str:
    """A name of `PRECISIONS`; any other is an error, told without a look at the device.

    >>> checked_precision("auto")
    'auto'
    """
    if asked not in PRECISIONS:
        raise OptionError(unknown("precision", asked, PRECISIONS))
    return asked


def chosen_precision(asked: str, device: torch.device) -> torch.dtype | None:
    """What autocast shall compute in; None for no autocast: everything as the network's weights are.

    ``"auto"`` takes bfloat16 where the device has it natively, float16 on other GPUs, float32 elsewhere.
    """
    if checked_precision(asked) == "fp32":
        return None
    if asked == "auto":
        return _best(device)
    fault = precision_fault(device) if asked == "bf16" else None
    if fault is not None:
        raise OptionError(fault)
    return torch.bfloat16 if asked == "bf16" else torch.float16


def precision_taken(asked: str, device: torch.device) -> str:
    """What asking for it comes to on a device: ``"auto"`` turns into one of the others.

    >>> precision_taken("fp32", torch.device("cpu"))
    'fp32'
    """
    return _NAMES[chosen_precision(asked, device)]


def precision_fault(device: torch.device) -> str | None:
    """What is wrong with bfloat16 on a device that announces it, and what to do; None where nothing is."""
    return _BROKEN if device.type == "cpu" and not _cpu_survives_bf16() else None


def _best(device: torch.device) -> torch.dtype | None:
    if device.type == "cpu":
        return torch.bfloat16 if _cpu_has_bf16() and _cpu_survives_bf16() else None
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.float16 if device.type == "mps" else None


def _cpu_has_bf16() -> bool:
    return _cpu_announces("avx512_bf16") or _cpu_announces("amx_tile")


def _cpu_announces(feature: str) -> bool:
    """Whether the processor says that it has it, by the name that Linux has for it."""
    told = getattr(torch.cpu, f"_is_{feature}_supported", None)
    if told is not None:
        return bool(told())
    flags = Path("/proc/cpuinfo")  # for releases of torch that do not tell
    return flags.exists() and feature in flags.read_text().split()


@functools.cache
def _cpu_survives_bf16() -> bool:
    """Whether a product in bfloat16 comes back, tried in another process.

    Some hypervisors announce AMX and hide the description of its tiles. oneDNN 3.12 (torch 2.13) believes the
    announcement, and dies of an illegal instruction.
    """
    if platform.system() != "Linux" or not _cpu_announces("amx_tile"):
        return True
    tried = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False, timeout=120)
    return tried.returncode >= 0  # below 0: a signal ended it


class LossScale:
    """The factor that keeps small gradients in float16's range: halved on overflow, doubled now and then.

    >>> scale = LossScale()
    >>> scale.accept(overflow=True), scale.value
    (False, 32768.0)
    """

    _PATIENCE: Final = 2000

    def __init__(self) -> None:
        self.value = 65536.0
        self.since = 0
        """Steps since it last changed."""

    def accept(self, *, overflow: bool) -> bool:
        """Take note of a step; whether its gradient can be used."""
        self.since += 1
        if overflow:
            self.value, self.since = max(self.value / 2, 1.0), 0
        elif self.since == self._PATIENCE:
            self.value, self.since = min(self.value * 2, 65536.0), 0
        return not overflow

"""Whether bfloat16 runs fast on this machine, and what a process needs for it."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("amx_palette.c")
PROBE = """
import torch

a, x, w = torch.rand(256, 256), torch.rand(4, 64, 16, 16), torch.rand(64, 64, 3, 3)
for function, inputs in ((torch.matmul, (a, a)), (torch.conv2d, (x, w))):
    made, exact = function(*(t.bfloat16() for t in inputs)).float(), function(*inputs)
    assert (made - exact).abs().max() < 0.02 * exact.abs().max()
"""


def has_instructions() -> bool:
    """Whether the processor says that it has some for bfloat16."""
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


@functools.cache
def bf16_environment() -> tuple[dict[str, str] | None, str]:
    """What to add to the environment of a process that uses bfloat16, and a sentence that says what it is.

    None where bfloat16 cannot be had, or only slowly. Where it dies by a signal, the two leaves of CPUID
    that a hypervisor may have hidden are put back (`amx_palette.c`); failing that, AMX is left out.
    """
    amx = torch.cpu._is_amx_tile_supported()
    if not has_instructions():
        return None, "not measured: the processor has no instructions for it"
    code = _probed({})
    if code == 0:
        return {}, f"{'AMX' if amx else 'AVX-512'}, as torch comes"
    if code > 0:
        return None, "not measured: a small product in bfloat16 fails"
    died = f"as torch comes, it dies with {signal.Signals(-code).name}"
    library = _compiled()
    if library is not None:
        preloaded = {"LD_PRELOAD": " ".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))}
        if _probed(preloaded) == 0:
            return preloaded, (
                f"AMX, with the CPUID leaves that the hypervisor hides put back by {SOURCE.name} in the bf16 "
                f"processes only ({died})"
            )
    limited = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    if _probed(limited) == 0:
        return limited, f"AVX-512 without AMX, by ONEDNN_MAX_CPU_ISA in the bf16 processes only ({died})"
    return None, f"not measured: {died}"


def _probed(environment: dict[str, str]) -> int:
    """Exit code of a process that multiplies and convolves in bfloat16."""
    command = [sys.executable, "-c", PROBE]
    return subprocess.run(
        command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL, check=False
    ).returncode


def _compiled() -> Path | None:
    """The library of `amx_palette.c`, for as long as this process lives; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="acclimate-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "amx_palette.so"
    made = subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=False)
    return library if made.returncode == 0 else None


if __name__ == "__main__":
    print(bf16_environment())

"""What every test runs under."""

from __future__ import annotations

import os

# Some virtual machines announce AMX and then trap on it: a bfloat16 linear layer would kill the test run.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

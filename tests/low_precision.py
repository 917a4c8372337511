"""What adaptation in low precision comes to, measured in a process of its own and printed as JSON.

A process of its own, as the processor's instructions for bfloat16 can only be limited before it starts: see
`acclimate.fast.precision`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate import Adapter
from networks import BATCHES, NORMALIZE, adapted_state, resnet, same

SAFE = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}
STEPS = 10
HUGE = 2.0**34


def measured(precision: str) -> dict[str, Any]:
    """All of the below for a precision."""
    environment = {**os.environ, **SAFE, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, __file__, precision]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def adapter(precision: str, **options: Any) -> Adapter:
    return Adapter(resnet(), "slr", normalize=NORMALIZE, precision=precision, **options)


def batch(step: int) -> Tensor:
    return BATCHES[step % len(BATCHES)]


def statistics(adapter: Adapter) -> list[Tensor]:
    norms = [module for module in adapter._engine.network.modules() if isinstance(module, nn.BatchNorm2d)]
    return [value for norm in norms for value in (norm.running_mean, norm.running_var) if value is not None]


def parameters(adapter: Adapter) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in adapter._engine.parameters.items()}


def difference(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def closeness(precision: str) -> dict[str, Any]:
    """Ten steps beside ten steps in float32, and without any saving of ``fast``."""
    full, low, plain = adapter("fp32"), adapter(precision), adapter(precision, fast=False)
    logits = [[a(batch(step)) for a in (full, low, plain)] for step in range(STEPS)]
    p, reference = low.class_distribution, full.class_distribution
    assert p is not None
    assert reference is not None
    return {
        "logits": [difference(made, right) for right, made, _ in logits],
        "plain": [difference(made, right) for right, _, made in logits],
        "statistics": [difference(*pair) for pair in zip(statistics(low), statistics(full), strict=True)],
        "p": difference(p, reference),
        "loss": [abs(a - b) for a, b in zip(low.history.loss, full.history.loss, strict=True)],
    }


def kinds(precision: str) -> dict[str, list[str]]:
    """In what everything is kept that a user or the next step sees."""
    low = adapter(precision)
    logits = [low(batch(0)), low(batch(1)), low.predict(batch(2))]
    optimizer, moved = low._engine._optimizer, low._engine.parameters.values()
    assert optimizer is not None
    held: dict[str, list[Tensor | None]] = {
        "logits": [*logits],
        "parameters": [*low._engine.network.parameters()],
        "gradients": [p.grad for p in moved],
        "statistics": [*statistics(low)],
        "p": [low.class_distribution],
        "optimizer": [value for state in optimizer.state.values() for value in state.values()],
        "export": [value for value in low.export().state_dict().values() if value.is_floating_point()],
    }
    return {name: sorted({str(t.dtype) for t in tensors if t is not None}) for name, tensors in held.items()}


def exported(precision: str) -> dict[str, Any]:
    """The stock network of an adapter, which needs no low precision itself."""
    low = adapter(precision)
    for step in range(STEPS):
        low(batch(step))
    stock = low.export()
    plain = resnet()
    plain.load_state_dict(stock.state_dict(), strict=True)
    with torch.no_grad():
        same_logits = torch.equal(stock(batch(0)), plain(batch(0)))
    return {"is_stock": type(stock) is type(plain), "same_logits": same_logits}


def gone_on(precision: str) -> dict[str, Any]:
    """Saved half-way and loaded, against undisturbed."""
    one = adapter(precision)
    if one._engine._scale is not None:
        one._engine._scale.value, one._engine._scale.since = 1024.0, 1993  # it doubles in the second half
    for step in range(STEPS // 2):
        one(batch(step))
    with tempfile.TemporaryDirectory() as folder:
        one.save(f"{folder}/half.safetensors")
        other = Adapter.load(f"{folder}/half.safetensors", resnet())
    logits = [torch.equal(one(batch(step)), other(batch(step))) for step in range(STEPS // 2, STEPS)]
    return {
        "precision": other.options.precision,
        "same_logits": all(logits),
        "same_state": same(adapted_state(one), adapted_state(other)),
        "same_history": one.history == other.history,
        "scales": [None if a._engine._scale is None else vars(a._engine._scale) for a in (one, other)],
    }


def overflow(precision: str) -> dict[str, Any]:
    """A loss scale far too large, and the steps until one is taken again."""
    low = adapter(precision)
    scale, before = low._engine._scale, parameters(low)
    if scale is None:
        return {}
    scale.value, scales = HUGE, [HUGE]
    while same(before, parameters(low)) and low.step < 40:
        low(batch(low.step))
        scales.append(scale.value)
    numbers = [t for t in low._engine.state().values() if t.is_floating_point()]
    return {
        "scales": scales,
        "moved": not same(before, parameters(low)),
        "finite": all(bool(t.isfinite().all()) for t in [*numbers, low.predict(batch(0))]),
    }


if __name__ == "__main__":
    parts = (closeness, kinds, exported, gone_on, overflow)
    print(json.dumps({part.__name__: part(sys.argv[1]) for part in parts}))

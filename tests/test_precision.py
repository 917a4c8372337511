"""Low precision: what is chosen where, what stays in float32, and that a machine that cannot is told of."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from acclimate import Adapter
from acclimate.errors import OptionError
from acclimate.fast import precision
from acclimate.fast.precision import PRECISIONS, LossScale, chosen_precision, precision_fault, precision_taken
from low_precision import HUGE, STEPS, measured
from networks import BATCHES, NORMALIZE, resnet

CPU, CUDA, MPS, OTHER = (torch.device(name) for name in ("cpu", "cuda", "mps", "xpu"))
LOW = ("bf16", "fp16")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the processor and the GPU can do."""

    def can(*, cpu: bool = False, survives: bool = True, gpu: bool = False) -> None:
        monkeypatch.setattr(precision, "_cpu_has_bf16", lambda: cpu)
        monkeypatch.setattr(precision, "_cpu_survives_bf16", lambda: survives)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: gpu)

    can()
    return can


@pytest.mark.parametrize("device", [CPU, CUDA, MPS, OTHER], ids=str)
def test_what_is_asked_for_by_name_is_taken(device: torch.device, machine: Any) -> None:
    assert chosen_precision("fp32", device) is None
    assert chosen_precision("bf16", device) == torch.bfloat16
    assert chosen_precision("fp16", device) == torch.float16
    assert [precision_taken(name, device) for name in ("fp32", "bf16", "fp16")] == ["fp32", "bf16", "fp16"]


@pytest.mark.parametrize(
    ("device", "can", "taken"),
    [
        (CPU, {}, "fp32"),
        (CPU, {"cpu": True}, "bf16"),
        (CPU, {"cpu": True, "survives": False}, "fp32"),
        (CUDA, {}, "fp16"),
        (CUDA, {"gpu": True}, "bf16"),
        (MPS, {"cpu": True, "gpu": True}, "fp16"),
        (OTHER, {"cpu": True, "gpu": True}, "fp32"),
    ],
    ids=str,
)
def test_auto_takes_what_is_native(device: torch.device, can: Any, taken: str, machine: Any) -> None:
    machine(**can)
    assert precision_taken("auto", device) == taken


def test_a_processor_that_would_die_is_refused_with_what_to_do(machine: Any) -> None:
    machine(cpu=True, survives=False)
    with pytest.raises(OptionError, match="start Python with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16") as refused:
        chosen_precision("bf16", CPU)
    assert str(refused.value) == precision_fault(CPU)
    with pytest.raises(OptionError, match="announces AMX"):
        Adapter(resnet(), precision="bf16")
    assert chosen_precision("fp16", CPU) == torch.float16  # which does not go by AMX
    assert chosen_precision("bf16", CUDA) == torch.bfloat16
    assert precision_fault(CUDA) is None
    machine(cpu=True)
    assert precision_fault(CPU) is None


@pytest.mark.parametrize("asked", ["bf61", "double", "float32", "", None, 16])
def test_what_is_unknown_is_refused_with_what_is_known(asked: Any) -> None:
    with pytest.raises(OptionError, match="unknown precision") as refused:
        chosen_precision(asked, CPU)
    assert any(repr(name) in str(refused.value) for name in PRECISIONS)
    with pytest.raises(OptionError, match="unknown precision"):
        Adapter(resnet(), precision=asked)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The probe, without what it remembers, on a Linux machine that announces AMX."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(precision, "_cpu_announces", lambda feature: True)
    precision._cpu_survives_bf16.cache_clear()
    yield precision._cpu_survives_bf16
    precision._cpu_survives_bf16.cache_clear()


@pytest.mark.parametrize(("ends", "survives"), [("kill -ILL $$", False), ("exit 0", True), ("exit 1", True)])
def test_the_probe_dies_in_the_place_of_the_process(
    ends: str, survives: bool, probe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nulimit -c 0\n{ends}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert probe() is survives
    python.unlink()
    assert probe() is survives  # tried once


def test_there_is_no_probe_where_there_is_no_amx(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", run)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("platform.system", lambda: "Darwin")
        assert probe()
    probe.cache_clear()
    monkeypatch.setattr(precision, "_cpu_announces", lambda feature: False)
    assert probe()
    assert not precision._cpu_has_bf16()


def test_what_a_processor_announces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    assert precision._cpu_announces("amx_tile")
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")  # an older torch does not tell
    for flags, announced in (("flags : fpu amx_tile sse", True), ("flags : fpu sse", False)):
        monkeypatch.setattr(Path, "read_text", lambda path, flags=flags: flags)
        monkeypatch.setattr(Path, "exists", lambda path: True)
        assert precision._cpu_announces("amx_tile") is announced


def test_the_loss_scale_is_halved_on_overflow_and_doubled_after_patience() -> None:
    scale = LossScale()
    assert (scale.value, scale.since) == (65536, 0)
    for expected in (32768, 16384):
        assert not scale.accept(overflow=True)
        assert (scale.value, scale.since) == (expected, 0)
    for _ in range(1999):
        assert scale.accept(overflow=False)
    assert (scale.value, scale.since) == (16384, 1999)
    assert scale.accept(overflow=False)
    assert (scale.value, scale.since) == (32768, 0)


def test_the_loss_scale_has_ends() -> None:
    scale = LossScale()
    for _ in range(2000):
        scale.accept(overflow=False)
    assert (scale.value, scale.since) == (65536, 0)
    for _ in range(40):
        scale.accept(overflow=True)
    assert scale.value == 1


low = cache(measured)
"""What a process found; one for each precision."""


@pytest.mark.parametrize("name", LOW)
def test_ten_steps_are_close_to_those_in_float32(name: str) -> None:
    found = low(name)["closeness"]
    assert len(found["logits"]) == STEPS
    assert all(0 < error < 0.03 for error in found["logits"] + found["plain"])  # 0: it was not low
    assert all(error < 0.03 for error in [*found["statistics"], found["p"]])
    assert all(error < 1e-3 for error in found["loss"])


@pytest.mark.parametrize("name", LOW)
def test_all_that_is_kept_is_in_float32(name: str) -> None:
    found = low(name)["kinds"]
    assert found == {what: ["torch.float32"] for what in found}
    assert len(found) == 7


@pytest.mark.parametrize("name", LOW)
def test_the_export_is_a_stock_network(name: str) -> None:
    assert low(name)["exported"] == {"is_stock": True, "same_logits": True}


@pytest.mark.parametrize("name", LOW)
def test_saved_and_loaded_it_goes_on_to_the_same_bits(name: str) -> None:
    scale = {"value": 2048.0, "since": 3} if name == "fp16" else None
    assert low(name)["gone_on"] == {
        "precision": name,
        "same_logits": True,
        "same_state": True,
        "same_history": True,
        "scales": [scale, scale],
    }


def test_a_step_that_overflows_is_skipped() -> None:
    found = low("fp16")["overflow"]
    skipped = len(found["scales"]) - 2  # the last step was taken, and left the scale
    assert skipped >= 3
    assert found["scales"] == [*(HUGE / 2**i for i in range(skipped + 1)), HUGE / 2**skipped]
    assert found["moved"]
    assert found["finite"]
    assert low("bf16")["overflow"] == {}  # its range is float32's


def test_networks_in_float64_stay_so() -> None:
    adapter = Adapter(resnet().double(), "slr", normalize=NORMALIZE, precision="fp32")
    for images in BATCHES:
        assert adapter(images.double()).dtype == torch.float64
    assert adapter.class_distribution is not None
    assert adapter.class_distribution.dtype == torch.float64
    assert {p.dtype for p in adapter._engine.network.parameters()} == {torch.float64}
    assert {p.grad.dtype for p in adapter._engine.parameters.values() if p.grad is not None} == {
        torch.float64
    }

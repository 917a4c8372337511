"""The kernels of our own: against float64, in both precisions, and what happens where they cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.fast import TRICKS, compiling
from acclimate.fast.bits import pack
from acclimate.fast.compiling import compiled
from acclimate.fast.lean import Lean
from acclimate.fast.native import _DEFINED, UNBOUNDED, Kernels, Line, bits_of, native_kernels

KERNELS = native_kernels()
pytestmark = pytest.mark.usefixtures("several_threads")
needs_kernels = pytest.mark.skipif(KERNELS is None, reason="there is no C compiler here")
FORMS = {"in two registers": "-mno-avx512f", "in loops": "-mno-avx2"}
"""How sixteen elements are taken on other processors, and what has a compiler do so here."""
SHAPES = [(2, 1, 3, 3), (3, 7, 5, 4), (2, 16, 9, 9), (4, 24, 8, 8), (2, 130, 3, 5), (64, 10), (2, 512, 2, 2)]


def activation_like(shape: tuple[int, ...], dtype: torch.dtype, offset: float = 0.5) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 2 + offset
    return x.to(dtype) if x.ndim == 2 else x.to(dtype).contiguous(memory_format=torch.channels_last)


def over_rows(x: Tensor) -> Tensor:
    """Channels by rows, in float64."""
    return x.double().transpose(0, 1).flatten(1)


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    assert KERNELS is not None
    mean, var = torch.empty(x.shape[1]), torch.empty(x.shape[1])
    KERNELS.statistics(x, mean, var)
    return mean, var


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_statistics(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = activation_like(shape, dtype)
    mean, var = statistics(x)
    rows = over_rows(x)
    torch.testing.assert_close(mean.double(), rows.mean(1), rtol=2e-6, atol=2e-7)
    torch.testing.assert_close(var.double(), rows.var(1, correction=0), rtol=5e-6, atol=1e-7)


@needs_kernels
def test_statistics_far_from_zero_are_as_good_as_torchs() -> None:
    x = activation_like((8, 32, 16, 16), torch.float32, offset=300)
    x[0] += 50  # the first image is unlike the others
    _, var = statistics(x)
    exact = over_rows(x).var(1, correction=0)
    _, theirs = torch.ops.aten.batch_norm_update_stats(x, torch.zeros(32), torch.ones(32), 0.1)
    assert (var - exact).abs().max() <= 1.5 * (theirs - exact).abs().max() + 1e-4


@needs_kernels
def test_a_constant_channel_has_no_variance() -> None:
    x = torch.full((4, 8, 5, 5), 0.1).contiguous(memory_format=torch.channels_last)
    mean, var = statistics(x)
    assert torch.equal(var, torch.zeros(8))
    assert torch.equal(mean, torch.full((8,), 0.1))


@needs_kernels
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", [None, F.relu, F.relu6, F.hardtanh, F.silu, F.leaky_relu])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 7, 5, 4), (4, 24, 8, 8), (2, 130, 3, 5)])
def test_norm_and_activation(
    shape: tuple[int, ...], dtype: torch.dtype, activation: object, training: bool
) -> None:
    values = torch.Generator().manual_seed(1)
    weight, bias, mean = (torch.randn(shape[1], generator=values) for _ in range(3))
    weight[0] = 0.0
    var = torch.rand(shape[1], generator=values) + 0.5
    upstream = activation_like(shape, dtype)

    def run(wide: bool) -> list[Tensor]:
        x = activation_like(shape, dtype)
        parts = [x, weight, bias, mean.clone(), var.clone()]
        x, w, b, m, v = [part.double() for part in parts] if wide else parts
        x, w, b = (part.detach().requires_grad_() for part in (x, w, b))
        z = F.batch_norm(x, m, v, w, b, training, 0.1)
        z = z if activation is None else activation(z)  # type: ignore[operator]
        z.backward(upstream.to(z.dtype))
        return [part.detach().double() for part in (z, x.grad, w.grad, b.grad, m, v)]  # type: ignore[union-attr]

    exact = run(wide=True)
    with Lean(TRICKS):
        ours = run(wide=False)
    # a bfloat16 has 8 bits, and the norm's output is rounded to them before an activation sees it
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for mine, theirs in zip(ours, exact, strict=True):
        torch.testing.assert_close(
            mine, theirs, rtol=tolerance, atol=tolerance * (1 + theirs.abs().max().item())
        )


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 65, 1000])
def test_bits(count: int, dtype: torch.dtype) -> None:
    assert KERNELS is not None
    z = activation_like((count, 1), dtype).flatten()
    z[0] = 0.0
    bits = KERNELS.pack(z, (0.0, 3.0))
    assert torch.equal(bits, pack((z > 0) & (z < 3)))
    gradient = torch.full_like(z, float("inf"))
    expected = torch.where((z > 0) & (z < 3), gradient, torch.zeros_like(z))
    assert torch.equal(KERNELS.masked(gradient, bits, 0.0), expected)
    assert torch.equal(KERNELS.masked(z, bits, 0.5), torch.where((z > 0) & (z < 3), z, z * 0.5))


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 7, 8, 16, 65, 4099, 10_000])
def test_a_clamp_in_place_and_its_bits(count: int, dtype: torch.dtype) -> None:
    assert KERNELS is not None
    z = activation_like((count, 1), dtype).flatten()
    z[-1] = float("nan")
    right = z.clamp(0.0, 3.0)
    bits = KERNELS.clamp_(z, (0.0, 3.0))
    assert torch.equal(z[:-1], right[:-1])
    assert z[-1].isnan()
    assert torch.equal(bits, pack((right > 0) & (right < 3)))


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 7, 5, 4), (4, 24, 8, 8), (2, 130, 3, 5), (1, 5, 3, 3)])
def test_a_norm_an_addition_and_a_clamp_in_one_pass(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert KERNELS is not None
    x, other = activation_like(shape, dtype), activation_like(shape, dtype, offset=-1.0).flip(0)
    other = other.contiguous(memory_format=torch.channels_last)
    line = Line(torch.rand(shape[1]), None, torch.rand(shape[1]), torch.rand(shape[1]) + 1, 1e-5)
    y, z, bits = torch.empty_like(x), torch.empty_like(x), bits_of(x)
    KERNELS.forward(x, line, y)
    KERNELS.forward(x, line, z, bounds=(0.0, 1.5), other=other, bits=bits)
    right = (y + other).clamp(0.0, 1.5)
    assert torch.equal(z, right)
    in_memory = right.permute(0, 2, 3, 1).flatten()
    assert torch.equal(bits, pack((in_memory > 0) & (in_memory < 1.5)))


@needs_kernels
def test_what_is_not_a_number_stays_so() -> None:
    x = activation_like((2, 4, 3, 3), torch.float32)
    x[1, 2, 0, 0] = float("nan")
    x.requires_grad_()
    with Lean(TRICKS):
        z = F.relu(F.batch_norm(x, None, None, training=True))
    assert z[:, 2].isnan().all()
    assert not z[:, [0, 1, 3]].isnan().any()


@needs_kernels
def test_the_same_threads_give_the_same_bits() -> None:
    x = activation_like((8, 24, 13, 13), torch.float32)
    made = [statistics(x) for _ in range(3)]
    assert all(torch.equal(a, b) for later in made[1:] for a, b in zip(made[0], later, strict=True))


@needs_kernels
def test_fewer_threads_than_asked_for_lose_nothing() -> None:
    script = (
        "import torch; torch.set_num_threads(4);"
        "from acclimate.fast.native import native_kernels;"
        "x = torch.arange(64.0).view(64, 1).repeat(1, 3); mean, var = torch.empty(2, 3);"
        "native_kernels().statistics(x, mean, var); print(mean[0].item(), var[0].item())"
    )
    environment = {**os.environ, "OMP_THREAD_LIMIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["31.5", "341.25"]


@needs_kernels
@pytest.mark.parametrize("count", [3, 5])
def test_parameters_of_another_length_are_torchs_error(count: int) -> None:
    x = activation_like((2, 4, 3, 3), torch.float32).requires_grad_()
    for lean in (True, False):
        with Lean(TRICKS) if lean else nullcontext(), pytest.raises(RuntimeError, match=f"{count}"):
            F.batch_norm(x, None, None, torch.ones(count), torch.ones(count), training=True)


@needs_kernels
def test_bounds_that_low_precision_does_not_have() -> None:
    """Where an element was clamped its derivative is 0."""
    x = torch.tensor([0.05, 0.1, 0.3]).bfloat16().requires_grad_()
    with Lean(TRICKS):
        F.hardtanh(x * 1, 0.1, 1.0, inplace=True).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, 1.0]


def results(kernels: Kernels, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
    """What the kernels make of such an activation, and of one that has also what is infinite or no number."""
    x, gradient = activation_like(shape, dtype), activation_like(shape, dtype, offset=0.0) * 3
    wild, channels = x * 40, shape[1]
    wild[0, 0], wild[-1, -1], wild[:, 1] = torch.inf, -torch.inf, torch.nan
    mean, var = torch.empty(channels), torch.empty(channels)
    kernels.statistics(x, mean, var)
    line = Line(torch.linspace(-1, 2, channels), torch.linspace(1, -1, channels), mean, var, 1e-5)
    made = {"mean": mean, "var": var, "z": torch.empty_like(x), "y": torch.empty_like(x), "bits": bits_of(x)}
    kernels.forward(wild, line, made["z"], bounds=(0.0, 6.0), other=x, bits=made["bits"])
    kernels.forward(wild, line, made["y"])
    made["onto"] = torch.zeros_like(x)
    sums = kernels.sums(x, gradient, line, (0.0, 6.0), made["onto"])
    gradients = kernels.gradients(x, gradient, line, UNBOUNDED, mean, 0.1, wants_x=True)
    made |= {f"sums {i}": one for i, one in enumerate(sums)}
    made |= {f"gradients {i}": one for i, one in enumerate(gradients) if one is not None}
    made["finished"] = kernels.finished(wild, gradient, mean, torch.stack([mean, var]))
    made["packed"], made["clamped"] = kernels.pack(wild, (0.0, 6.0)), wild.clone()
    made["bits of clamped"] = kernels.clamp_(made["clamped"], (-1.0, 1.0))
    for slope in (0.0, 0.25):
        made[f"masked, {slope}"] = kernels.masked(wild, made["packed"], slope)
    if x.ndim == 4:
        made["group mean"], made["group var"] = torch.empty(2, shape[0], channels)
        own = line._replace(mean=made["group mean"], var=made["group var"])
        kernels.group_forward(x, 1, own, made.setdefault("group norm", torch.empty_like(x)))
        through = kernels.group_gradients(x, gradient, 1, own, UNBOUNDED, wants_x=True)
        made |= {f"group gradients {i}": one for i, one in enumerate(through) if one is not None}
    return made


@needs_kernels
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_other_processors_they_give_the_same_bits(dtype: torch.dtype, form: str) -> None:
    library = compiled("kernels.c", *_DEFINED[dtype], form)
    if library is None:
        pytest.skip("not a processor of this kind")
    assert KERNELS is not None
    for shape in ((3, 7, 5, 4), (2, 16, 9, 9), (4, 24, 8, 8), (64, 10)):
        here, there = (results(kernels, shape, dtype) for kernels in (KERNELS, Kernels({dtype: library})))
        for name, value in here.items():
            torch.testing.assert_close(there[name], value, rtol=0, atol=0, equal_nan=True, msg=name)


def test_only_what_lies_right_is_taken() -> None:
    image = torch.rand(2, 3, 4, 4)
    assert not Kernels.take(image)
    assert Kernels.take(image.contiguous(memory_format=torch.channels_last))
    assert not Kernels.take(image.double().contiguous(memory_format=torch.channels_last))
    assert not Kernels.take(torch.rand(2, 3, 4))
    assert not Kernels.take(torch.rand(0, 3))


def test_without_a_compiler_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiling.shutil, "which", lambda _: None)
    assert native_kernels.__wrapped__() is None


def test_with_a_broken_compiler_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    monkeypatch.setenv("CC", "/bin/false")
    assert native_kernels.__wrapped__() is None
    monkeypatch.setenv("CC", str(tmp_path / "missing"))
    assert native_kernels.__wrapped__() is None
    assert not list(tmp_path.iterdir())


def test_a_folder_that_others_can_write_to_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    shared = tmp_path / ".cache" / "acclimate" / "kernels"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    monkeypatch.setattr(compiling.tempfile, "gettempdir", lambda: str(tmp_path))
    assert compiling._cache_folder() == tmp_path / f"acclimate-kernels-{os.getuid()}"
    shared.chmod(0o700)
    assert compiling._cache_folder() == shared

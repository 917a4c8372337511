"""Computed twice or kept: the same to the last bit, in less memory, and only where there is need."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from acclimate import Adapter
from acclimate.demo.network import SmallResNet
from acclimate.errors import AcclimateWarning, DivergenceError, InputError, ModelError
from acclimate.fast import TRICKS, checkpoints
from acclimate.fast.rehearsal import Rehearsal, Stage
from acclimate.models.vision import import_torchvision
from acclimate.statistics import POLICIES
from networks import NORMALIZE, adapted_state, images, resnet, same


def make(model: nn.Module, memory: str, method: str = "tent", **options: Any) -> Adapter:
    return Adapter(model, method, memory=memory, normalize=NORMALIZE, **{"statistics": "batch", **options})


def three_steps(adapter: Adapter, count: int = 8, size: int = 16) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Logits, and all that has changed."""
    torch.manual_seed(7)
    dtype = next(adapter._engine.prepared.model.parameters()).dtype
    logits = [adapter(images(count, seed, size).to(dtype)) for seed in range(3)]
    assert adapter.class_distribution is not None
    return logits, {**adapted_state(adapter), "p": adapter.class_distribution}


def stages_of(adapter: Adapter) -> list[Stage]:
    """What is computed twice, as of the last decision."""
    decided = list(adapter._engine._checkpoints._decided.values())
    return list(decided[-1].stages)


def check_equal(model: nn.Module, count: int = 8, size: int = 16, **options: Any) -> list[Stage]:
    """Everything is the same; what was computed twice."""
    kept, twice = (make(model, memory, **options) for memory in ("off", "low"))
    (logits, state), (logits_twice, state_twice) = (three_steps(a, count, size) for a in (kept, twice))
    assert all(map(torch.equal, logits, logits_twice))
    assert same(state, state_twice)
    assert not any("forward" in vars(module) for module in twice._engine.network.modules())
    return stages_of(twice)


@pytest.mark.parametrize(
    ("dtype", "fast"), [(torch.float32, True), (torch.float32, False), (torch.float64, True)]
)
@pytest.mark.parametrize("statistics", POLICIES)
@pytest.mark.parametrize("method", ["tent", "slr+it"])
def test_equal_to_the_last_bit(method: str, statistics: str, dtype: torch.dtype, fast: bool) -> None:
    found = check_equal(resnet().to(dtype), method=method, statistics=statistics, fast=fast)
    assert len(found) >= 3 + ("it" in method)


def test_equal_with_other_norms_and_with_none() -> None:
    """Group norms, and a network without norms, which gets affines by hooks."""

    def block(norm: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), norm, nn.ReLU(inplace=True))

    for norm in (nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True, track_running_stats=True), nn.ELU()):
        torch.manual_seed(0)
        layers = [block(norm if i == 1 else nn.Identity()) for i in range(4)]
        model = nn.Sequential(nn.Conv2d(3, 8, 3), *layers, nn.Flatten(), nn.Linear(8 * 14 * 14, 5))
        assert check_equal(model, freeze="none", fast=False)


@pytest.mark.parametrize(
    ("name", "method", "statistics"),
    [
        ("resnet18", "tent", "batch"),
        ("resnet18", "slr+it", "running"),
        ("densenet121", "slr+it", "blend"),
    ],
)
def test_equal_for_networks_of_torchvision(name: str, method: str, statistics: str) -> None:
    torch.manual_seed(0)
    model = getattr(import_torchvision().models, name)(num_classes=7)
    # what is computed twice has concatenations of its own and pools last, which round in another order
    tricks = [trick for trick in TRICKS if trick not in ("concatenations", "exchange")]
    found = check_equal(model, 2, 64, method=method, statistics=statistics, fast=tricks)
    assert len(found) > 4
    (shared, _), (twice, _) = (
        three_steps(make(model, memory, method=method, statistics=statistics), 2, 64)
        for memory in ("off", "low")
    )
    for one, other in zip(shared, twice, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


class Alive(TorchDispatchMode):
    """Within, counts the bytes of all tensors that are made and that something still holds."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[StorageWeakRef, int] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        storages = [x.untyped_storage() for x in tree_leaves(made) if isinstance(x, Tensor)]
        self._storages |= {StorageWeakRef(storage): storage.nbytes() for storage in storages}
        del storages
        self.most = max(self.most, self.now())
        return made

    def now(self) -> int:
        self._storages = {ref: size for ref, size in self._storages.items() if not ref.expired()}
        return sum(self._storages.values())


def kept_by_forward(adapter: Adapter, batch: Tensor) -> int:
    engine = adapter._engine
    adapter(batch)
    with Alive() as alive, engine._checkpoints(batch), engine.prepared.statistics.updating():
        logits = engine.network(batch)
        kept = alive.now()
    assert logits.requires_grad
    return kept


@pytest.mark.parametrize("fast", [True, False])
def test_less_than_half_is_kept_and_that_is_what_was_foreseen(fast: bool) -> None:
    torch.manual_seed(0)
    model, batch = import_torchvision().models.resnet18(num_classes=7), images(8, size=64)
    off, low = (make(model, memory, fast=fast) for memory in ("off", "low"))
    kept, less = kept_by_forward(off, batch), kept_by_forward(low, batch)
    assert less < kept / 2
    rehearsal = low._engine._checkpoints._rehearsal(batch)
    assert rehearsal is not None
    assert kept == pytest.approx(4 * rehearsal._needs(())[1], rel=0.1)
    assert less == pytest.approx(4 * rehearsal._needs(rehearsal.stages)[1], rel=0.1)


@pytest.mark.parametrize("fast", [True, False])
def test_a_step_fits_into_what_was_foreseen(fast: bool) -> None:
    most, batch = {}, images(32, size=32)
    for memory in ("off", "low"):
        torch.manual_seed(0)
        adapter = make(SmallResNet(blocks=3), memory, fast=fast)
        adapter(batch)
        with Alive() as alive:
            adapter(batch)
        most[memory] = alive.most
    rehearsal = adapter._engine._checkpoints._rehearsal(batch)
    assert rehearsal is not None
    needs = {"off": rehearsal.peak((), 32), "low": rehearsal.peak(rehearsal.stages, 32)}
    assert most["low"] < 0.8 * most["off"]
    assert all(0.8 * needs[memory] < most[memory] < needs[memory] / checkpoints._SHARE for memory in most)


def available(monkeypatch: pytest.MonkeyPatch, count: float | None) -> None:
    monkeypatch.setattr(checkpoints, "available_bytes", lambda _: count)


def foreseen(model: nn.Module, batch: Tensor) -> list[float]:
    """What a step needs if none, one, two ... of the stages are computed twice, as available memory."""
    adapter = make(model, "low")
    adapter(batch)
    rehearsal = adapter._engine._checkpoints._rehearsal(batch)
    assert rehearsal is not None
    needs = [rehearsal.peak(rehearsal.stages[:i], len(batch)) for i in range(len(rehearsal.stages) + 1)]
    return [need / checkpoints._SHARE for need in needs]


def test_auto_computes_as_few_of_the_first_stages_twice_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, batch = SmallResNet(blocks=3, num_classes=5), images(8)
    needs = foreseen(model, batch)
    assert needs[0] > needs[1] > needs[2] > needs[3]
    reference = three_steps(make(model, "off"))
    for count in range(4):
        available(monkeypatch, needs[count] + 1)
        adapter = make(model, "auto")
        logits, state = three_steps(adapter)
        assert len(stages_of(adapter)) == count
        assert [stage.first for stage in stages_of(adapter)][:2] == ["model", "model.layer1.0"][:count]
        assert all(map(torch.equal, logits, reference[0]))
        assert same(state, reference[1])
        notes = [note for note in adapter.notes if "second time" in note]
        assert len(notes) == (count > 0)
        assert all(f"(8, 3, 16, 16), {count} of {len(needs) - 1} stages" in note for note in notes)


def test_auto_takes_all_and_says_so_where_nothing_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 1e6)
    adapter = make(resnet(), "auto")
    with pytest.warns(
        AcclimateWarning, match=r"a batch of 64 .* about [67]\.\d MB.* can have 0\.8 MB: give fewer"
    ):
        adapter(images(64))
    assert len(stages_of(adapter)) == 4
    adapter(images(64, seed=1))  # once is enough


def test_where_memory_is_plenty_or_unknown_nothing_is_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "Rehearsal", None)
    for count in (1e12, None):
        available(monkeypatch, count)
        adapter = make(resnet(), "auto")
        adapter(images(8))
        assert stages_of(adapter) == []
    available(monkeypatch, 1)
    make(resnet(), "off")(images(8))
    make(resnet(), "low", method="bn")(images(8))  # keeps nothing for backward


def test_a_decision_holds_for_a_shape_and_a_rehearsal_for_all_batches_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(checkpoints, "available_bytes", lambda _: asked.append("memory") or 1e7)
    monkeypatch.setattr(
        checkpoints, "Rehearsal", lambda *a, **k: asked.append("rehearsal") or Rehearsal(*a, **k)
    )
    adapter = make(resnet(), "auto")
    for count, expected in ((8, ["memory", "rehearsal", "memory"]), (8, []), (9, ["memory"] * 2)):
        adapter(images(count))
        assert asked == expected
        asked.clear()
    adapter(images(8, size=20))
    assert asked == ["memory", "rehearsal", "memory"]


def test_a_single_image(monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 1e5)
    adapter = make(resnet(), "auto", statistics="blend")
    with pytest.warns(AcclimateWarning, match="a batch of 1 "):
        adapter(images(1))
    with pytest.warns(AcclimateWarning, match="a batch of 2 "):
        adapter(images(2))


def test_a_rehearsal_leaves_no_trace() -> None:
    adapter = make(resnet(), "low", method="slr+it", statistics="running")
    adapter(images(8))
    engine, before = adapter._engine, adapted_state(adapter)
    p, random, step = adapter.class_distribution, torch.get_rng_state(), engine.prepared.statistics.steps
    engine._checkpoints._rehearsed(images(2, size=20))
    assert same(before, adapted_state(adapter))
    assert torch.equal(p, adapter.class_distribution)
    assert torch.equal(random, torch.get_rng_state())
    assert engine.prepared.statistics.steps == step
    assert engine.network._forward_hooks == {}


@pytest.mark.parametrize("fails", [False, True])
def test_a_rehearsal_frees_what_it_kept(fails: bool) -> None:
    """Which its hook holds, and the graph that hook."""
    network, kept = resnet(), []

    def run() -> Tensor:
        x = images(2).requires_grad_()
        kept.append(StorageWeakRef(x.untyped_storage()))
        logits: Tensor = network(x)
        kept.append(StorageWeakRef(logits.untyped_storage()))
        if fails:
            raise InputError("too few images")
        return logits

    with pytest.raises(InputError) if fails else nullcontext():
        Rehearsal(network, run, 2)
    gc.collect()  # which sees nothing of a graph
    assert all(part.expired() for part in kept)


def test_all_else_is_untouched(tmp_path: Path) -> None:
    off, low = (make(resnet(), memory, method="slr") for memory in ("off", "low"))
    source = adapted_state(low)
    for adapter in (off, low):
        three_steps(adapter)
    assert torch.equal(off.predict(images(8)), low.predict(images(8)))
    assert same(off.export().state_dict(), low.export().state_dict())
    resnet().load_state_dict(low.export().state_dict(), strict=True)
    low.save(tmp_path / "low")
    loaded = Adapter.load(tmp_path / "low", resnet())
    logits = [adapter(images(8, seed=9)) for adapter in (off, low, loaded)]
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])
    low.reset()
    assert same(source, adapted_state(low))


def test_a_failed_step_leaves_everything_as_it_was() -> None:
    adapter = make(resnet(), "low", objective=lambda logits, index: logits.sum() * float("nan"))
    before = adapted_state(adapter)
    with pytest.raises(DivergenceError):
        adapter(images(8))
    assert same(before, adapted_state(adapter))
    assert not any("forward" in vars(module) for module in adapter._engine.network.modules())
    with pytest.raises(InputError, match="3 channels"):
        adapter(torch.rand(8, 1, 16, 16))


class Block(nn.Module):
    """A convolution, a norm and whatever a test does with them."""

    def __init__(self, use: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self._use = (use,)

    def inside(self, x: Tensor) -> Tensor:
        return self.conv2(F.silu(self.norm(self.conv(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self._use[0](self, x)


class Blocks(nn.Module):
    def __init__(self, use: Callable[[nn.Module, Tensor], Tensor], calls: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.blocks = nn.Conv2d(3, 8, 3), nn.ModuleList(Block(use) for _ in range(3))
        self.head, self.calls = nn.Linear(8, 5), calls

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            for _ in range(self.calls):
                x = block(x)
        return self.head(x.mean((2, 3)))


PLAIN: Callable[[Any, Tensor], Tensor] = lambda block, x: x + block.inside(x)  # noqa: E731


@pytest.mark.parametrize("statistics", POLICIES)
@pytest.mark.parametrize(
    ("use", "calls", "stages"),
    [
        (PLAIN, 1, 3),
        (PLAIN, 2, 0),  # what runs twice finds other statistics the second time
        (lambda block, x: block.inside(x.relu_()), 1, 0),  # changes its own input
        (lambda block, x: block.inside(x) + x.relu_(), 1, 0),
        (lambda block, x: block.inside(x.relu()).relu_(), 1, 3),  # changes its output
        (lambda block, x: block.inside(F.dropout(x, 0.2, training=True)), 1, 3),
    ],
)
def test_what_can_be_a_stage(
    use: Callable[[nn.Module, Tensor], Tensor], calls: int, stages: int, statistics: str
) -> None:
    found = check_equal(Blocks(use, calls), freeze="none", statistics=statistics, fast=["weights"])
    assert len([stage for stage in found if "blocks" in stage.first]) == stages


def test_layers_of_a_sequential_are_divided_but_not_before_one_that_works_in_place() -> None:
    torch.manual_seed(0)
    layers = [(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)) for _ in range(6)]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *itertools.chain(*layers), nn.Flatten(), nn.Linear(1568, 5))
    for fast in (True, False):
        found = check_equal(model, freeze="none", fast=fast)
        assert len(found) > 1
        assert all(len(stage.layers) > 2 for stage in found)
        assert not any(isinstance(model.get_submodule(s.layers[0]), nn.ReLU) for s in found)


def test_a_network_that_refuses_the_layout_of_its_images_is_rehearsed_in_the_other() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = Blocks(PLAIN), nn.Linear(3 * 256, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + self.head(x.view(len(x), -1))

    assert len(check_equal(Views(), freeze="none", fast=["layout", "weights"])) >= 3


def test_two_images_that_fail_alone_are_told_of() -> None:
    class Many(SmallResNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.view(8, 3, 16, 16))

    adapter = make(Many(blocks=1), "low")
    with pytest.warns(AcclimateWarning, match=r"could not be measured, as 2 images alone fail \(shape"):
        adapter(images(8))
    assert stages_of(adapter) == []


def test_a_network_that_does_not_do_the_same_again_is_told_of() -> None:
    turns = itertools.count()

    def use(block: Any, x: Tensor) -> Tensor:
        return (
            block.inside(x) if next(turns) < 6 else block.inside(x[:, :, 1:]).mean((2, 3), keepdim=True) + x
        )

    adapter = make(Blocks(use), "low", freeze="none", fast=False)
    before = adapted_state(adapter)
    with pytest.raises(ModelError, match=r"run a second time to save memory made .*: take memory='off'"):
        adapter(images(8))
    assert same(before, adapted_state(adapter))

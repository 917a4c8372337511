"""The guard: what alarms it, what it takes back, and that it is not seen where nothing is wrong."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.errors import AcclimateWarning, DivergenceError
from acclimate.guard import SIGNALS, Guard, Look
from networks import NORMALIZE, images, resnet

GOOD = Look(
    0.05,
    loss=1.0,
    confidence=0.8,
    class_entropy=2.2,
    gradient_norm=1.0,
    logit_norm=8.0,
    top_share=0.0,
    possible_entropy=2.3,
    images=64,
)
BAD = {
    "finite": {"loss": math.nan},
    "stride": {"drift": 0.2},
    "drift": {"drift": 1.2},
    "entropy": {"class_entropy": 1.1},
    "share": {"top_share": 0.6},
    "logits": {"logit_norm": 25.0},
    "gradient": {"gradient_norm": 1001.0},
}


def made(**options: Any) -> Adapter:
    return Adapter(
        resnet(), "slr", normalize=NORMALIZE, **{"statistics": "batch", "full_batch": 0, **options}
    )


def state_of(adapter: Adapter) -> dict[str, Tensor]:
    """Parameters and statistics, without what the guard itself remembers."""
    return {name: t.detach().clone() for name, t in adapter._engine.changing().items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def quietly(adapter: Adapter, data: Tensor, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)
        adapter.fit(data, 3, batch_size=16, progress=False, **options)


def first(adapter: Adapter) -> str:
    return adapter.history.alarms[0].message


def guarding() -> Guard:
    guard = Guard([torch.ones(4)], active=True)
    assert guard.finding(GOOD) is None
    return guard


def test_every_signal_is_tried() -> None:
    assert BAD.keys() == SIGNALS.keys()


@pytest.mark.parametrize("name", BAD)
def test_a_number_out_of_bounds_is_found_and_one_within_is_not(name: str) -> None:
    guard = guarding()
    if name == "drift":  # in small strides
        for drift in torch.linspace(0.1, 1.0, 12).tolist():
            assert guard.finding(GOOD._replace(drift=drift)) is None
        assert guard.finding(GOOD._replace(drift=1.05)) == "drift"
        return
    assert guard.finding(GOOD._replace(**BAD[name])) == name
    assert guard.finding(GOOD) is None


def test_the_entropy_of_few_images_is_measured_by_what_they_can_have() -> None:
    guard = guarding()
    few = GOOD._replace(class_entropy=3.0)
    assert guard.finding(few._replace(possible_entropy=6.9)) == "entropy"  # of 1,000 classes
    assert guard.finding(few._replace(possible_entropy=math.log(38))) is None  # of pairs


def test_where_nothing_is_wrong_the_guard_is_not_seen() -> None:
    guarded, alone = made(), made(guard=False)
    for adapter in (guarded, alone):
        adapter.fit(images(48), 2, batch_size=16, progress=False)
    assert guarded.history.alarms == []
    assert guarded.history == alone.history
    assert equal(state_of(guarded), state_of(alone))


def test_a_learning_rate_that_is_too_high_is_lowered() -> None:
    adapter, right = made(lr=1.0), made()
    quietly(adapter, images(48))
    assert re.search(
        "after step 1, one update has moved .*; went back to the source, with 1e-01 of", first(adapter)
    )
    assert [alarm.signal for alarm in adapter.history.alarms] == ["stride", "stride"]
    assert adapter.history.lr[0] == 1.0
    assert adapter.history.lr[1:3] == pytest.approx([0.1, 0.01], rel=0.2)  # and on the schedule
    right.fit(images(48), 3, batch_size=16, progress=False)
    assert all(torch.isfinite(t).all() for t in state_of(adapter).values())
    both = zip(adapter._engine.parameters.values(), right._engine.parameters.values(), strict=True)
    way = [torch.dist(one, other) for one, other in both]
    assert max(way) < 1.0  # one step of the learning rate that was asked for is longer


def test_the_logits_of_the_step_that_is_taken_back_are_not_given_out() -> None:
    data = images(32)
    adapter = made(lr=1.0)
    source = made(guard=False, lr=0.0)
    adapter(data[:16])
    with pytest.warns(AcclimateWarning):
        logits = adapter(data[16:])
    source(data[:16])
    assert torch.equal(logits, source(data[16:]))


USES: dict[str, Callable[[Adapter, Path], object]] = {
    "predict": lambda adapter, _: adapter.predict(images(16)),
    "export": lambda adapter, _: adapter.export(),
    "save": lambda adapter, path: adapter.save(path),
}


@pytest.mark.parametrize("use", USES)
def test_nobody_is_given_an_update_that_was_not_looked_at(use: str, tmp_path: Path) -> None:
    adapter, untouched = made(lr=1.0), made(guard=False, lr=0.0)
    for one in (adapter, untouched):
        one(images(16))
    with pytest.warns(AcclimateWarning, match="the guard"):
        USES[use](adapter, tmp_path / "delta")
    parameters = adapter._engine.parameters
    assert all(torch.equal(p, untouched._engine.parameters[name]) for name, p in parameters.items())
    assert torch.equal(adapter.predict(images(16)), untouched.predict(images(16)))


def test_after_some_alarms_it_is_bn() -> None:
    adapter = made(lr=1e9, optimizer="sgd", schedule="constant")
    bn = Adapter(resnet(), "bn", normalize=NORMALIZE, statistics="batch")
    quietly(adapter, images(64))
    quietly(bn, images(64))
    assert len(adapter.history.alarms) == 5
    assert "only statistics adapt" in adapter.history.alarms[-1].message
    assert adapter._engine.guard.stopped
    assert torch.equal(adapter.predict(images(16)), bn.predict(images(16)))


def test_a_run_with_alarms_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    whole = made(lr=1.0)
    quietly(whole, images(48))
    part = made(lr=1.0)
    path = tmp_path / "delta"

    def stop(adapter: Adapter) -> None:
        adapter.save(path)
        if adapter.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quietly(part, images(48), on_step=stop)
    again = Adapter.load(path, resnet())
    assert again.history.alarms == part.history.alarms
    quietly(again, images(48))
    assert again.history == whole.history
    assert equal(state_of(again), state_of(whole))


def test_reset_forgets_alarms() -> None:
    adapter, new = made(lr=1.0), made(lr=1.0)
    quietly(adapter, images(48))
    adapter.reset()
    assert adapter.history.alarms == []
    for one in (adapter, new):
        quietly(one, images(48))
    assert adapter.history == new.history
    assert equal(state_of(adapter), state_of(new))


class Scaled(nn.Module):
    """A network whose logits follow the brightness of its images."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((1, 2, 3))
        return self.head(self.norm(x).mean((2, 3)) + x.mean((2, 3))) * mean[:, None] * 1e3


def test_images_that_are_odd_for_the_source_too_teach_nothing_and_cost_nothing() -> None:
    adapter = Adapter(Scaled(), "tent", lr=1e-6, statistics="batch")
    for seed in range(3):
        adapter(images(16, seed=seed))
    before, rate = state_of(adapter), adapter._engine.guard.rate
    parameters = {name: p for name, p in before.items() if "norm" in name and "running" not in name}
    with pytest.warns(AcclimateWarning, match="nothing was learned from these images"):
        adapter(images(16) * 1e-3)
    adapter(images(16) * 1e-3)  # and so on, without another word
    after = state_of(adapter)
    assert all(torch.equal(after[name], p) for name, p in parameters.items())
    assert adapter._engine.guard.rate == rate == 1.0
    assert len(adapter.history.alarms) == 1
    adapter(images(16, seed=5))
    assert any(not torch.equal(state_of(adapter)[name], p) for name, p in parameters.items())


def test_a_loss_that_is_no_number_is_still_an_error() -> None:
    adapter = made(objective=lambda logits, index: logits.sum() * math.nan)
    before = state_of(adapter)
    with pytest.raises(DivergenceError, match="nothing was changed"):
        adapter(images(16))
    assert equal(state_of(adapter), before)
    assert adapter.history.alarms == []
    assert adapter._engine.guard.rate == 1.0


def test_single_images_of_different_lengths_are_no_alarm_and_a_lasting_change_is() -> None:
    """One image's logits may be several times as long as another's; sixteen images in a row are not."""
    guard = Guard([torch.ones(4)], active=True)
    lengths = torch.empty(200).log_normal_(1.0, 0.8, generator=torch.Generator().manual_seed(0)).tolist()
    assert max(lengths) > 4 * sum(lengths) / 200
    for length in lengths:
        assert guard.finding(GOOD._replace(logit_norm=length, images=1)) is None
    found = [guard.finding(GOOD._replace(logit_norm=6 * length, images=1)) for length in lengths[:32]]
    assert "logits" in found

"""Statistics of a stream: the moments of a mixture, what is believed of a shift, and all that keeps them."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.errors import AcclimateWarning
from acclimate.prepare import prepare
from acclimate.stream import (
    FEW,
    FIRST,
    NATURAL,
    WINDOW,
    Moments,
    displacement,
    followed,
    mixed_with_source,
    nothing_seen,
)
from networks import NORMALIZE, images, resnet, same, state

EPS = 1e-5


def source(channels: int = 3) -> Moments:
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(channels, generator=generator, dtype=torch.float64)
    return Moments(mean, torch.rand(channels, generator=generator, dtype=torch.float64) + 0.5)


def batches(
    count: int, size: int, *, shift: float = 0.0, scale: float = 1.0, spread: float = 0.5
) -> list[Tensor]:
    """Images whose own means differ, of a source with the moments of `source`, moved and stretched."""
    generator = torch.Generator().manual_seed(4)
    mean, var = source()
    made = []
    for _ in range(count):
        off = spread * torch.randn(size, 3, 1, generator=generator, dtype=torch.float64)
        noise = torch.randn(size, 3, 64, generator=generator, dtype=torch.float64)
        x = off + (1 - spread**2) ** 0.5 * noise
        made.append(mean.view(-1, 1) + var.sqrt().view(-1, 1) * (scale * x + shift))
    return made


def moments_of(x: Tensor) -> Moments:
    return Moments(x.mean((0, 2)), x.var((0, 2), unbiased=False))


def shares(stream: list[Tensor]) -> list[float]:
    held, found = nothing_seen(3, source().mean), []
    for x in stream:
        held, _, share, _ = followed(held, displacement(source(), *moments_of(x), EPS), len(x))
        found.append(share.item())
    return found


def test_the_state_is_what_plain_sums_over_all_batches_give() -> None:
    """Every average by its definition, over the whole past, in float64."""
    stream = batches(12, 4, shift=0.7, scale=1.3)
    held = nothing_seen(3, source().mean)
    past: list[Tensor] = []
    for x in stream:
        mean, var = source()
        scaled = (x - mean.view(-1, 1)) / (var.view(-1, 1) + EPS).sqrt()
        of_source = var / (var + EPS)
        second = ((scaled**2).mean((0, 2)) - of_source) / 2**0.5
        past.append(torch.cat([scaled.mean((0, 2)), second]))
        held, moved, share, part = followed(held, displacement(source(), *moments_of(x), EPS), len(x))

        def averaged(until: int) -> Tensor:
            weights = [(1 - 1 / WINDOW) ** (4 * (until - 1 - i)) for i in range(until)]
            return sum(w * z for w, z in zip(weights, past, strict=False)) / sum(weights)

        later = [(1 - 1 / WINDOW) ** (4 * (len(past) - 1 - i)) for i in range(1, len(past))]
        d = averaged(len(past))
        torch.testing.assert_close(moved, d)
        torch.testing.assert_close(
            part.item(), 1 / sum([*later, later[0] * (1 - 1 / WINDOW) ** 4]) if later else 1.0
        )
        if not later:
            assert share == pytest.approx(4 / (4 + FIRST))
            continue
        before = [averaged(i) for i in range(1, len(past))]
        agreement = sum(w * past[i + 1] @ b for i, (w, b) in enumerate(zip(later, before, strict=True)))
        length = sum(w * b @ b for w, b in zip(later, before, strict=True))
        apart = [4 * (past[i + 1] - b).square().sum() for i, b in enumerate(before)]
        natural = sum(w * a for w, a in zip(later, apart, strict=True)) / sum(later)
        r = (agreement / length).clamp(0, 1) * d @ d / natural
        torch.testing.assert_close(share, r / (r + NATURAL))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_mixture_has_the_moments_of_both_put_together(share: float) -> None:
    """Against sums over values that have the source's moments and those of a batch."""
    mean, var = source()
    x = batches(1, 5, shift=2.0, scale=0.4)[0]
    of_source = torch.stack([mean - var.sqrt(), mean + var.sqrt()])
    of_batch = x.movedim(1, 2).reshape(-1, 3)
    values = torch.cat([of_source, of_batch])
    weights = torch.cat(
        [torch.full((2,), (1 - share) / 2), torch.full((len(of_batch),), share / len(of_batch))]
    )
    expected = (weights.double().unsqueeze(1) * values).sum(0)
    spread = (weights.double().unsqueeze(1) * (values - expected) ** 2).sum(0)
    z = displacement(source(), *moments_of(x), EPS)
    mixed = mixed_with_source(source(), z, torch.tensor(share, dtype=torch.float64), EPS)
    torch.testing.assert_close(mixed.mean, expected)
    torch.testing.assert_close(mixed.var, spread)


@pytest.mark.parametrize("size", [1, 4, 16])
def test_clean_streams_stay_with_the_source_and_shifted_ones_do_not(size: int) -> None:
    count = 512 // size
    clean, mild, strong = (
        sum(shares(batches(count, size, shift=shift))[-count // 2 :]) / (count // 2)
        for shift in (0.0, 0.3, 3.0)
    )
    assert clean < 0.02
    assert clean < mild < 0.3
    assert strong > 0.8


def test_the_shift_of_a_stream_without_noise_is_corrected_whole() -> None:
    x = batches(1, 1, shift=1.0)[0]
    assert shares([x] * 20)[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("count", [1, 16])
def test_the_first_batch_is_mixed_with_as_much_of_the_source_as_sixteen_images(count: int) -> None:
    """A norm alone, against the moments of its images and of the source put together."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3)
    nn.init.normal_(norm.running_mean)
    x = images(count) + 1
    share = count / (count + FIRST)
    mean = (1 - share) * norm.running_mean + share * x.mean((0, 2, 3))
    second = (1 - share) * (norm.running_var + norm.running_mean**2) + share * (x**2).mean((0, 2, 3))
    expected = (x - mean.view(1, -1, 1, 1)) / (second - mean**2 + norm.eps).sqrt().view(1, -1, 1, 1)
    prepared = prepare(nn.Sequential(norm), statistics="stream", freeze="none")
    with prepared.statistics.updating():
        torch.testing.assert_close(prepared.model(x).detach(), expected, rtol=1e-4, atol=1e-4)


class TwoNorms(nn.Module):
    """Two norms, of which the first one's gradient goes through the statistics of the second."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.conv, self.second = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.linear = nn.Linear(784, 5)
        nn.init.normal_(self.first.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.second(self.conv(self.first(x)).relu()).flatten(1))


def written_out(norm: nn.BatchNorm2d, held: dict[nn.Module, Tensor], x: Tensor) -> Tensor:
    """A norm under the policy, by the formulas alone."""
    moments = Moments(norm.running_mean, norm.running_var)
    z = displacement(moments, x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False), norm.eps)
    before = held.get(norm, nothing_seen(x.shape[1], x))
    held[norm], moved, share, _ = followed(before, z, len(x))
    mean, var = mixed_with_source(moments, moved, share, norm.eps)
    scale = norm.weight / (var + norm.eps).sqrt()
    return (x - mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1) + norm.bias.view(1, -1, 1, 1)


@pytest.mark.parametrize("fast", [False, True])
def test_values_and_gradients_are_those_of_the_formulas_written_out(fast: bool) -> None:
    weights = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    adapter = Adapter(
        TwoNorms(), "tent", statistics="stream", fast=fast, freeze="none", lr=0.0, guard=False,
        objective=lambda logits: (logits * weights).sum(),
    )  # fmt: skip
    network, held = TwoNorms(), {}
    for seed in range(3):
        x = images(4, seed=seed) + 2
        logits = adapter(x)
        y = network.conv(written_out(network.first, held, x)).relu()
        expected = network.linear(written_out(network.second, held, y).flatten(1))
        torch.testing.assert_close(logits, expected.detach(), rtol=1e-4, atol=1e-4)
    network.zero_grad()
    (expected * weights).sum().backward()
    for name in ("first.weight", "first.bias", "second.weight", "second.bias"):
        wanted = network.get_parameter(name).grad
        assert wanted is not None
        got = adapter._engine.parameters[f"model.{name}"].grad
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3 * wanted.abs().max().item())


def test_the_first_batch_decides_and_a_reset_undecides() -> None:
    adapter = Adapter(resnet(), "bn")
    for size, policy in ((FEW - 1, "stream"), (FEW, "batch"), (1, "stream")):
        adapter.reset()
        adapter(images(size))
        adapter(images(2 * FEW))
        assert adapter._engine.prepared.statistics.policy == policy
        assert any('statistics="stream"' in note for note in adapter.notes) == (policy == "stream")
        same_by_name = Adapter(resnet(), "bn", statistics=policy)
        same_by_name(images(size))
        same_by_name(images(2 * FEW))
        assert torch.equal(adapter.predict(images(8)), same_by_name.predict(images(8)))


def test_a_prediction_decides_nothing_and_a_single_one_is_the_source_s() -> None:
    adapter, plain = Adapter(resnet(), "bn"), Adapter(resnet(), "source")
    assert torch.equal(adapter.predict(images(1)), plain.predict(images(1)))
    batch = Adapter(resnet(), "bn", statistics="batch")
    assert torch.equal(adapter.predict(images(4)), batch.predict(images(4)))
    adapter(images(FEW))
    assert adapter._engine.prepared.statistics.policy == "batch"


def test_one_small_batch_alone_is_adapted_to() -> None:
    adapter, plain = Adapter(resnet(), "bn", episodic=True), Adapter(resnet(), "source")
    shifted = images(16) * 3
    assert not torch.allclose(adapter(shifted), plain(shifted), atol=1e-2)
    fitted = Adapter(resnet(), "bn")
    fitted.fit(shifted, 1)
    assert not same(state(fitted.export()), state(plain.export()))


def test_a_first_step_that_failed_decides_nothing() -> None:
    def failing(logits: Tensor) -> Tensor:
        if len(logits) < FEW:
            raise ZeroDivisionError
        return logits.square().mean()

    adapter = Adapter(resnet(), "tent", objective=failing)
    with pytest.raises(ZeroDivisionError):
        adapter(images(4))
    assert adapter._engine.prepared.statistics.undecided
    adapter(images(FEW))
    assert adapter._engine.prepared.statistics.policy == "batch"


def test_going_back_in_the_middle_of_a_step_keeps_the_decision() -> None:
    """The guard goes back to the source at once, and the same single image is seen again."""
    adapter = Adapter(resnet(), "tent", lr=1e4, statistics="auto")
    seen: list[str] = []
    statistics = adapter._engine.prepared.statistics
    updating = statistics.updating
    statistics.updating = lambda: (seen.append(statistics.policy), updating())[1]  # type: ignore[method-assign]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)  # of the guard
        assert all(adapter(images(1, seed=seed)).isfinite().all() for seed in range(8))
    assert adapter.history.alarms
    assert len(seen) > 8
    assert set(seen) == {"stream"}


def test_what_was_decided_is_saved_whatever_the_layers_have_to_keep(tmp_path: Path) -> None:
    """Instance norms have no stream, and an epoch begins with an average of no batch."""
    tracked = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.Flatten(),
        nn.Linear(784, 5),
    )  # fmt: skip
    for model, size in ((tracked, 4), (resnet(), 4), (resnet(), FEW)):
        adapter = Adapter(model, "bn", seed=1)
        adapter(images(size))
        adapter._engine.prepared.statistics.restart()
        adapter.save(tmp_path / "d.safetensors")
        loaded = Adapter.load(tmp_path / "d.safetensors", model)
        policies = [a._engine.prepared.statistics.policy for a in (adapter, loaded)]
        assert policies == ["stream" if size < FEW else "batch"] * 2
        assert not loaded._engine.prepared.statistics.undecided
        assert torch.equal(adapter.predict(images(6)), loaded.predict(images(6)))


@pytest.mark.parametrize("statistics", ["auto", "stream"])
@pytest.mark.parametrize("method", ["bn", "slr", "slr+it"])
def test_saved_and_loaded_it_goes_on_to_the_same_bits(method: str, statistics: str, tmp_path: Path) -> None:
    def make() -> Adapter:
        return Adapter(resnet(), method, normalize=NORMALIZE, statistics=statistics)

    whole = make()
    for seed in range(6):
        whole(images(3, seed=seed))
    part = make()
    for seed in range(3):
        part(images(3, seed=seed))
    part.save(tmp_path / "delta.safetensors")
    loaded = Adapter.load(tmp_path / "delta.safetensors", resnet())
    for going_on in (part, loaded, copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        for seed in range(3, 6):
            going_on(images(3, seed=seed))
        assert same(state(whole._engine.network), state(going_on._engine.network))


def test_what_was_held_comes_back_with_the_stream_s_state() -> None:
    prepared = prepare(resnet(), statistics="stream")
    for seed in range(3):
        with prepared.statistics.updating():
            prepared.model(images(2, seed=seed))
    before = {name: tensor.clone() for name, tensor in prepared.statistics.state().items()}
    undo = prepared.statistics.hold()
    with prepared.statistics.updating():
        prepared.model(images(2, seed=9) + 3)
    assert not same(before, prepared.statistics.state())
    undo()
    assert same(before, prepared.statistics.state())


def test_predictions_are_the_exported_network_s() -> None:
    adapter = Adapter(resnet(), "slr", statistics="stream")
    for seed in range(4):
        adapter(images(2, seed=seed) + 1)
    exported = adapter.export()
    assert set(exported.state_dict()) == set(resnet().state_dict())
    torch.testing.assert_close(adapter.predict(images(5)), exported(images(5)).detach(), rtol=1e-4, atol=1e-5)


def test_with_little_memory_a_step_is_the_same() -> None:
    low, plain = (Adapter(resnet(), "slr", statistics="stream", memory=memory) for memory in ("low", "off"))
    for seed in range(3):
        torch.testing.assert_close(
            low(images(2, seed=seed)), plain(images(2, seed=seed)), rtol=1e-4, atol=1e-5
        )
    assert all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-5)
        for a, b in zip(low._engine.prepared.statistics.state().values(),
                        plain._engine.prepared.statistics.state().values(), strict=True)
    )  # fmt: skip

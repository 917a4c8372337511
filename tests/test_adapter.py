"""The adapter against a plain loop, its limits, and its promises: reset, order, ownership, honest errors."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

import acclimate
from acclimate import Adapter
from acclimate.errors import AcclimateWarning, OptionError
from acclimate.models.vision import import_timm, import_torchvision
from networks import BATCHES, CLASSES, NORMALIZE, adapted_state, images, resnet, same, state


def plain_tent(model: nn.Module, batches: list[Tensor]) -> tuple[nn.Module, list[Tensor]]:
    """TENT as the literature writes it, in ten lines."""
    model = copy.deepcopy(model).eval().requires_grad_(False)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for m in norms:
        m.track_running_stats, m.running_mean, m.running_var = False, None, None
        m.requires_grad_(True)
    optimizer = torch.optim.SGD([p for m in norms for p in m.parameters()], lr=2.5e-4, momentum=0.9)
    logits = []
    for x in batches:
        out = model(x)
        logits.append(out.detach())
        optimizer.zero_grad()
        (-(out.softmax(1) * out.log_softmax(1)).sum(1)).mean().backward()
        optimizer.step()
    return model, logits


@pytest.mark.parametrize("name", ["small", "resnet18"])
def test_tent_is_a_plain_loop_to_the_last_bit(name: str) -> None:
    torch.manual_seed(0)
    model = resnet() if name == "small" else import_torchvision().models.resnet18(num_classes=7)
    batches = [images(16, seed=i, size=32) for i in range(4)]
    plain, expected = plain_tent(model, batches)
    adapter = Adapter(model, "tent", statistics="batch", fast=False)
    for x, logits in zip(batches, expected, strict=True):
        assert torch.equal(adapter(x), logits)
    parameters = dict(plain.named_parameters())
    for key, parameter in adapter._engine.prepared.parameters.items():
        assert torch.equal(parameter, parameters[key])


@pytest.mark.parametrize("name", ["small", "resnet18"])
def test_the_fast_step_is_a_plain_step_to_five_digits(name: str) -> None:
    torch.manual_seed(0)
    model = resnet() if name == "small" else import_torchvision().models.resnet18(num_classes=7)
    batches = [images(16, size=96)]
    plain, (expected,) = plain_tent(model, batches)
    adapter = Adapter(model, "tent", statistics="batch")
    torch.testing.assert_close(adapter(batches[0]), expected, rtol=1e-5, atol=1e-5)
    parameters = dict(plain.named_parameters())
    for key, parameter in adapter._engine.prepared.parameters.items():
        torch.testing.assert_close(parameter, parameters[key], rtol=1e-5, atol=1e-5)


def test_fit_without_shuffling_is_the_same_loop() -> None:
    plain, _ = plain_tent(resnet(), BATCHES * 2)
    adapter = Adapter(resnet(), "tent", statistics="batch", fast=False)
    adapter.fit(BATCHES, epochs=2, shuffle=False)
    parameters = dict(plain.named_parameters())
    assert all(torch.equal(p, parameters[name]) for name, p in adapter._engine.prepared.parameters.items())


def test_slr_is_a_plain_loop_with_adam_cosine_and_the_class_distribution() -> None:
    """Written from the formulas, with torch's own scheduler as the oracle of the learning rate."""
    model = copy.deepcopy(resnet()).eval().requires_grad_(False)
    norms = [m for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    for m in norms:
        m.track_running_stats, m.running_mean, m.running_var = False, None, None
    moved = [p for n, p in model.named_parameters() if "bn" in n and not n.startswith("layer3")]
    for p in moved:
        p.requires_grad_()
    optimizer = torch.optim.Adam(moved, 6e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2 * len(BATCHES))
    p_t = torch.full((CLASSES,), 1 / CLASSES)
    losses, rates = [], []
    for x in BATCHES * 2:
        o = model(x)
        p = o.softmax(1)
        ratio = (
            torch.stack([torch.cat([o[:, :c], o[:, c + 1 :]], 1).logsumexp(1) for c in range(CLASSES)], 1) - o
        )
        p_t = 0.9 * p_t.detach() + 0.1 * p.mean(0)
        loss = (p_t * (p_t * CLASSES).log()).sum() + 0.025 * (p * ratio).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    adapter = Adapter(resnet(), "slr", setting="paper", statistics="batch", full_batch=0)
    history = adapter.fit(BATCHES, epochs=2, shuffle=False)
    assert history.loss == pytest.approx(losses, abs=1e-5)
    assert history.lr == pytest.approx(rates, rel=1e-9)
    assert adapter.class_distribution is not None
    torch.testing.assert_close(adapter.class_distribution, p_t.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["tent", "tent+", "pl", "hlr", "slr"])
def test_zero_learning_rate_is_bn(method: str) -> None:
    frozen, bn = Adapter(resnet(), method, lr=0.0), Adapter(resnet(), "bn")
    for x in BATCHES:
        assert torch.equal(frozen(x), bn(x))


def test_bn_is_train_mode_and_source_is_eval_mode() -> None:
    model = resnet()
    x = BATCHES[0]
    assert torch.equal(Adapter(model, "source", fast=False)(x), model(x))
    reference = copy.deepcopy(model)
    for m in reference.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.train()
    assert torch.equal(Adapter(model, "bn", statistics="batch", fast=False)(x), reference(x))


def test_identity_transformation_changes_no_logit() -> None:
    plain, transformed = (
        Adapter(resnet(), "slr", normalize=NORMALIZE, input_transform=it) for it in (False, True)
    )
    assert torch.equal(plain.predict(BATCHES[1]), transformed.predict(BATCHES[1]))
    assert torch.equal(plain(BATCHES[0]), transformed(BATCHES[0]))
    assert any(name.startswith("transform.r.") for name in transformed.adapting)


def test_normalisation_is_what_the_user_would_have_done() -> None:
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in NORMALIZE)
    outside, inside = Adapter(resnet(), "slr"), Adapter(resnet(), "slr", normalize=NORMALIZE)
    for x in BATCHES:
        assert torch.equal(outside((x - mean) / std), inside(x))


def test_logits_are_from_before_the_update_and_predict_leaves_no_trace() -> None:
    adapter = Adapter(resnet(), "slr", lr=0.05, statistics="batch")
    before = adapter.predict(BATCHES[0])
    assert torch.equal(adapter(BATCHES[0]), before)
    after = adapter_state_and_prediction(adapter)
    assert not torch.equal(after, before)
    assert torch.equal(adapter.predict(BATCHES[0]), after)
    assert not adapter.predict(BATCHES[0]).requires_grad


def adapter_state_and_prediction(adapter: Adapter) -> Tensor:
    held = adapted_state(adapter)
    prediction = adapter.predict(BATCHES[0])
    assert same(held, adapted_state(adapter))
    return prediction


METHODS_TO_RESET = ["bn", "tent", "slr", "hlr+it"]


@pytest.mark.parametrize("statistics", ["auto", "batch", "stream", "running", "blend", "source"])
@pytest.mark.parametrize("method", METHODS_TO_RESET)
def test_reset_restores_every_tensor_and_the_future(method: str, statistics: str) -> None:
    adapter = Adapter(resnet(), method, normalize=NORMALIZE, statistics=statistics)
    whole = state(adapter._engine.network)
    first = [adapter(x) for x in BATCHES]
    history = adapter.fit(images(40), epochs=2, batch_size=8)
    if (method, statistics) != ("bn", "source"):
        assert not same(whole, state(adapter._engine.network))
    adapter.reset()
    assert same(whole, state(adapter._engine.network))
    assert adapter.step == 0
    assert adapter.history.loss == []
    again = [adapter(x) for x in BATCHES]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert dataclasses.asdict(adapter.fit(images(40), epochs=2, batch_size=8)) == dataclasses.asdict(history)


def test_the_snapshot_holds_only_what_can_change() -> None:
    adapter = Adapter(resnet(), "slr")
    assert set(adapter._engine._moving.source) == set(adapter.adapting)
    assert not any("conv" in name or "linear" in name for name in adapter.adapting)


def test_the_users_model_and_its_mode_are_untouched() -> None:
    model = resnet().train()
    before = state(model)
    adapter = Adapter(model, "slr+it", normalize=NORMALIZE, lr=0.01)
    adapter.fit(images(40), epochs=2, batch_size=8)
    assert same(before, state(model))
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_episodic_starts_again_with_every_batch() -> None:
    adapter = Adapter(resnet(), "tent", episodic=True, lr=0.1)
    fresh = Adapter(resnet(), "tent", lr=0.1)
    for x in BATCHES:
        fresh.reset()
        assert torch.equal(adapter(x), fresh(x))
        assert adapter.step == 1
    with pytest.raises(OptionError, match="nothing to fit"):
        adapter.fit(BATCHES)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_callers_without_gradients_get_the_same_adaptation(mode: object) -> None:
    free, held = (
        Adapter(resnet(), "slr+it", normalize=NORMALIZE),
        Adapter(resnet(), "slr+it", normalize=NORMALIZE),
    )
    expected = [free(x) for x in BATCHES]
    with mode():  # type: ignore[operator]
        found = [held(x.clone()) for x in BATCHES]
        held.predict(BATCHES[0].clone())
        assert not torch.is_grad_enabled()
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert not any(x.is_inference() for x in found)


def test_a_model_made_in_inference_mode_can_adapt() -> None:
    with torch.inference_mode():
        model = resnet()
        adapter = Adapter(model, "slr")
        found = adapter(BATCHES[0])
        adapter.reset()
        adapter.export()
    assert torch.equal(found, Adapter(resnet(), "slr")(BATCHES[0]))


# Classes and priors ---------------------------------------------------------------------------------


def test_classes_restrict_logits_loss_and_prediction() -> None:
    model, chosen = resnet(), [4, 1, 2]
    narrow = copy.deepcopy(model)
    narrow.linear = nn.Linear(64, 3)
    with torch.no_grad():
        narrow.linear.weight.copy_(model.linear.weight[chosen])
        narrow.linear.bias.copy_(model.linear.bias[chosen])
    restricted, small = Adapter(model, "slr", classes=chosen), Adapter(narrow, "slr")
    for x in BATCHES:
        torch.testing.assert_close(restricted(x), small(x), rtol=1e-4, atol=1e-5)
    assert restricted.classes == (4, 1, 2)
    assert small.classes == (0, 1, 2)
    result = acclimate.adapt(model, images(20), epochs=1, classes=chosen, batch_size=10)
    assert set(result.predictions.tolist()) <= set(chosen)
    assert torch.equal(result.predictions, torch.tensor(chosen)[result.logits.argmax(1)])


def test_a_prior_is_where_the_class_distribution_starts() -> None:
    prior = [0.5, 0.2, 0.1, 0.1, 0.1]
    adapter = Adapter(resnet(), "slr", prior=torch.tensor(prior), kappa=0.999)
    adapter(BATCHES[0])
    assert adapter.class_distribution is not None
    assert adapter.class_distribution.tolist() == pytest.approx(prior, abs=2e-3)


# Learning rate --------------------------------------------------------------------------------------


def test_a_small_batch_takes_a_part_of_the_learning_rate_and_says_so() -> None:
    adapter = Adapter(resnet(), "slr", lr=0.01)
    for count in (4, 64, 72):
        adapter(images(count))
    assert adapter.history.lr == pytest.approx([0.01 * (4 / 64) ** 2.5, 0.01, 0.01])
    assert adapter.notes[-1].startswith("a batch of 4 takes 0.00098 of the learning rate")
    adapter.reset()
    assert not any("learning rate" in note for note in adapter.notes)


def test_every_batch_takes_all_of_it_where_that_is_asked_for_and_with_sgd() -> None:
    for adapter in (Adapter(resnet(), "slr", full_batch=0), Adapter(resnet(), "tent+")):
        adapter(images(2))
        assert adapter.history.lr == [adapter.method.lr]
        assert not any("learning rate" in note for note in adapter.notes)


def test_from_64_images_on_nothing_changes_to_the_last_bit() -> None:
    """And with fewer, something does."""
    for count, equal in ((64, True), (63, False)):
        scaled, whole = (Adapter(resnet(), "slr", **more) for more in ({}, {"full_batch": 0}))
        for adapter in (scaled, whole):
            for seed in range(3):
                adapter(images(count, seed=seed))
        assert same(adapted_state(scaled), adapted_state(whole)) == equal


def test_online_learning_rate_is_constant_unless_the_number_of_steps_is_given() -> None:
    constant, decaying = (
        Adapter(resnet(), "slr", setting="paper", full_batch=0, steps=steps) for steps in (None, 3)
    )
    decaying.fit(BATCHES, 1)  # whose steps are not online calls
    decaying._engine.history = type(decaying.history)()
    for x in BATCHES[:3]:
        constant(x)
        decaying(x)
    constant(BATCHES[3])
    with pytest.warns(AcclimateWarning, match="the 3 calls that steps= announced"):
        decaying(BATCHES[3])
    assert constant.history.lr == [6e-4] * 4
    assert decaying.history.lr == pytest.approx([6e-4, 6e-4 * 0.75, 6e-4 * 0.25, 0], abs=1e-12)
    assert constant.history.epoch == [0] * 4


# An objective from outside --------------------------------------------------------------------------


def test_an_objective_from_outside_sees_logits_and_positions() -> None:
    truth = torch.randint(CLASSES, (40,), generator=torch.Generator().manual_seed(0))
    seen: list[int] = []

    def oracle(logits: Tensor, index: Tensor | None) -> Tensor:
        assert index is not None
        seen.extend(index.tolist())
        return nn.functional.cross_entropy(logits, truth[index])

    adapter = Adapter(resnet(), "hlr", objective=oracle, lr=0.05)
    history = adapter.fit(images(40), 10, batch_size=20)
    assert sorted(seen[:40]) == list(range(40))
    assert history.loss[-1] < history.loss[0]
    assert history.class_entropy[-1] > 0


# Any network ----------------------------------------------------------------------------------------


class Wrapped(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.net = resnet()
        self.form = form

    def forward(self, x: Tensor) -> object:
        logits = self.net(x)
        if self.form == "object":
            return type("Output", (), {"logits": logits})()
        return {"dict": {"logits": logits, "loss": None}, "tuple": (logits, x)}[self.form]


@pytest.mark.parametrize("form", ["object", "dict", "tuple"])
def test_logits_are_found_in_what_networks_return(form: str) -> None:
    assert torch.equal(Adapter(Wrapped(form), "slr")(BATCHES[0]), Adapter(resnet(), "slr")(BATCHES[0]))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "convnext_atto"])
def test_transformers_and_convnexts_adapt_their_layer_norms(name: str) -> None:
    timm = import_timm()
    torch.manual_seed(0)
    options = {"img_size": 32} if "vit" in name else {}
    model = timm.create_model(name, num_classes=6, **options)
    kinds = {n: type(m).__name__ for n, m in model.named_modules()}
    adapter = Adapter(model, "slr", lr=0.01, full_batch=0)
    assert {kinds[n.removeprefix("model.").rpartition(".")[0]] for n in adapter.adapting} <= {
        "LayerNorm",
        "LayerNorm2d",
    }
    before = adapted_state(adapter)
    adapter(images(1, size=32))  # layer norms need no batch
    adapter(images(4, size=32))
    assert all(not torch.equal(before[n], value) for n, value in adapted_state(adapter).items())
    assert adapter.export().state_dict().keys() == model.state_dict().keys()


def test_a_network_without_norms_adapts_through_inserted_affines() -> None:
    torch.manual_seed(0)
    alex = import_torchvision().models.alexnet(num_classes=6)
    adapter = Adapter(alex, "slr", lr=0.01, full_batch=0, fast=False)
    x = images(4, size=64)
    before = adapter(x)
    assert torch.equal(before, alex.eval()(x))
    adapter(x)
    assert not torch.equal(adapter.predict(x), before)
    assert all(".acclimate_affine." in name for name in adapter.adapting)


def test_float64_networks_adapt_in_float64() -> None:
    adapter = Adapter(resnet().double(), "slr+it", normalize=NORMALIZE)
    assert adapter(BATCHES[0]).dtype == torch.float64
    assert adapter.class_distribution is not None
    assert adapter.class_distribution.dtype == torch.float64


def test_autocast_around_the_call_is_respected() -> None:
    adapter, plain = Adapter(resnet(), "slr"), Adapter(resnet(), "slr")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = adapter(BATCHES[0])
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), plain(BATCHES[0]), rtol=0.1, atol=0.1)
    assert all(p.dtype == torch.float32 for p in adapter._engine.prepared.parameters.values())


# Errors ---------------------------------------------------------------------------------------------

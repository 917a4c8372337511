"""The loop over epochs: order, interruption, callbacks, and SHOT's labels between epochs."""

from __future__ import annotations

import math
import signal
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import acclimate
from acclimate import Adapter
from acclimate.errors import InputError, ModelError, OptionError
from acclimate.interrupts import uninterrupted
from acclimate.models.vision import import_torchvision
from networks import BATCHES, CLASSES, adapted_state, images, resnet, same


def test_fit_shuffles_sorted_data_and_results_come_back_in_order() -> None:
    data = torch.cat([images(30, seed=0), images(30, seed=1) * 0.1])  # two kinds of images, sorted
    adapter = Adapter(resnet(), "bn", statistics="batch")
    by_loader = adapter.predict(DataLoader(TensorDataset(data, torch.zeros(60)), 20))
    by_tensor = adapter.predict(data, batch_size=20)
    assert torch.equal(by_loader, by_tensor)
    rows = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:20]
    assert torch.equal(by_tensor[rows], adapter.predict(data[rows]))
    assert not torch.equal(by_tensor[:20], adapter.predict(data[:20]))


def test_fit_is_the_same_for_the_same_seed_whatever_holds_the_images() -> None:
    data = images(40)
    sources = [
        data,
        TensorDataset(data),
        DataLoader(TensorDataset(data), 8),
        [(part, None) for part in data.split(8)],
    ]
    histories = [Adapter(resnet(), "slr", seed=7).fit(source, 2, batch_size=8).loss for source in sources]
    assert all(h == histories[0] for h in histories)
    assert Adapter(resnet(), "slr", seed=8).fit(data, 2, batch_size=8).loss != histories[0]


def test_history_and_callbacks() -> None:
    steps, epochs = [], []
    adapter = Adapter(resnet(), "slr")
    history = adapter.fit(
        images(40),
        3,
        batch_size=16,
        on_step=lambda a: steps.append(a.step),
        on_epoch=lambda a: epochs.append(a.step),
    )
    assert steps == [1, 2, 3, 4, 5, 6]
    assert epochs == [2, 4, 6]
    assert history.epoch == [1, 1, 2, 2, 3, 3]
    assert all(1 / CLASSES <= c <= 1 for c in history.confidence)
    assert all(0 <= e <= math.log(CLASSES) + 1e-6 for e in history.class_entropy)


@pytest.mark.parametrize(("statistics", "passes"), [("batch", 1), ("blend", 1), ("running", 3)])
def test_bn_goes_through_the_images_as_often_as_it_changes_something(statistics: str, passes: int) -> None:
    data, epochs = images(40), []
    once, often = (Adapter(resnet(), "bn", statistics=statistics) for _ in range(2))
    once.fit(data, 1, batch_size=8)
    history = often.fit(data, 3, batch_size=8, on_epoch=lambda a: epochs.append(a.step))
    assert history.epoch == [epoch for epoch in range(1, passes + 1) for _ in range(5)]
    assert epochs == ([5, 5, 5] if passes == 1 else [5, 10, 15])
    assert same(once.export().state_dict(), often.export().state_dict()) == (passes == 1)
    assert torch.equal(once.predict(data), often.predict(data)) == (passes == 1)
    assert len(often.fit(data, 1, batch_size=8).loss) == 5 * (passes + 1)  # another call, another pass


def test_bn_that_was_interrupted_goes_on_in_its_pass_and_is_complete_after_it(tmp_path: Path) -> None:
    data, whole, broken = images(40), Adapter(resnet(), "bn"), Adapter(resnet(), "bn")
    whole.fit(data, 3, batch_size=8)

    def stop(adapter: Adapter) -> None:
        if adapter.step == 3:
            adapter.save(tmp_path / "part")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken.fit(data, 3, batch_size=8, on_step=stop)
    resumed = Adapter.load(tmp_path / "part", resnet())
    assert len(resumed.fit(data, 3, batch_size=8).loss) == 5
    assert same(whole.export().state_dict(), resumed.export().state_dict())


def test_the_progress_bar_shows_loss_confidence_and_classes(capsys: pytest.CaptureFixture[str]) -> None:
    Adapter(resnet(), "slr").fit(images(20), 1, batch_size=10, progress=True)
    Adapter(resnet(), "source").fit(images(20), 1, batch_size=10, progress=True)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert all(word in " ".join(shown.split()) for word in ("loss", "confidence", "classes"))


def test_a_fit_that_was_interrupted_goes_on_with_the_same_call() -> None:
    data, whole = images(40), Adapter(resnet(), "slr")
    expected = whole.fit(data, 3, batch_size=8)
    broken = Adapter(resnet(), "slr")

    def stop(adapter: Adapter) -> None:
        if adapter.step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken.fit(data, 3, batch_size=8, on_step=stop)
    for other in ({"epochs": 4}, {"data": images(39)}, {"shuffle": False}):
        with pytest.raises(OptionError, match=r"3 epochs of 5 batches stands at epoch 2, batch 2.*reset\(\)"):
            broken.fit(**{"data": data, "epochs": 3, "batch_size": 8, **other})  # type: ignore[arg-type]
    assert broken.fit(data, 3, batch_size=8) == expected
    assert same(adapted_state(whole), adapted_state(broken))


@pytest.mark.parametrize("method", ["slr", "slr+shot"])
@pytest.mark.parametrize("call", [1, 3, 6, 9])
@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_an_interruption_within_a_step_leaves_no_trace(method: str, call: int, statistics: str) -> None:
    data = images(40)
    options = {"statistics": statistics}
    whole, broken = (Adapter(resnet(), method, **options) for _ in range(2))  # type: ignore[arg-type]
    expected = whole.fit(data, 3, batch_size=8)
    calls = 0

    def interrupt(_: nn.Module, __: object) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt

    handle = broken._engine.network.model.linear.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        broken.fit(data, 3, batch_size=8)
    handle.remove()
    assert broken.fit(data, 3, batch_size=8) == expected
    assert same(adapted_state(whole), adapted_state(broken))
    assert torch.equal(whole.class_distribution, broken.class_distribution)  # type: ignore[arg-type]
    assert same(whole.export().state_dict(), broken.export().state_dict())


def test_ctrl_c_waits_for_the_end_of_a_step() -> None:
    adapter = Adapter(resnet(), "slr")
    strikes = 0

    def strike(_: nn.Module, __: object) -> None:
        nonlocal strikes
        strikes += 1
        if strikes == 2:
            signal.raise_signal(signal.SIGINT)

    adapter._engine.network.model.linear.register_forward_pre_hook(strike)
    with pytest.raises(KeyboardInterrupt):
        adapter.fit(images(40), 3, batch_size=8)
    assert adapter.step == 2
    assert adapter._fit is not None
    assert adapter._fit.batch == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_does_not_wait() -> None:
    done = []

    def strike_twice() -> None:
        with uninterrupted():
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)
                done.append(True)

    with pytest.raises(KeyboardInterrupt):
        strike_twice()
    assert done == [True]


def test_steps_are_made_in_other_threads_too() -> None:
    adapter = Adapter(resnet(), "slr")
    thread = threading.Thread(target=adapter.fit, args=(images(40), 1))
    thread.start()
    thread.join()
    assert adapter.step == 1


def test_a_fit_that_failed_before_its_first_step_does_not_stand_in_the_way() -> None:
    adapter, fresh = (Adapter(resnet(), "slr", statistics="batch") for _ in range(2))
    with pytest.raises(InputError, match="batch of one"):
        adapter.fit(images(8), batch_size=1)
    assert adapter.fit(images(8), 2, batch_size=4) == fresh.fit(images(8), 2, batch_size=4)


def test_a_second_fit_starts_anew_and_forgets_the_labels_of_the_first() -> None:
    adapter = Adapter(resnet(), "slr+shot")
    adapter.fit(images(20), 2, batch_size=5)
    seen = []
    adapter.fit(images(40), 2, batch_size=10, on_step=lambda a: seen.append(a._engine.objective.labels))
    assert seen[0] is None
    assert seen[-1].shape == (40,)


def test_the_cosine_ends_where_it_should_for_iterables_with_a_short_last_batch() -> None:
    class Loader:
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(images(22).split(5))

        def __len__(self) -> int:
            return 5

    lr = Adapter(resnet(), "slr", setting="paper", full_batch=0).fit(Loader(), 2).lr
    assert len(lr) == 8
    assert lr[4:] == pytest.approx([3e-4 * (1 + math.cos(math.pi * i / 8)) for i in range(4, 8)])


def test_data_that_run_dry_are_an_error() -> None:
    class Once:
        def __init__(self) -> None:
            self.parts = [BATCHES[0], BATCHES[1]]

        def __iter__(self):  # type: ignore[no-untyped-def]
            while self.parts:
                yield self.parts.pop()

        def __len__(self) -> int:
            return 2

    with pytest.raises(InputError, match="no batch when they were gone through again"):
        Adapter(resnet(), "slr").fit(Once(), 2)


def test_callbacks_are_called_where_nothing_adapts() -> None:
    epochs = []
    Adapter(resnet(), "source").fit(images(20), 3, on_epoch=epochs.append)
    assert len(epochs) == 3


def test_adapt_is_fit_and_predict() -> None:
    data = images(40)
    result = acclimate.adapt(resnet(), data, "hlr", epochs=2, batch_size=8, seed=3)
    adapter = Adapter(resnet(), "hlr", seed=3)
    assert result.history == adapter.fit(data, 2, batch_size=8)
    assert torch.equal(result.logits, adapter.predict(data, batch_size=8))
    assert torch.equal(result.predictions, result.logits.argmax(1))
    assert repr(result.adapter) == "Adapter(SmallResNet, method='hlr', step=10, 31 tensors adapt)"


# SHOT -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["shot", "hlr+shot", "slr+shot"])
def test_centroid_labels_start_with_the_second_epoch(method: str) -> None:
    data = images(40)
    plain = {"shot": "tent+"}.get(method, method.removesuffix("+shot"))
    labels, losses = [], Adapter(resnet(), plain).fit(data, 3, batch_size=8).loss
    adapter = Adapter(resnet(), method)
    history = adapter.fit(data, 3, batch_size=8, on_step=lambda a: labels.append(a._engine.objective.labels))
    assert labels[4] is None
    assert labels[5].shape == (40,)
    assert history.loss[:5] == losses[:5]
    assert history.loss[5] > losses[5]
    assert labels[5] is labels[9]
    assert labels[10] is not labels[9]


def test_the_label_loss_has_its_weight_once() -> None:
    data = images(16)
    base, shot = Adapter(resnet(), "tent+", lr=0.0), Adapter(resnet(), "shot", lr=0.0)
    without = base.fit(data, 2, batch_size=16, shuffle=False).loss[1]
    with_labels = shot.fit(data, 2, batch_size=16, shuffle=False).loss[1]
    logits, labels = shot.predict(data), shot._engine.objective.labels  # type: ignore[union-attr]
    expected = 0.3 * nn.functional.cross_entropy(logits, labels)
    assert with_labels - without == pytest.approx(expected.item(), abs=1e-5)


def test_features_are_the_classifiers_input() -> None:
    model = resnet()
    seen: list[Tensor] = []
    adapter = Adapter(model, "source", fast=False)
    adapter.predict(BATCHES[1])
    with adapter._engine.network.features() as features:
        adapter.predict(BATCHES[0])
    model.linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(BATCHES[0])
    assert torch.equal(features[0], seen[0])
    named = Adapter(model, "shot", features="layer3.0.conv2")
    named.fit(images(20), 2, batch_size=10)
    with pytest.raises(OptionError, match="unknown classifier layer 'liner': did you mean 'linear'"):
        Adapter(model, "shot", features="liner")


def test_a_convolution_can_be_the_classifier() -> None:
    squeeze = import_torchvision().models.squeezenet1_1(num_classes=4)
    adapter = Adapter(squeeze, "slr+shot")
    adapter.fit(images(8, size=64), 2, batch_size=8)
    assert adapter._engine.objective.labels.shape == (8,)  # type: ignore[union-attr]


def test_a_classifier_that_cannot_be_found_must_be_named() -> None:
    body = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    gated = nn.Sequential(body, nn.Linear(5, 6), nn.GLU())  # six outputs that become three logits
    with pytest.raises(ModelError, match=r"with 3 outputs.*name it by features="):
        Adapter(gated, "shot", freeze="none").fit(images(8), 2)

    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = resnet()
            self.other = nn.Linear(3, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.net(x)
            return logits

    with pytest.raises(ModelError, match="not called once for every image"):
        Adapter(Unused(), "shot").fit(images(8), 2)
    Adapter(Unused(), "shot", features="net.linear").fit(images(8), 2)


def test_centroid_labels_need_the_whole_set_and_an_index() -> None:
    with pytest.raises(OptionError, match="online call"):
        Adapter(resnet(), "shot")(BATCHES[0])

    class Loader:
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(BATCHES)

        def __len__(self) -> int:
            return len(BATCHES)

    with pytest.raises(InputError, match="which image is which"):
        Adapter(resnet(), "shot").fit(Loader(), 2)
    assert len(Adapter(resnet(), "slr").fit(Loader(), 2).loss) == 8

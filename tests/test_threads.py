"""Several threads and processes: what each adapter does is what it does alone, bit for bit."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

from acclimate import Adapter
from acclimate.batches import Batches
from networks import adapted_state, images, resnet, same

T = TypeVar("T")
PIXELS = {"normalize": ([0.5] * 3, [0.25] * 3)}


@pytest.fixture(autouse=True)
def in_turns() -> Iterator[None]:
    """Threads take turns a thousand times more often than usual, so that what can go wrong does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def side_by_side(*works: Callable[[], T]) -> list[T]:
    """What some functions give, each in a thread of its own, all begun at once."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(number: int) -> None:
        start.wait()
        try:
            results[number] = works[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(works))]


def adapting(model: nn.Module, seed: int, steps: int = 3, **options: Any) -> Callable[[], dict[str, Tensor]]:
    """Make an adapter and adapt it online; then all that changed, and all that it said."""

    def work() -> dict[str, Tensor]:
        adapter = Adapter(model, seed=seed, **options)
        said = {f"logits {n}": adapter(images(seed=10 * seed + n)) for n in range(steps)}
        return {**adapted_state(adapter), **said}

    return work


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"memory": "low"},
        {"statistics": "blend", "memory": "low"},
        {"fast": False},
        {"method": "slr+it", **PIXELS},
    ],
    ids=str,
)
def test_adapters_of_one_network_side_by_side(options: dict[str, Any]) -> None:
    model = resnet()
    works = [adapting(model, seed, **options) for seed in range(3)]
    alone = [work() for work in works]
    for _ in range(2):
        for one, other in zip(side_by_side(*works), alone, strict=True):
            assert same(one, other)


def test_the_first_weights_of_an_input_transformation_are_those_of_its_seed() -> None:
    model = resnet()

    def first(seed: int) -> dict[str, Tensor]:
        return adapted_state(Adapter(model, "slr+it", seed=seed, **PIXELS))

    alone = [first(seed) for seed in range(4)]
    for _ in range(10):
        made = side_by_side(*[lambda seed=seed: first(seed) for seed in range(4)])
        assert all(same(one, other) for one, other in zip(made, alone, strict=True))


def test_samplers_draw_by_their_own_seed() -> None:
    data = TensorDataset(images(40))
    loaders = [
        DataLoader(data, 8, sampler=WeightedRandomSampler([1.0] * 40, 20)),
        DataLoader(data, 8, sampler=RandomSampler(data, num_samples=30)),
    ]

    def drawn(loader: Any, seed: int) -> list[list[int]]:
        batches = Batches(loader).epoch(seed)
        return [batch.index.tolist() for batch in batches if batch.index is not None]

    pairs = [(loader, seed) for loader in loaders for seed in range(2)]
    alone = [drawn(*pair) for pair in pairs]
    for _ in range(10):
        assert side_by_side(*[lambda pair=pair: drawn(*pair) for pair in pairs]) == alone


def test_random_numbers_of_other_threads_are_left_alone() -> None:
    adapter = Adapter(resnet())
    adapter(images())  # the first batch of a shape may be rehearsed
    torch.manual_seed(7)
    expected = torch.rand(20_000)
    torch.manual_seed(7)
    done = threading.Event()

    def adapt() -> None:
        for seed in range(6):
            adapter(images(seed=seed))
        done.set()

    def draw() -> list[Tensor]:
        numbers = [torch.rand(1) for _ in range(20)]
        while not done.is_set() and len(numbers) < len(expected):
            numbers.append(torch.rand(1))
        return numbers

    found = torch.cat(side_by_side(adapt, draw)[1])  # type: ignore[arg-type]
    assert torch.equal(found, expected[: len(found)])


def test_a_second_pass_that_draws_nothing_does_not_touch_the_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapter = Adapter(resnet(), memory="low")
    adapter(images())
    assert "stages are computed a second time" in str(adapter.notes)
    monkeypatch.setattr(torch.random, "fork_rng", None)
    monkeypatch.setattr(torch, "set_rng_state", None)
    adapter(images(seed=1))
    assert adapter.step == 2


def serial(parts: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """What an adapter says of batches one after the other, and what becomes of it."""
    adapter = Adapter(resnet())
    return [adapter(part) for part in parts], adapted_state(adapter)


def test_one_adapter_in_two_threads_is_that_of_one_order() -> None:
    one, two = images(seed=1), images(seed=2)
    (first, second), forwards = serial([one, two])
    (later, sooner), backwards = serial([two, one])
    orders = [([first, second], forwards), ([sooner, later], backwards)]
    for _ in range(8):
        adapter = Adapter(resnet())
        said = side_by_side(lambda: adapter(one), lambda: adapter(two))  # noqa: B023 - called within the loop
        now = adapted_state(adapter)
        assert any(same(now, end) and all(map(torch.equal, said, expected)) for expected, end in orders), (
            "neither the one order nor the other"
        )
        assert adapter.step == len(adapter.history.loss) == 2


def test_one_adapter_in_many_threads_loses_no_step() -> None:
    adapter = Adapter(resnet())
    batch = images()
    before = adapter.predict(batch)

    def calls() -> None:
        for _ in range(4):
            adapter(batch)

    side_by_side(calls, calls, calls, lambda: adapter.predict(batch))
    assert adapter.step == len(adapter.history.loss) == 12
    one = Adapter(resnet())
    for _ in range(12):
        one(batch)
    assert same(adapted_state(adapter), adapted_state(one)), "batches are alike, and so are all orders"
    adapter.reset()
    assert torch.equal(adapter.predict(batch), before)


def test_whoever_predicts_while_another_fits_sees_the_network_before_or_after() -> None:
    data, batch = images(48), images(seed=5)
    adapter = Adapter(resnet())
    before = adapter.predict(batch)
    _, seen = side_by_side(
        lambda: adapter.fit(data, 1, batch_size=12, progress=False), lambda: adapter.predict(batch)
    )
    assert any(torch.equal(seen, known) for known in (before, adapter.predict(batch)))


def test_an_interrupt_does_not_reach_an_adapter_in_a_thread() -> None:
    alone = adapting(resnet(), 0)()
    begun = threading.Event()
    results: list[dict[str, Tensor]] = []

    def work() -> None:
        begun.set()
        results.append(adapting(resnet(), 0)())

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # Python gives it to the main thread, wherever it came from
    thread.join()
    assert same(results[0], alone)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_workers_of_a_loader_around_an_adapter(how: str) -> None:
    data = TensorDataset(images(48))
    fitted = []
    for workers in ({}, {"num_workers": 2 if how == "fork" else 1, "multiprocessing_context": how}):
        adapter = Adapter(resnet())
        adapter(images())  # it has threads by now, which a fork does not take along
        adapter.fit(DataLoader(data, 12, **workers), 2, progress=False)  # type: ignore[arg-type]
        fitted.append(adapted_state(adapter))
    assert same(*fitted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_adapter_in_a_forked_child_with_one_thread() -> None:
    adapter = Adapter(resnet())
    adapter(images())
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            torch.set_num_threads(1)  # threads do not survive a fork, and torch would wait for them for ever
            adapter(images(seed=1))
        finally:
            os._exit(adapter.step)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert adapter.step == 1, "the parent's is another one"

"""Whatever holds images becomes batches with an index, in the order of a seed, none lost."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from acclimate.batches import Batches, in_order
from acclimate.errors import InputError, OptionError
from acclimate.images import checked_images, images_of
from networks import images

X = torch.arange(22.0).view(22, 1, 1, 1).expand(22, 3, 4, 4)  # image i is filled with i
LABELS = torch.zeros(22)


class Squares(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 22

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"pixel_values": X[i], "labels": LABELS[i]}


SOURCES = {
    "tensor": lambda: Batches(X, 5),
    "data set": lambda: Batches(Squares(), 5),
    "loader": lambda: Batches(DataLoader(TensorDataset(X, LABELS), 5)),
    "shuffling loader": lambda: Batches(
        DataLoader(TensorDataset(X, LABELS), 5, shuffle=True, drop_last=True)
    ),
    "loader of dicts with workers": lambda: Batches(DataLoader(Squares(), 5, num_workers=2)),
    "list": lambda: Batches([(part, 0) for part in X.split(5)]),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_image_comes_once_with_its_index_in_the_order_of_the_seed(source: str) -> None:
    batches = SOURCES[source]()
    first, again, other = (list(batches.epoch(seed)) for seed in (1, 1, 2))
    assert [len(b.images) for b in first] == [5, 5, 5, 7]
    assert len(batches) == 4
    for batch in first:
        assert batch.index is not None
        assert torch.equal(batch.images[:, 0, 0, 0], batch.index.float())
    order = torch.cat([b.index for b in first])  # type: ignore[misc]
    assert sorted(order.tolist()) == list(range(22))
    assert all(torch.equal(a.images, b.images) for a, b in zip(first, again, strict=True))
    assert not torch.equal(order, torch.cat([b.index for b in other]))  # type: ignore[misc]
    rest = list(batches.epoch(1, start=2))
    assert all(torch.equal(a.images, b.images) for a, b in zip(first[2:], rest, strict=True))


@pytest.mark.parametrize("source", SOURCES)
def test_results_come_back_in_the_users_order(source: str) -> None:
    batches = SOURCES[source]()
    parts = [(b.images[:, 0, 0, 0], b.index) for b in batches.epoch(3)]
    assert in_order(parts, batches.order).tolist() == list(range(22))


def test_without_shuffling_batches_are_the_users() -> None:
    ragged = [X[:4], X[4:12], X[12:18], X[18:]]
    found = [b.index.tolist() for b in Batches(ragged, shuffle=False).epoch(0)]  # type: ignore[union-attr]
    assert found == [list(range(4)), list(range(4, 12)), list(range(12, 22))]
    plain = Batches(X, 5, shuffle=False)
    assert torch.cat([b.images for b in plain.epoch(0)]).equal(X)


def through(batches: Batches, seed: int = 0) -> list[int]:
    """What `predict` does: which image every row of the result belongs to."""
    parts = [(b.images[:, 0, 0, 0], b.index) for b in batches.epoch(seed)]
    return [int(i) for i in in_order(parts, batches.order)]


def loader(**options: object) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(X), **options)  # type: ignore[arg-type]


def test_a_sampler_with_an_order_decides_the_order_of_results() -> None:
    assert through(Batches(loader(batch_size=2, sampler=[8, 3, 5, 1, 9]))) == [8, 3, 5, 1, 9]


def test_a_random_sampler_gives_results_in_the_order_of_the_data_set() -> None:
    state, orders = torch.get_rng_state(), []
    for _ in range(2):
        batches = Batches(loader(batch_size=2, sampler=SubsetRandomSampler([8, 3, 5, 1, 9])))
        assert through(batches) == [1, 3, 5, 8, 9]
        orders.append([b.index.tolist() for b in batches.epoch(0)])  # type: ignore[union-attr]
    assert orders[0] == orders[1]
    assert [len(rows) for rows in orders[0]] == [2, 3]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_sampler_with_replacement_keeps_its_number_of_samples() -> None:
    sampler = RandomSampler(TensorDataset(X), replacement=True, num_samples=10)
    batches = Batches(loader(batch_size=5, sampler=sampler))
    assert len(batches) == 2
    assert through(batches) == sorted(through(batches))
    assert len(through(batches)) == 10


def test_batches_that_the_user_composes_are_taken_as_they_are_but_for_a_short_last_one() -> None:
    batches = Batches(loader(batch_sampler=[[0, 1], [5, 6, 7], [9]]))
    assert [b.index.tolist() for b in batches.epoch(0)] == [[0, 1], [5, 6, 7, 9]]  # type: ignore[union-attr]
    assert through(batches) == [0, 1, 5, 6, 7, 9]
    random = Batches(loader(batch_sampler=BatchSampler(RandomSampler(range(22)), 5, drop_last=False)))
    plans = [[b.index.tolist() for b in random.epoch(seed)] for seed in (1, 1, 2)]  # type: ignore[union-attr]
    assert plans[0] == plans[1] != plans[2]
    assert through(random) == list(range(22))
    some = Batches(loader(batch_sampler=BatchSampler(RandomSampler(range(22), num_samples=10), 5, False)))
    assert through(some, seed=3) == sorted(through(some, seed=3))


def test_a_loader_that_changes_what_it_gives_is_left_to_do_so() -> None:
    class Halving(DataLoader[tuple[Tensor, ...]]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            return (x / 2 for (x,) in super().__iter__())

    batches = Batches(Halving(TensorDataset(X), 5))
    assert batches.order is None
    assert torch.cat([b.images for b in batches.epoch(0)]).equal(X / 2)


def test_a_data_set_needs_no_more_than_a_length_and_items() -> None:
    class Duck:
        def __len__(self) -> int:
            return 22

        def __getitem__(self, i: int) -> Tensor:
            return X[i]

    assert through(Batches(Duck(), 5)) == list(range(22))


class Stream(IterableDataset[Tensor]):
    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(X)

    def __len__(self) -> int:
        return 22


class Endless(IterableDataset[Tensor]):
    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(X)


class Sized:
    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter([(part, "label") for part in X.split(5)])

    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize("data", [Sized(), DataLoader(Stream(), 5)], ids=["iterable", "stream"])
def test_other_iterables_keep_their_order_and_have_no_index(data: object) -> None:
    batches = Batches(data)
    found = list(batches.epoch(0))
    assert [len(b.images) for b in found] == [5, 5, 5, 7]
    assert batches.order is None
    assert all(b.index is None for b in found)
    assert in_order([(b.images, b.index) for b in found], None).equal(X)
    assert [len(b.images) for b in batches.epoch(0, start=3)] == [7]


def test_one_batch_only_is_not_merged_with_anything() -> None:
    assert [len(b.images) for b in Batches(X[:3], 5).epoch(0)] == [3]


@pytest.mark.parametrize(
    "part",
    [
        X,
        (X, LABELS),
        [X, LABELS],
        {"image": X, "label": LABELS},
        {"pixel_values": X, "labels": LABELS},
    ],
)
def test_images_are_found_and_the_rest_ignored(part: object) -> None:
    assert images_of(part) is X


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"label": LABELS}, r"one of the keys .*got \['label'\]"),
        ("image.png", "got str"),
        ((), "got tuple: give the images alone"),
        (X.numpy(), r"torch\.from_numpy"),
        (torch.zeros(3), r"\(3,\): labels.*TensorDataset"),
    ],
)
def test_batches_without_images_are_refused(part: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        images_of(part)


def test_data_that_cannot_be_iterated_again_are_refused() -> None:
    with pytest.raises(
        InputError, match="this generator has not: give a list of its batches, or adapt online"
    ):
        Batches(part for part in X.split(5))
    with pytest.raises(InputError, match="only once: give the loader itself"):
        Batches(iter(loader(batch_size=5)))
    with pytest.raises(InputError, match="a length, which this DataLoader has not"):
        Batches(DataLoader(Endless(), 5))
    with pytest.raises(InputError, match="one size"):
        Batches([X, torch.rand(2, 3, 8, 8)])
    with pytest.raises(InputError, match="got int"):
        Batches(3)
    with pytest.raises(InputError, match="no images"):
        Batches([])
    with pytest.raises(InputError, match="no images"):
        Batches(X[:0])
    with pytest.raises(InputError, match=r"torch\.stack"):
        Batches([X[0], X[1]])
    with pytest.raises(OptionError, match="batch_size"):
        Batches(X, 0)


def test_checked_images() -> None:
    cpu = torch.device("cpu")
    assert checked_images(images().double(), cpu, torch.float32, single=None).dtype == torch.float32
    with pytest.raises(InputError, match=r"got torch\.uint8: bytes become pixels"):
        checked_images(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), cpu, torch.float32, single=None)
    with pytest.raises(InputError, match=r"got ndarray: torch\.from_numpy"):
        checked_images(images().numpy(), cpu, torch.float32, single=None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"got the shape \(0, 3, 4, 4\)"):
        checked_images(torch.zeros(0, 3, 4, 4), cpu, torch.float32, single=None)
    with pytest.raises(InputError, match="no batch statistics: give more"):
        checked_images(images(1), cpu, torch.float32, single=lambda: "give more")
    assert checked_images(images(1), cpu, torch.float32).shape == (1, 3, 16, 16)
    assert checked_images(images(2) * 3e38, cpu, torch.float32).isfinite().all()  # only their sum is not
    bad = images(4)
    bad[1, 0, 0, 0], bad[3, 2, 1, 1] = torch.nan, torch.inf
    with pytest.raises(InputError, match=r"positions \[1, 3\] of the batch"):
        checked_images(bad, cpu, torch.float32)
    with pytest.raises(InputError, match=r"positions \[8, 6\] of the data"):
        checked_images(bad, cpu, torch.float32, index=torch.tensor([9, 8, 7, 6]))


class Rows(Dataset[Tensor]):
    """Gives whole batches, and fails at one image if asked to."""

    def __init__(self, images: Tensor, bad: int = -1) -> None:
        self.images, self.bad = images, bad
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, position: int) -> Tensor:
        raise AssertionError("one by one")

    def batch(self, positions: list[int]) -> Tensor:
        self.threads.add(threading.current_thread().name)
        if self.bad in positions:
            raise InputError("a bad image")
        return self.images[positions]


def test_a_data_set_that_gives_whole_batches_is_read_ahead() -> None:
    images = torch.rand(23, 3, 4, 4)
    data = Rows(images)
    ours, plain = Batches(data, 5), Batches(images, 5)
    for seed in (0, 1):
        for own, other in zip(ours.epoch(seed), plain.epoch(seed), strict=True):
            assert torch.equal(own.images, other.images)
            assert torch.equal(own.index, other.index)  # type: ignore[arg-type]
    assert [len(batch.images) for batch in ours.epoch(0, start=3)] == [8]
    assert all("acclimate-read" in name for name in data.threads)


def test_what_goes_wrong_while_reading_ahead_comes_out_in_its_place() -> None:
    data = Batches(Rows(torch.rand(20, 3, 4, 4), bad=12), 5, shuffle=False)
    epoch = data.epoch(0)
    assert len(next(epoch).images) == len(next(epoch).images) == 5
    with pytest.raises(InputError, match="a bad image"):
        next(epoch)

"""Whatever holds images becomes batches with an index, in the order of a seed, none lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

from acclimate.batches import Batches, checked_images, images_of, in_order
from acclimate.errors import InputError, OptionError
from acclimate.types import Batch
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


def test_a_users_own_sampler_decides_which_images_and_in_what_order_results_come() -> None:
    sampler = SubsetRandomSampler([8, 3, 5, 1, 9])
    batches = Batches(DataLoader(TensorDataset(X), 2, sampler=sampler))
    assert batches.order is not None
    assert sorted(batches.order.tolist()) == [1, 3, 5, 8, 9]
    parts = [(b.images[:, 0, 0, 0], b.index) for b in batches.epoch(0)]
    assert in_order(parts, batches.order).tolist() == batches.order.tolist()


def test_a_users_own_batches_are_taken_as_they_are() -> None:
    batches = Batches(DataLoader(TensorDataset(X), batch_sampler=[[0, 1], [5, 6, 7], [9]]))
    assert [b.index.tolist() for b in batches.epoch(0)] == [[0, 1], [5, 6, 7], [9]]  # type: ignore[union-attr]


class Stream(IterableDataset[Tensor]):
    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(X)

    def __len__(self) -> int:
        return 22


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
        Batch(X),
    ],
)
def test_images_are_found_and_the_rest_ignored(part: object) -> None:
    assert images_of(part) is X


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"label": LABELS}, r"one of the keys .*got \['label'\]"),
        ("image.png", "got str"),
        ((), "got tuple"),
        (torch.zeros(3), r"got shape \(3,\)"),
    ],
)
def test_batches_without_images_are_refused(part: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        images_of(part)


def test_data_that_cannot_be_iterated_again_are_refused() -> None:
    with pytest.raises(InputError, match=r"got generator: .*list\(\.\.\.\)"):
        Batches(part for part in X.split(5))
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
    assert checked_images(images().double(), cpu, torch.float32, single=True).dtype == torch.float32
    with pytest.raises(InputError, match=r"got torch\.uint8: bytes become pixels"):
        checked_images(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), cpu, torch.float32, single=True)
    with pytest.raises(InputError, match="got ndarray"):
        checked_images(images().numpy(), cpu, torch.float32, single=True)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"got the shape \(0, 3, 4, 4\)"):
        checked_images(torch.zeros(0, 3, 4, 4), cpu, torch.float32, single=True)
    with pytest.raises(InputError, match=r'statistics="running" or statistics="blend"'):
        checked_images(images(1), cpu, torch.float32, single=False)
    bad = images(4)
    bad[1, 0, 0, 0], bad[3, 2, 1, 1] = torch.nan, torch.inf
    with pytest.raises(InputError, match=r"positions \[1, 3\]"):
        checked_images(bad, cpu, torch.float32, single=True)

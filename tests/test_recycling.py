"""Memory from step to step: how pieces lie and how large they are."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.fast import recycling
from acclimate.fast.recycling import begin_step, exactly, keep_memory, room_like
from networks import NORMALIZE, images, resnet

LARGE = (2, 64, 64, 64)  # 2 MiB in float32


@pytest.fixture(autouse=True)
def _no_step_before() -> Iterator[None]:
    recycling._STEP.pieces = 0
    yield
    recycling._STEP.pieces = 0


def room() -> int:
    return room_like(torch.empty(LARGE)).untyped_storage().nbytes()


@pytest.mark.parametrize("shape", [LARGE, (3, 5, 300, 90), (1, 1, 600, 600), (4, 300000, 1, 1), (2, 9, 4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_lie_pixel_by_pixel(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    begin_step()
    made = room_like(torch.empty(shape, dtype=dtype))
    like = torch.empty(shape, dtype=dtype, memory_format=torch.channels_last)
    assert (made.shape, made.stride(), made.dtype) == (like.shape, like.stride(), dtype)
    assert not made._is_view()
    made.fill_(1)
    assert made.sum(dtype=torch.float64) == made.numel()


@pytest.mark.parametrize("shape", [(7,), (4, 6), (2, 3, 5), (2, 3, 4, 5, 6)])
def test_all_else_is_contiguous(shape: tuple[int, ...]) -> None:
    assert room_like(torch.empty(shape)).is_contiguous()


@pytest.mark.skipif(not keep_memory(), reason="malloc takes no such settings here")
def test_pieces_get_smaller_in_the_course_of_a_step() -> None:
    needed = torch.empty(LARGE).untyped_storage().nbytes()
    assert room() == needed  # outside of steps
    for _ in range(2):
        begin_step()
        sizes = [room() for _ in range(recycling._PIECES + 2)]
        assert sizes[0] == needed + (recycling._PIECES - 1) * recycling._LESS
        assert all(a - b == recycling._LESS for a, b in itertools.pairwise(sizes) if a > needed)
        assert sizes[-3:] == [needed] * 3
    begin_step()
    assert room_like(torch.empty(2, 3, 8, 8)).untyped_storage().nbytes() == 2 * 3 * 8 * 8 * 4


def test_who_measures_gets_exact_pieces() -> None:
    needed = torch.empty(LARGE).untyped_storage().nbytes()
    with exactly():
        begin_step()
        assert room() == needed
    begin_step()
    assert (room() > needed) == keep_memory()


def test_pieces_are_where_the_activation_is() -> None:
    begin_step()
    x = torch.empty(LARGE)
    with torch.device("meta"):
        assert room_like(x).device == x.device


def test_threads_have_steps_of_their_own() -> None:
    """One that measures does not keep others from it, nor they it from measuring."""
    needed, found = torch.empty(LARGE).untyped_storage().nbytes(), []

    def other() -> None:
        begin_step()
        found.append(room())

    with exactly():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert room() == needed
    assert (found[0] > needed) == keep_memory()


def dense_block() -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(inplace=True), nn.Conv2d(n, 8, 3, padding=1))
                for n in (8, 16, 24)
            )
            self.first, self.last = nn.Conv2d(3, 8, 3), nn.Linear(32, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for layer in self.layers:
                x = torch.cat([x, layer(x)], 1)
            return self.last(x.mean((2, 3)))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    return Block().eval()


@pytest.mark.parametrize("make", [resnet, dense_block])
@pytest.mark.parametrize("method", ["tent", "slr+it"])
def test_larger_pieces_change_no_bit(
    make: Callable[[], nn.Module], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for pieces in (0, 256):
        monkeypatch.setattr(recycling, "_HOLE", 0)
        monkeypatch.setattr(recycling, "_PIECES", pieces)
        adapter = Adapter(make(), method, normalize=NORMALIZE, memory="low")
        logits = [adapter(images(8, seed)) for seed in range(3)]
        rehearsals = adapter._engine._checkpoints._rehearsals.values()
        sizes = [sorted(rehearsal._sizes.values()) for rehearsal in rehearsals if rehearsal is not None]
        assert (recycling._STEP.pieces < pieces) == (pieces > 0)  # which were used
        found.append((torch.stack(logits), sizes))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] != []

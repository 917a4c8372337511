"""Memory from step to step: how pieces lie and how large they are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from acclimate.fast import recycling
from acclimate.fast.recycling import begin_step, exactly, keep_memory, room_like

LARGE = (2, 64, 64, 64)  # 2 MiB in float32


@pytest.fixture(autouse=True)
def _no_step_before() -> Iterator[None]:
    recycling._Step.pieces = 0
    yield
    recycling._Step.pieces = 0


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
        assert sizes[0] <= needed + 2**20
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

"""Ranks with shares of a batch do what one process does with the whole: to 1e-9 in double precision."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ranks_job
from acclimate import Adapter
from acclimate.cli import job
from acclimate.errors import InputError, OptionError, WorkerError
from acclimate.interrupts import ending_at_once
from acclimate.ranks import Ranks
from networks import images, resnet
from ranks_job import CASES, SHARES

JOB = Path(ranks_job.__file__)
RANKS = int(os.environ.get("ACCLIMATE_TEST_RANKS", "2"))


def run(folder: Path, size: int) -> list[dict[str, Any]]:
    """What each of so many ranks found."""
    processes = [
        subprocess.Popen(
            [sys.executable, JOB, str(rank), str(size), folder], stderr=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(size)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(tmp_path_factory.mktemp("ranks"), RANKS)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_are_one_process(
    name: str, two: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKS_FOLDER", str(tmp_path))
    expected = CASES[name]()
    bound = 1e-5 if name.startswith("single") else 1e-9
    for rank in two:
        found = rank["cases"][name]
        assert found.keys() == expected.keys()
        for part, value in expected.items():
            # 64-bit parts of a step in single precision are no better than it
            worst = (found[part].double() - value.double()).abs() / value.double().abs().clamp(min=1)
            assert worst.max() <= bound, (part, worst.max())
    for rank in two[1:]:
        same = (
            torch.equal(value, rank["cases"][name][part]) for part, value in two[0]["cases"][name].items()
        )
        assert all(same), "ranks are equal to the last bit"


def test_local_statistics(two: list[dict[str, Any]]) -> None:
    """They are those of each rank's images, which is another result, and the same on all ranks."""
    first, second, *_ = (rank["local"] for rank in two)
    together = two[0]["cases"]["online tent"]
    assert all(torch.equal(first[part], second[part]) for part in first)
    assert not torch.allclose(first["logits"], together["logits"], atol=1e-3)
    # a step by hand: each share is normalised by itself, and the gradient is that of all images
    shares = images(16).double().split(SHARES[RANKS])
    model = ranks_job.network(torch.float64)
    bn = Adapter(model, "bn", normalize=ranks_job.NORMALIZE, statistics="batch")
    logits = torch.cat([bn.predict(part) for part in shares])
    torch.testing.assert_close(first["logits"][:16], logits, rtol=1e-9, atol=1e-9)


def test_refusals_are_everybodys(two: list[dict[str, Any]]) -> None:
    said, by_second, *_ = (rank["refusals"] for rank in two)
    other = "all ranks must be given the same {}, and rank 1 has another one than rank 0"
    assert said["options"].startswith("OptionError: " + other.format("method and options"))
    assert said["weights"].startswith("OptionError: " + other.format("network"))
    assert said["data"].startswith("OptionError: " + other.format("data"))
    assert said["few images"] == f"InputError: a batch of 1 images cannot be shared out among {RANKS} ranks"
    assert "without a DistributedSampler" in said["sampler"]
    assert said["pixels"] == "WorkerError: rank 1 cannot use its images of this batch, and says why"
    assert by_second["pixels"].startswith("InputError: the images at positions [2] of the batch hold NaN")
    assert said["mode"] == "OptionError: unknown ranks 'apart': known are 'alone', 'local', 'together'"
    assert said["no file"] == by_second["no file"] == "DeltaError: there is no file nowhere.safetensors"
    assert said["and goes on"] == by_second["and goes on"] == "torch.Size([4, 5])"
    assert said["alone"] == by_second["alone"] == "torch.Size([4, 5])"
    assert said["file"] == "WorkerError: rank 1 cannot use its images of this batch, and says why"
    assert by_second["file"] == "InputError: it is cut off"
    differing = {"pixels", "file"}
    assert {name for name in said if said[name] != by_second[name]} == differing


def test_one_process_needs_nobody() -> None:
    ranks = Ranks("together")
    assert (ranks.size, ranks.rank, ranks.mode, ranks.writes) == (1, 0, "alone", True)
    assert not ranks.synchronised
    values = torch.rand(7, 3, dtype=torch.float64)
    assert torch.equal(ranks.mean(values), values.mean(0))
    assert ranks.merged({1: "a"}) == {1: "a"}
    assert ranks.least(None) is None
    with pytest.raises(OptionError, match="unknown ranks 'both'"):
        Ranks("both")


def test_a_share_is_never_empty() -> None:
    ranks = Ranks()
    for size in (1, 2, 3, 8):
        ranks.size = size
        for count in range(size, 40):
            parts = []
            for ranks.rank in range(size):
                parts += list(range(count))[ranks.share(count)]
            assert parts == list(range(count))
        with pytest.raises(InputError, match="cannot be shared out"):
            ranks.share(size - 1)


def test_a_lost_rank_is_a_clear_error() -> None:
    ranks = Ranks()
    assert ranks.writes
    ranks.rank = 1
    assert not ranks.writes
    with (
        pytest.raises(WorkerError, match=r"another rank died.*rank 1 of 1 ends \(Connection closed\)"),
        ranks._answering(),
    ):
        raise RuntimeError("[pair.cc:534] Connection closed. Good luck!\nat some line")
    assert ranks.writes, "whoever is left writes"


def test_a_copy_is_of_the_same_job() -> None:
    adapter = Adapter(resnet(), "tent")
    other = copy.deepcopy(adapter)
    assert other._engine.ranks is adapter._engine.ranks


ENDS = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from acclimate.ranks import Ranks
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[1]), world_size=2)
import torch.distributed.nn.functional  # which torchvision does, by torch._dynamo
ranks, ones = Ranks(), torch.ones(3)
sys.setswitchinterval(100)  # gloo's threads get Python's lock only when it waits, or ends
for _ in range(50):
    ranks.sum(ones)
dist.destroy_process_group()
threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
print(*(name for name in threads if "gloo" in name))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="lists the threads of a process as Linux does")
def test_no_thread_outlives_the_process_group(tmp_path: Path) -> None:
    """One that drops a tensor while Python ends would abort: exit code -6."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ENDS, str(rank), tmp_path / "meet"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    ends = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    assert [(threads.split(), code) for threads, _, code in ends] == [([], 0)] * 2, ends


@pytest.fixture
def alone_in_a_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A job of one rank; afterwards signals do again what they did."""

    def join() -> Any:
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        return store

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(job, "_join", join)
    monkeypatch.setattr(job.messages, "quiet", False)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def fail() -> None:
    """An error, one of whose frames holds the process group, as those of torch's own functions do."""
    group = dist.group.WORLD
    try:
        raise RuntimeError(f"{group} is closed")
    except RuntimeError as error:
        raise WorkerError("another rank died") from error


@pytest.mark.usefixtures("alone_in_a_job")
def test_an_error_lets_go_of_the_process_group() -> None:
    groups = []

    def work() -> None:
        with job.joined():
            groups.append(weakref.ref(dist.group.WORLD))
            fail()

    with pytest.raises(WorkerError) as caught:
        work()
    assert groups[0]() is None, caught.value
    assert not dist.is_initialized()


@pytest.mark.usefixtures("alone_in_a_job")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_job_but_not_its_end(number: signal.Signals) -> None:
    """A launcher sends it to a rank that is ending by itself, which would lose its exit code."""
    with pytest.raises(KeyboardInterrupt), job.joined():
        signal.raise_signal(number)
    signal.raise_signal(number)
    assert signal.getsignal(number) is signal.SIG_IGN


def test_ctrl_c_does_not_wait_for_other_ranks_to_come() -> None:
    with ending_at_once():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

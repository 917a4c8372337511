"""Damaged files of every kind: what is read is right, or refused in one sentence.

Two hundred for each reader here; ten thousand, with bounds of time and memory, in `benchmarks/fuzz.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from file_readers import READERS
from fuzzing import MUTATIONS, Input, fuzzed, judged

INPUTS = 200


@pytest.mark.parametrize("reader", READERS)
def test_valid_files_are_read(reader: str, tmp_path: Path) -> None:
    for content in READERS[reader].make():
        assert judged(reader, Input(content), tmp_path).kind == "accepted"


@pytest.mark.parametrize("reader", READERS)
def test_damaged_files_are_refused_or_harmless(reader: str, tmp_path: Path) -> None:
    found = {number: judged(reader, fuzzed(reader, number), tmp_path) for number in range(INPUTS)}
    bad = {number: how for number, how in found.items() if how.kind not in ("accepted", "refused")}
    assert not bad, "fuzzed(reader, number) gives the file again"


def test_a_number_gives_the_same_file() -> None:
    for reader in ("record", "shard", "checkpoint"):
        assert fuzzed(reader, 17) == fuzzed(reader, 17)
    assert fuzzed("png", 1) != fuzzed("png", 2)


@pytest.mark.parametrize("way", MUTATIONS)
def test_every_bit_of_a_delta_counts(way: str, tmp_path: Path) -> None:
    """It has a checksum: damage anywhere is an error, never a slightly other network."""
    rng, whole = np.random.default_rng(0), READERS["delta"].make()[0]
    for _ in range(20):
        damaged = MUTATIONS[way](whole, rng)
        kind = judged("delta, loaded", Input(damaged), tmp_path).kind
        assert kind == ("accepted" if damaged == whole else "refused")

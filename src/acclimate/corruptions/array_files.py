"""Arrays, `name.npy`: each file is made for all images, in chunks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from acclimate.corruptions import SEVERITIES, corrupt
from acclimate.corruptions.job import Job, Outcome, Progress
from acclimate.corruptions.output import ArrayFile
from acclimate.corruptions.pool import run_all
from acclimate.corruptions.sources import ArraySource, FolderSource, Source
from acclimate.errors import InputError

__all__ = ["Readable", "array_results", "make_arrays", "readable"]

_CHUNK = 64  # images that a worker takes at once

Readable = tuple[list[int], tuple[int, ...], dict[str, str]]
"""Positions of the images that can be read, the one shape that they have, and what is wrong with others."""


def array_results(names: tuple[str, ...], severities: tuple[int, ...]) -> list[str]:
    """As published, a file for all five severities; one for each where fewer are wanted."""
    if severities == SEVERITIES:
        return [f"{name}.npy" for name in names]
    return [f"{name}_{severity}.npy" for name in names for severity in severities]


def readable(source: Source, workers: int) -> Readable:
    """Which images can be read: rows of an array cannot be left out later."""
    if isinstance(source, ArraySource):
        return list(range(len(source))), source.shape, {}
    positions, shapes, failed = [], {}, {}
    for position, shape, failure in run_all(_shape_of, source, range(len(source)), workers):
        if failure is None:
            positions.append(position)
            shapes[shape] = source.names[position]
        else:
            failed[source.names[position]] = failure
    if not positions:
        raise InputError(f"none of {len(source)} images can be read: {next(iter(failed.values()))}")
    if len(shapes) > 1:
        examples = "; ".join(f"{name} {shape}" for shape, name in islice(shapes.items(), 3))
        raise InputError(f"an array needs images of one size, got {examples}: give a size to crop to")
    return sorted(positions), next(iter(shapes)), failed


def _shape_of(source: Source, position: int) -> tuple[int, tuple[int, ...], str | None]:
    try:
        return position, source.read(position).shape, None
    except InputError as error:
        return position, (), str(error)


def make_arrays(job: Job, found: Readable, workers: int, progress: Progress) -> Outcome:
    positions, shape, failed = found
    outcome = Outcome(failed=failed)
    whole = job.severities == SEVERITIES
    rows = [(n, SEVERITIES) for n in job.names] if whole else [(n, (s,)) for n, s in job.variants]
    paths = array_results(job.names, job.severities)
    files = [ArrayFile(p, *row, len(positions), shape) for p, row in zip(paths, rows, strict=True)]
    missing = [file for file in files if not job.output.holds(file.path)]
    outcome.present = sum(file.count for file in files if file not in missing)
    total, left = sum(file.count for file in files), {file.path: file.count for file in missing}
    _write_order(job, positions)
    for file, count in run_all(_corrupt_chunk, job, _chunks(job, missing, positions), workers):
        outcome.made += count
        left[file.path] -= count
        if left[file.path] == 0:
            job.output.finish(file)
        progress(outcome.done, total)
    return outcome


def _chunks(
    job: Job, files: Sequence[ArrayFile], positions: list[int]
) -> Iterator[tuple[ArrayFile, int, int, list[int]]]:
    for file in files:
        job.output.begin(file)
        for number, severity in enumerate(file.severities):
            for start in range(0, len(positions), _CHUNK):
                row = number * len(positions) + start
                yield file, severity, row, positions[start : start + _CHUNK]


def _corrupt_chunk(job: Job, task: tuple[ArrayFile, int, int, list[int]]) -> tuple[ArrayFile, int]:
    file, severity, row, positions = task
    images = np.stack([job.source.read(position) for position in positions])
    indices = [job.source.index(position) for position in positions]
    job.output.put(file, row, corrupt(images, file.name, severity, seed=job.seed, index=indices))
    return file, len(positions)


def _write_order(job: Job, positions: list[int]) -> None:
    """The labels of the arrays' rows, and for a folder which file each image was."""
    if job.source.labels is not None:
        repeats = len(SEVERITIES) if job.severities == SEVERITIES else 1
        with job.output.written("labels.npy") as file:
            np.save(file, np.tile(job.source.labels[positions], repeats))
    if isinstance(job.source, FolderSource):
        with job.output.written("files.txt") as file:
            file.write(b"".join(os.fsencode(job.source.names[p]) + b"\n" for p in positions))

"""Corrupted data sets on disk: a folder or an array in, an ImageNet-C tree or CIFAR-C arrays out.

`DST/name/severity/…/file` holds one image each; `DST/name.npy` all images at the five severities, one
severity after the other. Files appear whole or not at all, and what is there is not made again: the same
call goes on where an earlier one was stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from acclimate.corruptions import CORRUPTIONS, SEVERITIES, corrupt, known
from acclimate.corruptions.arrays import Bytes
from acclimate.corruptions.output import ArrayFile, Output, open_output
from acclimate.corruptions.pool import run_all
from acclimate.corruptions.sources import ArraySource, FolderSource, Source, open_source
from acclimate.errors import InputError, OptionError, unknown

__all__ = ["FORMATS", "Outcome", "corrupt_dataset"]

FORMATS = {"jpeg": (".JPEG", ".jpeg", ".jpg", ".JPG"), "png": (".png", ".PNG"), "npy": (".npy",)}
_CHUNK = 64  # images of an array that a worker takes at once

Progress = Callable[[int, int], None]


@dataclass
class Outcome:
    """What became of the images."""

    made: int = 0
    """Corrupted images written."""
    present: int = 0
    """Corrupted images that were there before."""
    failed: dict[str, str] = field(default_factory=dict)
    """Source images that could not be read, and why."""

    @property
    def done(self) -> int:
        return self.made + self.present


@dataclass(frozen=True)
class Job:
    """What to make, as every worker knows it."""

    source: Source
    output: Output
    names: tuple[str, ...]
    severities: tuple[int, ...]
    format: str
    seed: int
    force: bool

    @property
    def variants(self) -> list[tuple[str, int]]:
        return [(name, severity) for name in self.names for severity in self.severities]


def corrupt_dataset(
    source: str | Path,
    target: str | Path,
    *,
    names: Sequence[str] = tuple(CORRUPTIONS),
    severities: Sequence[int] = SEVERITIES,
    size: int | None = 224,
    format: str | None = None,  # noqa: A002 - the word that users look for
    seed: int = 0,
    workers: int | None = None,
    force: bool = False,
    progress: Progress = lambda done, total: None,
) -> Outcome:
    """Corrupt a folder of images or an array of images, by every name at every severity.

    Args:
        source: a folder of images, or a `.npy` or `.npz` file with images (n, height, width, channels).
        target: a folder for the result.
        names: names of corruptions.
        severities: from 1 to 5.
        size: to which the images of a folder are cropped, as ImageNet's are; None leaves them, and the
            images of an array are never cropped.
        format: "jpeg" or "png" for a tree of images, "npy" for arrays; by default as the source is.
        seed: decides, with each image's path or position, all that is random.
        workers: processes; by default one for each processor.
        force: make again what is there.
        progress: called with the number of corrupted images that are done, and of all.

    Images that cannot be read are left out and named in the outcome.
    """
    source, target = Path(source), Path(target)
    _check(names, severities, size, format, workers)
    opened = open_source(source, size)
    if target.resolve().is_relative_to(source.resolve()):
        raise OptionError(f"{target} lies inside {source}: its images would be corrupted again next time")
    form = format or ("npy" if isinstance(opened, ArraySource) else "jpeg")
    settings = {"seed": seed, "size": size if isinstance(opened, FolderSource) else None, "format": form}
    with open_output(target, settings, "frost" in names, force) as output:
        job = Job(opened, output, tuple(names), tuple(sorted(set(severities))), form, seed, force)
        make = _make_arrays if form == "npy" else _make_tree
        return make(job, workers or _processors(), progress)


def _check(
    names: Sequence[str], severities: Sequence[int], size: int | None, form: str | None, workers: int | None
) -> None:
    for name in names:
        known(name)
    if not names or not severities or not set(severities) <= set(SEVERITIES):
        raise OptionError(f"expected names and severities from 1 to 5, got {names} and {severities}")
    if form is not None and form not in FORMATS:
        raise OptionError(unknown("format", form, FORMATS))
    if size is not None and size < 8:
        raise OptionError(f"size must be at least 8 pixels, got {size}")
    if workers is not None and workers < 1:
        raise OptionError(f"workers must be at least 1, got {workers}")


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# A tree of images: each source image is read once and corrupted in all ways.


def _make_tree(job: Job, workers: int, progress: Progress) -> Outcome:
    _check_collisions(job)
    outcome, each = Outcome(), len(job.variants)
    total, lost = len(job.source) * each, 0
    for made, failure in run_all(_corrupt_image, job, range(len(job.source)), workers):
        outcome.made += made
        if failure is None:
            outcome.present += each - made
        else:
            outcome.failed[failure[0]] = failure[1]
            lost += each - made
        progress(outcome.done + lost, total)
    return outcome


def _corrupt_image(job: Job, position: int) -> tuple[int, tuple[str, str] | None]:
    """How many files were made of an image, and its name and what was wrong if it could not be read."""
    wanted = [
        (name, severity, path)
        for name, severity in job.variants
        if not job.output.holds(path := _path(job, position, name, severity)) or job.force
    ]
    if not wanted:
        return 0, None
    try:
        image = job.source.read(position)
        for name, severity, path in wanted:
            corrupted = corrupt(image, name, severity, seed=job.seed, index=job.source.index(position))
            _save(job, path, corrupted)
    except InputError as error:  # it cannot be read or is too small, before anything was made of it
        return 0, (job.source.names[position], str(error))
    return len(wanted), None


def _path(job: Job, position: int, name: str, severity: int) -> str:
    file = PurePosixPath(job.source.names[position])
    suffixes = FORMATS[job.format]
    if file.suffix not in suffixes:
        file = file.with_name(file.stem + suffixes[0])
    return f"{name}/{severity}/{file}"


def _check_collisions(job: Job) -> None:
    seen: dict[str, str] = {}
    for position, source in enumerate(job.source.names):
        other = seen.setdefault(_path(job, position, "", 0), source)
        if other != source:
            raise InputError(f"{other} and {source} would become one file in {job.format}: rename one")


def _save(job: Job, path: str, image: Bytes) -> None:
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    with job.output.written(path) as file:
        if job.format == "jpeg":
            picture.save(file, "JPEG", quality=85, optimize=True)  # as published
        else:
            picture.save(file, "PNG")


# Arrays: each file is made for all images, in chunks.


def _make_arrays(job: Job, workers: int, progress: Progress) -> Outcome:
    outcome = Outcome()
    positions, shape = _readable(job, workers, outcome)
    files = [_array_file(job, name, severities, len(positions), shape) for name, severities in _files(job)]
    missing = [file for file in files if job.force or not job.output.holds(file.path)]
    outcome.present = sum(file.count for file in files if file not in missing)
    total, left = sum(file.count for file in files), {file.path: file.count for file in missing}
    for file, count in run_all(_corrupt_chunk, job, _chunks(job, missing, positions), workers):
        outcome.made += count
        left[file.path] -= count
        if left[file.path] == 0:
            job.output.finish(file)
        progress(outcome.done, total)
    _write_order(job, positions)
    return outcome


def _files(job: Job) -> list[tuple[str, tuple[int, ...]]]:
    """As published, a file for all five severities; one for each where fewer are wanted."""
    if job.severities == SEVERITIES:
        return [(name, SEVERITIES) for name in job.names]
    return [(name, (severity,)) for name, severity in job.variants]


def _array_file(
    job: Job, name: str, severities: tuple[int, ...], images: int, shape: tuple[int, ...]
) -> ArrayFile:
    stem = name if len(severities) == len(SEVERITIES) else f"{name}_{severities[0]}"
    return ArrayFile(f"{stem}.npy", name, severities, images, shape)


def _readable(job: Job, workers: int, outcome: Outcome) -> tuple[list[int], tuple[int, ...]]:
    """Positions of the images that can be read, and the one shape that they have."""
    if isinstance(job.source, ArraySource):
        return list(range(len(job.source))), job.source.images.shape[1:]
    positions, shapes = [], {}
    for position, shape, failure in run_all(_shape_of, job, range(len(job.source)), workers):
        if failure is None:
            positions.append(position)
            shapes[shape] = job.source.names[position]
        else:
            outcome.failed[job.source.names[position]] = failure
    if not positions:
        raise InputError(
            f"none of {len(job.source)} images can be read: {next(iter(outcome.failed.values()))}"
        )
    if len(shapes) > 1:
        examples = "; ".join(f"{name} {shape}" for shape, name in islice(shapes.items(), 3))
        raise InputError(f"an array needs images of one size, got {examples}: give a size to crop to")
    return sorted(positions), next(iter(shapes))


def _shape_of(job: Job, position: int) -> tuple[int, tuple[int, ...], str | None]:
    try:
        return position, job.source.read(position).shape, None
    except InputError as error:
        return position, (), str(error)


def _chunks(
    job: Job, files: list[ArrayFile], positions: list[int]
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
    """The labels of the arrays, and for a folder which file each image was."""
    if job.source.labels is not None:
        labels = job.source.labels[positions]
        repeated = np.tile(labels, len(job.severities) if job.severities == SEVERITIES else 1)
        with job.output.written("labels.npy") as file:
            np.save(file, repeated)
    if isinstance(job.source, FolderSource):
        with job.output.written("files.txt") as file:
            file.write("".join(f"{job.source.names[p]}\n" for p in positions).encode())

"""Corrupted data sets on disk: a folder or an array in, an ImageNet-C tree or CIFAR-C arrays out.

`DST/name/severity/…/file` holds one image each; `DST/name.npy` all images at the five severities, one
severity after the other. Files appear whole or not at all, and what is there is not made again: the same
call goes on where an earlier one was stopped.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    checked_severity,
    checked_whole,
    frost_source,
    known,
)
from acclimate.corruptions.array_files import Readable, array_results, make_arrays, readable
from acclimate.corruptions.job import Job, Outcome, Progress
from acclimate.corruptions.output import open_output
from acclimate.corruptions.sources import ArraySource, FolderSource, Source, open_source
from acclimate.corruptions.trees import SUFFIXES, check_tree, make_tree, tree_results
from acclimate.errors import OptionError, unknown

__all__ = ["FORMATS", "Outcome", "corrupt_dataset"]

FORMATS = (*SUFFIXES, "npy")


def corrupt_dataset(
    source: str | Path,
    target: str | Path,
    *,
    names: str | Sequence[str] = tuple(CORRUPTIONS),
    severities: int | Sequence[int] = SEVERITIES,
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
        force: remove what is there of these names and severities, and make it anew.
        progress: called with the number of corrupted images that are done, and of all.

    Images that cannot be read are left out and named in the outcome.
    """
    source, target = Path(source), Path(target)
    names = [names] if isinstance(names, str) else names
    severities = [severities] if isinstance(severities, int) else severities
    wanted = tuple(dict.fromkeys(known(name) for name in names))
    levels = tuple(sorted({checked_severity(severity) for severity in severities}))
    seed, workers = checked_whole("seed", seed), _checked_workers(workers)
    _check(wanted, levels, size, format)
    opened = open_source(source, size)
    if target.resolve().is_relative_to(source.resolve()):
        raise OptionError(f"{target} is {source} or inside it: its images would be corrupted again next time")
    form = format or ("npy" if isinstance(opened, ArraySource) else "jpeg")
    settings = _settings(source, opened, wanted, size, form, seed)
    if form != "npy":
        check_tree(opened, form)
        with open_output(target, settings, tree_results(wanted, levels), force) as output:
            outcome = make_tree(Job(opened, output, wanted, levels, form, seed), workers, progress)
        return replace(outcome, ignored=list(opened.ignored))
    found = readable(opened, workers)
    settings |= {
        "severities": "all" if levels == SEVERITIES else "single",
        "images": _checksum(opened, found),
    }
    with open_output(target, settings, array_results(wanted, levels), force) as output:
        outcome = make_arrays(Job(opened, output, wanted, levels, form, seed), found, workers, progress)
    return replace(outcome, ignored=list(opened.ignored))


def _check(names: tuple[str, ...], severities: tuple[int, ...], size: int | None, form: str | None) -> None:
    if not names or not severities:
        raise OptionError(f"expected names and severities, got {list(names)} and {list(severities)}")
    if form is not None and form not in FORMATS:
        raise OptionError(unknown("format", form, FORMATS))
    if size is not None and checked_whole("size", size) < 8:
        raise OptionError(f"size must be at least 8 pixels, got {size}")


def _checked_workers(workers: int | None) -> int:
    if workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if checked_whole("workers", workers) < 1:
        raise OptionError(f"workers must be at least 1, got {workers}")
    return workers


def _settings(
    path: Path, source: Source, names: tuple[str, ...], size: int | None, form: str, seed: int
) -> dict[str, Any]:
    """All that decides what the files hold: a call that differs in any of it would mix two data sets."""
    settings = {
        "source": path.resolve().name,  # the folder that holds it may move
        "seed": seed,
        "size": size if isinstance(source, FolderSource) else None,
        "format": form,
        "acclimate": version("acclimate"),
        "numpy": np.__version__,  # its random streams may differ between releases
    }
    return settings | ({"frost": frost_source()} if "frost" in names else {})


def _checksum(source: Source, found: Readable) -> int:
    """Of which images the rows of an array are: their names, or a sample of their pixels."""
    positions, shape, _ = found
    if isinstance(source, FolderSource):
        return zlib.crc32(b"\n".join(os.fsencode(source.names[position]) for position in positions))
    checksum = zlib.crc32(repr((len(positions), shape)).encode())
    for position in positions[:: max(1, len(positions) // 64)]:
        checksum = zlib.crc32(source.read(position).tobytes(), checksum)
    return checksum

"""A tree of images, `name/severity/…/file`: each source image is read once and corrupted in all ways."""

from __future__ import annotations

from pathlib import PurePosixPath

from PIL import Image

from acclimate.corruptions import corrupt
from acclimate.corruptions.arrays import Bytes
from acclimate.corruptions.digital import check_fits_jpeg
from acclimate.corruptions.job import Job, Outcome, Progress
from acclimate.corruptions.pool import run_all
from acclimate.corruptions.sources import Source
from acclimate.errors import InputError

__all__ = ["SUFFIXES", "check_tree", "make_tree", "tree_results"]

SUFFIXES = {"jpeg": (".JPEG", ".jpeg", ".jpg", ".JPG"), "png": (".png", ".PNG")}


def tree_results(names: tuple[str, ...], severities: tuple[int, ...]) -> list[str]:
    """The folders that hold the results."""
    return [f"{name}/{severity}" for name in names for severity in severities]


def check_tree(source: Source, form: str) -> None:
    """No two images of the source may become one file."""
    seen: dict[str, str] = {}
    for name in source.names:
        other = seen.setdefault(_file(name, form), name)
        if other != name:
            raise InputError(f"{other} and {name} would become one file in {form}: rename one")


def make_tree(job: Job, workers: int, progress: Progress) -> Outcome:
    outcome, each = Outcome(), len(job.variants)
    total, lost = len(job.source) * each, 0
    for made, failure in run_all(_corrupt_image, job, range(len(job.source)), workers):
        outcome.made += made
        if failure is None:
            outcome.present += each - made
        else:
            outcome.failed[failure[0]] = failure[1]
            lost += each
        progress(outcome.done + lost, total)
    return outcome


def _corrupt_image(job: Job, position: int) -> tuple[int, tuple[str, str] | None]:
    """How many files were made of an image, and its name and what was wrong if it could not be read."""
    file = _file(job.source.names[position], job.format)
    wanted = [
        (name, severity, path)
        for name, severity in job.variants
        if not job.output.holds(path := f"{name}/{severity}/{file}")
    ]
    if not wanted:
        return 0, None
    try:
        image = job.source.read(position)
        if job.format == "jpeg":
            check_fits_jpeg(*image.shape[:2])
        for name, severity, path in wanted:
            corrupted = corrupt(image, name, severity, seed=job.seed, index=job.source.index(position))
            _save(job, path, corrupted)
    except InputError as error:  # it cannot be read or is too small, before anything was made of it
        return 0, (job.source.names[position], str(error))
    return len(wanted), None


def _file(name: str, form: str) -> str:
    """The name of a result: that of the source, with another suffix if it must be."""
    path, suffixes = PurePosixPath(name), SUFFIXES[form]
    return name if path.suffix in suffixes else str(path.with_name(path.stem + suffixes[0]))


def _save(job: Job, path: str, image: Bytes) -> None:
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    with job.output.written(path) as file:
        if job.format == "jpeg":
            picture.save(file, "JPEG", quality=85, optimize=True)  # as published
        else:
            picture.save(file, "PNG")

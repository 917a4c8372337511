"""Published data sets, from their published addresses."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from acclimate.data.download import download
from acclimate.data.tars import members_of, opened_tar
from acclimate.errors import FetchError, InputError, OptionError, unknown

__all__ = ["DATASETS", "Archive", "Published", "fetch"]

_ZENODO: Final = "https://zenodo.org/records"


@dataclass(frozen=True)
class Archive:
    """A tar file, and what of it shows that it was unpacked."""

    url: str
    md5: str | None
    """None where no checksum was published."""
    holds: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Published:
    """A data set in one or more archives."""

    summary: str
    archives: tuple[Archive, ...]


def _imagenet_c(name: str, md5: str, holds: str) -> Archive:
    return Archive(f"{_ZENODO}/2235448/files/{name}.tar", md5, tuple(holds.split()))


_IMAGENET_C: Final = (
    _imagenet_c("noise", "e80562d7f6c3f8834afb1ecf27252745", "gaussian_noise shot_noise impulse_noise"),
    _imagenet_c("blur", "2d8e81fdd8e07fef67b9334fa635e45c", "defocus_blur glass_blur motion_blur zoom_blur"),
    _imagenet_c("weather", "33ffea4db4d93fe4a428c40a6ce0c25d", "snow frost fog brightness"),
    _imagenet_c(
        "digital", "89157860d7b10d5797849337ca2e5c03", "contrast elastic_transform pixelate jpeg_compression"
    ),
    _imagenet_c("extra", "d492dfba5fc162d8ec2c3cd8ee672984", "speckle_noise gaussian_blur spatter saturate"),
)
_IMAGENET_R: Final = Archive(
    "https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
    "a61312130a589d0ca1a8fca1f2bd3337",
    ("imagenet-r",),
)
_CIFAR_10_C: Final = Archive(
    f"{_ZENODO}/2535967/files/CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499", ("CIFAR-10-C",)
)
_CIFAR_100_C: Final = Archive(
    f"{_ZENODO}/3555552/files/CIFAR-100-C.tar", "11f0ed0f1191edbf9fa23466ae6021d3", ("CIFAR-100-C",)
)
_VISDA: Final = "http://csr.bu.edu/ftp/visda17/clf"
_VISDA_C: Final = tuple(Archive(f"{_VISDA}/{split}.tar", None, (split,)) for split in ("validation", "train"))
_ROWS: Final = {
    "imagenet-c": Published("19 corruptions of ImageNet's validation images at five severities", _IMAGENET_C),
    "imagenet-r": Published("30,000 renditions of 200 classes of ImageNet", (_IMAGENET_R,)),
    "cifar-10-c": Published("19 corruptions of CIFAR-10's test images at five severities", (_CIFAR_10_C,)),
    "cifar-100-c": Published("19 corruptions of CIFAR-100's test images at five severities", (_CIFAR_100_C,)),
    "visda-c": Published("real validation and synthetic training images of 12 classes", _VISDA_C),
}
DATASETS: Final[Mapping[str, Published]] = MappingProxyType(_ROWS)
"""What can be fetched."""


def fetch(
    name: str,
    folder: str | Path,
    *,
    datasets: Mapping[str, Published] = DATASETS,
    progress: Callable[[str, int, int | None], None] = lambda what, done, total: None,
) -> Path:
    """Download, check and unpack a data set; what is there is not fetched again.

    Archives that a user put into the folder are taken; each is removed once it is unpacked.
    """
    if name not in datasets:
        raise OptionError(unknown("data set", name, datasets))
    root = Path(folder) / name
    for archive in datasets[name].archives:
        if all((root / part).exists() for part in archive.holds):
            continue
        told = partial(progress, archive.name)
        path = download(archive.url, root / archive.name, md5=archive.md5, progress=told)
        _unpack(path, root, archive)
    return root


def _unpack(path: Path, root: Path, archive: Archive) -> None:
    """All or nothing: unpacked beside, then moved."""
    beside = root / f".{archive.name}.unpacked"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with opened_tar(path) as file:
            beside.mkdir()
            file.extractall(beside, members_of(file, path), filter="data")
    except InputError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise InputError(f"{error}: remove it, and fetch it again") from error
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise FetchError(f"{path} cannot be unpacked to {root}: {error.strerror or error}") from error
    missing = [part for part in archive.holds if not (beside / part).exists()]
    if missing:
        raise InputError(f"{path} does not hold {missing[0]}: it is another archive than {archive.url}")
    try:
        for part in beside.iterdir():
            if not (root / part.name).exists():  # what was moved before, or is the user's, stays
                part.replace(root / part.name)
    except OSError as error:
        raise FetchError(f"{beside} cannot be moved to {root}: {error.strerror or error}") from error
    if hasattr(os, "sync"):
        os.sync()  # or a power cut could take what was unpacked, when the archive is gone
    shutil.rmtree(beside, ignore_errors=True)
    with contextlib.suppress(OSError):  # all that matters is there
        path.unlink()

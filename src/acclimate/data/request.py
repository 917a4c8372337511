"""What a user may say of the data to be opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from acclimate.data.pictures import Crop
from acclimate.errors import InputError, OptionError, listed, unknown

__all__ = ["Request"]


@dataclass(frozen=True)
class Request:
    """Where the data are, and which part of them is meant."""

    path: str
    crop: Crop | None = None
    """How image files are cropped; None leaves them as they are."""
    corruption: str | None = None
    severity: int | None = None
    split: str | None = None
    labels: bool = True
    """Whether labels are wanted, where images can do without."""
    partial: bool = False
    """Whether classes may be missing."""
    training: bool = False
    """Whether a split for training is wanted, where none is named."""

    @property
    def folder(self) -> Path:
        return Path(self.path)

    def chosen(self, what: str, found: list[str]) -> str:
        """The corruption or severity that was asked for, or the only one that there is."""
        given = getattr(self, what)
        if given is None and len(found) == 1:
            return found[0]
        if not found:
            raise InputError(f"{self.path} has no {what}: its layout is another one")
        if given is None:
            raise OptionError(f"{self.path} has more than one {what}: give one of {listed(found)}")
        if str(given) not in found:
            raise OptionError(f"{unknown(what, str(given), found)} (in {self.path})")
        return str(given)

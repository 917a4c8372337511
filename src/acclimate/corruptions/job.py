"""What to make of a source, as every worker knows it, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from acclimate.corruptions.output import Output
from acclimate.corruptions.sources import Source

__all__ = ["Job", "Outcome", "Progress"]

Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True)
class Job:
    source: Source
    output: Output
    names: tuple[str, ...]
    severities: tuple[int, ...]
    format: str
    seed: int

    @property
    def variants(self) -> list[tuple[str, int]]:
        return [(name, severity) for name in self.names for severity in self.severities]


@dataclass
class Outcome:
    """What became of the images."""

    made: int = 0
    """Corrupted images written."""
    present: int = 0
    """Corrupted images that were there before."""
    failed: dict[str, str] = field(default_factory=dict)
    """Source images that could not be read, and why."""
    ignored: list[str] = field(default_factory=list)
    """Suffixes of files in the source that are not taken for images."""

    @property
    def done(self) -> int:
        return self.made + self.present

"""Which packages acclimate and its extras need on this machine, by what is installed.

`lock.py` and `licences.py` go through these.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

__all__ = ["CONSTRAINTS", "ROOT", "needed", "pins"]

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"


def pins(path: Path = CONSTRAINTS) -> dict[NormalizedName, str]:
    """The version of every package of a list of pins."""
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = [line.partition("==") for line in lines if line]
    return {canonicalize_name(name): version for name, _, version in pairs}


def needed(*wanted: str) -> dict[NormalizedName, metadata.Distribution]:
    """All that some requirements lead to, themselves included, sorted by name.

    >>> "numpy" in needed("acclimate")
    True
    """
    found: dict[NormalizedName, metadata.Distribution] = {}
    seen: set[str] = set()
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = f"{name}{sorted(requirement.extras)}"
        if key not in seen:
            seen.add(key)
            found[name] = metadata.distribution(name)
            waiting += _below(found[name], requirement.extras)
    return dict(sorted(found.items()))


def _below(package: metadata.Distribution, extras: Iterable[str]) -> list[Requirement]:
    """What a package with some of its extras asks for on this machine."""
    asked = [Requirement(text) for text in package.requires or []]
    cases = [{"extra": extra} for extra in ("", *extras)]
    return [
        requirement
        for requirement in asked
        if requirement.marker is None or any(requirement.marker.evaluate(case) for case in cases)
    ]

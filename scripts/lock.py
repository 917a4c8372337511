"""Write requirements-dev.txt: what development needs, each with the hashes of its published wheels.

    .venv/bin/pip install --upgrade --editable '.[dev]'     # or whatever shall change
    (change constraints.txt)
    .venv/bin/python scripts/lock.py

Versions are those of constraints.txt, packages those that ``acclimate[dev]`` leads to here. Hashes are those
of all wheels for CPython 3.10 and newer, on any system, as the package index that pip is set up with lists
them. torch is left out: which of its builds is right depends on the machine (see SECURITY.md).
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser

from dependencies import ROOT, needed, pins
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

LOCK = ROOT / "requirements-dev.txt"
UNLOCKED = {"acclimate", "pip", "torch"}
"""This, what comes with Python, and what differs from machine to machine."""
_HEAD = """\
# What development needs, with the hashes of all published wheels: made by scripts/lock.py of constraints.txt
# pip install --require-hashes --no-deps --only-binary :all: --requirement requirements-dev.txt
"""
_OLDEST = 310
_TIMEOUT = 60.0


def main() -> None:
    versions = pins()
    names = [name for name in needed("acclimate[dev]") if name not in UNLOCKED]
    missing = [name for name in names if name not in versions]
    if missing:
        sys.exit(f"constraints.txt has no pin for {', '.join(missing)}: add them first")
    entries = [_entry(name, versions[name]) for name in names]
    LOCK.write_text(_HEAD + "".join(entries), encoding="utf-8")
    print(f"{LOCK.name}: {len(names)} packages")


def _entry(name: str, version: str) -> str:
    hashes = sorted(_hashes(name, Version(version)))
    if not hashes:
        sys.exit(f"the package index has no wheel of {name} {version}: take another version")
    return " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{value}" for value in hashes)]) + "\n"


def _hashes(name: str, version: Version) -> Iterator[str]:
    """Of the wheels of a version that a supported Python could take."""
    for link in _links(f"{_index().rstrip('/')}/{name}/"):
        path, _, fragment = link.partition("#")
        value = re.search(r"sha256=([0-9a-f]{64})", fragment)
        try:
            found = parse_wheel_filename(urllib.parse.unquote(path.rpartition("/")[2]))
        except (
            InvalidWheelFilename,
            InvalidVersion,
        ):  # a source archive, or an old name
            continue
        if value is not None and found[1] == version and any(map(_is_supported, found[3])):
            yield value[1]


def _is_supported(tag: Tag) -> bool:
    """Whether CPython 3.10 or newer takes wheels of this kind."""
    match = re.fullmatch(r"(cp|py)(\d+)", tag.interpreter)
    if match is None:
        return False
    return match[1] == "py" or tag.abi == "abi3" or int(match[2]) >= _OLDEST


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _links(page: str) -> list[str]:
    request = urllib.request.Request(page, headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        anchors = _Anchors()
        anchors.feed(answer.read().decode())
    return anchors.links


@functools.cache
def _index() -> str:
    """The index that pip asks, as its settings or pip itself has it: no address is written down here."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    from pip._internal.models.index import PyPI

    return os.environ.get("PIP_INDEX_URL") or told.stdout.strip() or PyPI.simple_url


if __name__ == "__main__":
    main()

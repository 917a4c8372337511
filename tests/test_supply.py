"""Pins, hashes, licences and the audit of them say the same as what is installed and as pyproject.toml."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-dev.txt"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A script as a module, by name."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    yield importlib.import_module
    for name in ("audit", "dependencies", "licences", "lock"):
        sys.modules.pop(name, None)


def locked() -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", LOCK.read_text(), re.MULTILINE))


def test_every_entry_of_the_lock_is_pinned_and_has_hashes() -> None:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    entries = "\n".join(lines).replace(" \\\n", " ").splitlines()
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==[\w.]+( +--hash=sha256:[0-9a-f]{64})+", entry), entry[:60]
    assert len(entries) == len(locked()) > 100


def test_the_lock_has_the_pins_of_the_constraints(script: Any) -> None:
    pins = script("dependencies").pins()
    assert locked() == {name: pins[name] for name in locked()}


def test_the_lock_has_all_that_development_needs(script: Any) -> None:
    needed = set(script("dependencies").needed("acclimate[dev]"))
    assert needed - locked().keys() == script("lock").UNLOCKED
    assert locked().keys() <= needed


def test_every_pin_is_supported(script: Any) -> None:
    pins = script("dependencies").pins()
    asked = [Requirement(text) for text in metadata.requires("acclimate") or []]
    for requirement in asked:
        name = canonicalize_name(requirement.name)
        if name in pins:
            assert requirement.specifier.contains(pins[name]), f"{requirement} is pinned to {pins[name]}"
    unpinned = {canonicalize_name(requirement.name) for requirement in asked} - {*pins, "acclimate"}
    assert unpinned == {"datasets", "transformers"}, "only what development does not install"


def test_no_list_of_packages_names_an_index() -> None:
    for path in (LOCK, ROOT / "constraints.txt", ROOT / "scripts" / "lock.py"):
        assert "://" not in path.read_text(), path.name


def test_the_licences_are_those_of_what_is_installed(script: Any) -> None:
    licences = script("licences")
    assert (ROOT / "docs" / "licences.md").read_text() == licences.page(), "run scripts/licences.py"


def test_every_licence_goes_with_ours(script: Any) -> None:
    licences = script("licences")
    assert {name: one for name, one in licences.found().items() if licences.refused(one)} == {}
    assert licences.refused("GPL-3.0-only OR MIT") == {"GPL-3.0-only"}
    assert licences.refused("not said") == {"not said"}


def answered(monkeypatch: pytest.MonkeyPatch, audit: Any, *answers: Any) -> None:
    """Let pip-audit give these answers, one after the other, without a network."""
    waiting = iter(answers)

    def run(command: list[str], **_: Any) -> Any:
        answer = next(waiting)
        if isinstance(answer, Exception):
            raise answer
        return subprocess.CompletedProcess(command, 0, stdout=answer)

    monkeypatch.setattr(audit.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["audit.py"])


def said(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages})


BAD = {"name": "requests", "version": "2.19.0", "vulns": [{"id": "PYSEC-2018-28", "fix_versions": ["2.20"]}]}
GOOD = {"name": "torch", "version": "2.13.0", "vulns": []}
UNKNOWN = {"name": "torch", "skip_reason": "not found"}


@pytest.mark.parametrize(
    "answer", ["", said(UNKNOWN), said(GOOD), subprocess.TimeoutExpired("pip_audit", 15)], ids=str
)
def test_an_audit_that_cannot_ask_says_so_and_is_no_error(
    answer: Any, script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = script("audit")
    answered(monkeypatch, audit, answer)
    assert audit.main() == 0
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(("found", "code"), [([GOOD, UNKNOWN], 0), ([GOOD, BAD], 1)])
def test_an_audit_fails_on_what_is_known(
    found: Any, code: int, script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = script("audit")
    answered(monkeypatch, audit, said(BAD), said(*found))
    assert audit.main() == code
    assert ("PYSEC-2018-28, fixed in 2.20" in capsys.readouterr().out) == bool(code)

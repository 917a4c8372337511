"""Ask a public service whether a pinned version has a known vulnerability; `make check` ends with this.

    .venv/bin/python scripts/audit.py [PINS]

Ends with 1 if there is one. A service that cannot be reached, or that knows none of the packages (as a mirror
without advisories does), is said to be so in one line, and is no error: work goes on without a network.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from dependencies import CONSTRAINTS

_PROBE = "requests==2.19.0\n"
"""Has had advisories since 2018: a service that knows of none knows nothing."""
_SHORT, _LONG = 15.0, 180.0  # seconds: for the probe, for everything


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else CONSTRAINTS
    if not _can_be_asked():
        print("audit: the service of known vulnerabilities could not be asked, so nothing was checked")
        return 0
    answer = _asked(path, _LONG)
    if answer is None:
        print("audit: the service of known vulnerabilities did not answer to the end, so nothing was checked")
        return 0
    return _told(answer)


def _told(answer: list[dict[str, Any]]) -> int:
    """Say what was found; the exit code."""
    skipped = [package["name"] for package in answer if "skip_reason" in package]
    bad = [package for package in answer if package.get("vulns")]
    for package in bad:
        for known in package["vulns"]:
            fixed = ", ".join(known.get("fix_versions", [])) or "no release yet"
            print(f"audit: {package['name']} {package['version']}: {known['id']}, fixed in {fixed}")
    print(f"audit: {len(answer) - len(skipped)} packages looked up, {len(bad)} with known vulnerabilities")
    if skipped:
        print(f"audit: not known to the service: {', '.join(skipped)}")
    return 1 if bad else 0


def _can_be_asked() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.txt"
        probe.write_text(_PROBE)
        return any(package.get("vulns") for package in _asked(probe, _SHORT) or [])


def _asked(path: Path, seconds: float) -> list[dict[str, Any]] | None:
    """What pip-audit says of every pin, or nothing where it could not ask."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(path), "--no-deps", "--disable-pip"]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", "5"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError):
        return None
    return found


if __name__ == "__main__":
    sys.exit(main())

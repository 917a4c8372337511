"""Write docs/licences.md: what acclimate depends on, and under which licences, by what is installed.

    .venv/bin/python scripts/licences.py

acclimate asks for these packages and carries none of them, so that whatever may be linked to from
Apache-2.0 may be in the list. A licence that is not in `FITTING` is an error here and in the tests: somebody
has to read it first.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata

from dependencies import ROOT, needed, pins

PAGE = ROOT / "docs" / "licences.md"
EXTRAS = {"": "always", "vision": "vision", "log": "log", "cluster": "cluster"}
"""Those that development has installed, in the order in which a package is put down to one of them."""
FITTING = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0",
    "CC0-1.0", "ISC", "MIT", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib",
}  # fmt: skip
"""What Apache-2.0 can depend on; of these, MPL-2.0 asks most: changes to its own files stay under it."""
_WORDS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
}
"""How packages say it, where they do not use SPDX's names."""
_LONGEST = 40  # characters of a name; what is longer is the text of a licence

_PAGE = """\
# Licences

acclimate is under the [Apache License 2.0](https://www.apache.org/licenses/LICENSE-2.0). It asks for the
packages below and carries none of them. What it does carry: a small network and 400 images of Fashion-MNIST
(MIT) for the demo. A page that `acclimate report` writes holds a copy of plotly.js (MIT), with its notice.

Made by `scripts/licences.py` from what the packages say of themselves, in the versions of `constraints.txt`;
`tests/test_supply.py` refuses a licence that does not go with Apache-2.0. "for" is the extra that needs the
package (`pip install 'acclimate[vision]'`); tools of development are not listed. Of the extras `data` and
`hub`, datasets and transformers are Apache-2.0 as well; what they bring in their turn is not listed here.

| package | version | licence | for |
|---|---|---|---|
"""


def main() -> None:
    unread = {name: licence for name, licence in found().items() if refused(licence)}
    if unread:
        sys.exit(f"licences that nobody has agreed to yet: {unread}; see FITTING in scripts/licences.py")
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page."""
    versions, uses = pins(), _uses()
    rows = [f"| {name} | {versions[name]} | {one} | {uses[name]} |" for name, one in found().items()]
    return _PAGE + "\n".join(rows) + "\n"


def found() -> dict[str, str]:
    """The licence of every package that a user may get with acclimate."""
    packages = needed(*map(_requirement, EXTRAS))
    return {name: licence_of(package) for name, package in packages.items() if name != "acclimate"}


def _uses() -> dict[str, str]:
    """What each package is for: the first extra that leads to it."""
    uses: dict[str, str] = {}
    for extra, title in EXTRAS.items():
        uses = {**dict.fromkeys(needed(_requirement(extra)), title), **uses}
    return uses


def _requirement(extra: str) -> str:
    return f"acclimate[{extra}]" if extra else "acclimate"


def licence_of(package: metadata.Distribution) -> str:
    """In SPDX's words as far as the package allows: an expression, a short name, or its classifiers."""
    about = package.metadata
    if expression := about.get("License-Expression"):
        return str(expression)
    said = (about.get("License") or "").strip()
    kinds = [line for line in about.get_all("Classifier") or [] if line.startswith("License :: ")]
    names = [line.rpartition(" :: ")[2] for line in kinds]
    if said and len(said) <= _LONGEST and said != "Dual License":
        names = [said]
    return " OR ".join(_WORDS.get(name, name) for name in names) or "not said"


def refused(licence: str) -> set[str]:
    """What of an expression is not known to go with Apache-2.0.

    >>> refused("MIT OR (Apache-2.0 AND GPL-3.0-only)")
    {'GPL-3.0-only'}
    """
    return {part.strip(" ()") for part in re.split(r" AND | OR ", licence)} - FITTING


if __name__ == "__main__":
    main()

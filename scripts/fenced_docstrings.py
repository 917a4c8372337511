"""For the reference: doctests and drawn trees in docstrings become blocks of code.

Markdown would take the first for quotations and the second for running text.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)
_TREE = re.compile(r"^()\S.*(?:\n[├└│].*)+", re.MULTILINE)


def fenced(text: str) -> str:
    """The text with every doctest and every tree between fences, as deep as it stands.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Adds.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    for pattern, language in ((_DOCTEST, "pycon"), (_TREE, "text")):
        text = pattern.sub(rf"\1```{language}\n\g<0>\n\1```", text)
    return text


class FencedDocstrings(griffe.Extension):
    """Changes docstrings before they are parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

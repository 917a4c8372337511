"""One colour and one marker for each method, the same in all figures and on the page.

The colours stay apart for people who see few of them (Okabe and Ito): TENT's kin are blue, the likelihood
ratios warm, what learns nothing is grey.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["COLORS", "CYCLE", "MARKERS", "color_of", "marker_of"]

COLORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "source": "#7a7a7a",
        "bn": "#b4b4b4",
        "pl": "#cc79a7",
        "tent": "#56b4e9",
        "tent+": "#0072b2",
        "hlr": "#e69f00",
        "slr": "#d55e00",
        "slr+it": "#882255",
        "shot": "#009e73",
        "oracle": "#222222",
    }
)
"""By method; `color_of` knows the others too."""
MARKERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "source": "x",
        "bn": "*",
        "pl": "X",
        "tent": "v",
        "tent+": "^",
        "hlr": "s",
        "slr": "o",
        "slr+it": "D",
        "shot": "P",
        "oracle": "h",
    }
)
CYCLE: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""For lines that are no methods."""
_SPARE: Final = ("#332288", "#117733", "#999933", "#44aa99", "#aa4499", "#661100")
_DARKER: Final = 0.62


def color_of(method: str) -> str:
    """A method's own colour; a darker one of the method that it extends; for other names one of a few.

    >>> color_of("hlr"), color_of("hlr+shot"), color_of("mine") == color_of("mine")
    ('#e69f00', '#8f6300', True)
    """
    base = _base(method)
    if base is None:
        return _SPARE[zlib.crc32(method.encode()) % len(_SPARE)]
    if base == method:
        return COLORS[base]
    shades = (int(COLORS[base][place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(_DARKER * shade):02x}" for shade in shades)


def marker_of(method: str) -> str:
    """As `color_of`."""
    base = _base(method)
    return "." if base is None else MARKERS[base]


def _base(method: str) -> str | None:
    """The longest known name of which a method is an extension: ``hlr`` of ``hlr+it``."""
    known = [name for name in COLORS if method == name or method.startswith((f"{name}+", f"{name}-"))]
    return max(known, key=len, default=None)

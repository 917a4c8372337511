"""What a record says of itself, and what of it a report needs."""

from __future__ import annotations

from typing import Final

from acclimate.bench.scores import FIXED
from acclimate.bench.spec import Network
from acclimate.records import Record

__all__ = [
    "SHOWN_IMAGES",
    "by_class",
    "data_of",
    "is_modified",
    "is_sound",
    "learns",
    "network_of",
    "reason_of",
    "shift_of",
    "slim",
    "spoken",
]

SHOWN_IMAGES: Final = 2
"""Of a run, before and after the input transformation."""


def network_of(record: Record) -> str:
    """What tells a network from others."""
    given = record["cell"].get("network")
    return Network(**given).title if given else "a network"


def data_of(record: Record) -> str:
    """What the data are called."""
    return str(record["cell"].get("data", {}).get("name", "images"))


def shift_of(record: Record) -> str:
    """The data with their corruption, for people."""
    cell = record["cell"]
    return f"{data_of(record)} {spoken(cell.get('corruption') or '')} {cell.get('severity') or ''}".strip()


def by_class(record: Record) -> bool:
    """Whether the accuracy of these data is the mean over classes."""
    return data_of(record) == "visda-c"


def learns(record: Record) -> bool:
    """Whether a record's method goes through epochs."""
    return record["cell"]["method"] not in FIXED


def is_sound(record: Record) -> bool:
    """Whether all accuracies are numbers: nothing can be averaged with others."""
    result = record["result"]
    found = [values.get("accuracy") for values in (result["online"], *result["after_epoch"].values())]
    return len(found) > 1 and all(isinstance(one, (int, float)) and 0 <= one <= 1 for one in found)


def reason_of(record: Record) -> str:
    """Why a cell failed."""
    error = record["error"]
    return str(error.get("reason", "not told") if isinstance(error, dict) else error)


def is_modified(record: Record) -> bool:
    """Whether the network has SHOT's head; early records do not say so but by its name."""
    return bool(record["spec"].get("modified", network_of(record).endswith("-shot")))


def slim(record: Record) -> Record:
    """A record less what no report shows: for many classes, and with images, that is most of it."""
    result = record.get("result", {})
    after = result.get("after_epoch", {})
    last = max(after, key=int, default="")
    for epoch, values in {**after, "online": result.get("online", {})}.items():
        if not by_class(record):
            values.pop("per_class", None)
        if epoch != last:
            for name in ("histogram", "bins"):
                values.pop(name, None)
    if "gallery" in result:
        result["gallery"] = result["gallery"][:SHOWN_IMAGES]
    return record


def spoken(name: str) -> str:
    """A name of the tables as people say it."""
    return name.replace("_", " ")

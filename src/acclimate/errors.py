"""What can go wrong, as one tree.

AcclimateError
├── InputError       (ValueError)       images, logits or data that cannot be used
├── OptionError      (ValueError)       an argument, a name or a pattern that is unknown or does not fit
├── ModelError       (ValueError)       a network that cannot be adapted as asked
├── DeltaError       (ValueError)       a saved delta that is damaged or belongs to another model
├── FetchError       (OSError)          a file that cannot be had from elsewhere
├── OutputError      (OSError)          a file that cannot be written
├── WorkerError      (RuntimeError)     a process that died at its work
└── DivergenceError  (ArithmeticError)  a loss that is no longer a finite number

AcclimateWarning     (UserWarning)      the work goes on, but the user should know
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

__all__ = [
    "AcclimateError",
    "AcclimateWarning",
    "DeltaError",
    "DivergenceError",
    "FetchError",
    "InputError",
    "ModelError",
    "OptionError",
    "OutputError",
    "WorkerError",
    "check_unmasked",
    "checked_count",
    "counted",
    "listed",
    "masked",
    "said",
    "short",
    "shown",
    "unknown",
]

_LOGIN: Final = r"(?<=\w\w)(:/+)((?:[^/?#]*|[^/?#:]*:(?!\d+(?:/|$))[^?#]*))@"
"""Before a host: a name, a password. Passwords may hold a slash, and what comes after a port is none."""

_OTHER_NAMES: Final = {
    "amp": "precision",
    "batchsize": "batch_size",
    "bn_momentum": "statistics_momentum",
    "bs": "batch_size",
    "class_prior": "prior",
    "dtype": "precision",
    "gpu": "device",
    "learning_rate": "lr",
    "loss": "confidence",
    "loss_weight": "delta",
    "lr_schedule": "schedule",
    "max_epochs": "epochs",
    "mean": "normalize",
    "n_epochs": "epochs",
    "norm_momentum": "statistics_momentum",
    "num_epochs": "epochs",
    "optim": "optimizer",
    "random_state": "seed",
    "scheduler": "schedule",
    "std": "normalize",
    "temperature": "calibrate",
    "transform": "input_transform",
    "verbose": "progress",
    "wd": "weight_decay",
    "weight": "delta",
}
"""What others call our options; compared by their letters, `learning_rate` stands for an `lr`."""


class AcclimateError(Exception):
    """Any error that acclimate raises on purpose."""


class InputError(AcclimateError, ValueError):
    """Images, logits or data that cannot be used."""


class OptionError(AcclimateError, ValueError):
    """An argument, a name or a pattern that is unknown or does not fit."""


class ModelError(AcclimateError, ValueError):
    """A network that cannot be adapted as asked."""


class DeltaError(AcclimateError, ValueError):
    """A saved delta that is damaged or belongs to another model."""


class FetchError(AcclimateError, OSError):
    """A file that cannot be had from elsewhere."""


class OutputError(AcclimateError, OSError):
    """A file that cannot be written."""


class WorkerError(AcclimateError, RuntimeError):
    """A process that died at its work."""


class DivergenceError(AcclimateError, ArithmeticError):
    """A loss that is no longer a finite number."""


class AcclimateWarning(UserWarning):
    """The work goes on, but the user should know."""


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """Say that a name is unknown, with the nearest known names, or all where none is near.

    >>> unknown("method", "slt", ["slr", "hlr", "tent"])
    "unknown method 'slt': did you mean 'slr'?"
    >>> unknown("method", "xyzzy", ["slr", "hlr", "tent"])
    "unknown method 'xyzzy': known are 'hlr', 'slr', 'tent'"
    """
    names = list(known)
    word = str(name).lower()
    near = [known for known in names if known == _OTHER_NAMES.get(word)]
    near = near or [known for known in names if len(word) > 2 and known.startswith(word)][:3]
    near = near or difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if near:
        return f"unknown {kind} {short(repr(name))}: did you mean {listed(near)}?"
    return f"unknown {kind} {short(repr(name))}: known are {listed(sorted(names))}"


def checked_count(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least ``least``; anything else is an error that names the option.

    >>> checked_count("epochs", 5)
    5
    """
    try:
        count = operator.index(value)
    except TypeError:
        count = least - 1
    if count < least:
        raise OptionError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return count


def counted(count: int, noun: str) -> str:
    """A number and its noun, which has an s unless there is one of them.

    >>> counted(1, "run"), counted(2000, "run")
    ('1 run', '2,000 runs')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def said(error: BaseException) -> str:
    """What another library says of a failure, as one line that can be part of a sentence.

    >>> said(ValueError("expected a brace\\n  at line 3"))
    'expected a brace at line 3'
    """
    return short(masked(" ".join(str(error).split())) or type(error).__name__)


def short(text: object, most: int = 200) -> str:
    """The beginning of a text that came from a file: nobody knows how long it is.

    >>> short("a" * 9, most=3)
    'aaa …'
    """
    whole = str(text)
    return whole if len(whole) <= most else f"{whole[:most]} …"


def shown(place: object) -> str:
    """A path or address for people: passwords and signatures in it are nobody's business.

    >>> shown("sftp://me:sec@ret@host/grid"), shown("https://host/a.tar?sig=abc")
    ('sftp://***@host/grid', 'https://host/a.tar?***')
    """
    text = re.sub(_LOGIN, r"\1***@", str(place))
    return re.sub(r"(:/+[^?]*\?).*", r"\1***", text)


def masked(text: object, *places: object) -> str:
    """A text of others for people: every address in it as `shown`, and nothing of what these places hide.

    >>> masked("no port: 'sec@host'; see http://me:sec@host/a?sig=abc.", "http://me:sec@host/a")
    "no port: '***@host'; see http://***@host/a?***"
    """
    plain = re.sub(r"[\w+.-]+:/+[^\s'\"<>]+", lambda found: shown(found[0]), str(text))
    hidden = {part for place in places for part in _secrets(str(place)) if len(part) > 2}
    for secret in sorted(hidden, key=len, reverse=True):
        plain = plain.replace(secret, "***")
    return plain


def check_unmasked(place: object) -> None:
    """An address of a record, whose passwords and signatures are gone, cannot be used."""
    if ":/" in str(place) and "***" in str(place):
        raise OptionError(
            f"{place} was written down without its password or signature (***): give the whole address again"
        )


def _secrets(place: str) -> Iterator[str]:
    """What `shown` leaves out of an address, as a whole and in parts."""
    for _, login in re.findall(_LOGIN, place):
        yield from (login, login.partition(":")[2])
    query = place.partition("?")[2] if ":/" in place else ""
    yield from (query, *(pair.partition("=")[2] for pair in query.split("&")))


def listed(names: Iterable[object], limit: int = 20) -> str:
    """Join names for a message, cut where there are too many to read.

    >>> listed(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    shown = [short(repr(name)) for name in names]
    if len(shown) <= limit:
        return ", ".join(shown)
    return f"{', '.join(shown[:limit])} and {len(shown) - limit} more"

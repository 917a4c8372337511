"""What all commands share: words to options, errors to one line and an exit code, a bar for people."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from acclimate.corruptions import CORRUPTIONS, NAMES, VALIDATION_NAMES, known
from acclimate.errors import (
    AcclimateError,
    AcclimateWarning,
    OptionError,
    OutputError,
    WorkerError,
    listed,
    masked,
    said,
)
from acclimate.files import check_writable, whole_file
from acclimate.interrupts import Ended

__all__ = [
    "BAD_INPUT",
    "DONE",
    "INTERRUPTED",
    "IN_PART",
    "check_outputs",
    "check_resume",
    "check_suffix",
    "class_names",
    "errors_as_messages",
    "exit_code",
    "format_name",
    "how_to_resume",
    "lines_of",
    "messages",
    "named_corruptions",
    "progress_bar",
    "severities_of",
    "split_words",
    "written",
]

DONE, IN_PART, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg")
GROUPS = {"all": tuple(CORRUPTIONS), "test": NAMES, "validation": VALIDATION_NAMES}

messages = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def named_corruptions(words: list[str]) -> list[str]:
    """Names and groups of names, each corruption once."""
    names: dict[str, None] = {}
    for word in split_words(words):
        names.update(dict.fromkeys(GROUPS[word] if word in GROUPS else (known(word),)))
    if not names:
        raise OptionError("expected the name of a corruption, got none")
    return list(names)


def severities_of(words: list[str]) -> list[int]:
    """Numbers and ranges from 1 to 5."""
    severities: set[int] = set()
    for word in split_words(words):
        match = re.fullmatch(r"([1-5])(?:-([1-5]))?", word)
        if match is None or match[1] > (match[2] or match[1]):
            raise OptionError(f"severity must be 1 to 5, or a range such as 2-4, got {word!r}")
        severities.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(severities)


def lines_of(path: Path) -> list[str]:
    """The lines of a text file."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} cannot be read: {said(error)}") from error


def class_names(path: Path | None) -> list[str] | None:
    """Names of the outputs, one a line, each once."""
    if path is None:
        return None
    names = lines_of(path)
    double = [name for name, count in Counter(names).items() if count > 1]
    if double:
        raise OptionError(f"{path} names {listed(sorted(double), 3)} more than once")
    return names


def format_name(word: str) -> str:
    """As people write it."""
    plain = word.lower().lstrip(".")
    return "jpeg" if plain == "jpg" else plain


def split_words(words: list[str]) -> list[str]:
    """Words that commas or an option given again separate."""
    return [part for word in words for part in word.replace(",", " ").split()]


def check_resume(*, resume: bool, force: bool) -> None:
    """What goes on with something cannot begin it anew."""
    if resume and force:
        raise OptionError("--resume goes on with what is there, --force begins anew: give one of them")


def how_to_resume(*, force: bool) -> str:
    """The end of what an interrupted command says."""
    return f"the same command with --resume{' instead of --force' if force else ''} goes on"


def check_suffix(option: str, path: Path | None, suffix: str) -> None:
    """Refuse a name that says another format than what is written; one without a suffix says none."""
    if path is not None and path.suffix.lower() not in ("", suffix):
        raise OptionError(f"{option} must end in {suffix}, got {path}")


def check_outputs(
    *paths: Path, inputs: Iterable[object] = (), force: bool = False, resumable: Path | None = None
) -> None:
    """Refuse to replace a file that is there, unless forced, or to write one twice or over what is read.

    ``resumable`` is the path from which ``--resume`` would go on.
    """
    check_writable(*paths)
    places = [path.resolve() for path in paths]
    read = {Path(str(name)).resolve() for name in inputs}
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise OptionError(f"{path} would be written twice: outputs must be different files")
        if place in read:
            raise OptionError(f"{path} would replace what is read: give another name")
        if path.is_file() and not force:
            goes_on = "--resume goes on from it, " if path == resumable else ""
            raise OptionError(f"{path} is there: {goes_on}--force replaces it")


@contextmanager
def written(
    path: Path, suffixes: Sequence[str] = PICTURES, *, inputs: Iterable[object] = (), force: bool = False
) -> Iterator[Path]:
    """A name to write to; what `check_outputs` refuses and an unknown format are told before any work."""
    if path.suffix.lower() not in suffixes:
        raise OptionError(f"{path} cannot be written: expected a name that ends in {listed(suffixes)}")
    check_outputs(path, inputs=inputs, force=force)
    with whole_file(path) as part:
        yield part


@contextmanager
def errors_as_messages(debug: bool, kept: str = "", file: Path | None = None) -> Iterator[None]:
    """One line and an exit code for whatever is raised.

    ``kept`` ends the line of an interrupt, if the ``file`` of which it speaks is there.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    except KeyboardInterrupt as error:
        if debug:
            raise
        how = (
            "ended by the launcher, as it does when another rank is gone"
            if isinstance(error, Ended)
            else "interrupted"
        )
        messages.print(f"{how}{kept if file is None or file.exists() else ': nothing was done yet'}")
        raise typer.Exit(INTERRUPTED) from None
    except AcclimateError as error:
        if debug:
            raise
        messages.print(f"error: {masked(error)}", style="red")
        raise typer.Exit(exit_code(error)) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if debug:
            raise
        reason = masked(error).partition("\n")[0]
        messages.print(
            f"error: {type(error).__name__}: {reason} (not foreseen; --debug shows where)", style="red"
        )
        raise typer.Exit(IN_PART) from None


def exit_code(error: AcclimateError) -> int:
    """Of a command that ends with this error."""
    return IN_PART if isinstance(error, (OutputError, WorkerError)) else BAD_INPUT


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    kind = "caution" if issubclass(category, AcclimateWarning) else f"warning: {category.__name__}"
    messages.print(f"{kind}: {masked(message)}", style="yellow")


@contextmanager
def progress_bar(what: str, *, of_bytes: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """A function to call with what is done and all; shown to people, not to files."""
    if not messages.is_terminal:
        yield lambda done, total: None
        return
    counts = (DownloadColumn(), TransferSpeedColumn()) if of_bytes else (MofNCompleteColumn(),)
    columns: tuple[Any, ...] = (
        TextColumn(what),
        BarColumn(),
        *counts,
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=messages, speed_estimate_period=3600) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

"""Work that is disturbed at any of its writes, or between any two of its steps, and then done again.

A task is run once undisturbed while every write to a disk is counted. Then it is run again, and at the n-th
write something happens: the disk is full or read-only, somebody presses Ctrl-C, or the process is killed,
after which nothing that it still tries has an effect. The same call then goes on, and what comes out must be
what came out of the undisturbed run.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from acclimate.errors import AcclimateError

_WRITES: Final = frozenset("wxa+")


class Killed(BaseException):
    """What no code catches, as none notices that it is killed."""


def _full() -> BaseException:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _read_only() -> BaseException:
    return OSError(errno.EROFS, os.strerror(errno.EROFS))


class Kind(NamedTuple):
    """A way to be disturbed."""

    error: Callable[[], BaseException]
    lasts: frozenset[str]
    """Which operations fail from then on; the others go on as if nothing had been."""


_ALL: Final = frozenset({"open", "write", "fsync", "replace", "unlink", "mkdir"})
KINDS: Final = {
    "full disk": Kind(_full, frozenset({"open", "write", "fsync", "mkdir"})),
    "read-only disk": Kind(_read_only, _ALL),
    "Ctrl-C": Kind(KeyboardInterrupt, frozenset()),
    "kill": Kind(Killed, _ALL | {"step"}),
}


class Faults:
    """Counts operations, and lets one of them, and those that it entails, go wrong."""

    def __init__(self, at: int | None = None, kind: str = "kill") -> None:
        self.at, self.kind = at, KINDS[kind]
        self.seen: list[str] = []
        self.unsynced: set[int] = set()
        """Files, by inode, that were written and have not reached the disk."""
        self.careless: list[str] = []
        """Names that were given to such files: after a power cut they may be empty."""

    def point(self, operation: str) -> bool:
        """Whether what is about to be done goes wrong."""
        self.seen.append(operation)
        if self.at is None or len(self.seen) <= self.at:
            return False
        return len(self.seen) == self.at + 1 or operation in self.kind.lasts

    def check(self, operation: str) -> None:
        if self.point(operation):
            raise self.kind.error()

    def step(self, *_: Any) -> None:
        """Between two steps nothing can be full: only a Ctrl-C or a kill can come."""
        if self.kind.error in (KeyboardInterrupt, Killed):
            self.check("step")
        else:
            self.seen.append("step")


class _File:
    """A file whose writes count; one that goes wrong leaves half of its content."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self._file, self._faults = file, faults

    def write(self, content: Any) -> Any:
        self._faults.unsynced.add(os.fstat(self._file.fileno()).st_ino)
        if self._faults.point("write"):
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            raise self._faults.kind.error()
        return self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@contextlib.contextmanager
def disturbed(faults: Faults) -> Iterator[Faults]:
    """Within, every operation that changes a disk asks ``faults`` first."""
    own = {"open": io.open, "fsync": os.fsync, "replace": os.replace, "unlink": os.unlink, "mkdir": os.mkdir}

    def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if isinstance(file, int) or _WRITES.isdisjoint(mode):
            return own["open"](file, mode, *arguments, **options)
        faults.check("open")
        return _File(own["open"](file, mode, *arguments, **options), faults)

    def synced(file: int) -> None:
        faults.check("fsync")
        own["fsync"](file)
        faults.unsynced.discard(os.fstat(file).st_ino)

    def replaced(source: Any, target: Any, **options: Any) -> None:
        faults.check("replace")
        if os.path.isfile(source) and os.stat(source).st_ino in faults.unsynced:
            faults.careless.append(str(target))
        own["replace"](source, target, **options)

    def checked(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            faults.check(name)
            return own[name](*arguments, **options)

        return call

    try:
        io.open = builtins.open = opened  # type: ignore[assignment, misc]
        os.fsync, os.replace = synced, replaced  # type: ignore[assignment]
        os.unlink, os.mkdir = checked("unlink"), checked("mkdir")
        yield faults
    finally:
        io.open = builtins.open = own["open"]  # type: ignore[misc]
        os.fsync, os.replace, os.unlink, os.mkdir = (own[n] for n in ("fsync", "replace", "unlink", "mkdir"))


class Task(NamedTuple):
    """Work that can be done again after it was disturbed."""

    run: Callable[[Path, Faults], Any]
    """Begins in a folder, or goes on there, and calls `Faults.step` between its steps."""
    result: Callable[[Path], Any]
    """What came out, in a form that can be compared."""
    prepare: Callable[[Path], None] = lambda folder: None
    """What is there before: nothing is disturbed."""


def operations(task: Task, folder: Path) -> Faults:
    """All that a task does to a disk, undisturbed; once before, for what is done once in a process."""
    for name in (folder.with_name(f"{folder.name}-first"), folder):
        name.mkdir()
        task.prepare(name)
    task.run(folder.with_name(f"{folder.name}-first"), Faults())
    with disturbed(Faults()) as faults:
        task.run(folder, faults)
    return faults


def outcome(task: Task, folder: Path, at: int, kind: str) -> Any:
    """What comes of a task that is disturbed at one operation, and then done again."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    task.prepare(folder)
    faults = Faults(at, kind)
    with disturbed(faults), contextlib.suppress(Killed, KeyboardInterrupt, AcclimateError):
        task.run(folder, faults)  # any other error is a fault of acclimate
    task.run(folder, Faults())
    return task.result(folder)

"""Where people already look: TensorBoard, Weights & Biases and MLflow, as sinks of the same events.

A run begins with what was asked for, values come with the step they belong to, and the run ends with what
came of it. No package is imported before it is asked for, and one that fails is left behind: the
adaptation goes on. A new sink is a class and a row of `SINKS`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from acclimate.errors import AcclimateError, AcclimateWarning, OptionError, unknown
from acclimate.files import check_writable

__all__ = ["SINKS", "MLflow", "Sink", "TensorBoard", "WeightsAndBiases", "cut", "open_sinks", "said"]

Config = Mapping[str, bool | float | str]
Values = Mapping[str, float]
_PROJECT: Final = "acclimate"
_NAME, _TEXT = 100, 500  # characters that every package takes
_AT_ONCE = 100  # entries that MLflow takes


class Sink(Protocol):
    """One run at a time."""

    where: str
    """What a person types to look at it."""

    def begin(self, name: str, config: Config, step: int = 0) -> int:
        """Open a run after so many updates: where there were some, the last run of that name goes on.

        Returns up to which step the values are there already.
        """
        ...

    def log(self, values: Values, step: int) -> None:
        """Values after an update; none are given twice."""
        ...

    def end(self, summary: Values, error: str | None = None) -> None:
        """Close the run, with what went wrong, if something did."""
        ...


class TensorBoard:
    """Event files, a folder for each run; every step can be seen as soon as it is made."""

    def __init__(self, folder: Path) -> None:
        # TensorBoard's own records, not torch's writer: that one writes from a thread, which a full disk ends
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2, summary_pb2.Summary
        self._hparams, self._text, self._records = hparams_pb, text_pb, RecordWriter
        self._folder = folder / "tensorboard"
        self._file: BinaryIO | None = None
        self._last = 0
        self.where = f"tensorboard --logdir {self._folder}"

    def begin(self, name: str, config: Config, step: int = 0) -> int:
        run, goes_on = self._run(name, goes_on=step > 0)
        run.mkdir(parents=True, exist_ok=True)
        # in the order of their names TensorBoard reads them
        self._file = (run / f"events.out.tfevents.{time.time():.6f}.{os.getpid()}").open("wb")
        self._last = step
        self._write(file_version="brain.Event:2")
        if goes_on:  # what a killed run logged after it was saved last comes again
            started = self._event.SessionLog(status=self._event.SessionLog.START)
            self._write(step=step + 1, session_log=started)
        else:
            self._write(summary=self._hparams(dict(config)))
        return step if goes_on else 0

    def log(self, values: Values, step: int) -> None:
        self._last = max(step, self._last)
        points = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=self._summary(value=points))

    def end(self, summary: Values, error: str | None = None) -> None:
        try:
            self.log(summary, self._last)
            if error is not None:
                self._write(step=self._last, summary=self._text("error", error))
        finally:
            if self._file is not None:
                self._file.close()

    def _write(self, **fields: Any) -> None:
        event = self._event.Event(wall_time=time.time(), **fields)
        self._records(self._file).write(event.SerializeToString())
        assert self._file is not None
        self._file.flush()

    def _run(self, name: str, *, goes_on: bool) -> tuple[Path, bool]:
        """The last folder of that name if there is one and it goes on, otherwise the next."""
        first, number = self._folder / _plain(name, _NAME), 1
        folder = last = first
        while folder.exists():
            number, last = number + 1, folder
            folder = first.with_name(f"{first.name}-{number}")
        return (last, True) if goes_on and last.exists() else (folder, False)


class WeightsAndBiases:
    """Runs of a project, in an account or in files that can be sent to one later."""

    def __init__(self, folder: Path) -> None:
        import wandb

        self._wandb, self._folder = wandb, folder
        self._project = os.environ.get("WANDB_PROJECT") or _PROJECT
        self._mode = self._chosen_mode()
        self._run: Any = None
        offline = "offline" in (self._mode, wandb.setup().settings.mode)
        self.where = f"wandb sync {folder / 'wandb'}/offline-run-*" if offline else "https://wandb.ai"

    def _chosen_mode(self) -> str | None:
        """None where the user or an account decides: nobody may be there to answer a prompt."""
        if self._wandb.setup().settings.mode != "online" or self._logged_in():
            return None
        warnings.warn(
            "wandb knows no account, so that it logs offline: `wandb login` before, or `wandb sync` after",
            AcclimateWarning,
            stacklevel=4,
        )
        return "offline"

    def _logged_in(self) -> bool:
        try:
            return bool(self._wandb.login(prompt=False, verify=False))
        except TypeError:  # versions that could not be told not to ask
            return bool(self._wandb.api.api_key)

    def begin(self, name: str, config: Config, step: int = 0) -> int:
        held = self._folder / "wandb" / f"{_plain(name, _NAME)}.id"
        goes_on = step > 0 and held.exists()
        held.parent.mkdir(parents=True, exist_ok=True)
        if not goes_on:
            held.write_text(uuid.uuid4().hex[:12])
        self._run = self._wandb.init(
            project=self._project,
            name=name[:_NAME],
            id=held.read_text(),
            resume="allow" if goes_on else None,
            config=dict(config),
            dir=self._folder,
            mode=self._mode,
            settings=self._wandb.Settings(silent=True, console="off"),
        )
        return step if goes_on else 0

    def log(self, values: Values, step: int) -> None:
        self._run.log(dict(values), step=step)

    def end(self, summary: Values, error: str | None = None) -> None:
        run, self._run = self._run, None  # if the next one cannot begin, this one stays as it is
        if run is not None:
            run.summary.update(dict(summary) if error is None else {**summary, "error": error})
            run.finish(exit_code=int(error is not None))


class MLflow:
    """Runs of an experiment, in a database beside the other logs unless a server is named."""

    def __init__(self, folder: Path) -> None:
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # each table that it makes
        from mlflow import MlflowClient, entities

        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # not minutes for a server that is gone
        own = os.environ.get("MLFLOW_TRACKING_URI")
        database = f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        if not own:
            importlib.import_module("sqlalchemy")  # which mlflow-skinny lacks
        self._entities, self._client = entities, MlflowClient(tracking_uri=own or database)
        self._experiment = self._find_experiment(None if own else (folder / "mlflow").resolve().as_uri())
        self._run: str | None = None
        self._waiting: list[Any] = []
        self._last, self._sent = 0, 0.0
        self.where = own or f"mlflow ui --backend-store-uri {database}"

    def _find_experiment(self, artifacts: str | None) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _PROJECT
        found = self._client.get_experiment_by_name(name)
        made = self._client.create_experiment(name, artifacts) if found is None else found.experiment_id
        return str(made)

    def begin(self, name: str, config: Config, step: int = 0) -> int:
        tags, self._last = {"acclimate_run": _digest(name)}, step
        if step > 0 and (found := self._last_run(tags)):
            return self._go_on(found)
        made = self._client.create_run(self._experiment, tags=tags, run_name=name[:_NAME])
        self._run = made.info.run_id
        texts = [(_plain(key, _NAME, also="/"), cut(value)) for key, value in config.items()]
        for some in _parts([self._entities.Param(*text) for text in texts]):
            self._client.log_batch(self._run, params=some)
        return 0

    def _last_run(self, tags: Mapping[str, str]) -> Any:
        alike = " and ".join(f"tags.{key} = '{value}'" for key, value in tags.items())
        latest = ["attributes.start_time DESC"]
        found = self._client.search_runs([self._experiment], alike, order_by=latest, max_results=1)
        return found[0] if found else None

    def _go_on(self, run: Any) -> int:
        self._run = run.info.run_id
        self._client.update_run(self._run, status="RUNNING")
        if "error" in run.data.tags:
            self._client.delete_tag(self._run, "error")
        points = self._client.get_metric_history(self._run, "step/loss")
        return max((int(point.step) for point in points), default=0)

    def log(self, values: Values, step: int) -> None:
        now, self._last = int(time.time() * 1000), max(step, self._last)
        named = {_plain(name, _NAME, also="/"): value for name, value in values.items()}
        self._waiting += [self._entities.Metric(name, value, now, step) for name, value in named.items()]
        if time.monotonic() - self._sent > 1:  # a server may be far away
            self._send()

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for some in _parts(waiting):
            self._client.log_batch(self._run, metrics=some)
        self._sent = time.monotonic()

    def end(self, summary: Values, error: str | None = None) -> None:
        if self._run is None:
            return
        self.log(summary, self._last)
        self._send()
        if error is not None:
            self._client.set_tag(self._run, "error", error)
        self._client.set_terminated(self._run, "FINISHED" if error is None else "FAILED")
        self._run = None


SINKS: Final[Mapping[str, Callable[[Path], Sink]]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
"""By the name of the package; each is made with the folder of all logs."""


def open_sinks(names: Iterable[str], folder: Path) -> Sink:
    """All sinks of these names as one; what stands in their way is told now, before any work."""
    asked, opened = list(dict.fromkeys(names)), {}
    for name in asked:
        if name not in SINKS:
            raise OptionError(unknown("--log", name, SINKS))
    for name in asked:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            check_writable(folder / "events")
            opened[name] = SINKS[name](folder)
        except AcclimateError:
            raise
        except ImportError as error:
            raise OptionError(f"--log {name} needs {name}: pip install {name} ({error})") from error
        except Exception as error:
            raise OptionError(f"--log {name} cannot be opened: {said(error)}") from error
    return _All(opened)


class _All:
    """Many sinks as one; a sink that fails is told of once and left behind."""

    def __init__(self, sinks: dict[str, Sink]) -> None:
        self._sinks = sinks
        self._there: dict[str, int] = {}
        self.where = ", ".join(sink.where for sink in sinks.values())

    def begin(self, name: str, config: Config, step: int = 0) -> int:
        self._there, name = {}, cut(name)
        for key, sink in self._each():
            with self._left_behind(key):
                self._there[key] = sink.begin(name, config, step)
        return min(self._there.values(), default=step)

    def log(self, values: Values, step: int) -> None:
        for key, sink in self._each():
            if step > self._there[key] or self._there[key] == 0:
                with self._left_behind(key):
                    sink.log(values, step)

    def end(self, summary: Values, error: str | None = None) -> None:
        for key, sink in self._each():
            with self._left_behind(key):
                sink.end(summary, None if error is None else cut(error))

    def _each(self) -> list[tuple[str, Sink]]:
        return list(self._sinks.items())

    @contextlib.contextmanager
    def _left_behind(self, key: str) -> Iterator[None]:
        """If it fails: no log is worth an adaptation."""
        try:
            yield
        except Exception as error:
            failed, why = self._sinks.pop(key), said(error)
            with contextlib.suppress(Exception):  # it has failed already, and may be able to close
                failed.end({}, why)
            warnings.warn(f"no more is logged to {key}, which failed: {why}", AcclimateWarning, stacklevel=4)


def _plain(text: str, most: int, *, also: str = "+=") -> str:
    """A name that files and databases take; where something was lost, a digest tells it from others.

    >>> _plain("demo contrast-5 slr+it seed 1", 100)
    'demo_contrast-5_slr+it_seed_1'
    >>> _plain("../a", 100)
    '_a-61b4c98b'
    """
    spaced = text.replace(" ", "_")
    plain = re.sub(rf"[^A-Za-z0-9_.\-{re.escape(also)}]+", "_", spaced).lstrip(".")
    if plain and plain == spaced and len(plain) <= most:
        return plain
    return f"{plain[: most - 9] or 'run'}-{_digest(text)[:8]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _parts(items: list[Any]) -> Iterator[list[Any]]:
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))


def said(error: BaseException) -> str:
    """In one line."""
    return cut(f"{type(error).__name__}: {error}".partition("\n")[0])


def cut(value: object) -> str:
    """Cut, and without the halves of characters that names of files can have."""
    return str(value)[:_TEXT].encode(errors="backslashreplace").decode()

"""Weights & Biases and MLflow: what real runs hold, read back, and stand-ins that are as strict."""

from __future__ import annotations

import json
import re
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class StandIn:
    """What a package was told, by run."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []

    def new(self, **fields: Any) -> dict[str, Any]:
        self.runs.append({"rows": {}, "config": {}, "summary": {}, "state": "running", **fields})
        return self.runs[-1]


class WandbStandIn(StandIn):
    def __init__(self, *, mode: str, account: bool | None) -> None:
        super().__init__()
        self.mode, self.account = mode, account

    def module(self) -> types.ModuleType:
        module = types.ModuleType("wandb")
        settings = types.SimpleNamespace(settings=types.SimpleNamespace(mode=self.mode))
        own = {"setup": lambda: settings, "Settings": dict, "login": self.login, "init": self.init}
        vars(module).update(own, api=types.SimpleNamespace(api_key=None))
        return module

    def login(self, **options: Any) -> bool:
        if self.account is None:
            raise TypeError("login() got an unexpected keyword argument 'prompt'")
        assert options["prompt"] is False
        return self.account

    def init(self, **options: Any) -> Any:
        assert len(options["name"]) <= 128
        assert re.fullmatch(r"[a-z0-9]+", options["id"])
        made = self.new(**options)

        def log(values: dict[str, float], *, step: int) -> None:
            assert step >= max(made["rows"], default=0)
            made["rows"].setdefault(step, {}).update(values)

        def finish(*, exit_code: int) -> None:
            made["state"] = "failed" if exit_code else "finished"

        return types.SimpleNamespace(log=log, finish=finish, summary=made["summary"])


def wandb_runs(folder: Path) -> list[dict[str, Any]]:
    """What the files of offline runs hold; another process writes them, which may be late."""
    deadline = time.monotonic() + 30
    while any(run["state"] == "running" for run in wandb_files(folder)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return wandb_files(folder)


def wandb_files(folder: Path) -> list[dict[str, Any]]:
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in sorted(folder.rglob("*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        own: dict[str, Any] = {"rows": {}, "config": {}, "summary": {}, "state": "running"}
        for content in leveldb_records(path.read_bytes()):
            record = Record.FromString(content)
            if record.HasField("run"):
                own |= {"id": record.run.run_id, "name": record.run.display_name}
                own["config"] |= named(record.run.config.update)
            row = named(record.history.item)
            if row:
                own["rows"].setdefault(record.history.step.num, {}).update(row)
            own["summary"] |= named(record.summary.update)
            if record.HasField("exit"):
                own["state"] = "failed" if record.exit.exit_code else "finished"
        found.append(own)
    return found


def named(items: Any) -> dict[str, Any]:
    """By name, which is one word or, nested, many."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def leveldb_records(content: bytes) -> Iterator[bytes]:
    """Records of a log as LevelDB has it: in parts, which no block of 32 KiB splits."""
    at, whole = 7, b""  # after the header of the file
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # no space for another part: the block is filled up
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


class MlflowStandIn(StandIn):
    """A client that refuses what MLflow's refuses."""

    def module(self) -> types.ModuleType:
        module = types.ModuleType("mlflow")
        entities = types.SimpleNamespace(Param=lambda *fields: fields, Metric=types.SimpleNamespace)
        entities.Metric = lambda key, value, now, step: types.SimpleNamespace(key=key, value=value, step=step)
        vars(module).update(MlflowClient=self.client, entities=entities)
        return module

    def client(self, *, tracking_uri: str) -> Any:
        assert tracking_uri.startswith("sqlite:////")
        return self

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str, artifacts: str) -> str:
        assert artifacts.startswith("file:///")
        return "1"

    def create_run(self, experiment: str, *, tags: dict[str, str], run_name: str) -> Any:
        assert len(run_name) <= 250
        made = self.new(id=str(len(self.runs)), name=run_name, tags=tags)
        return self.shown(made)

    def shown(self, run: dict[str, Any]) -> Any:
        data = types.SimpleNamespace(tags=run["tags"])
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run["id"]), data=data)

    def search_runs(self, experiments: list[str], asked: str, **_: Any) -> list[Any]:
        key, value = re.fullmatch(r"tags\.(\w+) = '(\w+)'", asked).groups()  # type: ignore[union-attr]
        return [self.shown(run) for run in reversed(self.runs) if run["tags"][key] == value]

    def log_batch(self, run: str, *, metrics: Any = (), params: Any = ()) -> None:
        assert len(metrics) <= 1000
        assert len(params) <= 100
        own = self.runs[int(run)]
        for point in metrics:
            assert re.fullmatch(r"[/\w.\- ]{1,250}", point.key)
            own["rows"].setdefault(point.step, {})[point.key] = point.value
        for key, value in params:
            assert re.fullmatch(r"[/\w.\- ]{1,250}", key)
            assert len(value) <= 500
            own["config"][key] = value

    def get_metric_history(self, run: str, key: str) -> list[Any]:
        rows = self.runs[int(run)]["rows"]
        return [types.SimpleNamespace(step=step) for step, values in rows.items() if key in values]

    def set_tag(self, run: str, key: str, value: str) -> None:
        self.runs[int(run)]["tags"][key] = value

    def delete_tag(self, run: str, key: str) -> None:
        del self.runs[int(run)]["tags"][key]

    def update_run(self, run: str, *, status: str) -> None:
        self.runs[int(run)]["state"] = status.lower()

    def set_terminated(self, run: str, status: str) -> None:
        self.update_run(run, status=status)


def mlflow_runs(folder: Path) -> list[dict[str, Any]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("acclimate").experiment_id
    found = []
    for run in client.search_runs([experiment], order_by=["attributes.start_time ASC"]):
        rows: dict[int, dict[str, float]] = {}
        for name in run.data.metrics:
            for point in client.get_metric_history(run.info.run_id, name):
                assert name not in rows.setdefault(point.step, {})
                rows[point.step][name] = point.value
        own = {"id": run.info.run_id, "name": run.info.run_name, "tags": run.data.tags, "rows": rows}
        found.append({**own, "config": run.data.params, "state": run.info.status.lower()})
    return found

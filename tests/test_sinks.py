"""What TensorBoard, Weights & Biases and MLflow are told is what was measured, each step once."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from acclimate import Adapter
from acclimate.bench import Cell
from acclimate.bench.spec import Data, Network
from acclimate.cli import app
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.errors import AcclimateWarning, OptionError
from acclimate.records import read_records
from acclimate.report.events import Live, replay
from acclimate.report.sinks import SINKS, Sink, _plain, open_sinks
from log_packages import MlflowStandIn, WandbStandIn, mlflow_runs, wandb_runs

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

CURVES = ("loss", "confidence", "class_entropy", "lr", "epoch")
ODD = "resnet50+<ü>/../" + 300 * "ö" + " seed 1"


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "x.npy"
    np.save(path, (bundled_images()[0][:128] * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy())
    return path


def adapt_command(images: Path, folder: Path, *more: object) -> list[str]:
    command = ["adapt", "--model", "demo", "--batch-size", 32, "--data", images, "--log-dir", folder / "logs",
               "--out", folder / "a.safetensors", *more]  # fmt: skip
    return [str(word) for word in command]


def tensorboard_scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """All that TensorBoard shows of a run."""
    found = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def single(values: Any) -> list[float]:
    """As event files hold them."""
    return [float(value) for value in np.asarray(list(values), dtype=np.float32)]


def check_steps(scalars: dict[str, list[tuple[int, float]]], adapter: Adapter) -> None:
    for name in CURVES:
        values = single(getattr(adapter.history, name))
        assert scalars[f"step/{name}"] == list(enumerate(values, start=1)), name


def test_an_adaptation_is_logged_step_by_step(images: Path, tmp_path: Path) -> None:
    command = adapt_command(images, tmp_path, "--epochs", 3, "--log", "tensorboard")
    code, said = run(*command)
    assert code == 0
    assert f"watch it by: tensorboard --logdir {tmp_path}/logs/tensorboard" in said
    adapter = Adapter.load(tmp_path / "a.safetensors", bundled_model())
    (folder,) = (tmp_path / "logs/tensorboard").iterdir()
    assert folder.name.startswith("demo_x.npy_slr_seed_0_")
    scalars = tensorboard_scalars(folder)
    assert adapter.step == 12
    check_steps(scalars, adapter)
    result = read_records(tmp_path / "a.json")[0]["result"]
    assert scalars["changed"] == [(12, result["changed"])]
    (before,) = single([result["before"]["confidence"]])
    (after,) = single([result["after_epoch"]["3"]["confidence"]])
    assert scalars["before/confidence"] == [(12, before)]
    assert scalars["after/confidence"] == scalars["epoch/confidence"] == [(12, after)]
    # begun anew it is another run
    assert run(*command, "--force")[0] == 0
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f"{folder.name}-2"}
    assert tensorboard_scalars(folder) == scalars


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_and_resumed_it_has_every_step_once(images: Path, tmp_path: Path, end: int) -> None:
    command = [sys.executable, "-m", "acclimate"]
    command += adapt_command(images, tmp_path, "--epochs", 12, "--log", "tensorboard")
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not (tmp_path / "a.safetensors").exists():  # after the first epoch
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(end)
    assert process.wait(timeout=60) == (130 if end == signal.SIGINT else -9)
    (folder,) = (tmp_path / "logs/tensorboard").iterdir()
    stopped = Adapter.load(tmp_path / "a.safetensors", bundled_model())
    assert 4 <= stopped.step < 48
    if end == signal.SIGINT:  # nothing that was saved is missing from the log, and nothing more is in it
        check_steps(tensorboard_scalars(folder), stopped)
    resumed = subprocess.run([*command, "--resume"], capture_output=True, check=False, text=True)
    assert resumed.returncode == 0, resumed.stderr
    adapter = Adapter.load(tmp_path / "a.safetensors", bundled_model())
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert len(list(folder.iterdir())) == 2
    assert adapter.step == 48
    check_steps(tensorboard_scalars(folder), adapter)


def test_resumed_with_a_log_for_the_first_time_it_has_the_steps_before(images: Path, tmp_path: Path) -> None:
    assert run(*adapt_command(images, tmp_path, "--epochs", 2))[0] == 0
    assert not (tmp_path / "logs").exists()
    command = adapt_command(images, tmp_path, "--epochs", 2, "--resume", "--log", "tensorboard")
    assert run(*command)[0] == 0
    (folder,) = (tmp_path / "logs/tensorboard").iterdir()
    check_steps(tensorboard_scalars(folder), Adapter.load(tmp_path / "a.safetensors", bundled_model()))


def test_a_step_that_an_interrupt_follows_at_once_is_logged(images: Path, tmp_path: Path) -> None:
    """Ctrl-C is held back within a step and comes before anybody could be told of it."""
    from acclimate.adapting import adapt_images
    from acclimate.inputs import open_images

    network, seen = bundled_model(), []

    def watch(adapter: Adapter) -> None:
        seen.append(adapter.step)
        if adapter.step == 3:
            adapter._engine.update = interrupted(adapter._engine.update)

    def interrupted(update: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            logits = update(*arguments, **options)
            os.kill(os.getpid(), signal.SIGINT)
            return logits

        return call

    with pytest.raises(KeyboardInterrupt):
        adapt_images(network, open_images(network, images)[0], normalize=(MEAN, STD), on_step=watch)
    assert seen == [0, 1, 2, 3, 4]


SPEC = {
    "networks": [{"name": "demo"}],
    "data": [{"name": "demo", "path": "acclimate.demo.bundle:bundled_images", "limit": 64}],
    "corruptions": ["contrast"],
    "seeds": [1],
    "epochs": 2,
    "batch_size": 32,
}


def test_a_benchmark_is_logged_cell_by_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # of the processes
    spec = {**SPEC, "methods": ["bn", "slr", "slr+it"]}
    spec["networks"] = [{"name": "demo"}, {"name": "failures:failing_network", "normalize": "none"}]
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    command = ("bench", tmp_path / "spec.json", "--out", tmp_path / "r", "--log-dir", tmp_path / "logs",
               "--workers", 1, "--log", "tensorboard,tensorboard", "--log", "tensorboard")  # fmt: skip
    code, _ = run(*command)
    assert code == 1
    records = read_records(tmp_path / "r")
    runs = {path.name: path for path in (tmp_path / "logs/tensorboard").iterdir()}
    names = [_plain(Cell(**record["cell"]).label, 100) for record in records]
    assert sorted(runs) == sorted(names)
    assert "demo_demo_contrast-5_slr+it_seed_1" in names
    for record, name in zip(records, names, strict=True):
        check_replayed(record, runs[name])
    # what is finished is not logged again; what failed is run again
    before = sorted((tmp_path / "logs").rglob("*tfevents*"))
    assert run(*command, "--resume", "--models", "demo")[0] == 0
    assert sorted((tmp_path / "logs").rglob("*tfevents*")) == before


def check_replayed(record: dict[str, Any], folder: Path) -> None:
    """Every number of a record at its step, and nothing else."""
    scalars = tensorboard_scalars(folder)
    if "error" in record:
        text = EventAccumulator(str(folder)).Reload().Tensors("error")[0].tensor_proto
        assert text.string_val[0].decode() == record["error"]["reason"]
        return
    result, cost = record["result"], record["cost"]
    curves = dict(result["steps"])
    at = curves.pop("step")
    expected = {f"step/{name}": list(zip(at, single(values), strict=True)) for name, values in curves.items()}
    last = 4 if at else 0  # two epochs of two batches
    for name in ("accuracy", "nll", "ece", "brier", "logit_norm"):
        values = single(epoch[name] for epoch in result["after_epoch"].values())
        expected[f"epoch/{name}"] = list(zip([2, 4] if at else [0], values, strict=True))
        expected[f"after/{name}"] = [(last, values[-1])]
        expected[f"online/{name}"] = [(last, *single([result["online"][name]]))]
    for group, values in (("ssim", result.get("ssim") or {}), ("cost", cost)):
        expected |= {f"{group}/{name}": [(last, *single([value]))] for name, value in values.items()}
    assert {tag: points for tag, points in scalars.items() if "class_entropy" not in tag} == {
        tag: points for tag, points in expected.items() if points and "class_entropy" not in tag
    }
    if at:
        assert "accuracy" in curves
        values = single(epoch["class_entropy"] for epoch in result["after_epoch"].values())
        assert scalars["epoch/class_entropy"] == list(zip([2, 4], values, strict=True))


def test_no_package_is_imported_unasked(images: Path, tmp_path: Path) -> None:
    command = adapt_command(images, tmp_path, "--epochs", 1)
    code = f"""
import sys
import acclimate
from acclimate.cli import app
def there():
    return sorted({{name.partition(".")[0] for name in sys.modules}} & {set(SINKS)!r})
assert there() == [], there()
app({command!r}, standalone_mode=False)
assert there() == [], there()
app({command!r} + ["--force", "--log", "tensorboard"], standalone_mode=False)
assert there() == ["tensorboard"], there()
assert "tensorflow" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", SINKS)
def test_a_package_that_is_missing_is_told_before_any_work(
    name: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    code, said = run(*adapt_command(images, tmp_path, "--log", name))
    assert code == 2
    assert f"--log {name} needs {name}: pip install {name}" in said
    assert not (tmp_path / "a.safetensors").exists()
    code, said = run("bench", "demo", "--out", tmp_path / "r", "--log", name, "--log-dir", tmp_path / "logs")
    assert code == 2
    assert f"pip install {name}" in said
    assert not (tmp_path / "r").exists()


def test_unknown_names_and_unwritable_places(images: Path, tmp_path: Path) -> None:
    code, said = run(*adapt_command(images, tmp_path, "--log", "tensorboard,tensorbord"))
    assert (code, "unknown --log 'tensorbord': did you mean 'tensorboard'?" in said) == (2, True)
    (tmp_path / "logs").write_text("a file")
    code, said = run(*adapt_command(images, tmp_path, "--log", "tensorboard"))
    assert (code, "--log tensorboard cannot be opened: FileExistsError" in said) == (2, True)


class Failing:
    """A sink whose disk is full at the third step of its run."""

    where = "nowhere"

    def __init__(self, folder: Path) -> None:
        self.steps: list[int] = []
        self.ended: list[str | None] = []

    def begin(self, name: str, config: Any, step: int = 0) -> int:
        return 0

    def log(self, values: Any, step: int) -> None:
        if step == 3:
            raise OSError(28, "No space left on device")
        self.steps.append(step)

    def end(self, summary: Any, error: str | None = None) -> None:
        self.ended.append(error)
        raise OSError(28, "No space left on device")


def test_a_sink_that_fails_does_not_end_the_work(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Failing] = []

    def failing(folder: Path) -> Sink:
        made.append(Failing(folder))
        return made[0]

    monkeypatch.setitem(SINKS, "failing", failing)  # type: ignore[misc]
    command = adapt_command(images, tmp_path, "--epochs", 2, "--json", "--log", "failing,tensorboard")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    outcome = json.loads(result.stdout)
    told = [text for text in outcome["cautions"] if "failing" in text]
    assert told == ["no more is logged to failing, which failed: OSError: [Errno 28] No space left on device"]
    assert made[0].steps == [1, 2]
    assert made[0].ended == ["OSError: [Errno 28] No space left on device"]
    (folder,) = (tmp_path / "logs/tensorboard").iterdir()
    check_steps(tensorboard_scalars(folder), Adapter.load(tmp_path / "a.safetensors", bundled_model()))


def test_a_full_disk_under_tensorboard(tmp_path: Path) -> None:
    sink = open_sinks(["tensorboard"], tmp_path)
    sink.begin("a", {})
    inner: Any = sink._sinks["tensorboard"]  # type: ignore[attr-defined]
    inner._file.close()
    inner._file = full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 (the sink closes it)
    with pytest.warns(AcclimateWarning, match=r"no more is logged to tensorboard.*No space left"):
        sink.log({"loss": 1.0}, 1)
    assert full.closed
    sink.log({"loss": 1.0}, 2)  # told once: warnings are errors here
    sink.end({})


# Weights & Biases and MLflow: the packages where they are installed, otherwise stand-ins.

Read = Callable[[], list[dict[str, Any]]]
# a package may use what is deprecated, but may not be left behind
of_others = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "error::acclimate.errors.AcclimateWarning"
)


@pytest.fixture(params=["wandb", "mlflow"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Read]:
    """A name for --log, and what to read it back with."""
    name = request.param
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # so that what the sink sets is undone
    monkeypatch.setenv("HOME", str(tmp_path))
    if all(map(find_spec, {"wandb": ["wandb"], "mlflow": ["mlflow", "sqlalchemy"]}[name])):
        read = {"wandb": wandb_runs, "mlflow": mlflow_runs}[name]
        return name, lambda: read(tmp_path / "logs")
    standing = WandbStandIn(mode="offline", account=False) if name == "wandb" else MlflowStandIn()
    monkeypatch.setitem(sys.modules, name, standing.module())
    monkeypatch.setitem(sys.modules, "sqlalchemy", types.ModuleType("sqlalchemy"))
    return name, lambda: standing.runs


@of_others
def test_other_packages_are_told_the_same(place: tuple[str, Read], images: Path, tmp_path: Path) -> None:
    name, read = place
    code, said = run(*adapt_command(images, tmp_path, "--epochs", 2, "--log", name))
    assert (code, "no more is logged" in said) == (0, False)
    (found,) = read()
    history = Adapter.load(tmp_path / "a.safetensors", bundled_model()).history
    for step in range(8):
        row = {f"step/{curve}": getattr(history, curve)[step] for curve in CURVES}
        assert row == {key: value for key, value in found["rows"][step + 1].items() if key in row}
    result = read_records(tmp_path / "a.json")[0]["result"]
    summary = found["summary"] if name == "wandb" else found["rows"][8]
    assert summary["changed"] == result["changed"]
    assert summary["before/confidence"] == result["before"]["confidence"]
    assert found["rows"][8]["epoch/confidence"] == result["after_epoch"]["2"]["confidence"]
    assert found["state"] == "finished"
    assert found["name"].startswith("demo x.npy slr seed 0 ")
    assert str(found["config"]["spec.method.lr"]) == str(
        Adapter.load(tmp_path / "a.safetensors", bundled_model()).method.lr
    )


@of_others
def test_other_packages_go_on_where_a_run_stopped(place: tuple[str, Read], tmp_path: Path) -> None:
    name, read = place
    shifted = bundled_images()[0][:128]
    asked = Cell(network=Network(name="demo"), data=Data(name=ODD), method="slr")
    adapter = Adapter(bundled_model(), "slr", normalize=(MEAN, STD))

    def watched(stop: int | None) -> None:
        with Live(open_sinks([name], tmp_path / "logs"), asked) as live:

            def step(adapter: Adapter) -> None:
                live(adapter)
                if adapter.step == stop:
                    raise KeyboardInterrupt

            live(adapter)
            adapter.fit(shifted, 2, batch_size=32, progress=False, on_step=step)
            live.finish({"cell": {"epochs": 2}, "cost": {}})

    with pytest.raises(KeyboardInterrupt):
        watched(3)
    (found,) = read()
    assert found["state"] == "failed"
    assert (found["summary"] if name == "wandb" else found["tags"])["error"] == "interrupted"
    watched(None)
    again = read()
    assert {run["id"] for run in again} == {found["id"]}  # offline, Weights & Biases has a file for each part
    losses = [
        (s, row["step/loss"]) for run in again for s, row in sorted(run["rows"].items()) if "step/loss" in row
    ]
    assert losses == list(enumerate(adapter.history.loss, start=1))
    assert again[-1]["state"] == "finished"
    assert "error" not in again[-1].get("tags", {})


@of_others
def test_odd_names_and_values(tmp_path: Path, place: tuple[str, Read]) -> None:
    """No package is left behind because of them: it would be a warning, and that an error."""
    name, read = place
    sink = open_sinks([name, "tensorboard"], tmp_path / "logs")
    for label in (ODD, "..", "", "a\nb", "\udcff.png"):
        sink.begin(
            label, {"k" * 300: 700 * "ü", "a+b<c>": math.nan, "yes": True, **{str(i): i for i in range(150)}}
        )
        sink.log(
            {
                "a+<ü>/" + 300 * "b": 1.0,
                "step/loss": math.nan,
                "up": math.inf,
                "down": -math.inf,
                "big": 1e300,
            },
            1,
        )
        sink.end({}, 3000 * "long ")
    assert len(read()) == 5
    assert all(math.isnan(float(found["rows"][1]["step/loss"])) for found in read())
    runs = sorted((tmp_path / "logs/tensorboard").iterdir())
    assert len(runs) == 5
    for path in runs:
        scalars = tensorboard_scalars(path)
        assert math.isnan(scalars["step/loss"][0][1])
        assert scalars["big"] == scalars["up"] == [(1, math.inf)]
        assert len(path.name) <= 110


@of_others
def test_a_run_that_cannot_begin_leaves_the_one_before_as_it_is(
    place: tuple[str, Read], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, read = place
    sink = open_sinks([name], tmp_path / "logs")
    sink.begin("first", {})
    sink.log({"step/loss": 1.0}, 1)
    sink.end({})

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("no server")

    inner: Any = sink._sinks[name]  # type: ignore[attr-defined]
    package, begins = {"wandb": ("_wandb", "init"), "mlflow": ("_client", "create_run")}[name]
    monkeypatch.setattr(getattr(inner, package), begins, unreachable)
    with pytest.warns(AcclimateWarning, match=f"no more is logged to {name}, which failed: ConnectionError"):
        sink.begin("second", {})
    sink.log({"step/loss": 2.0}, 1)
    sink.end({})
    (found,) = read()
    assert (found["name"], found["state"], found["rows"][1]["step/loss"]) == ("first", "finished", 1.0)


def test_nobody_is_asked_for_an_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode, account, taken in (
        ("online", False, "offline"), ("online", None, "offline"), ("online", True, None),
        ("offline", False, None), ("disabled", False, None),
    ):  # fmt: skip
        standing = WandbStandIn(mode=mode, account=account)
        monkeypatch.setitem(sys.modules, "wandb", standing.module())
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            sink = open_sinks(["wandb"], tmp_path)
        assert [str(w.message).partition(",")[0] for w in told] == (
            ["wandb knows no account"] if taken else []
        )
        sink.begin("a", {})
        assert standing.runs[0]["mode"] == taken


def test_what_cannot_be_opened_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path) -> Sink:
        raise RuntimeError("no server\nat all")

    monkeypatch.setitem(SINKS, "broken", broken)  # type: ignore[misc]
    with pytest.raises(OptionError, match=r"--log broken cannot be opened: RuntimeError: no server$"):
        open_sinks(["broken"], tmp_path)


def test_a_record_without_a_whole_cell_has_a_name(tmp_path: Path) -> None:
    cell = {"method": "slr", "seed": 3, "epochs": 1}
    replay({"cell": cell, "cost": {}, "origin": {}}, open_sinks(["tensorboard"], tmp_path))
    assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == ["slr_seed_3"]

"""Specs, cells and grids: what is measured, that it is measured right, and that nothing finished is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from acclimate import Adapter, corrupt
from acclimate.bench import PRESETS, Cell, Spec, read_records, read_spec, run_grid
from acclimate.bench.attempt import attempt, kept
from acclimate.bench.cell import run_cell
from acclimate.bench.claims import ROBUST
from acclimate.bench.images import replaced
from acclimate.bench.presets import narrowed
from acclimate.bench.spec import Data, Network, Subset
from acclimate.cli import app
from acclimate.corruptions import NAMES, VALIDATION_NAMES
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.errors import InputError, OptionError
from acclimate.methods import parse_method
from acclimate.places import open_place
from acclimate.records import finished, pack_records, record_name, same

DEMO = Data(name="demo", path="acclimate.demo.bundle:bundled_images", limit=96)
NETWORK = Network(name="demo")


def cell(**changes: Any) -> Cell:
    own: dict[str, Any] = {
        "network": NETWORK, "data": DEMO, "corruption": "contrast", "severity": 5, "method": "slr",
        "setting": "few", "epochs": 2, "batch_size": 32,
    }  # fmt: skip
    return Cell(**{**own, **changes})


def small_grid() -> list[Cell]:
    return [cell(method=method, epochs=1, seed=seed) for method in ("bn", "slr") for seed in (1, 2)]


def test_a_record_is_what_the_library_gives_by_hand() -> None:
    record = run_cell(cell(seed=7, threads=torch.get_num_threads()), Path())
    images, labels = bundled_images()
    rows = torch.linspace(0, 1999, 96).round().long()
    pixels = (images[rows] * 255).round().byte()
    shifted = corrupt(pixels, "contrast", 5).float() / 255
    adapter = Adapter(bundled_model(), "slr", setting="few", normalize=(MEAN, STD), seed=7)
    after: list[float] = []

    def evaluate(adapter: Adapter) -> None:
        right = adapter.predict(shifted, batch_size=32).argmax(1).eq(labels[rows])
        after.append(right.double().mean().item())

    adapter.fit(shifted, 2, batch_size=32, on_epoch=evaluate, progress=False)
    found = record["result"]["after_epoch"]
    assert [found[epoch]["accuracy"] for epoch in "12"] == pytest.approx(after, abs=1e-7)
    assert record["result"]["steps"]["loss"] == pytest.approx(adapter.history.loss, rel=1e-5)
    assert record["spec"]["images"] == record["spec"]["images_adapted_to"] == 96
    assert json.loads(json.dumps(record)) == record


def test_a_cell_gives_the_threads_back() -> None:
    before = torch.get_num_threads()
    run_cell(cell(method="bn", epochs=1, threads=before + 1), Path())
    assert torch.get_num_threads() == before


def test_the_online_pass_is_what_online_calls_return() -> None:
    """TENT's learning rate is constant, so that the first epoch is a stream."""
    threads = torch.get_num_threads()
    record = run_cell(cell(method="tent", overrides={"lr": 0.01}, epochs=2, threads=threads), Path())
    images, labels = bundled_images()
    rows = torch.linspace(0, 1999, 96).round().long()
    shifted = corrupt((images[rows] * 255).round().byte(), "contrast", 5).float() / 255
    adapter = Adapter(bundled_model(), "tent", normalize=(MEAN, STD), lr=0.01)
    seen: list[Any] = []
    adapter.fit(shifted, 1, batch_size=32, progress=False, on_logits=lambda *pair: seen.append(pair))
    again = Adapter(bundled_model(), "tent", normalize=(MEAN, STD), lr=0.01)
    right = 0
    for logits, index in seen:
        assert torch.equal(again(shifted[index]), logits)
        right += int(logits.argmax(1).eq(labels[rows][index]).sum())
    assert record["result"]["online"]["accuracy"] == pytest.approx(right / 96)


def test_all_methods_of_a_comparison_see_the_same_order() -> None:
    shifted = bundled_images()[0][:96]
    orders = []
    for method in ("tent", "slr", "slr+it", "shot"):
        seen: list[Any] = []
        adapter = Adapter(bundled_model(), method, normalize=(MEAN, STD), seed=5)
        adapter.fit(
            shifted, 2, batch_size=32, progress=False, on_logits=lambda _, index, s=seen: s.append(index)
        )
        orders.append(torch.cat(seen).tolist())
    assert all(order == orders[0] for order in orders)


def test_the_oracle_is_told_the_labels_and_wins() -> None:
    found = {method: run_cell(cell(method=method, epochs=3), Path()) for method in ("oracle", "bn")}
    after = {m: max(v["accuracy"] for v in r["result"]["after_epoch"].values()) for m, r in found.items()}
    assert after["oracle"] > after["bn"] + 0.02
    assert found["oracle"]["spec"]["method"]["name"] == "oracle"


def test_an_input_transformation_is_measured_against_the_clean_images() -> None:
    record = run_cell(cell(method="slr+it"), Path())
    ssim = record["result"]["ssim"]
    assert 0 < ssim["before"] < 1
    assert 0 < ssim["after"] <= 1
    assert ssim["after"] != ssim["before"]


def test_a_subset_is_adapted_to_and_all_is_evaluated() -> None:
    record = run_cell(cell(subset=Subset(classes=0.5), epochs=1), Path())
    assert 0 < record["spec"]["images_adapted_to"] < record["spec"]["images"] == 96
    assert sum(record["result"]["after_epoch"]["1"]["histogram"]) == 96
    assert sum(record["result"]["online"]["histogram"]) == record["spec"]["images_adapted_to"]


def test_what_cannot_matter_is_no_cell_of_its_own() -> None:
    spec = Spec(
        networks=(NETWORK,), data=(DEMO,), methods=("source", "bn", "slr"), corruptions=("fog",),
        seeds=(1, 2), overrides=({}, {"kappa": 0.5}), subsets=(None, Subset(samples=0.5)),
    )  # fmt: skip
    counts: dict[str, int] = {}
    for item in spec.cells():
        counts[item.method] = counts.get(item.method, 0) + 1
    assert counts == {"source": 1, "bn": 2, "slr": 8}


def test_specs_are_read_and_refused(tmp_path: Path) -> None:
    good = {
        "networks": [{"name": "demo"}],
        "data": [{"name": "demo", "path": DEMO.path, "limit": 64}],
        "methods": ["slr"],
        "corruptions": ["fog"],
        "overrides": [{"lr": 0.01, "freeze": "none"}],
    }
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(good))
    assert len(list(read_spec(path).cells())) == 3
    for change, message in (
        ({"metods": ["slr"]}, "metods: Extra inputs are not permitted"),
        ({"methods": ["slrr"]}, "unknown method 'slrr'"),
        ({"corruptions": ["fogg"]}, "fogg"),
        ({"overrides": [{"learning_rate": 1}]}, "unknown option 'learning_rate'"),
        ({"overrides": [{"precision": "bf61"}]}, "unknown precision 'bf61': did you mean 'bf16'"),
        ({"overrides": [{"memory": "none"}]}, "unknown memory 'none'"),
        ({"overrides": [{"fast": ["norm"]}]}, "did you mean 'norms'"),
        ({"data": [{"name": "a", "limit": 0}]}, "limit"),
    ):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(OptionError, match=message):
            read_spec(path)
    path.write_text("- a list")
    with pytest.raises(OptionError, match="is no spec"):
        read_spec(path)


def test_finished_cells_are_kept_and_broken_ones_run_again(tmp_path: Path) -> None:
    cells = small_grid()[:3]
    run_grid(cells, Path(), tmp_path)
    with pytest.raises(OptionError, match="has 3 of these records: --resume goes on, --force replaces them"):
        run_grid(cells, Path(), tmp_path)
    (tmp_path / record_name(cells[0].key)).write_text('{"schema": 1, "ce')
    kept = (tmp_path / record_name(cells[1].key)).read_bytes()
    outcome = run_grid(cells, Path(), tmp_path, resume=True)
    assert (outcome.done, outcome.skipped) == (1, 2)
    assert (tmp_path / record_name(cells[1].key)).read_bytes() == kept
    (tmp_path / ".half.1.part.json").write_text('{"sch')  # what a killed process was writing
    assert len(read_records(tmp_path)) == 3
    assert run_grid(cells, Path(), tmp_path, resume=True).skipped == 3


def test_records_in_one_file(tmp_path: Path) -> None:
    run_grid(small_grid()[:2], Path(), tmp_path / "r")
    pack_records(tmp_path / "r", tmp_path / "r.jsonl.gz")
    assert read_records(tmp_path / "r.jsonl.gz") == read_records(tmp_path / "r")
    whole = (tmp_path / "r.jsonl.gz").read_bytes()
    pack_records(tmp_path / "r", tmp_path / "again.jsonl.gz")
    assert (tmp_path / "again.jsonl.gz").read_bytes() == whole
    (tmp_path / "r.jsonl.gz").write_bytes(whole[:100])
    (tmp_path / "other.jsonl").write_text('{"schema": 2, "cell": {}, "cost": {}, "origin": {}}')
    (tmp_path / "no.jsonl").write_text("[1]")
    (tmp_path / "empty").mkdir()
    bad = {
        "r.jsonl.gz": "is no record",
        "other.jsonl": "schema 2",
        "no.jsonl": "no record",
        "empty": "no records",
    }
    for name, message in bad.items():
        with pytest.raises(InputError, match=message):
            read_records(tmp_path / name)


def test_records_of_other_images_are_not_gone_on_with(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), dtype=np.uint8)
    own = cell(data=Data(name="mine", path="a.npz"), method="bn", epochs=1)
    for root in ("one", "two"):
        (tmp_path / root).mkdir()
        np.savez(tmp_path / root / "a.npz", images=pixels, labels=np.arange(64) % 10)
        pixels = pixels[::-1].copy()
    run_grid([own], tmp_path / "one", tmp_path / "out")
    with pytest.raises(InputError, match="measured on other images"):
        run_grid([own], tmp_path / "two", tmp_path / "out", resume=True)


def test_a_cell_that_fails_is_recorded_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images/a").mkdir(parents=True)
    for number in range(40):
        Image.new("RGB", (32, 32), (number, 0, 0)).save(tmp_path / f"images/a/{number:02d}.png")
    (tmp_path / "images/b").mkdir()
    (tmp_path / "images/b/broken.png").write_bytes(b"\x89PNG")
    networks = {name: f"failures:{name}_network" for name in ("failing", "killing", "hungry")}
    cells = [cell(network=Network(name=name), epochs=1) for name in networks.values()]
    unreadable = Data(name="broken", path="images", layout="class-folders", size=0)
    cells += [cell(data=unreadable, epochs=1), cell(method="bn", epochs=1)]
    told: list[str] = []
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # of the processes
    outcome = run_grid(
        cells, tmp_path, tmp_path / "out", on_failure=lambda label, reason: told.append(reason)
    )
    assert outcome.done == 1
    reasons = list(outcome.failed.values())
    assert told == reasons
    assert "the loss is nan" in reasons[0]
    assert reasons[1] == "its process was ended by SIGKILL, perhaps for lack of memory"
    assert "memory" in reasons[2]
    assert "broken.png cannot be read" in reasons[3]
    records = read_records(tmp_path / "out")
    assert len(records) == 5
    assert sum("error" in record for record in records) == 4
    again = run_grid(cells[4:], tmp_path, tmp_path / "out", resume=True)
    assert (again.done, again.skipped) == (0, 1)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_grid(small_grid()[:1], Path(), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    one = small_grid()[1]
    done = kept(one, attempt(one, ""), open_place(tmp_path))
    assert done.reason is not None
    assert "No space left on device" in done.reason
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_killed_and_resumed_it_gives_the_same_records(tmp_path: Path) -> None:
    """Once here; at fifty random moments in `benchmarks/kills.py`."""
    cells = small_grid()
    spec = {
        "networks": [NETWORK.model_dump()], "data": [DEMO.model_dump()], "methods": ["bn", "slr"],
        "corruptions": ["contrast"], "seeds": [1, 2], "settings": ["few"], "epochs": 1, "batch_size": 32,
    }  # fmt: skip
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "acclimate", "bench", tmp_path / "spec.yaml", "--resume"]
    running = subprocess.Popen(
        [*command, "--workers", "2", "--out", tmp_path / "b"],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "b").glob("*.json")) and running.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)  # the processes too, in the middle of a cell
    running.wait()
    left = run_grid(list(read_spec(tmp_path / "spec.yaml").cells()), Path(), tmp_path / "b", resume=True)
    assert left.done + left.skipped == len(cells)
    run_grid(list(read_spec(tmp_path / "spec.yaml").cells()), Path(), tmp_path / "a")
    one, other = (finished(tmp_path / name) for name in "ab")
    assert one.keys() == other.keys()
    assert all(same(one[key], other[key]) for key in one)


def test_presets_are_the_papers() -> None:
    table = [c for c in PRESETS["imagenet-c"].cells() if c.severity == 5 and "V1" in c.network.name]
    stock = [c for c in table if c.network.weights is None and c.network.name.startswith("resnet50.")]
    assert {c.corruption for c in stock} == set(NAMES)
    assert {c.method for c in stock} == {"source", "bn", "pl", "tent", "tent+", "hlr", "slr", "oracle"}
    assert {c.seed for c in stock if c.method == "slr"} == {2020, 2021, 2022}
    assert {(c.epochs, c.evaluate, c.batch_size, c.setting) for c in stock if c.method == "slr"} == {
        (5, (1, 5), 64, "paper")
    }
    keys = [c.key for preset in PRESETS.values() for c in preset.cells()]
    assert len(set(keys)) > 1000
    for name, preset in PRESETS.items():
        own = [c.key for c in preset.cells()]
        assert own, name
        assert len(own) == len(set(own)), name


def test_hyperparameters_of_presets_are_the_papers() -> None:
    visda = {c.method: c for c in PRESETS["visda-c"].cells()}
    for method, delta in (("tent+", 1.0), ("slr", 0.25)):
        own = parse_method(method, visda[method].setting)
        assert (own.lr, own.optimizer, own.schedule, own.kappa) == (2e-5, "adam", "cosine", 0)
        assert own.delta == delta
    kappas = {c.overrides.get("kappa", 0.9) for c in PRESETS["kappa"].cells() if c.method == "slr"}
    assert kappas == {0.0, 0.5, 0.9, 0.99}
    assert any(c.method == "slr-div" for c in PRESETS["kappa"].cells())
    assert {c.corruption for c in PRESETS["kappa"].cells()} == set(VALIDATION_NAMES)
    parts = [c.subset for c in PRESETS["subsets"].cells() if c.subset is not None]
    assert (
        {p.classes for p in parts} - {None} == {p.samples for p in parts} - {None} == {0.1, 0.25, 0.5, 0.75}
    )
    titles = {c.network.title for c in PRESETS["imagenet-c"].cells()}
    assert len(titles) == 5
    (robust,) = {c.network.title for c in narrowed(list(PRESETS["imagenet-c"].cells()), networks=[ROBUST])}
    assert robust == ROBUST
    for name, preset in PRESETS.items():
        labels = [c.label for c in preset.cells()]
        assert len(labels) == len(set(labels)), name


def test_epochs_of_presets_are_changed_and_all_of_them_reached() -> None:
    cells = list(PRESETS["kappa"].cells())
    assert {c.evaluate for c in narrowed(cells, epochs=3) if c.learns} == {(1, 3)}
    assert {c.epochs for c in narrowed(cells, epochs=10) if c.learns} == {10}
    assert {c.epochs for c in narrowed([cell(epochs=1)], epochs=4)} == {4}
    with pytest.raises(ValueError, match="evaluate names epochs"):
        cell(epochs=5, evaluate=(10,))
    record = run_cell(cell(epochs=3, evaluate=(1,)), Path())
    assert list(record["result"]["after_epoch"]) == ["1", "3"]


def test_similarity_is_to_the_clean_image_of_the_same_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, wnid in enumerate(("n01440764", "n01443537", "n01484850")):
        for name in range(12):
            image = Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
            for folder in ["clean", "c/fog/5"] if number else ["clean"]:  # the first class is not corrupted
                (tmp_path / folder / wnid).mkdir(parents=True, exist_ok=True)
                image.save(tmp_path / folder / wnid / f"{name}.png")
    names = ["n01440764", "n01443537", "n01484850", *map(str, range(7))]  # of the network's ten outputs
    for folder in ("clean", "c"):
        (tmp_path / folder / "classes.txt").write_text("\n".join(names))
    data = Data(name="tiny", path="c", clean="clean")
    own = cell(data=data, corruption="fog", method="slr+it", epochs=1, batch_size=8, overrides={"lr": 0.0})
    ssim = run_cell(own, tmp_path)["result"]["ssim"]
    assert (ssim["before"], ssim["after"]) == pytest.approx((1, 1))
    without = run_cell(own.model_copy(update={"data": replaced(data, clean="nowhere")}), tmp_path)
    assert without["result"]["ssim"] is None


def test_presets_are_narrowed() -> None:
    cells = list(PRESETS["demo"].cells())
    few = narrowed(cells, methods=["slr", "source"], corruptions=["fog"], seeds=[2021], limit=32, epochs=2)
    assert {(c.method, c.corruption, c.data.limit) for c in few} == {
        ("slr", "fog", 32),
        ("source", "fog", 32),
    }
    assert {c.epochs for c in few} == {1, 2}
    with pytest.raises(OptionError, match="methods: there is no 'shotgun' in this, only"):
        narrowed(cells, methods=["shotgun"])
    other = narrowed(cells, networks=["cifar-resnet20"], methods=["slr"], corruptions=["fog"])
    assert {c.network.name for c in other} == {"cifar-resnet20"}


def test_another_precision_is_an_override_and_the_default_changes_no_key() -> None:
    cells = [c for c in PRESETS["demo"].cells() if c.corruption == "fog"]
    keys = [c.key for c in cells]
    assert [c.key for c in narrowed(cells, precision="fp32")] == keys
    low = narrowed(cells, precision="bf16")
    assert [c.overrides for c in low] == [{**c.overrides, "precision": "bf16"} for c in cells]
    assert not {c.key for c in low} & set(keys)
    assert [c.key for c in narrowed(low, precision="fp32")] == keys  # records run again in the default
    with pytest.raises(OptionError, match="unknown precision 'fp61'"):
        narrowed(cells, precision="fp61")


def test_the_record_says_which_precision_it_came_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acclimate.fast.precision._best", lambda device: None)  # a device without bfloat16
    record = run_cell(cell(method="bn", epochs=1, overrides={"precision": "auto"}), Path())
    assert (record["spec"]["precision"], record["spec"]["options"]["precision"]) == ("fp32", "auto")


def test_the_command(tmp_path: Path) -> None:
    run = CliRunner().invoke
    options = ["--limit", "64", "--epochs", "1", "--seeds", "2020", "--corruptions", "fog"]
    listed = run(app, ["bench", "demo", *options, "--methods", "bn,tent", "--dry-run"])
    assert listed.exit_code == 0
    assert "demo demo fog-5 tent seed 2020" in listed.output
    low = run(app, ["bench", "demo", *options, "--methods", "bn", "--precision", "bf16", "--dry-run"])
    assert "demo demo fog-5 bn precision=bf16 seed 2020" in low.output
    done = run(app, ["bench", "demo", *options, "--methods", "bn", "--out", str(tmp_path / "r"), "--json"])
    assert json.loads(done.output)["done"] == 1
    judged = run(app, ["compare", str(tmp_path / "r")])
    assert judged.exit_code == 0
    assert "not measured" in judged.output
    for arguments, message in (
        (["bench", "imagenetc"], "did you mean 'imagenet-c'"),
        (["bench", "imagenet-c"], "imagenet-c needs --data, the folder of ImageNet-C"),
        (["bench", "imagenet-c", "--data", "nowhere"], "there is no folder nowhere"),
        (["bench", "demo", "--seeds", "x"], "a seed must be a whole number"),
        (["bench", "demo", "--precision", "double"], "unknown precision 'double': known are 'auto', 'bf16'"),
        (["compare", str(tmp_path / "none")], "there is nothing at"),
    ):
        refused = run(app, arguments)
        assert refused.exit_code == 2, arguments
        assert message in refused.output.replace("\n", " ")


def test_a_small_imagenet_c_through_its_preset(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for corruption in ("fog", "contrast"):
        for wnid in ("n01440764", "n01443537"):
            for number in range(20):
                path = tmp_path / corruption / "5" / wnid / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    names = ["n01440764", "n01443537", *map(str, range(8))]  # of the network's ten outputs
    (tmp_path / "classes.txt").write_text("\n".join(names))
    out = tmp_path / "out"
    options = [
        "--models",
        "demo",
        "--limit",
        "16",
        "--epochs",
        "1",
        "--corruptions",
        "fog",
        "--severities",
        "5",
    ]
    options += ["--methods", "source,bn,slr", "--seeds", "2020", "--out", str(out)]
    done = CliRunner().invoke(app, ["bench", "imagenet-c", "--data", str(tmp_path), *options])
    assert done.exit_code == 0, done.output
    assert "3 cells done" in done.output
    for record in read_records(out):
        assert record["spec"]["layout"] == "imagenet-c"
        assert record["spec"]["images"] == 16

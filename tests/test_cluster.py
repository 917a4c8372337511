"""Grids beyond one process: buckets, shards, merges, estimates, Ray, and jobs of several ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from acclimate import Adapter
from acclimate.bench import Cell, run_grid
from acclimate.bench.attempt import kept
from acclimate.bench.estimate import estimated, table_of
from acclimate.bench.grid import shard_of
from acclimate.bench.merge import merge
from acclimate.bench.mirror import local_root
from acclimate.bench.on_ray import _check_resources
from acclimate.bench.spec import Data, Network
from acclimate.cli import app, with_values
from acclimate.data import open_data
from acclimate.delta import read_delta
from acclimate.demo.bundle import bundled_model
from acclimate.errors import AcclimateWarning, FetchError, InputError, OptionError, OutputError, shown
from acclimate.places import Bucket, open_place
from acclimate.records import finished, read_records, record_content, record_name, same
from corrupted import picture

fsspec = pytest.importorskip("fsspec")

DATA = Data(name="demo", path="acclimate.demo.bundle:bundled_images", limit=96)


def cells(count: int = 4) -> list[Cell]:
    """Of some methods and seeds."""
    some = [
        Cell(
            network=Network(name="demo"), data=DATA, corruption="contrast", severity=5, method=method,
            setting="few", epochs=1, batch_size=32, seed=seed,
        )
        for seed in range(-(-count // 2))
        for method in ("bn", "slr")
    ]  # fmt: skip
    return some[:count]


def equal(one: str | Path, other: str | Path) -> bool:
    """Whether two places have the same records."""
    mine, theirs = finished(one), finished(other)
    return mine.keys() == theirs.keys() and all(same(mine[key], theirs[key]) for key in mine)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All records, by one process."""
    out = tmp_path_factory.mktemp("whole")
    assert run_grid(cells(), Path(), out).done == 4
    return out


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[str, dict[str, Any]]]:
    """A store that speaks S3, on this machine."""
    pytest.importorskip("s3fs")
    server_of = pytest.importorskip("moto.server")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    given = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir("grids")
    yield "s3://grids", given
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    server.stop()


def test_a_grid_begun_in_a_folder_goes_on_in_a_bucket(whole: Path, bucket: tuple[str, Any]) -> None:
    address = f"{bucket[0]}/begun"
    assert run_grid(cells()[:1], Path(), address).done == 1
    with pytest.raises(OptionError, match="has 1 of these records: --resume goes on"):
        run_grid(cells(), Path(), address)
    outcome = run_grid(cells(), Path(), address, workers=2, resume=True)
    assert (outcome.done, outcome.skipped, outcome.failed) == (3, 1, {})
    assert equal(whole, address)
    assert len(read_records(address)) == 4


def test_commands_take_addresses(whole: Path, bucket: tuple[str, Any], tmp_path: Path) -> None:
    address = f"{bucket[0]}/merged"
    run = CliRunner().invoke(app, ["merge", str(whole), "--out", address])
    assert (run.exit_code, run.stdout.splitlines()[0]) == (0, f"4 records in {address}")
    assert equal(whole, address)
    page = tmp_path / "report.html"
    assert CliRunner().invoke(app, ["report", address, "--out", str(page)]).exit_code == 0
    assert page.stat().st_size > 1000
    again = CliRunner().invoke(app, ["bench", address, "--out", address, "--resume", "--json"])
    assert json.loads(again.stdout)["skipped"] == 4


def test_a_bucket_that_is_not_there_is_one_sentence(bucket: tuple[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no records in s3://grids/none"):
        read_records("s3://grids/none")
    place = open_place("s3://nobodys-bucket/grid")
    with pytest.raises(OutputError, match=r"s3://nobodys-bucket/grid/a.json cannot be written: .*bucket"):
        place.write("a.json", b"{}")
    run = CliRunner().invoke(app, ["bench", "demo", "--out", "nosuchprotocol://x"])
    assert run.exit_code == 2
    assert "nosuchprotocol://x cannot be opened" in run.stderr


def test_a_bucket_is_not_made_by_a_wrong_name(bucket: tuple[str, Any]) -> None:
    with pytest.raises(OptionError, match="s3://nobodys-bucket/a cannot be used: there is no bucket"):
        run_grid(cells()[:1], Path(), "s3://nobodys-bucket/a")
    assert not fsspec.filesystem("s3", skip_instance_cache=True).exists("nobodys-bucket")


def test_a_record_that_cannot_be_sent_is_kept(
    bucket: tuple[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cell = cells()[0]
    done = kept(cell, {"result": {}}, open_place("s3://nobodys-bucket/a"))
    assert done.reason is not None
    assert done.reason.endswith(
        "its record is in the folder unsent-records, and `acclimate merge` brings it there"
    )
    assert json.loads((tmp_path / "unsent-records" / record_name(cell.key)).read_bytes()) == {"result": {}}


def test_passwords_are_not_shown() -> None:
    assert shown("sftp://me:sec@ret@host/a@b") == "sftp://***@host/a@b"
    assert shown(Path("a@b")) == "a@b"
    assert "secret" not in str(Bucket("memory://me:secret@host/grid"))


def test_data_behind_an_address(tmp_path: Path, bucket: tuple[str, Any]) -> None:
    """Of corrupted images, those of the cell's own corruption and severity are fetched, and once."""
    system = fsspec.filesystem("s3", skip_instance_cache=True)
    for name in ("fog/5/a/1.png", "fog/4/a/1.png", "snow/5/a/1.png", "classes.txt"):
        local = tmp_path / "source" / name
        local.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("png"):
            Image.fromarray(picture()).save(local)
        else:
            local.write_text("a\n")
        system.put_file(str(local), f"grids/data/imagenet-c/{name}")
    cell = cells()[0].model_copy(
        update={"data": Data(name="c", path="imagenet-c", layout="imagenet-c"), "corruption": "fog"}
    )
    root = local_root("s3://grids/data", cell, cache=tmp_path / "cache")
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*.*") if path.suffix)
    assert found == ["imagenet-c/classes.txt", "imagenet-c/fog/5/a/1.png"]
    first = (root / found[1]).stat().st_mtime_ns
    assert local_root("s3://grids/data", cell, cache=tmp_path / "cache") == root
    assert (root / found[1]).stat().st_mtime_ns == first
    with pytest.raises(InputError, match="there is nothing at s3://grids/empty/imagenet-c"):
        local_root("s3://grids/empty", cell, cache=tmp_path / "cache")
    with pytest.raises(FetchError, match=r"s3://nobodys-bucket cannot be listed: .*bucket"):
        local_root("s3://nobodys-bucket", cell, cache=tmp_path / "cache")


def test_shards_are_the_whole(whole: Path, tmp_path: Path) -> None:
    parts = [tmp_path / "0", tmp_path / "1"]
    for number, part in enumerate(parts):
        assert run_grid(shard_of(cells(), f"{number}/2"), Path(), part).done == 2
    outcome = merge(parts, tmp_path / "all")
    assert (outcome.written, outcome.twice, outcome.failed) == (4, 0, [])
    assert equal(whole, tmp_path / "all")
    assert merge(parts, tmp_path / "all").twice == 4, "again is harmless"


def test_shards_are_disjoint_and_complete() -> None:
    many = cells(40)
    for count in (1, 2, 3, 7, 40, 41):
        parts = [shard_of(many, f"{number}/{count}") for number in range(count)]
        keys = [cell.key for part in parts for cell in part]
        assert sorted(keys) == sorted(cell.key for cell in many)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for wrong in ("2/2", "1", "a/b", "-1/2", "1/0", "0.5/2"):
        with pytest.raises(OptionError, match="a shard must be i/n"):
            shard_of(many, wrong)


def test_a_merge_takes_results_and_refuses_two(whole: Path, tmp_path: Path) -> None:
    record = read_records(whole)[0]
    key = next(iter(finished(whole)))
    error = {**{k: record[k] for k in ("schema", "cell", "cost", "origin")}, "error": {"reason": "no memory"}}
    failed, other = open_place(tmp_path / "failed"), open_place(tmp_path / "other")
    for place, content in ((failed, error), (other, {**record, "result": {"online": {}}})):
        place.make()
        place.write(record_name(key), record_content(content))
    assert merge([tmp_path / "failed"], tmp_path / "a").failed
    for order in ([whole, tmp_path / "failed"], [tmp_path / "failed", whole]):
        assert merge(order, tmp_path / "b").failed == []
    assert equal(whole, tmp_path / "b")
    with pytest.raises(InputError, match="1 cells have two different results: 'demo demo contrast-5"):
        merge([whole, tmp_path / "other"], tmp_path / "c")
    assert not (tmp_path / "c").exists(), "before anything is written"
    merge([whole, tmp_path / "other"], tmp_path / "c", force=True)
    assert finished(tmp_path / "c")[key]["result"] == {"online": {}}
    run = CliRunner().invoke(app, ["merge", str(whole), "--out", str(whole)])
    assert run.exit_code == 2
    assert "is read from" in run.stderr


def test_an_estimate_is_of_the_right_size(whole: Path) -> None:
    """A machine that others use lets nobody ask for more; `benchmarks/cluster.py` measures the error."""
    found = estimated(cells(), "")
    taken = sum(record["cost"]["seconds"] for record in finished(whole).values())
    assert taken / 5 < found.work < taken * 5
    assert [kind.cells for kind in found.kinds] == [2, 2]
    assert {kind.images for kind in found.kinds} == {96}
    assert found.work < found.seconds
    shown = table_of(found)
    assert "4 cells: " in shown
    assert "with one worker like this one" in shown
    with pytest.raises(InputError, match="no cells"):
        estimated([], "")


def torchrun(*words: str, folder: Path) -> subprocess.Popen[str]:
    """A command on two ranks."""
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
         "-m", "acclimate", *words],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(40):
        Image.fromarray(picture(32, 32, seed=number)).convert("L").save(folder / f"{number:02}.png")
    return folder


def test_torchrun_adapts_as_one_process_does(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "adapt",
        "--model",
        "demo",
        "--data",
        "photos",
        "--size",
        "0",
        "--epochs",
        "2",
        "--batch-size",
        "16",
    ]
    process = torchrun(*words, "--json", "--predictions", "p.csv", folder=tmp_path)
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    told = json.loads(output)
    assert told["images"] == 40
    monkeypatch.chdir(tmp_path)
    alone = CliRunner().invoke(
        app, [*words, "--json", "--out", "one.safetensors", "--predictions", "one.csv"]
    )
    assert json.loads(alone.stdout)["histogram"] == told["histogram"]
    ours, theirs = (read_delta(tmp_path / name)[0] for name in ("adapted.safetensors", "one.safetensors"))
    for name, value in theirs.items():
        if name == "guard.document":  # a text, in which the last digits of numbers differ
            continue
        off = (ours[name].double() - value.double()).abs() / value.double().abs().clamp(min=1)
        assert off.max() < 1e-4, name
    (record,) = read_records(tmp_path / "adapted.json")
    assert record["spec"]["ranks"] == 2


def test_torchrun_runs_a_grid(whole: Path, tmp_path: Path) -> None:
    one = cells()[0].model_dump(mode="json")
    spec = {
        "networks": [one["network"]], "data": [one["data"]], "methods": ["slr"], "seeds": [0, 1],
        "corruptions": ["contrast"], "settings": ["few"], "epochs": 1, "batch_size": 32,
    }  # fmt: skip
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    process = torchrun("bench", "spec.yaml", "--out", "together", folder=tmp_path)
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert output.splitlines()[0] == "2 cells done; records in together", "one rank speaks"
    mine, theirs = finished(whole), finished(tmp_path / "together")
    assert len(theirs) == 2
    for key, record in theirs.items():
        found, expected = (r["result"]["after_epoch"]["1"] for r in (record, mine[key]))
        assert found["accuracy"] == expected["accuracy"]
        assert found["nll"] == pytest.approx(expected["nll"], rel=1e-4)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_leaves_a_delta_to_go_on_from(victim: int, photos: Path, tmp_path: Path) -> None:
    """Even if it is the one that writes."""
    words = [
        "adapt", "--model", "demo", "--data", "photos", "--size", "0", "--batch-size", "2",
        "--epochs", "1000", "--out", "d.safetensors",
    ]  # fmt: skip
    process = torchrun(*words, folder=tmp_path)
    try:
        deadline = time.monotonic() + 120
        delta = tmp_path / "d.safetensors"
        written: set[int] = set()  # when: a file that is replaced meanwhile is not read
        while len(written) < 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
            written |= {delta.stat().st_mtime_ns} if delta.exists() else set()
        ranks = [int(pid) for pid in subprocess.check_output(["pgrep", "-P", str(process.pid)]).split()]
        environments = {pid: Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in ranks}
        os.kill(
            next(pid for pid, own in environments.items() if f"RANK={victim}".encode() in own), signal.SIGKILL
        )
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1
    (told,) = [line for line in errors.splitlines() if "--resume goes on" in line]
    tensors, document = read_delta(delta)
    steps, fit = tensors["steps"].tolist()[0], document["fit"]
    assert "d.safetensors" in told
    assert steps > 20
    assert fit["epoch"] * 20 + fit["batch"] == steps
    again = Adapter.load(delta, bundled_model())
    found = open_data(photos, "unlabelled", crop=None, labels=False)
    with pytest.raises(KeyboardInterrupt):
        again.fit(found, 1000, batch_size=2, on_step=lambda adapter: _stop_at(adapter, steps + 2))
    assert again.step == steps + 2, "one process goes on with what two began"


def _stop_at(adapter: Adapter, steps: int) -> None:
    if adapter.step == steps:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


def test_ray_gives_the_records_of_one_process(whole: Path, tmp_path: Path, ray: Any) -> None:
    outcome = run_grid(cells(), Path(), tmp_path, ray="auto")
    assert (outcome.done, outcome.failed) == (4, {})
    assert equal(whole, tmp_path)
    wide = [cell.model_copy(update={"threads": 64}) for cell in cells()]
    with pytest.warns(AcclimateWarning, match="no machine of the Ray cluster has 64 CPUs and 0 GPUs"):
        _check_resources(ray, wide, 1.0)
    with pytest.raises(OptionError, match=r"a part of one GPU or a whole number of them, got 1\.5"):
        _check_resources(ray, cells(), 1.5)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (["bench", "demo", "--ray"], ["bench", "demo", "--ray", "auto"]),
        (["bench", "--ray", "demo"], ["bench", "--ray", "auto", "demo"]),
        (["bench", "demo", "--ray", "--json"], ["bench", "demo", "--ray", "auto", "--json"]),
        (["bench", "demo", "--ray", "ray://host:10001"], ["bench", "demo", "--ray", "ray://host:10001"]),
        (["bench", "demo", "--ray", "10.0.0.1:6379"], ["bench", "demo", "--ray", "10.0.0.1:6379"]),
        (["bench", "--ray", "s3://b/records"], ["bench", "--ray", "auto", "s3://b/records"]),
        (["bench", "demo", "--ray", "auto"], ["bench", "demo", "--ray", "auto"]),
        (["bench", "demo"], ["bench", "demo"]),
    ],
)
def test_the_address_of_ray_may_be_left_out(given: list[str], made: list[str]) -> None:
    assert with_values(given) == made

"""The work that is disturbed: all of acclimate that writes for a while and can go on."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate import Adapter
from acclimate.adapting import adapt_images
from acclimate.bench import Cell, run_grid
from acclimate.bench import grid as grid_module
from acclimate.bench.merge import merge
from acclimate.bench.spec import Data, Network
from acclimate.bench.together import together
from acclimate.corruptions.generate import corrupt_dataset
from acclimate.data.cifar_c import ArrayReader
from acclimate.data.fetch import Archive, Published, fetch
from acclimate.data.image_set import ImageSet
from acclimate.delta import read_delta
from acclimate.errors import AcclimateWarning
from acclimate.ranks import ALONE
from acclimate.records import finished
from acclimate.training import Recipe, train
from corrupted import files
from faults import Faults, Task
from file_readers import network, pixels, tar_of

_COUNT = 24


def images() -> Tensor:
    return torch.from_numpy(pixels(_COUNT)).permute(0, 3, 1, 2).float() / 255


def labelled() -> tuple[Tensor, Tensor]:
    """Images and labels, as a cell takes them from `fault_tasks:labelled`."""
    return images(), torch.arange(_COUNT) % 5


def image_set() -> ImageSet:
    names = [f"{number:02}.png" for number in range(_COUNT)]
    return ImageSet(ArrayReader(pixels(_COUNT)), names, "arrays", labelled()[1])


def cells() -> list[Cell]:
    own = {
        "network": Network(name="file_readers:network", normalize="none"),
        "data": Data(name="made", path="fault_tasks:labelled"), "epochs": 1, "batch_size": 8,
    }  # fmt: skip
    return [Cell(method=method, seed=seed, **own) for method in ("bn", "slr") for seed in (1, 2)]


@contextmanager
def _in_this_process() -> Iterator[None]:
    """Cells are run here, one after the other, so that their writes can be disturbed."""
    own = grid_module.in_processes
    grid_module.in_processes = lambda cells, root, out, workers: together(cells, root, out, ALONE)
    try:
        yield
    finally:
        grid_module.in_processes = own


def run_cells(folder: Path, faults: Faults) -> None:
    with _in_this_process():
        run_grid(cells(), "", folder / "out", resume=True, on_progress=faults.step)


def _records(folder: Path) -> Any:
    parts = ("schema", "cell", "spec", "result")
    assert not list(folder.rglob("*.part*")), "nothing half-written stays"
    return {key: [record[part] for part in parts] for key, record in finished(folder / "out").items()}


def _with_records(folder: Path) -> None:
    made: dict[str, Any] = {"schema": 1, "cost": {}, "origin": {}, "spec": {}, "result": {}}
    lines = [json.dumps({**made, "cell": cell.model_dump(mode="json")}) for cell in cells()]
    (folder / "source.jsonl").write_text("\n".join(lines))


def _merged(folder: Path, faults: Faults) -> None:
    merge([folder / "source.jsonl"], folder / "out")


def run_fit(folder: Path, faults: Faults) -> None:
    """Saved after every step, and begun again from the file."""
    path = folder / "d.safetensors"
    adapter = Adapter.load(path, network()) if path.exists() else Adapter(network(), "slr", freeze="none")

    def save(adapter: Adapter) -> None:
        adapter.save(path)
        faults.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)  # that nothing was left to do
        adapter.fit(images(), 2, batch_size=8, on_step=save, progress=False)


def _delta(folder: Path) -> Any:
    tensors, document = read_delta(folder / "d.safetensors")
    return {name: tensor.tolist() for name, tensor in tensors.items()}, document


def _adapted(folder: Path, faults: Faults) -> None:
    """What `acclimate adapt` does: a delta, predictions, a record, the stock network."""
    names = {"out": "d.safetensors", "export": "e.safetensors", "predictions": "p.csv", "record": "r.json"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)
        adapt_images(
            network(), image_set(), epochs=2, batch_size=8, resume=True, progress=False, normalize="none",
            asked=cells()[0].model_dump(mode="json"), on_step=faults.step,
            **{name: folder / file for name, file in names.items()},
        )  # fmt: skip


def _all_of_it(folder: Path) -> Any:
    record = json.loads((folder / "r.json").read_bytes())
    own = {name: (folder / name).read_bytes() for name in ("e.safetensors", "p.csv")}
    return _delta(folder), own, {**record["result"], "cautions": None}  # that nothing was left to do


def _trained(folder: Path, faults: Faults) -> None:
    if not (folder / "w.safetensors").exists():
        recipe = Recipe(epochs=2, batch_size=8, lr=0.1)
        model = copy.deepcopy(network())
        train(model, image_set(), folder / "w.safetensors", recipe, resume=True, progress=faults.step)


def _files(folder: Path) -> Any:
    """All but an archive that was unpacked, and that there was no time to remove."""
    return {name: content for name, content in files(folder / "out").items() if not name.endswith(".tar")}


def _with_array(folder: Path) -> None:
    np.save(folder / "source.npy", pixels(3, 32))


def _corrupted(folder: Path, faults: Faults, form: str) -> None:
    corrupt_dataset(
        folder / "source.npy", folder / "out", names=["fog", "contrast"], severities=[1, 2], format=form,
        workers=1, progress=faults.step,
    )  # fmt: skip


def _with_archive(folder: Path) -> None:
    members = [("set/a.txt", b"a" * 3000), ("set/b.txt", b"b"), ("other/c.txt", b"c")]
    (folder / "there.tar").write_bytes(tar_of(members))  # type: ignore[arg-type]


def _fetched(folder: Path, faults: Faults) -> None:
    there = folder / "there.tar"
    published = Published("a set", (Archive(there.as_uri(), None, ("set", "other")),))
    fetch("d", folder / "out", datasets={"d": published}, progress=faults.step)


TASKS = {
    "grid": Task(run_cells, _records),
    "merge": Task(_merged, _records, _with_records),
    "fit": Task(run_fit, _delta),
    "adapt": Task(_adapted, _all_of_it),
    "train-head": Task(_trained, lambda folder: (folder / "w.safetensors").read_bytes()),
    "corrupt, images": Task(lambda folder, faults: _corrupted(folder, faults, "png"), _files, _with_array),
    "corrupt, arrays": Task(lambda folder, faults: _corrupted(folder, faults, "npy"), _files, _with_array),
    "fetch": Task(_fetched, _files, _with_archive),
}

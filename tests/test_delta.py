"""Saving and loading: the same numbers as an undisturbed run, and no delta on another model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from acclimate import Adapter
from acclimate.delta import _checksum, read_delta, write_delta
from acclimate.demo.network import SmallResNet
from acclimate.errors import AcclimateWarning, DeltaError, ModelError, OptionError, OutputError
from acclimate.models.vision import import_torchvision
from networks import BATCHES, NORMALIZE, adapted_state, images, resnet, same

DATA = images(40)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("tent", {}),
        ("tent+", {"statistics": "running"}),
        ("slr", {"statistics": "blend"}),
        ("hlr+it", {"normalize": NORMALIZE}),
        ("slr+shot", {"classes": [3, 0, 2]}),
        ("bn", {"statistics": "running"}),
        ("slr", {"prior": [0.4, 0.3, 0.1, 0.1, 0.1], "freeze": ["layer2"], "betas": (0.8, 0.99)}),
    ],
)
@pytest.mark.parametrize("stop_at", [3, 5, 8])
def test_a_run_that_was_saved_and_loaded_equals_an_undisturbed_one(
    method: str, options: dict[str, object], stop_at: int, tmp_path: Path
) -> None:
    whole = Adapter(resnet(), method, seed=5, **options)  # type: ignore[arg-type]
    expected = whole.fit(DATA, 3, batch_size=8)
    path = tmp_path / "delta.safetensors"
    broken = Adapter(resnet(), method, seed=5, **options)  # type: ignore[arg-type]

    def stop(adapter: Adapter) -> None:
        if adapter.step == stop_at:
            adapter.save(path)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken.fit(DATA, 3, batch_size=8, on_step=stop)
    loaded = Adapter.load(path, resnet())
    assert same(adapted_state(broken), adapted_state(loaded))
    assert loaded.fit(DATA, 3, batch_size=8) == expected
    assert same(adapted_state(whole), adapted_state(loaded))
    assert torch.equal(whole.predict(BATCHES[0]), loaded.predict(BATCHES[0]))
    assert torch.equal(whole.class_distribution, loaded.class_distribution)  # type: ignore[arg-type]
    assert same(whole.export().state_dict(), loaded.export().state_dict())
    loaded.reset()
    assert loaded.fit(DATA, 3, batch_size=8) == expected


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from networks import images, resnet
from acclimate import Adapter

def step(adapter):
    adapter.save(sys.argv[2])
    if adapter.step == 6:
        os.kill(os.getpid(), signal.SIGKILL)

Adapter(resnet(), "slr").fit(images(40), 3, batch_size=8, on_step=step)
"""


def test_a_killed_process_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "delta.safetensors"
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(path)]
    assert subprocess.run(command, check=False).returncode == -9
    whole = Adapter(resnet(), "slr")
    expected = whole.fit(DATA, 3, batch_size=8)
    loaded = Adapter.load(path, resnet())
    assert loaded.step == 6
    assert loaded.fit(DATA, 3, batch_size=8) == expected
    assert same(adapted_state(whole), adapted_state(loaded))


def test_online_adaptation_goes_on_after_loading(tmp_path: Path) -> None:
    whole, broken = Adapter(resnet(), "slr", steps=4), Adapter(resnet(), "slr", steps=4)
    expected = [whole(x) for x in BATCHES]
    for x in BATCHES[:2]:
        broken(x)
    broken.save(tmp_path / "d")
    loaded = Adapter.load(tmp_path / "d", resnet())
    assert all(torch.equal(loaded(x), y) for x, y in zip(BATCHES[2:], expected[2:], strict=True))
    assert loaded.history == whole.history


def test_a_run_that_was_complete_says_so_and_another_starts_anew(tmp_path: Path) -> None:
    adapter = Adapter(resnet(), "slr")
    history = adapter.fit(DATA, 2, batch_size=8, on_epoch=lambda a: a.save(tmp_path / "d"))
    loaded = Adapter.load(tmp_path / "d", resnet())
    with pytest.warns(AcclimateWarning, match="complete when it was saved"):
        assert loaded.fit(DATA, 2, batch_size=8) == history
    other = Adapter.load(tmp_path / "d", resnet())
    assert len(other.fit(images(16), 2, batch_size=8).loss) == len(history.loss) + 4


def test_loading_in_inference_mode(tmp_path: Path) -> None:
    for method in ("tent", "slr"):
        adapter = Adapter(resnet(), method)
        adapter(BATCHES[0])
        adapter.save(tmp_path / "d")
        with torch.inference_mode():
            loaded = Adapter.load(tmp_path / "d", resnet())
        assert torch.equal(loaded(BATCHES[1]), adapter(BATCHES[1]))
        with torch.inference_mode():
            loaded.reset()
        loaded(BATCHES[1])


def test_a_norm_with_two_names_has_a_delta_that_loads(tmp_path: Path) -> None:
    def network() -> nn.Module:
        model = resnet()
        model.again = model.bn1
        return model

    adapter = Adapter(network(), "slr")
    adapter(BATCHES[0])
    adapter.save(tmp_path / "d")
    assert torch.equal(Adapter.load(tmp_path / "d", network())(BATCHES[1]), adapter(BATCHES[1]))


def test_extra_state_of_a_module_is_no_obstacle(tmp_path: Path) -> None:
    class Extra(SmallResNet):
        def get_extra_state(self) -> object:
            return {"epoch": 3}

        def set_extra_state(self, state: object) -> None:
            pass

    torch.manual_seed(0)
    model = Extra(blocks=1)
    Adapter(model, "slr").save(tmp_path / "d")
    Adapter.load(tmp_path / "d", model)
    with pytest.raises(OptionError, match="a path, then the model; the path is a Extra"):
        Adapter.load(model, tmp_path / "d")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="got str"):
        Adapter.load(tmp_path / "d", "resnet")  # type: ignore[arg-type]


def test_a_delta_before_the_first_step_is_the_source(tmp_path: Path) -> None:
    Adapter(resnet(), "slr").save(tmp_path / "d")
    loaded = Adapter.load(tmp_path / "d", resnet())
    assert torch.equal(loaded(BATCHES[0]), Adapter(resnet(), "slr")(BATCHES[0]))


def test_a_delta_holds_megabytes_not_hundreds(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = import_torchvision().models.resnet50()
    adapter = Adapter(model, "slr+it", normalize=((0.5,) * 3, (0.5,) * 3))
    adapter(images(2, size=32))
    adapter.save(tmp_path / "d")
    assert os.path.getsize(tmp_path / "d") < 2_000_000
    with safe_open(tmp_path / "d", "pt") as file:
        assert not any("conv" in key or "fc" in key for key in file.keys())  # noqa: SIM118


def test_a_delta_of_another_model_is_refused_with_the_names_that_differ(tmp_path: Path) -> None:
    path = tmp_path / "d"
    adapter = Adapter(resnet(), "slr")
    adapter(BATCHES[0])
    adapter.save(path)
    renamed = resnet()
    renamed.fc = renamed.linear
    del renamed.linear
    with pytest.raises(DeltaError, match=r"lacks 'linear\.bias'.*knows nothing of 'fc\.bias'"):
        Adapter.load(path, renamed)
    other = resnet()
    other.layer2[0].conv1.weight.data[0, 0, 0, 0] += 1e-6
    with pytest.raises(DeltaError, match=r"1 of \d+ tensors differ: 'layer2\.0\.conv1\.weight'"):
        Adapter.load(path, other)
    with pytest.raises(DeltaError, match="differ"):
        Adapter.load(path, SmallResNet(blocks=1, num_classes=5))
    with pytest.raises(DeltaError, match="knows nothing of"):
        Adapter.load(path, SmallResNet(blocks=2, num_classes=5))


def test_an_objective_of_ones_own_must_be_given_again(tmp_path: Path) -> None:
    def objective(logits: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
        return logits.square().mean()

    adapter = Adapter(resnet(), "slr", objective=objective)
    adapter(BATCHES[0])
    adapter.save(tmp_path / "d")
    with pytest.raises(DeltaError, match="objective="):
        Adapter.load(tmp_path / "d", resnet())
    assert torch.equal(
        Adapter.load(tmp_path / "d", resnet(), objective=objective)(BATCHES[1]), adapter(BATCHES[1])
    )


def test_inserted_affines_are_part_of_the_delta(tmp_path: Path) -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(576, 3)
        )

    adapter = Adapter(network(), "slr", freeze="none")
    adapter(BATCHES[0])
    adapter.save(tmp_path / "d")
    loaded = Adapter.load(tmp_path / "d", network())
    assert torch.equal(loaded(BATCHES[1]), adapter(BATCHES[1]))


# Bad files ------------------------------------------------------------------------------------------


def saved(tmp_path: Path) -> Path:
    adapter = Adapter(resnet(), "slr")
    adapter(BATCHES[0])
    adapter.save(tmp_path / "delta")
    return tmp_path / "delta"


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    whole = path.read_bytes()
    with pytest.raises(DeltaError, match="there is no file"):
        Adapter.load(tmp_path / "nowhere", resnet())
    with pytest.raises(DeltaError, match=r"cannot read|not a whole"):
        Adapter.load(tmp_path, resnet())
    for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DeltaError, match="not a whole safetensors file"):
            Adapter.load(path, resnet())
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(DeltaError, match="not a delta that"):
        Adapter.load(path, resnet())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "has format 99; this acclimate reads format 2"),
        ({"method": {"name": "slr"}}, "lacks what this acclimate needs"),
        ({"calls": "many"}, "lacks what this acclimate needs"),
        ({"fit": {"epochs": 1}}, "damaged"),
    ],
)
def test_documents_that_do_not_fit_are_refused(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = saved(tmp_path)
    tensors, document = read_delta(path)
    text = json.dumps({**document, **change})
    save_file(tensors, path, metadata={"acclimate": text, "checksum": _checksum(tensors, text)})
    with pytest.raises(DeltaError, match=message):
        Adapter.load(path, resnet())


def test_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    tensors, document = read_delta(path)
    write_delta(path, {key: value for key, value in tensors.items() if "bn1.weight" not in key}, document)
    with pytest.raises(DeltaError, match=r"damaged: .*bn1\.weight"):
        Adapter.load(path, resnet())


def test_a_failed_write_says_so_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = Adapter(resnet(), "slr")
    with pytest.raises(OutputError, match=r"cannot be written: .*No such file or directory.*still in memory"):
        adapter.save(tmp_path / "missing" / "delta")
    path = saved(tmp_path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        adapter.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_delta_is_read_in_one_piece(tmp_path: Path) -> None:
    """Else it is half of one file and half of another, where a process replaces it: a pipe has one piece."""
    adapter = Adapter(resnet(), "slr")
    adapter(images(8))
    adapter.save(tmp_path / "d")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    contents = (tmp_path / "d").read_bytes()
    writer = threading.Thread(target=pipe.write_bytes, args=(contents,), daemon=True)
    writer.start()
    tensors, document = read_delta(pipe)
    writer.join()
    again, same = read_delta(tmp_path / "d")
    assert document == same
    assert tensors.keys() == again.keys()
    assert all(torch.equal(tensors[name], again[name]) for name in again)

"""Every block of code in the documents runs, links lead somewhere, and what is rendered is up to date."""

from __future__ import annotations

import gzip
import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from markdown.extensions.toc import slugify
from PIL import Image

from acclimate import METHODS
from acclimate.bench import PRESETS, read_spec
from acclimate.cli import app
from acclimate.demo.bundle import bundled_model
from corrupted import picture
from documents import ROOT, Block, blocks_of, check_known, check_specs, run_python, run_shell
from networks import CLASSES, images, resnet

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
RECORDS = 60  # of the committed ones, some of each kind
VISDA = ("aeroplane", "bicycle", "bus", "car", "horse", "knife", "motorcycle", "person", "plant",
         "skateboard", "train", "truck")  # fmt: skip


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def save(path: Path, *, side: int = 40) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(side, side, seed=len(path.as_posix()))).save(path)


@pytest.fixture
def names() -> dict[str, Any]:
    """What the blocks of Python take for granted."""
    data = images(20)
    return {
        "model": resnet(),
        "images": data,
        "labels": torch.arange(20) % CLASSES,
        "loader": [data[:10], data[10:]],
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
    }


@pytest.fixture
def python_folder(tmp_path: Path) -> Path:
    for name in "abc":
        save(tmp_path / f"python/photos/{name}.png")
    for name in ("cat/a", "cat/b", "dog/c", "dog/d"):
        save(tmp_path / f"python/imagenet-c/fog/5/{name}.png", side=64)
    write_records(tmp_path / "python/results")
    return tmp_path / "python"


@pytest.fixture
def shell_folder(tmp_path: Path) -> Path:
    """The data, weights and records that the commands name, as small as can be."""
    folder = tmp_path / "shell"
    for name in ("photos/a", "photos/b", "new_photos/a", "imagenet/val/cat/a", "data/imagenet/train/cat/a"):
        save(folder / f"{name}.png")
    save(folder / "data/imagenet/train/dog/b.png")
    save(folder / "photo.jpg", side=64)
    for name in VISDA:
        save(folder / f"data/visda-c/train/{name}/a.png")
    rows = "".join(f"{name}/a.png {number}\n" for number, name in enumerate(VISDA))
    (folder / "data/visda-c/train/image_list.txt").write_text(rows)
    for name in ("imagenet-c", "imagenet-r", "cifar-10-c/CIFAR-10-C", "cifar-100-c/CIFAR-100-C"):
        (folder / "data" / name).mkdir(parents=True)
    np.savez(folder / "cifar10_test.npz", images=np.stack([picture(32, 32)] * 2), labels=np.arange(2))
    torch.save(bundled_model().state_dict(), folder / "resnet50.pth")
    for name in ("results", "results/part-0", "results/part-1"):
        write_records(folder / name)
    return folder


def write_records(folder: Path) -> None:
    lines = gzip.decompress((ROOT / "benchmarks/results/bench_demo.jsonl.gz").read_bytes()).splitlines()
    folder.mkdir()
    for number, line in enumerate(lines[:: len(lines) // RECORDS]):
        (folder / f"{number:04}.json").write_bytes(line)


def of(path: Path, language: str) -> list[Block]:
    return [block for block in blocks_of(path) if block.language == language]


WITH_PYTHON = [path for path in DOCUMENTS if of(path, "python")]
WITH_SHELL = [path for path in DOCUMENTS if of(path, "sh")]


def test_there_are_blocks() -> None:
    found = {name_of(path) for path in WITH_PYTHON} & {name_of(path) for path in WITH_SHELL}
    assert {"README.md", "docs/index.md", "docs/failures.md"} <= found
    assert {f"docs/experiments/{name}.md" for name in PRESETS} <= {name_of(path) for path in WITH_SHELL}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_block_is_of_a_known_kind(path: Path) -> None:
    for block in blocks_of(path):
        check_known(block)


@pytest.mark.parametrize("path", WITH_PYTHON, ids=name_of)
def test_python_runs(
    path: Path, names: dict[str, Any], python_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(python_folder)
    given = set(names)
    for block in of(path, "python"):
        run_python(block, names)
    assert names.keys() - given > {"__builtins__"}  # the blocks have left what they made


@pytest.mark.parametrize("path", WITH_SHELL, ids=name_of)
def test_commands_run(path: Path, shell_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shell_folder)
    check_specs(blocks_of(path), shell_folder)
    for block in of(path, "sh"):
        run_shell(block)


def run_all(path: Path, names: dict[str, Any]) -> None:
    for block in blocks_of(path):
        check_known(block)
        check_specs([block], path.parent)
        run_python(block, names) if block.language == "python" else run_shell(block)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("```python\nadapter = Adaptor(model)\n```", "Adaptor"),
        ("```python\n1 / 0\n```", "division"),
        ("```sh\nacclimate adopt --model demo\n```", "adopt"),
        ("```sh\nacclimate corrupt nothing there\n```", "ended with 2"),
        ("```sh\nacclimate bench no-such-preset\n```", "ended with 2"),
        ("```sh\nacclimate fetch imagenet-x\n```", "imagenet-x"),
        ("```sh\nacclimate demo --no-such-option\n```", "cannot be parsed"),
        ("```sh\nmake coffee\n```", "coffee"),
        ("```sh\npip install '.[spoons]'\n```", "spoons"),
        ("```sh\nrm -r results\n```", "'rm'"),
        ("```yaml\nnetworks: []\n```", "data"),
        ("```fortran\nEND\n```", "fortran"),
        ("- a list\n\n    ```\n    no language\n    ```", "''"),
        ("```python\n", "not closed"),
    ],
)
def test_a_broken_block_fails(
    block: str, said: str, tmp_path: Path, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "broken.md"
    path.write_text(f"# Broken\n\n{block}\n")
    with pytest.raises(Exception, match=re.escape(said)):
        run_all(path, names)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    for link, anchor in re.findall(r"\]\(([^)#\s]+)(?:#([^)]*))?\)", text):
        if "://" not in link:
            assert (path.parent / link).exists(), link
            if anchor and link.endswith(".md") and "." not in anchor:  # `make docs` checks those of names
                heads = re.findall(r"^#+ (.+)$", (path.parent / link).read_text("utf-8"), re.MULTILINE)
                assert anchor in [slugify(head, "-") for head in heads], link


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_commands_in_the_text_are_commands(path: Path) -> None:
    command: Any = typer.main.get_command(app)
    named = re.findall(r"`acclimate ([a-z][a-z-]*)", path.read_text("utf-8"))
    assert [word for word in named if word not in command.commands] == []


def test_the_table_of_methods_in_the_readme_is_complete() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert [name for name in METHODS if f"`{name}`" not in text] == []


def test_the_specs_have_the_cells_that_are_meant(tmp_path: Path) -> None:
    (block,) = of(ROOT / "README.md", "yaml")
    (tmp_path / "spec.yaml").write_text(block.text)
    assert len(list(read_spec(tmp_path / "spec.yaml").cells())) == 4 * (1 + 3 + 3 + 3)
    assert len(list(read_spec(ROOT / "benchmarks/cifar10.yaml").cells())) == 4 * (1 + 6 * 3)


@pytest.mark.parametrize(
    "module", ["command_line", "reference_tables", "experiments", "cluster_tables", "trust_tables", "render"]
)
def test_rendered_pages_are_up_to_date(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    pages: dict[Path, str] = importlib.import_module(module).pages()
    stale = [name_of(path) for path, text in pages.items() if path.read_text("utf-8") != text]
    assert stale == [], "`make docs` renders them"

"""Every block of Python in the documents runs, and every link between them leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from networks import images, resnet

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def blocks() -> list[str]:
    return [
        block
        for path in DOCUMENTS
        for block in re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.S)
    ]


def test_the_code_in_the_documents_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (40, 40), (200, 100, 50)).save(tmp_path / "photos/a.png")
    for name in ("a", "b", "c", "d"):
        folder = tmp_path / "imagenet-c/fog/5" / ("cat" if name < "c" else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((224, 224), 50).save(folder / f"{name}.png")
    data = images(20)
    names = {
        "model": resnet(),
        "images": data,
        "loader": [data[:10], data[10:]],
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
    }
    assert len(blocks()) >= 2
    for block in blocks():
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "adapted.safetensors").exists()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text("utf-8")):
        if "://" not in link:
            assert (path.parent / link).exists(), link


def test_the_table_of_methods_in_the_readme_is_complete() -> None:
    from acclimate import METHODS

    text = (ROOT / "README.md").read_text("utf-8")
    assert [name for name in METHODS if f"`{name}`" not in text] == []


def test_the_spec_in_the_readme_is_one(tmp_path: Path) -> None:
    from acclimate.bench import read_spec

    (found,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    (tmp_path / "spec.yaml").write_text(found)
    assert len(list(read_spec(tmp_path / "spec.yaml").cells())) == 4 * (1 + 3 + 3 + 3)
    assert len(list(read_spec(ROOT / "benchmarks/cifar10.yaml").cells())) == 4 * (1 + 6 * 3)

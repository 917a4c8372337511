"""Imports go one way; public names change only on purpose; torchvision and timm come by one door."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import acclimate

SOURCE = Path(acclimate.__file__).parent

# A module may import from the rows above its own, never from its own row or below.
LAYERS = (
    ("errors", "types"),
    ("available", "files", "ranks"),
    (
        "mean_std",
        "losses",
        "diversity",
        "pseudo_labels",
        "input_transform",
        "norms",
        "images",
        "outputs",
        "delta",
        "progress",
        "interrupts",
        "stability",
        "fast",
    ),
    ("methods", "options", "freeze", "statistics", "network", "batches", "remembered"),
    ("gate", "guard", "labelling", "making", "objectives", "optimization", "prepare"),
    ("moving", "normalization", "outcome", "probe"),
    ("export", "engine", "inputs"),
    ("fitting",),
    ("adapter",),
    ("result",),
    ("one_call",),
)
# Leaves know errors, types and files, and each itself; corruptions read their images by data. Only the layers
# above the adapter use them, and what takes a user's images.
LEAVES = ("models", "data", "corruptions", "metrics", "chance")
TAKES_DATA = ("inputs", "one_call")
TOP = (
    "__init__",
    "__main__",
    "adapting",
    "bench",
    "demo",
    "doctor",
    "places",
    "recording",
    "records",
    "report",
    "training",
    "cli",
)


def imported_by(path: Path) -> set[str]:
    """First component below `acclimate` of everything that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            names = [
                f"{node.module}.{alias.name}" if node.module == "acclimate" else str(node.module)
                for alias in node.names
            ]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("acclimate.")}
    return found


def component(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = sorted(SOURCE.rglob("*.py"))


def test_every_module_has_its_place() -> None:
    placed = {name for layer in LAYERS for name in layer} | set(LEAVES) | set(TOP)
    assert {component(path) for path in FILES} == placed


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    name = component(path)
    if name in TOP:
        return
    if name in LEAVES:
        allowed = {"errors", "types", "files", name, *(("data",) if name == "corruptions" else ())}
    else:
        depth = next(i for i, layer in enumerate(LAYERS) if name in layer)
        allowed = {lower for layer in LAYERS[:depth] for lower in layer} | {name}
        allowed |= {"data"} if name in TAKES_DATA else set()
    assert imported_by(path) <= allowed


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_torchvision_and_timm_come_by_one_door(path: Path) -> None:
    imports = [
        node
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    text = " ".join(ast.unparse(node) for node in imports)
    assert "torchvision" not in text.replace("import_torchvision", "")
    assert "timm" not in text.replace("import_timm", "")


def test_public_names() -> None:
    classes = "AdaptationResult Adapter ClassDistribution History InputTransformation Method"
    functions = "adapt corrupt corruptions errors load_model losses open_data"
    assert acclimate.__all__ == f"METHODS {classes} __version__ {functions}".split()
    assert all(hasattr(acclimate, name) for name in acclimate.__all__)


def test_labels_reach_no_signature_of_the_core() -> None:
    # Labels that the network itself makes (SHOT's) are an attribute that no caller sets.
    for name in ("adapter", "engine", "objectives", "losses"):
        for node in ast.walk(ast.parse((SOURCE / f"{name}.py").read_text("utf-8"))):
            if isinstance(node, ast.arguments):
                arguments = [*node.posonlyargs, *node.args, *node.kwonlyargs]
                assert not {a.arg for a in arguments} & {"labels", "label", "targets", "target", "y"}, name


def test_nothing_is_unpickled() -> None:
    for path in FILES:
        text = path.read_text("utf-8")
        assert not re.search(r"^(import|from) (pickle|marshal|shelve|dill|cloudpickle)", text, re.M), path
        for call in re.findall(r"torch\.load\([^)]*\)", text):
            assert "weights_only=True" in call, path
        assert "allow_pickle=True" not in text, path


def test_the_package_is_typed_and_documented() -> None:
    assert (SOURCE / "py.typed").exists()
    undocumented = [
        p.name for p in FILES if p.stat().st_size and not ast.get_docstring(ast.parse(p.read_text("utf-8")))
    ]
    assert undocumented == []

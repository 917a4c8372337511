"""Run the blocks of code of a document: Python, shell, specs. What is of no known kind is an error."""

from __future__ import annotations

import re
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from acclimate.bench import read_spec
from acclimate.cli import app, with_values
from acclimate.data.fetch import DATASETS

ROOT = Path(__file__).parents[1]
SHOWN = ("text", "bibtex")
"""Languages of blocks that are only to look at."""

SUBSTITUTIONS = (
    # a pretrained network that would be downloaded or slow; the fixture's weights are the bundled ones
    (r"--model \S+", "--model demo"),
    # grids take hours; tests/test_bench.py runs small ones
    (r"^acclimate bench .*", r"\g<0> --dry-run"),
    # the number of a job, and a cluster that is not there
    (r"\$SLURM_ARRAY_TASK_ID", "0"),
    (r" --estimate", ""),
    # batches of 64 need more images than the fixture has
    (r"^acclimate train-head .*", r"\g<0> --batch-size 2 --epochs 1"),
    # processes that import torch; tests/test_corrupt_dataset.py has more than one
    (r"^acclimate corrupt .*", r"\g<0> --workers 1"),
    # one severity of five, where a document makes all
    (r"^acclimate corrupt (?!.*--severity).*", r"\g<0> --severity 3"),
)
PARSED = {
    "demo": "takes a minute; tests/test_demo.py runs it",
    "fetch": "needs a network; tests/test_fetch.py runs it against a server of its own",
}
"""Commands of which only the arguments are checked."""
ONCE = ("compare", "figures", "report")
"""Commands that only read what the fixture has: the same line is run once, not for every document."""
_ran: set[str] = set()


@dataclass(frozen=True)
class Block:
    """A block of code, and the line of the document where its text begins."""

    path: Path
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.path.name}:{self.line}"


def blocks_of(path: Path) -> list[Block]:
    """All fenced blocks, wherever they are indented."""
    found, opened = [], None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fence = re.fullmatch(r"\s*(?:```|~~~)\s*(\S*).*", line)
        if fence is None:
            if opened is not None:
                opened[2].append(line)
        elif opened is None:
            opened = (number + 1, fence[1], list[str]())
        else:
            first, language, lines = opened
            indent = min((len(own) - len(own.lstrip()) for own in lines if own.strip()), default=0)
            text = "\n".join(own[indent:] for own in lines) + "\n"
            found.append(Block(path, first, language, text))
            opened = None
    assert opened is None, f"{path.name}: a block is not closed"
    return found


def check_known(block: Block) -> None:
    known = (*SHOWN, "python", "sh", "yaml")
    assert block.language in known, f"{block.where}: a block of {block.language!r}, which no test runs"


def run_python(block: Block, names: dict[str, Any]) -> None:
    """In a namespace that the blocks of a document share; errors name the line of the document."""
    text = "\n" * (block.line - 1) + block.text
    exec(compile(text, str(block.path), "exec"), names)


def check_specs(blocks: list[Block], folder: Path) -> None:
    """Specs are read, and lie in the folder under the names that the document's commands use."""
    commands = "\n".join(block.text for block in blocks if block.language == "sh")
    names = dict.fromkeys(re.findall(r"[\w-]+\.yaml", commands))
    specs = [block for block in blocks if block.language == "yaml"]
    for number, block in enumerate(specs):
        path = folder / ([*names, *(f"spec{i}.yaml" for i in range(len(specs)))][number])
        path.write_text(block.text, encoding="utf-8")
        assert list(read_spec(path).cells()), block.where


def lines_of(block: Block) -> list[list[str]]:
    """Commands as words, without comments; a backslash goes on with the next line."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def run_shell(block: Block) -> None:
    for words in lines_of(block):
        try:
            CHECKS[words[0]](words)
        except KeyError:
            raise AssertionError(f"{block.where}: nothing is known of the command {words[0]!r}") from None
        except AssertionError as error:
            raise AssertionError(f"{block.where}: {shlex.join(words)}: {error}") from error


def run_acclimate(words: list[str]) -> None:
    line = shlex.join(words)
    for pattern, other in SUBSTITUTIONS:
        line = re.sub(pattern, other, line)
    arguments = shlex.split(line)[1:]
    if arguments[0] in PARSED:
        check_arguments(arguments)
        return
    if arguments[0] in ONCE and line in _ran:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as in a terminal: cautions are told, not raised
        result = CliRunner().invoke(app, with_values(arguments))
    assert result.exit_code == 0, f"ended with {result.exit_code}: {result.output or result.exception!r}"
    _ran.add(line)


def check_arguments(arguments: list[str]) -> None:
    name, *rest = arguments
    command: Any = typer.main.get_command(app)
    try:
        command.commands[name].make_context(name, [*rest])
    except Exception as error:  # typer's usage errors, whose class has no public name
        raise AssertionError(f"cannot be parsed: {error}") from error
    assert name != "fetch" or rest[0] in DATASETS, f"there is no data set {rest[0]!r}"


def check_make(words: list[str]) -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+):", text, re.MULTILINE)
    missing = [word for word in words[1:] if word not in targets]
    assert not missing, f"the Makefile has no target {missing}"


def check_pip(words: list[str]) -> None:
    _, _, text = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("optional-dependencies]")
    known = re.findall(r"^(\w+) = \[", text.partition("\n[")[0], re.MULTILINE)
    assert words[1] == "install", "only installing is known"
    for word in words[2:]:
        found = re.fullmatch(r"(\.|acclimate)(?:\[([\w,-]+)\])?", word)
        assert found or word.startswith("-"), f"{word!r} is not this project"
        extras = found[2].split(",") if found and found[2] else []
        missing = [extra for extra in extras if extra not in known]
        assert not missing, f"pyproject.toml has no extra {missing}"


def run_torchrun(words: list[str]) -> None:
    """As one rank: tests/test_cluster.py has two."""
    assert words[3:5] == ["-m", "acclimate"], "torchrun --nproc-per-node N -m acclimate ..."
    run_acclimate(words[4:])


CHECKS = {"acclimate": run_acclimate, "make": check_make, "pip": check_pip, "torchrun": run_torchrun}

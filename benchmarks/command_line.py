"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pages import DOCS, table

from acclimate.cli import app

TARGET = DOCS / "reference" / "cli.md"
HEAD = """# Command line

Rendered by `make docs` from the commands themselves; do not edit. `acclimate COMMAND --help` says the same.

Every command ends with 0 if all was done, 1 if some of it was (and says what was not), 2 if what was given
cannot be, 130 if interrupted with the state saved: [exit codes](../failures.md#exit-codes).
"""


def pages() -> dict[Path, str]:
    """The page as it should be."""
    root = typer.main.get_command(app)
    parts = [HEAD, *(_section(command, name) for name, command in _commands(root, "acclimate"))]
    return {TARGET: "\n".join(parts)}


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The command and all below it, in their order; hidden ones are left out."""
    below = getattr(command, "commands", {})
    if not command.hidden:
        yield name, command
        for word, child in below.items():
            yield from _commands(child, f"{name} {word}")


def _section(command: Any, name: str) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    parts = [f"## {name}", (command.help or "").strip()]
    if hasattr(command, "commands"):
        parts.append(f"Usage: `{name} COMMAND`")
        parts.append("Commands: " + ", ".join(_link(name, word) for word in command.commands) + ".")
    else:
        parts.append(f"Usage: `{' '.join([name, *map(_shown, arguments), '[OPTIONS]'])}`")
    if arguments:
        rows = [[f"`{_shown(one)}`", _help(one), _default(one)] for one in arguments]
        parts.append(table(["argument", "what", "default"], rows, words=3))
    if options:
        rows = [[f"`{_spelled(one)}`", _help(one), _default(one)] for one in options]
        parts.append(table(["option", "what", "default"], rows, words=3))
    return "\n\n".join(part for part in parts if part) + "\n"


def _link(name: str, word: str) -> str:
    return f"[`{word}`](#{name.replace(' ', '-')}-{word})"


def _shown(argument: Any) -> str:
    return f"{argument.metavar or argument.name.upper()}{'…' if argument.nargs != 1 else ''}"


def _spelled(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {option.metavar or option.name.upper()}"


def _help(param: Any) -> str:
    said = " ".join((param.help or "").split()).replace("|", "\\|")
    ends = (getattr(param, "min", None), getattr(param, "max", None))
    told = f"{ends[0]} to {ends[1]}" if ends[1] else f"at least {ends[0]}" if ends[0] else ""
    return f"{said.rstrip('.')}; {told}." if told else said


def _default(param: Any) -> str:
    """As people would type it; what has none, or says it in its help, has no entry."""
    value = param.default
    if param.required:
        return "required"
    if isinstance(param.show_default, str):
        return param.show_default
    if value is None or value is False or value == "" or not param.show_default or callable(value):
        return ""
    words = value if isinstance(value, (list, tuple)) else [value]
    return "`" + ",".join(word.as_posix() if isinstance(word, Path) else str(word) for word in words) + "`"

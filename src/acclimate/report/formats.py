"""Tables as people want them: Markdown, LaTeX, CSV, JSON and HTML of the same rows."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from acclimate.report.tables import Cell, Entry, Table, facts

__all__ = ["FORMATS", "as_html", "calm", "escaped"]


def as_markdown(table: Table) -> str:
    """For a README or an issue."""
    lines = [f"### {_markdown(table.title)}", ""]
    heads = table.full_heads
    lines.append("| " + " | ".join(map(_markdown, heads)) + " |")
    lines.append("|---|" + "---:|" * (len(heads) - 1))
    for row in table.rows:
        label = f"{row.section}: {row.label}" if row.section else row.label
        lines.append(
            "| " + " | ".join([_markdown(label), *(_markdown_cell(cell) for cell in row.cells)]) + " |"
        )
    return "\n".join([*lines, *(["", _markdown(table.note)] if table.note else [])]) + "\n"


def _markdown(text: str) -> str:
    for character in "\\`*_[]<>|#":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


def _markdown_cell(cell: Cell) -> str:
    if not isinstance(cell, Entry):
        return _markdown(cell or "")
    shown = f"**{cell.plain}**" if cell.best else cell.plain
    spread = "" if cell.spread is None else f" ± {cell.spread:.{cell.digits}f}"
    return f"{shown}{spread}{_in_brackets(cell)}"


def _in_brackets(cell: Entry) -> str:
    """The interval, with the mark of chance behind it."""
    interval, space, mark = cell.doubt.partition(" ≈")
    return f" ({interval}){space}{mark}" if interval else ""


def as_latex(table: Table) -> str:
    """A ``table`` with booktabs, as wide as the text at most."""
    width = len(table.heads)
    lines = [
        r"\begin{table}[tb]",
        rf"  \caption{{{_latex(table.title)}.{' ' + _latex(table.note) if table.note else ''}}}",
        r"  \centering",
        r"  \resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"  \begin{{tabular}}{{l{'r' * (width - 1)}}}",
        r"  \toprule",
    ]
    if table.groups:
        spans = [
            rf"\multicolumn{{{span}}}{{c}}{{{_latex(text)}}}" if text else "& " * (span - 1)
            for text, span in table.groups
        ]
        lines += ["  " + " & ".join(spans) + r" \\", "  " + _rules(table.groups)]
    lines += ["  " + " & ".join(map(_latex, table.heads)) + r" \\", r"  \midrule"]
    section = ""
    for row in table.rows:
        if row.section != section:
            section = row.section
            middle = [r"  \midrule"] if row is not table.rows[0] else []
            head = rf"  \multicolumn{{{width}}}{{c}}{{{_latex(section)}}} \\"
            lines += [*middle, *([head, r"  \midrule"] if section else [])]
        elif row.rule:
            lines.append(r"  \midrule")
        cells = [_latex(row.label), *(_latex_cell(cell) for cell in row.cells)]
        lines.append(
            "  " + " & ".join(rf"\textcolor{{gray}}{{{c}}}" if row.dim else c for c in cells) + r" \\"
        )
    return "\n".join([*lines, r"  \bottomrule", r"  \end{tabular}}", r"\end{table}", ""])


def _rules(groups: Sequence[tuple[str, int]]) -> str:
    rules, start = [], 1
    for text, span in groups:
        if text:
            rules.append(rf"\cmidrule(lr){{{start}-{start + span - 1}}}")
        start += span
    return "".join(rules)


_LATEX: Final = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "κ": r"$\kappa$", "δ": r"$\delta$",
    "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "→": r"$\to$", "·": r"$\cdot$", "–": "--", "…": r"\dots{}",
    "≈": r"$\approx$",
    "[": "{[}", "*": "{*}",  # at the start of a row they would belong to the end of the last one
}  # fmt: skip
_STRANGE: Final = "ĦħĸĿŀŉŦŧſ"  # letters that fonts of the T1 encoding lack


def _latex(text: str) -> str:
    """As LaTeX takes it; what its fonts may not have is written by its number."""
    made = []
    for character in " ".join(text.split()):
        known = _LATEX.get(character)
        latin = character <= "\u017f" and character.isprintable() and character not in _STRANGE
        made.append(known or (character if latin else f"{{[}}U+{ord(character):04X}]"))
    return "".join(made)


def _latex_cell(cell: Cell) -> str:
    if not isinstance(cell, Entry):
        return _latex(cell or "")
    shown = _latex(cell.plain.replace("-", "−"))
    shown = rf"\textbf{{{shown}}}" if cell.best else shown
    spread = "" if cell.spread is None else rf"$\pm${cell.spread:.{cell.digits}f}"
    doubt = _latex(_in_brackets(cell).strip().replace("-", "−"))
    return f"{shown}{spread}" + (rf" {{\scriptsize {doubt}}}" if doubt else "")


def calm(name: str) -> str:
    """A name whose characters can be seen: those that turn the direction of text or control it are spelt out.

    >>> calm("a\\u202eb"), calm("naïve 猫")
    ('a\\\\u202eb', 'naïve 猫')
    """
    return "".join(c if c.isprintable() or c == " " else c.encode("unicode_escape").decode() for c in name)


def escaped(content: str) -> str:
    """What stands on a page as it is, whatever it is."""
    return html.escape(calm(content))


def as_html(table: Table, identity: str = "") -> str:
    """A table of a page; everything in it is text."""
    own = f' id="{identity}"' if identity else ""
    lines = [f'<figure class="table"{own}><figcaption>{escaped(table.title)}</figcaption>']
    lines.append('<div class="wide"><table><thead>')
    if table.groups:
        spans = (f'<th colspan="{span}">{escaped(text)}</th>' for text, span in table.groups)
        lines.append(f"<tr>{''.join(spans)}</tr>")
    texts = {x for row in table.rows for x, cell in enumerate(row.cells, start=1) if isinstance(cell, str)}
    kinds = [' class="text"' if x in texts else "" for x in range(len(table.heads))]
    heads = (
        f'<th scope="col"{kind}>{escaped(head)}</th>' for kind, head in zip(kinds, table.heads, strict=True)
    )
    lines.append(f"<tr>{''.join(heads)}</tr></thead><tbody>")
    section = ""
    for row in table.rows:
        if row.section and row.section != section:
            lines.append(
                f'<tr class="section"><td colspan="{len(table.heads)}">{escaped(row.section)}</td></tr>'
            )
        section = row.section
        cells = "".join(f"<td{_class(cell)}>{_html_cell(cell)}</td>" for cell in row.cells)
        dim = ' class="dim"' if row.dim else ""
        lines.append(f'<tr{dim}><th scope="row">{escaped(row.label)}</th>{cells}</tr>')
    lines.append("</tbody></table></div>")
    if table.note:
        lines.append(f'<p class="note">{escaped(table.note)}</p>')
    return "\n".join([*lines, "</figure>"])


def _class(cell: Cell) -> str:
    if not isinstance(cell, Entry):
        return ' class="text"' if cell else ""
    return ' class="best"' if cell.best else ""


def _html_cell(cell: Cell) -> str:
    if not isinstance(cell, Entry):
        return escaped(cell or "")
    spread = "" if cell.spread is None else f"<small>±{cell.spread:.{cell.digits}f}</small>"
    doubt = f'<small class="interval">{cell.doubt}</small>' if cell.doubt else ""
    return f"{cell.plain}{spread}{doubt}".replace("-", "−")


def _markdown_document(tables: Sequence[Table]) -> str:
    return "\n".join(as_markdown(table) for table in tables)


def _latex_document(tables: Sequence[Table]) -> str:
    needs = r"% \usepackage[T1]{fontenc}, booktabs, graphicx, xcolor" + "\n\n"
    return needs + "\n".join(as_latex(table) for table in tables)


def _csv_document(tables: Sequence[Table]) -> str:
    """One line a figure; columns that only some tables have are empty for the others."""
    lines = [fact for table in tables for fact in facts(table)]
    keys = dict.fromkeys(key for table in tables for key in table.keys)
    keys |= dict.fromkeys(key for table in tables for row in table.rows for key in row.keys)
    columns = ["table", *keys, "section", "row", "column", "value", "std", "low", "high", "best", "chance"]
    written = io.StringIO()
    writer = csv.DictWriter(written, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _unarmed(value) for key, value in line.items()} for line in lines)
    return written.getvalue()


def _unarmed(value: object) -> object:
    """Programs that show tables take a text that begins so for a formula, and run it."""
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )


def _json_document(tables: Sequence[Table]) -> str:
    told = [{"title": t.title, "note": t.note, "of": dict(t.keys), "figures": facts(t)} for t in tables]
    return json.dumps(told, indent=1, allow_nan=False) + "\n"


FORMATS: Final[Mapping[str, Callable[[Sequence[Table]], str]]] = MappingProxyType(
    {
        "markdown": _markdown_document,
        "latex": _latex_document,
        "csv": _csv_document,
        "json": _json_document,
    }
)
"""How tables can be written, by name."""

"""The figures and tables of the paper by name, of one's own records: a new one is a row and a function."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from PIL import Image

from acclimate.data.pictures import read_image
from acclimate.errors import InputError, OptionError, unknown
from acclimate.places import is_address
from acclimate.records import read_records
from acclimate.report import paper
from acclimate.report.choose import ANY, Choice
from acclimate.report.contact_sheet import contact_sheet
from acclimate.report.formats import FORMATS
from acclimate.report.gather import Gathered, gather
from acclimate.report.reading import slim
from acclimate.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "Kind", "Made", "Request", "kind_of", "save"]

Made: TypeAlias = "Figure | Table | Image.Image"
_TEXTS: Final[Mapping[str, str]] = {".tex": "latex", ".md": "markdown", ".csv": "csv", ".json": "json"}
_DRAWN: Final = (".pdf", ".png", ".svg", ".jpg", ".jpeg")
_PNG_FIRST: Final = (".png", ".pdf", ".svg", ".jpg", ".jpeg")
_PIXELS: Final = (".png", ".jpg", ".jpeg", ".pdf")
_RECORDS, _IMAGE = "records", "an image"
_OPTIONS: Final = {_RECORDS: {"model", "data", "severity"}, _IMAGE: {"size", "tile", "seed"}, "": set[str]()}


@dataclass(frozen=True)
class Request:
    """What to make a figure of."""

    sources: tuple[str | Path, ...] = ()
    """Folders or files of records, or an image."""
    choice: Choice = ANY
    size: int = 224
    """To which an image is cropped."""
    tile: int | None = None
    """Width at which each image is shown."""
    seed: int = 0


@dataclass(frozen=True)
class Kind:
    """A row of FIGURES."""

    summary: str
    make: Callable[[Request], Made]
    of: str = _RECORDS
    suffixes: tuple[str, ...] = _DRAWN
    """In which files it can be; the first is the usual one."""

    @property
    def options(self) -> set[str]:
        """Names of what can be asked of it."""
        return _OPTIONS[self.of]

    def check(self, name: str, sources: tuple[str | Path, ...]) -> None:
        """An error where there is nothing to make it of, or something that it is not made of."""
        if self.of == _RECORDS and not sources:
            raise OptionError(
                f"{name} is made of records: name the folders or files of `acclimate bench`, "
                f"as in `acclimate figures {name} results`"
            )
        if self.of == _IMAGE and len(sources) != 1:
            raise OptionError(f"{name} is made of one image, got {len(sources)}")
        if not self.of and sources:
            raise OptionError(f"{name} is made of nothing but itself, got {sources[0]}")
        for source in sources:
            if not is_address(source) and not Path(source).exists():
                raise InputError(f"there is nothing at {source}, of which {name} should be made")


def kind_of(name: str) -> Kind:
    """By its name; an unknown one is an error that names near ones."""
    if name not in FIGURES:
        raise OptionError(unknown("figure", name, FIGURES))
    return FIGURES[name]


def save(made: Made, path: Path) -> None:
    """In the format that the name says; a table is text or a drawing."""
    suffix = path.suffix.lower()
    if isinstance(made, Image.Image):
        made.save(path)
    elif isinstance(made, Table) and suffix in _TEXTS:
        path.write_text(FORMATS[_TEXTS[suffix]]([made]), encoding="utf-8", errors="backslashreplace")
    else:
        drawn = _drawing("drawn_table:draw_table")(made) if isinstance(made, Table) else made
        _drawing("style:save_figure")(drawn, path)


def _drawing(name: str) -> Callable[..., Any]:
    """A function of a module beside this one, which is imported when it draws: matplotlib takes its time."""

    def draw(*given: Any) -> Any:
        return pkgutil.resolve_name(f"acclimate.report.{name}")(*given)

    return draw


def _of_records(make: Callable[[Gathered, Choice], Made]) -> Callable[[Request], Made]:
    return lambda request: make(gather(read_records(*request.sources, keep=slim)), request.choice)


def _figure(summary: str, make: Callable[[Gathered, Choice], Figure]) -> Kind:
    return Kind(summary, _of_records(make))


def _table(summary: str, make: Callable[[Gathered, Choice], Table]) -> Kind:
    return Kind(summary, _of_records(make), suffixes=(*_DRAWN, *_TEXTS))


def _alone(summary: str, make: Callable[[], Figure], suffixes: tuple[str, ...] = _DRAWN) -> Kind:
    return Kind(summary, lambda request: make(), of="", suffixes=suffixes)


def _corruptions(request: Request) -> Image.Image:
    image = Image.fromarray(read_image(Path(request.sources[0]), request.size))
    return contact_sheet(image, seed=request.seed, tile=request.tile)


_LOSSES: Final = "the four losses and their gradients against confidence, for two classes"
FIGURES: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "figure-1": _alone(_LOSSES, _drawing("losses:losses_figure")),
        "figure-2": _figure(
            "accuracy of networks and methods on corrupted, other and clean data", _drawing("bars:figure_2")
        ),
        "figure-3": _figure(
            "accuracy against the fraction of classes or samples adapted to", _drawing("curves:figure_3")
        ),
        "figure-a1": _alone(
            "the adaptable model: input transformation and network",
            _drawing("architecture:architecture_figure"),
        ),
        "figure-a2": _figure("accuracy against κ, and without L_div", _drawing("curves:figure_a2")),
        "table-1": _table("methods by corruptions, after the first and the last epoch", paper.table_1),
        "table-2": _table("SSIM and accuracy without and with input transformation", paper.table_2),
        "table-a1": _table("table 1 with standard deviations over seeds", paper.table_a1),
        "table-a2": _table("a stock network without and with SHOT's pseudo labels", paper.table_a2),
        "table-a3": _table("a modified network with them, first and last epoch", paper.table_a3),
        "table-a4": _table("a modified network without and with them", paper.table_a4),
        "table-a5": _table("VisDA-C: mean accuracy of the classes", paper.table_a5),
        "corruptions": Kind(
            "contact sheet of an image: 19 corruptions, 5 severities", _corruptions, _IMAGE, _PIXELS
        ),
        "losses": _alone("figure-1, by its own name", _drawing("losses:losses_figure"), _PNG_FIRST),
    }
)
"""Every figure and table by name."""

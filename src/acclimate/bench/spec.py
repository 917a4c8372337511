"""What to measure: a spec is a product of choices, a cell is one of each.

Frozen, and what is not known is refused: a spec that was read is a spec that can run.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from acclimate.corruptions import known
from acclimate.errors import AcclimateError, OptionError, said, short, shown
from acclimate.fast import chosen_tricks
from acclimate.fast.precision import checked_precision
from acclimate.methods import METHODS, chosen_setting, parse_method
from acclimate.options import Options, checked_memory

__all__ = ["ORACLE", "Cell", "Data", "Network", "Spec", "Subset", "checked_cell", "read_spec"]

_OF_ADAPTER = (
    "freeze",
    "statistics",
    "precision",
    "memory",
    "fast",
    "guard",
    "calibrate",
)  # and not of a `Method`
_LONGEST, _MOST_VALUES, _MOST_CELLS = 1 << 20, 100_000, 1_000_000  # bytes, values and cells of a spec
ORACLE = "oracle"
"""The method that is told the labels: an upper bound, not for practice."""
Overrides = dict[str, Any]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Network(_Frozen):
    """A network as `acclimate adapt` takes it."""

    name: str
    weights: str | None = None
    """A file; below the root of the data, unless absolute."""
    normalize: str | None = None
    """As the option of that name; by default what the weights say."""

    @property
    def title(self) -> str:
        """What tells it from others: its name, or that of its file of weights."""
        return self.name if self.weights is None else Path(self.weights).name.partition(".")[0]


class Data(_Frozen):
    """Images with labels."""

    name: str
    """What records call it."""
    path: str = ""
    """Below the root of the data, unless absolute; or ``package.module:function`` of images and labels."""
    layout: str = "auto"
    split: str | None = None
    size: int | None = None
    """To which image files are cropped; 0 leaves them; by default as the network's weights say."""
    limit: int | None = Field(default=None, ge=1)
    """Only so many images, evenly spaced: class folders are sorted."""
    clean: str | None = None
    """Where the same images are without a corruption, for their similarity to it."""

    @field_validator("path", "clean")
    @classmethod
    def _path_has_no_secrets(cls, value: str | None) -> str | None:
        if value is not None and "://" in value and shown(value) != value:
            raise ValueError(
                f"{shown(value)} holds a password or a signature, which every record would repeat: give "
                "the folder of the data by --data, or a login where fsspec looks for it"
            )
        return value


class Subset(_Frozen):
    """Adapt on a part, evaluate on all."""

    classes: float | None = Field(default=None, gt=0, le=1)
    samples: float | None = Field(default=None, gt=0, le=1)


class Cell(_Frozen):
    """One adaptation from the pretrained weights."""

    network: Network
    data: Data
    corruption: str | None = None
    """None for the data as they are."""
    severity: int | None = Field(default=None, ge=1, le=5)
    method: str
    overrides: Overrides = {}
    """Of `Adapter`: ``lr``, ``kappa``, ``freeze``, ``precision`` …"""
    setting: str = "auto"
    subset: Subset | None = None
    seed: int = 0
    epochs: int = Field(default=5, ge=1)
    evaluate: tuple[int, ...] = ()
    """Epochs after which all images are predicted, besides the last; without any, every epoch."""
    batch_size: int = Field(default=64, ge=1)
    device: str = "cpu"
    threads: int = Field(default=1, ge=1)

    @field_validator("method")
    @classmethod
    def _method_is_known(cls, value: str) -> str:
        if value != ORACLE:
            parse_method(value)
        return value

    @model_validator(mode="after")
    def _epochs_are_reached(self) -> Cell:
        if any(not 1 <= epoch <= self.epochs for epoch in self.evaluate):
            raise ValueError(f"evaluate names epochs {self.evaluate}, but there are {self.epochs}")
        return self

    @field_validator("corruption")
    @classmethod
    def _corruption_is_known(cls, value: str | None) -> str | None:
        return None if value is None else known(value)

    @property
    def key(self) -> str:
        """A digest of all that was asked for; where the data lie is not part of it."""
        document = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(document.encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """For people."""
        shift = "" if self.corruption is None else f" {self.corruption}-{self.severity}"
        given = {} if self.subset is None else self.subset.model_dump(exclude_none=True)
        part = "".join(f" on {fraction:g} of the {what}" for what, fraction in given.items())
        changes = "".join(f" {name}={value}" for name, value in self.overrides.items())
        return f"{self.network.title} {self.data.name}{shift} {self.method}{changes}{part} seed {self.seed}"

    @property
    def learns(self) -> bool:
        """Whether it goes through epochs."""
        return self.method == ORACLE or parse_method(self.method).has_loss


class Spec(_Frozen):
    """Every combination is a cell."""

    networks: tuple[Network, ...]
    data: tuple[Data, ...]
    methods: tuple[str, ...]
    corruptions: tuple[str | None, ...] = (None,)
    severities: tuple[int, ...] = (5,)
    seeds: tuple[int, ...] = (2020, 2021, 2022)
    subsets: tuple[Subset | None, ...] = (None,)
    overrides: tuple[Overrides, ...] = ({},)
    settings: tuple[str, ...] = ("paper",)
    epochs: int = 5
    evaluate: tuple[int, ...] = ()
    batch_size: int = 64
    device: str = "cpu"
    threads: int = 1

    def cells(self) -> Iterator[Cell]:
        """All cells, those that share images next to each other; what cannot matter is left out of them.

        Networks that learn nothing have no use for a subset, an override or a schedule, and one that stays
        as it is none for a seed.
        """
        choices = itertools.product(
            self.networks, self.data, self.corruptions, self.severities, self.subsets, self.methods,
            self.overrides, self.settings, self.seeds,
        )  # fmt: skip
        seen = set()
        for network, data, corruption, severity, subset, method, overrides, setting, seed in choices:
            learns = method == ORACLE or parse_method(method).has_loss
            cell = Cell(
                network=network,
                data=data,
                corruption=corruption,
                severity=None if corruption is None else severity,
                method=method,
                overrides=overrides if learns else {},
                setting=setting if learns else "paper",
                subset=subset if learns else None,
                seed=self.seeds[0] if method == "source" else seed,
                epochs=self.epochs if learns else 1,
                evaluate=self.evaluate if learns else (),
                batch_size=self.batch_size,
                device=self.device,
                threads=self.threads,
            )
            if cell.key not in seen:
                seen.add(cell.key)
                yield cell


def read_spec(path: str | Path) -> Spec:
    """A spec from a YAML or JSON file."""
    try:
        found = _parsed(Path(path))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise OptionError(f"{path} cannot be read as a spec: {said(error)}") from error
    if not isinstance(found, dict):
        raise OptionError(
            f"{path} is no spec: expected networks, data and methods, got {type(found).__name__}"
        )
    try:
        spec = Spec.model_validate(found)
        _check_size(spec)
        for cell in spec.cells():  # whatever is wrong with a cell is told now
            checked_overrides(cell)
    except ValidationError as error:
        raise OptionError(f"{path}: {_first(error)}") from error
    except AcclimateError as error:
        raise OptionError(f"{path}: {short(error, 1000)}") from error
    except (TypeError, ValueError, OverflowError) as error:  # an override that is nothing like it should be
        raise OptionError(f"{path} holds what no option can be: {said(error)}") from error
    return spec


def _parsed(path: Path) -> Any:
    """What stands in a file, if that is of a size that somebody can have meant.

    A few lines can stand for millions of values, each made of aliases of the one before.
    """
    with path.open("rb") as file:
        content = file.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise ValueError(f"it has more than {_LONGEST:,} bytes")
    loader = yaml.SafeLoader(content.decode("utf-8"))
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _values(node, {}) > _MOST_VALUES:
            raise ValueError(f"its aliases stand for more than {_MOST_VALUES:,} values")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _values(node: yaml.Node, known: dict[int, float]) -> float:
    """How many values a part of a file stands for, with what aliases stand for; endless, within itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        below = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for entry in below for part in (entry if isinstance(entry, tuple) else (entry,)))
        known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(node)]


def _check_size(spec: Spec) -> None:
    choices = (
        spec.networks, spec.data, spec.corruptions, spec.severities, spec.subsets, spec.methods,
        spec.overrides, spec.settings, spec.seeds,
    )  # fmt: skip
    count = math.prod(map(len, choices))
    if count > _MOST_CELLS:
        raise OptionError(f"it has {count:,} cells, and at most {_MOST_CELLS:,} can be run: cut it in parts")


def _first(error: ValidationError) -> str:
    """What is wrong in the first place, and where."""
    first = error.errors()[0]
    where = ".".join(short(part, 40) for part in first["loc"])
    return short(f"{where}: {first['msg']}", 1000)


def checked_cell(found: dict[str, Any], origin: str) -> Cell:
    """A cell that was written down."""
    try:
        return Cell(**found)
    except (ValidationError, TypeError) as error:
        reason = _first(error) if isinstance(error, ValidationError) else said(error)
        raise OptionError(f"{origin} holds what is no cell of this acclimate: {reason}") from error


def checked_overrides(cell: Cell) -> None:
    """An unknown option is an error before the first cell runs."""
    own = {name: value for name, value in cell.overrides.items() if name not in _OF_ADAPTER}
    name = "hlr" if cell.method == ORACLE else cell.method
    parse_method(name, chosen_setting(cell.setting, None)).override(own, also=_OF_ADAPTER)
    checked_precision(cell.overrides.get("precision", Options.precision))
    checked_memory(cell.overrides.get("memory", Options.memory))
    chosen_tricks(cell.overrides.get("fast", Options.fast))


assert ORACLE not in METHODS

"""The events of a run, live or of its record, as sinks take them: steps, ends of epochs, what came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from pydantic import ValidationError

from acclimate.adapter import Adapter
from acclimate.bench.spec import Cell
from acclimate.interrupts import uninterrupted
from acclimate.records import Record
from acclimate.report.sinks import Sink, Values, cut, said

__all__ = ["Live", "replay"]


class Live:
    """A run that is logged while it goes on: called with the adapter, it logs what is new in the history.

    Within ``with``, the run ends whatever happens: `finish` says how it went, an error what stopped it.
    """

    def __init__(self, sink: Sink, cell: Cell) -> None:
        self._sink, self._cell = sink, cell
        self._logged: int | None = None

    def __call__(self, adapter: Adapter) -> None:
        if self._logged is None:
            self._logged = self._begin(adapter)
        history = adapter.history.per_step()
        with uninterrupted():  # a step is logged whole, and once
            for i in range(self._logged, adapter.step):
                self._sink.log({f"step/{name}": values[i] for name, values in history.items()}, i + 1)
            self._logged = adapter.step

    def _begin(self, adapter: Adapter) -> int:
        # the label leaves out what no comparison varies; the key tells runs apart when one of them goes on
        name = f"{self._cell.label} {self._cell.key[:6]}"
        found = {"method": dataclasses.asdict(adapter.method), "options": dataclasses.asdict(adapter.options)}
        config = _flat({**self._cell.model_dump(mode="json"), "spec": found})
        return self._sink.begin(name, config, adapter.step)

    def finish(self, record: Record) -> None:
        """End the run with what its record says."""
        for step, values in _epochs(record).items():
            self._sink.log(values, step)
        self._sink.end(_summary(record))
        self._logged = None

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._logged is not None:
            self._sink.end({}, "interrupted" if isinstance(error, KeyboardInterrupt) else said(error))


def replay(record: Record, sink: Sink) -> None:
    """Log a finished record as its run would have been logged, by the points of its curves."""
    cell = record["cell"]
    config = _flat({**cell, "spec": record.get("spec", {}), "origin": record["origin"]})
    events, epochs = _steps(record), _epochs(record)
    with uninterrupted():  # it is logged whole
        sink.begin(_label(cell), config)
        for step in sorted({*events, *epochs}):
            sink.log({**events.get(step, {}), **epochs.get(step, {})}, step)
        sink.end(_summary(record), record["error"]["reason"] if "error" in record else None)


def _label(cell: Mapping[str, Any]) -> str:
    try:
        return Cell(**cell).label
    except ValidationError:  # `adapt_images` in Python knows a part of it only
        return f"{cell['method']} seed {cell['seed']}"


def _steps(record: Record) -> dict[int, Values]:
    curves = dict(record.get("result", {}).get("steps", {}))
    at = curves.pop("step", [])
    return {
        step: _numbers("step", {name: values[i] for name, values in curves.items()})
        for i, step in enumerate(at)
    }


def _epochs(record: Record) -> dict[int, Values]:
    """By the step that ends each epoch: all values of a run share one axis."""
    result, epochs = record.get("result", {}), record["cell"]["epochs"]
    total = max(result.get("steps", {}).get("step", []), default=0)
    after = result.get("after_epoch", {})
    return {total * int(epoch) // epochs: _numbers("epoch", values) for epoch, values in after.items()}


def _summary(record: Record) -> Values:
    result = record.get("result", {})
    after = result.get("after_epoch", {})
    last = after[max(after, key=int)] if after else {}
    parts = {"online": result.get("online"), "before": result.get("before"), "after": last}
    parts |= {"ssim": result.get("ssim"), "cost": record["cost"]}
    found = {
        key: value for name, values in parts.items() for key, value in _numbers(name, values or {}).items()
    }
    return {**found, "changed": result["changed"]} if "changed" in result else found


def _numbers(group: str, values: Mapping[str, Any]) -> dict[str, float]:
    return {f"{group}/{name}": value for name, value in values.items() if isinstance(value, (int, float))}


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, bool | float | str]:
    """Names with dots for what is nested, texts for lists; what is not given is left out.

    >>> _flat({"network": {"name": "demo", "weights": None}, "evaluate": [1, 5]})
    {'network.name': 'demo', 'evaluate': '[1, 5]'}
    """
    found: dict[str, bool | float | str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{name}.")
        elif value is not None:
            found[above + name] = value if isinstance(value, (bool, int, float)) else cut(value)
    return found

"""Cells as tasks of Ray, on as many machines as its cluster has.

A task gives its record back, and the grid writes it where local runs write theirs: workers need to see the
data, and nothing else. A worker that is lost takes its task with it, which Ray then runs elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from acclimate.bench.attempt import Done, attempt, failure, kept
from acclimate.bench.spec import Cell
from acclimate.errors import AcclimateWarning, OptionError, WorkerError, masked, shown
from acclimate.places import open_place
from acclimate.records import Record

__all__ = ["OWN_CLUSTER", "on_ray"]

OWN_CLUSTER = "auto"
"""Instead of an address: the cluster that Ray finds, or one of this machine alone."""
_RETRIES = 3  # of a task whose worker was lost


def on_ray(
    cells: Sequence[Cell], root: str, out: str, address: str = OWN_CLUSTER, *, gpus: float = 1.0
) -> Iterator[Done]:
    """Run cells as tasks; they come as they are done.

    A task takes the threads of its cell as CPUs and, for a GPU, so much of one.
    """
    ray = _import_ray()
    place = open_place(out)
    with _connected(ray, address):
        _check_resources(ray, cells, gpus)
        # one file of records comes back from each, so that a lost driver loses what is under way at most
        task = ray.remote(max_retries=_RETRIES)(_run)
        running = {}
        for cell in cells:
            wanted: dict[str, Any] = {"num_cpus": cell.threads, "num_gpus": gpus if _on_gpu(cell) else 0}
            running[task.options(name=cell.label, **wanted).remote(cell.model_dump(mode="json"), root)] = cell
        try:
            while running:
                (ready,), _ = ray.wait(list(running), num_returns=1)
                cell = running.pop(ready)
                yield kept(cell, _record_of(ray, ready, cell), place)
        finally:
            # what is finished is kept, whatever it is that ends this
            done, _ = ray.wait(list(running), num_returns=len(running), timeout=0) if running else ([], [])
            for ready in done:
                cell = running.pop(ready)
                kept(cell, _record_of(ray, ready, cell), place)
            for waiting in running:
                ray.cancel(waiting, force=True)


def _run(cell: dict[str, Any], root: str) -> Record:
    """What a worker does."""
    return attempt(Cell(**cell), root)


def _record_of(ray: Any, task: Any, cell: Cell) -> Record:
    try:
        record: Record = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None) or error
        return failure(
            cell, f"its worker could not begin: {type(cause).__name__}: {cause}".partition("\n")[0]
        )
    except ray.exceptions.RayError as error:
        said = str(error).strip().partition("\n")[0]
        return failure(cell, f"its worker was lost, and so were those of {_RETRIES} more tries: {said}")
    return record


@contextlib.contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Within, there is a cluster; one that was there before stays as it is."""
    before = ray.is_initialized()
    if not before:
        # Ray counts its use and sends that to its makers, unless it is told not to
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        given = None if address == OWN_CLUSTER else address
        try:
            ray.init(address=given, log_to_driver=False, logging_level="error", include_dashboard=None)
        except (ConnectionError, ValueError, RuntimeError) as error:
            said = str(error).strip().partition("\n")[0]
            raise WorkerError(f"there is no Ray cluster at {shown(address)}: {masked(said)}") from error
    try:
        yield
    finally:
        if not before:
            ray.shutdown()


def _check_resources(ray: Any, cells: Sequence[Cell], gpus: float) -> None:
    """A task that wants more than any machine has waits until there is one, which may be never."""
    if gpus > 1 and gpus != int(gpus):
        raise OptionError(f"a cell takes a part of one GPU or a whole number of them, got {gpus:g}")
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for threads, wanted in sorted({(cell.threads, gpus if _on_gpu(cell) else 0.0) for cell in cells}):
        if not any(node.get("CPU", 0) >= threads and node.get("GPU", 0) >= wanted for node in nodes):
            warnings.warn(
                f"no machine of the Ray cluster has {threads} CPUs and {wanted:g} GPUs, which a cell wants: "
                "such cells wait until there is one (see --threads, --device, --gpus-per-cell)",
                AcclimateWarning,
                stacklevel=2,
            )


def _on_gpu(cell: Cell) -> bool:
    return cell.device.startswith("cuda")


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise OptionError("--ray needs Ray: pip install 'acclimate[cluster]'") from error
    return ray

"""Seconds and memory of a step: the plain TENT loop, a forward pass, and `Adapter`, with and without savings.

    python benchmarks/speed.py                  # all of it: hours
    python benchmarks/speed.py --only tricks    # steps, tricks, memory or, if asked for, kept
    python benchmarks/speed.py --networks resnet18 --batches 2 --size 64 --rounds 2 --name try

Every variant lives in a process of its own, and only one works at a time. Rows of an earlier run stay
in the record if the commit, the machine and the protocol are the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from amx import bf16_environment
from records import RESULTS, origin, write
from speed_worker import SEED, TIMM, TORCHVISION, Job

from acclimate.fast import TRICKS

NETWORKS = (*TORCHVISION, *TIMM)
BATCHES = {"steps": (1, 16, 64), "memory": (16, 64), "tricks": (16,), "kept": (16,)}
MORE_BATCHES = {"resnet50": (32,)}
TRICK_NETWORKS = ("resnet50", "densenet121", "mobilenet_v2")
ADAPTING = {"forward, fast": "predict", "tent": "tent", "slr": "slr", "slr+it": "slr+it"}
PROCESS_WIDE, KEPT = "recycling", "plain, memory kept"
BF16, LOW = {"precision": "bf16"}, {"memory": "low"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("plain", {}),
    "forward": ("forward", {}),
    **{name: (what, {}) for name, what in ADAPTING.items()},
    **{f"{name} bf16": (what, BF16) for name, what in ADAPTING.items()},
}
"""Of the steps: what a worker does, and the options of `Adapter` that are not its defaults."""
MEMORY_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("plain", {}),
    "tent": ("tent", {}),
    "tent, tidy malloc": ("tent", {}),
    "tent, low memory": ("tent", LOW),
    "tent bf16": ("tent", BF16),
}
ENVIRONMENTS = {
    # small pieces go back to their neighbours at once, so that large ones leave whole holes
    "tent, tidy malloc": {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"},
}
RESERVE = 3 * 2**30  # bytes for all others: without them files are read again and again, and all are slow
PAUSE = 0.05  # seconds in which the threads of the one before stop waiting for work
MIB = 2**20

Row = dict[str, Any]


class WorkerError(Exception):
    """A worker has died."""


class Worker:
    """The process of a job."""

    def __init__(self, job: Job) -> None:
        environment = bf16_environment()[0] if job.options.get("precision") == "bf16" else {}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [
                sys.executable,
                Path(__file__).with_name("speed_worker.py"),
                json.dumps(dataclasses.asdict(job)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **(environment or {}), **job.environment},
        )

    def ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(command, file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise WorkerError(self._last_words())
        return dict(json.loads(answer))

    def close(self) -> None:
        if not self._errors.closed:
            self._process.kill()
            self._process.communicate()
            self._errors.close()

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        said = [line.strip() for line in self._errors if line.strip()]
        died = [f"died with {signal.Signals(-code).name}"] if code < 0 else []
        self.close()
        return ": ".join([*died, *said[-1:]])[:200] or f"ended with code {code}"


@dataclass
class Found:
    """What was measured of one job."""

    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    """Seconds of the plain loop in the same round over these."""
    kept: dict[str, float | None] | None = None
    error: str | None = None


def interleaved(jobs: dict[str, Job], rounds: int, *, kept: bool = False) -> dict[str, Found]:
    """Every job once in each round, after each other, in an order that moves on from round to round.

    Where memory does not hold all of them at once, there are several groups, each with the plain loop.
    """
    found = {name: Found() for name in jobs}
    waiting = [name for name in jobs if name != "plain"]
    while True:
        workers: dict[str, Worker] = {}
        try:
            _gather(workers, jobs, waiting, found)
            for number in range(rounds):
                _run_round(workers, number, found)
            for name in list(workers) if kept else []:
                found[name].kept = _asked("kept", name, workers, found)
        finally:
            for worker in workers.values():
                worker.close()
        waiting = [name for name in waiting if name not in workers and found[name].error is None]
        if not waiting:
            return found


def _gather(
    workers: dict[str, Worker], jobs: dict[str, Job], waiting: list[str], found: dict[str, Found]
) -> None:
    """Start as many workers as memory holds, the plain one among them, with a first step of warm-up each."""
    needed = 0
    for name in ["plain", *waiting] if found["plain"].error is None else waiting:
        workers[name] = Worker(jobs[name])
        done = _asked("go", name, workers, found)
        memory = done and _asked("resident", name, workers, found)
        if not memory:
            continue
        needed = max(needed, memory["peak"] - memory["now"])  # in a step, beyond what it holds anyway
        if available_memory() < 1.2 * needed + RESERVE and len(workers.keys() - {"plain"}) > 1:
            workers.pop(name).close()
            return


def _run_round(workers: dict[str, Worker], number: int, found: dict[str, Found]) -> None:
    names = list(workers)
    turn = number % max(len(names), 1)
    seconds: dict[str, float] = {}
    for name in names[turn:] + names[:turn]:
        time.sleep(PAUSE)
        answer = _asked("go", name, workers, found)
        if answer is not None:
            seconds[name] = answer["seconds"]
    for name, value in seconds.items():
        found[name].seconds.append(value)
        if "plain" in seconds:
            found[name].ratios.append(seconds["plain"] / value)


def _asked(
    command: str, name: str, workers: dict[str, Worker], found: dict[str, Found]
) -> dict[str, Any] | None:
    """The answer of a worker; where it dies, that is noted, and the others go on."""
    try:
        return workers[name].ask(command)
    except WorkerError as error:
        found[name].error = str(error)
        del workers[name]
        return None


def available_memory() -> int:
    return 1024 * int(_described("/proc/meminfo")["MemAvailable"].split()[0])


def _described(path: str) -> dict[str, str]:
    """A file of lines such as ``name: value``; the first of each name."""
    lines = reversed(Path(path).read_text().splitlines())
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": _described("/proc/cpuinfo").get("model name", "unknown"),
        "cores": os.cpu_count(),
        "memory_gib": round(int(_described("/proc/meminfo")["MemTotal"].split()[0]) / 2**20),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "bf16": bf16_environment()[1],
    }


def spread(values: list[float]) -> tuple[float, list[float]]:
    """Median and quartiles, to four digits."""
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    low, middle, high = (float(f"{value:.4g}") for value in quartiles)
    return middle, [low, high]


def rows_of(part: str, jobs: dict[str, Job], found: dict[str, Found]) -> Iterator[Row]:
    for name, job in jobs.items():
        row: Row = {"part": part, "network": job.network, "batch": job.batch, "variant": name}
        measured = found[name]
        if measured.error is not None:
            yield {**row, "error": measured.error}
            continue
        row["rounds"] = len(measured.seconds)
        row["seconds"], row["seconds_iqr"] = spread(measured.seconds)
        if measured.ratios:
            row["ratio"], row["ratio_iqr"] = spread(measured.ratios)
        yield {**row, **_mib_per_image(measured.kept or {})}


def _mib_per_image(kept: dict[str, float | None]) -> Row:
    return {f"{key}_mib_per_image": None if n is None else round(n / MIB, 2) for key, n in kept.items()}


class Record:
    """Rows that are printed when they come and written after every group of them."""

    def __init__(self, name: str, protocol: dict[str, Any]) -> None:
        self.name, self.protocol = name, protocol
        path = RESULTS / f"{name}.json"
        earlier = json.loads(path.read_text()) if path.exists() else {}
        same = earlier.get("protocol") == protocol and earlier.get("origin") == origin()
        self.rows: list[Row] = earlier["rows"] if same else []

    def add(self, rows: Iterator[Row]) -> None:
        for row in rows:
            print(row, flush=True)
            self.rows = [other for other in self.rows if _key(other) != _key(row)] + [row]
        write(self.name, self.protocol, self.rows)


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("part", "network", "batch", "variant"))


def jobs_of(
    variants: dict[str, tuple[str, dict[str, Any]]], network: str, batch: int, args: argparse.Namespace
) -> dict[str, Job]:
    """The jobs of those variants that are wanted and can be had, the plain loop among them in any case."""
    return {
        name: Job(network, batch, args.size, what, options, ENVIRONMENTS.get(name, {}))
        for name, (what, options) in variants.items()
        if (not args.variants or name in (*args.variants, "plain"))
        and (options.get("precision") != "bf16" or bf16_environment()[0] is not None)
    }


def cells(part: str, networks: tuple[str, ...], args: argparse.Namespace) -> Iterator[tuple[str, int]]:
    for network in args.networks or networks:
        more = MORE_BATCHES.get(network, ()) if part == "steps" else ()
        for batch in args.batches or sorted({*BATCHES[part], *more}):
            yield network, batch


def steps(args: argparse.Namespace, record: Record) -> None:
    for network, batch in cells("steps", NETWORKS, args):
        jobs = jobs_of(VARIANTS, network, batch, args)
        record.add(rows_of("steps", jobs, interleaved(jobs, args.rounds)))


def tricks(args: argparse.Namespace, record: Record) -> None:
    """All savings and none, against the plain loop; then each of them left out, against all of them.

    What one saving is worth may be a few per cent: steps with and without it take turns in one process, as
    two processes differ by as much. That cannot be done with one that is a setting of the whole process.
    """
    rest = [name for name in TRICKS if name != PROCESS_WIDE]
    variants: dict[str, tuple[str, dict[str, Any]]] = {
        "plain": ("plain", {}),
        "all": ("tent", {}),
        f"without {PROCESS_WIDE}": ("tent", {"fast": rest}),
        "none": ("tent", {"fast": False}),
        "all, bf16": ("tent", BF16),
    }
    for network, batch in cells("tricks", TRICK_NETWORKS, args):
        jobs = jobs_of(variants, network, batch, args)
        record.add(rows_of("tricks", jobs, interleaved(jobs, args.rounds, kept=True)))
        pairs = (Job(network, batch, args.size, "tent", without=name) for name in rest)
        record.add(_pair_row(job, args.rounds) for job in pairs)


def _pair_row(job: Job, rounds: int) -> Row:
    row: Row = {"part": "tricks", "network": job.network, "batch": job.batch}
    row |= {"variant": f"without {job.without}", "rounds": rounds}
    worker = Worker(job)
    try:
        worker.ask("go")
        found = [worker.ask("go") for _ in range(rounds)]
        row["seconds"], row["seconds_iqr"] = spread([answer["seconds"] for answer in found])
        row["cost"], row["cost_iqr"] = spread([answer["seconds"] / answer["with"] for answer in found])
        return {**row, **_mib_per_image(worker.ask("kept"))}
    except WorkerError as error:
        return {**row, "error": str(error)}
    finally:
        worker.close()


def kept(args: argparse.Namespace, record: Record) -> None:
    """Beside a plain loop that has malloc's setting, too, as it does behind an adapter in its process."""
    variants: dict[str, tuple[str, dict[str, Any]]] = {
        "plain": ("plain", {}),
        KEPT: (KEPT, {}),
        "tent": ("tent", {}),
        "tent bf16": ("tent", BF16),
    }
    for network, batch in cells("kept", NETWORKS, args):
        jobs = jobs_of(variants, network, batch, args)
        record.add(rows_of("kept", jobs, interleaved(jobs, args.rounds)))


def memory(args: argparse.Namespace, record: Record) -> None:
    """What a step keeps for backward, and what a fresh process takes for three steps."""
    for network, batch in cells("memory", NETWORKS, args):
        jobs = jobs_of(MEMORY_VARIANTS, network, batch, args)
        record.add(_memory_row(name, job) for name, job in jobs.items())


def _memory_row(name: str, job: Job) -> Row:
    row: Row = {"part": "memory", "network": job.network, "batch": job.batch, "variant": name}
    worker = Worker(job)
    try:
        before = worker.ask("resident")["now"]
        for _ in range(3):
            worker.ask("go")
        peak = worker.ask("resident")["peak"]
        row |= {"resident_mib_before": round(before / MIB), "resident_mib_peak": round(peak / MIB)}
        return {**row, **_mib_per_image(worker.ask("kept"))}
    except WorkerError as error:
        return {**row, "error": str(error)}
    finally:
        worker.close()


PARTS = {"steps": steps, "tricks": tricks, "memory": memory, "kept": kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS)
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--variants", nargs="+", help="the plain loop is always among them")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--name", default="speed")
    args = parser.parse_args()
    protocol = {
        "plain": "TENT as published: eager, NCHW, float32, .train(), batch statistics, SGD with momentum",
        "forward": "the untouched network in evaluation mode, no gradients",
        "adapter": 'online calls with SGD and normalize, statistics="batch", for batches of one "blend"',
        "weights": f"random, seed {SEED}",
        "size": args.size,
        **machine(),
    }
    record = Record(args.name, protocol)
    for part in [args.only] if args.only else ("steps", "tricks", "memory"):
        PARTS[part](args, record)


if __name__ == "__main__":
    main()

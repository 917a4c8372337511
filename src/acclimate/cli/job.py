"""A command as one rank of the job that ``torchrun`` started, if it did."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import typer
from torch.distributed.rendezvous import rendezvous

from acclimate.cli.terminal import messages
from acclimate.errors import OptionError, WorkerError
from acclimate.interrupts import end_as_interrupt, ending_already, ending_at_once
from acclimate.ranks import Ranks

__all__ = ["device_of", "joined"]


@contextmanager
def joined() -> Iterator[Ranks]:
    """Within, all ranks work together; only the first one speaks, and an error is told by one of them."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        yield Ranks()
        return
    with ending_at_once():
        store = _join()
    end_as_interrupt()
    ranks = Ranks()
    messages.quiet = ranks.rank != 0
    try:
        yield ranks
    except (typer.Exit, typer.Abort):
        raise
    except BaseException as error:
        ending_already()
        messages.quiet = _told_by_another(store, error)
        _clear_frames(error)
        raise
    finally:
        ending_already()
        dist.destroy_process_group()


def device_of(job: Ranks, asked: str | None) -> str | None:
    """Where a command adapts: a rank on the GPU that is its own, if it was not told otherwise."""
    if job.size == 1:
        return asked
    if asked is None:
        return "cuda" if torch.cuda.is_available() else None
    if asked.startswith("cuda:"):
        raise OptionError(f"every rank has a GPU of its own: give --device cuda, not {asked}")
    return asked


def _join() -> Any:
    """Meet the others, by NCCL where there are GPUs; returns what all ranks can write notes into."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        own = int(os.environ.get("LOCAL_RANK", "0"))
        if own >= torch.cuda.device_count():
            raise OptionError(
                f"this machine has {torch.cuda.device_count()} GPUs, which is fewer than its ranks: "
                "give torchrun a smaller --nproc-per-node"
            )
        torch.cuda.set_device(own)
    try:
        store, rank, size = next(iter(rendezvous("env://")))
    except ValueError as error:
        raise OptionError(f"WORLD_SIZE is set, but not by torchrun: {error}") from error
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    return store


def _clear_frames(error: BaseException) -> None:
    """Drop what an error's frames hold, such as the process group, whose threads end once nobody holds it."""
    chain: list[BaseException] = []
    last: BaseException | None = error
    while last is not None and last not in chain:
        chain.append(last)
        traceback.clear_frames(last.__traceback__)
        last = last.__cause__ or last.__context__


def _told_by_another(store: Any, error: BaseException) -> bool:
    """The first rank to say something says it for all; that one is gone, everybody says in other words."""
    about_others = isinstance(error, (WorkerError, KeyboardInterrupt))
    text = "lost" if about_others else f"{type(error).__name__}: {error}"
    try:
        return bool(store.add(f"acclimate/said/{text}", 1) > 1)
    except RuntimeError:  # nobody is left to ask
        return False

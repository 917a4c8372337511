"""Whether torch.compile would be worth its wait: a step of TENT by it, beside the plain loop and the adapter.

All three lie in memory pixel by pixel and keep memory from step to step: the compiler alone is measured.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from records import write
from speed_worker import IMAGENET, Step, make_network, plain_tent
from torch import Tensor

from acclimate import Adapter
from acclimate.fast.recycling import keep_memory

BATCH, SIZE, ROUNDS = 16, 224, 5


def steps(network: str) -> dict[str, Step]:
    plain, compiled = (make_network(network, SIZE).to(memory_format=torch.channels_last) for _ in range(2))
    adapter = Adapter(make_network(network, SIZE), "tent", optimizer="sgd", normalize=IMAGENET)
    return {
        "plain, channels last": plain_tent(plain),
        "compiled": plain_tent(torch.compile(compiled)),  # type: ignore[arg-type]
        "adapter": adapter,
    }


def timed(step: Step, images: Tensor) -> float:
    started = time.perf_counter()
    step(images)
    return time.perf_counter() - started


def main() -> None:
    keep_memory()
    images = torch.rand(BATCH, 3, SIZE, SIZE).contiguous(memory_format=torch.channels_last)
    rows: list[dict[str, Any]] = []
    for network in ("mobilenet_v2", "resnet50"):
        variants = steps(network)
        first = {name: timed(step, images) for name, step in variants.items()}
        rounds = [{name: timed(step, images) for name, step in variants.items()} for _ in range(ROUNDS + 1)][
            1:
        ]
        for name in variants:
            rows.append(
                {
                    "network": network,
                    "step": name,
                    "first step s": round(first[name], 1),
                    "median s": round(statistics.median(one[name] for one in rounds), 3),
                }
            )
            print(rows[-1], flush=True)
    write("compiled", {"batch": BATCH, "size": SIZE, "rounds": ROUNDS}, rows)


if __name__ == "__main__":
    main()

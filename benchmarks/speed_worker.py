"""One variant of a step, in a process of its own: a saving may change how the whole process gets memory.

`speed.py` starts it with a `Job` as JSON. It answers every line of its standard input with a line of JSON:

    go          seconds of one step, behind another one; of a pair, those of the step without a saving, too
    kept        bytes per image that a step keeps for its backward pass
    resident    bytes of memory that the process has now, and the most that it had
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.fast import TRICKS
from acclimate.fast.recycling import exactly, keep_memory
from acclimate.models.vision import import_timm, import_torchvision
from acclimate.prepare import model_info

TORCHVISION = ("resnet18", "resnet50", "densenet121", "mobilenet_v2")
TIMM = ("tf_efficientnet_lite0", "vit_small_patch16_224")
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SEED = 0

Step = Callable[[Tensor], object]


@dataclass(frozen=True)
class Job:
    """What a worker does."""

    network: str
    batch: int
    size: int
    what: str
    """``plain``, the same with ``memory kept``, ``forward``, ``predict``, or a method that adapts online."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of `Adapter`."""
    environment: dict[str, str] = field(default_factory=dict)
    """Of its process."""
    without: str | None = None
    """A saving: it takes turns with another adapter that is without this one."""


def make_network(name: str, size: int) -> nn.Module:
    """A network with random weights."""
    torch.manual_seed(SEED)
    if name in TORCHVISION:
        made = getattr(import_torchvision().models, name)()
    else:
        made = import_timm().create_model(name, **({"img_size": size} if name.startswith("vit") else {}))
    assert isinstance(made, nn.Module)
    return made.eval()


def plain_tent(model: nn.Module) -> Step:
    """TENT as its authors published it."""
    model.train().requires_grad_(False)
    norms = [module for module in model.modules() if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm))]
    for norm in norms:
        norm.requires_grad_(True)
        if isinstance(norm, nn.BatchNorm2d):
            norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    optimizer = torch.optim.SGD([p for norm in norms for p in norm.parameters()], lr=2.5e-4, momentum=0.9)

    def step(images: Tensor) -> None:
        logits = model(images)
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def make_step(job: Job) -> tuple[Step, Callable[[int], Tensor]]:
    """A step of the job, and what makes so many images for it."""
    model = make_network(job.network, job.size)
    info = model_info(model)
    mean, std = IMAGENET if info is None or info.mean is None or info.std is None else (info.mean, info.std)

    def pixels(count: int) -> Tensor:
        return torch.rand(count, 3, job.size, job.size, generator=torch.Generator().manual_seed(SEED))

    def normalized(count: int) -> Tensor:
        return (pixels(count) - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)

    if job.what == "plain, memory kept":
        keep_memory()
    if job.what.startswith("plain"):
        return plain_tent(model), normalized
    if job.what == "forward":
        return torch.no_grad()(model), normalized
    options = dict(job.options)
    if job.without is not None:
        options["fast"] = [name for name in TRICKS if name != job.without]
    adapter = Adapter(
        model,
        "tent" if job.what == "predict" else job.what,
        optimizer="sgd",
        normalize=(mean, std),
        statistics="blend" if job.batch == 1 else "batch",  # a single image has no batch statistics
        **options,
    )
    return (adapter.predict if job.what == "predict" else adapter), pixels


class _Usage(ctypes.Structure):
    """What mallinfo2 of glibc returns."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    )


def allocated() -> int | None:
    """Bytes that malloc has given out and not got back; None where the C library does not tell."""
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        return None
    tell.restype = _Usage
    usage = tell()
    return int(usage.uordblks + usage.hblkhd)


def kept_by(step: Step, images: Tensor) -> tuple[int, int | None]:
    """Bytes kept when the backward pass begins: by count of saved tensors, and by what malloc gave out.

    The first leaves out what a layer keeps behind autograd's back; the second takes in all that is alive.
    """
    storages: dict[int, int] = {}
    living: list[int | None] = []
    backward = torch.autograd.backward

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not living and storage.data_ptr() != images.untyped_storage().data_ptr():
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    def begin(*arguments: Any, **options: Any) -> None:
        living.append(allocated())
        backward(*arguments, **options)

    step(images)  # whatever is made once for this number of images is there now
    gc.collect()
    before = allocated()
    with (
        exactly(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        mock.patch.object(torch.autograd, "backward", begin),
    ):
        step(images)
    alive = living[0] - before if living and living[0] is not None and before is not None else None
    return sum(storages.values()), alive


def kept_per_image(step: Step, images: Callable[[int], Tensor]) -> dict[str, float | None]:
    """What each further image adds, so that weights, parameters and the like drop out."""
    (few, few_alive), (more, more_alive) = (kept_by(step, images(count)) for count in (2, 4))
    alive = None if few_alive is None or more_alive is None else (more_alive - few_alive) / 2
    return {"kept": (more - few) / 2, "alive": alive}


def resident() -> dict[str, int]:
    """From /proc: the peak of getrusage takes in that of the process which started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    facts = {
        name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines) if rest.split()
    }
    return {"now": 1024 * int(facts["VmRSS"]), "peak": 1024 * int(facts["VmHWM"])}


def main() -> None:
    # where memory runs out, this process has to go, not the one that holds the results
    Path("/proc/self/oom_score_adj").write_text("1000")
    answers, sys.stdout = sys.stdout, sys.stderr
    job = Job(**json.loads(sys.argv[1]))
    step, make_images = make_step(job)
    other = None if job.without is None else make_step(dataclasses.replace(job, without=None))[0]
    images = make_images(job.batch)

    def seconds(step: Step) -> float:
        # The step before the timed one puts caches and free memory back as in a loop of such steps: pages
        # that were free for seconds may have gone back to a hypervisor, and cost several times as much.
        step(images)
        started = time.perf_counter()
        step(images)
        return time.perf_counter() - started

    turns = itertools.cycle((False, True))

    def go() -> dict[str, float]:
        if other is None:
            return {"seconds": seconds(step)}
        pair = {"seconds": step, "with": other}
        names = sorted(pair, reverse=next(turns))  # now the one first, now the other
        return {name: seconds(pair[name]) for name in names}

    commands: dict[str, Callable[[], object]] = {
        "go": go,
        "kept": lambda: kept_per_image(step, make_images),
        "resident": resident,
    }
    for line in sys.stdin:
        print(json.dumps(commands[line.strip()]()), file=answers, flush=True)


if __name__ == "__main__":
    main()

"""Lean layers beside torch's own: what both give, what they keep, networks of random parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from acclimate.fast import TRICKS
from acclimate.fast.lean import Lean

LAYOUTS = ("planes", "pixels", "mixed")
"""Plane by plane, pixel by pixel, and pixel by pixel with a gradient that comes plane by plane."""
PIXELS = {4: torch.channels_last, 5: torch.channels_last_3d}
Net = Callable[[Tensor], Any]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def laid(x: Tensor, layout: str) -> Tensor:
    return x.contiguous(memory_format=PIXELS[x.ndim]) if layout == "pixels" and x.ndim in PIXELS else x


def adapting(*layers: nn.Module) -> nn.Module:
    """As a network adapts: affines of norms move, and nothing else; statistics are not those of a new one."""
    net = nn.Sequential(*layers).double().requires_grad_(False)
    for number, parameter in enumerate(net.parameters()):
        parameter.copy_(random(*parameter.shape, seed=number))
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.requires_grad_(True)
            if module.running_mean is not None and module.running_var is not None:
                module.running_mean.copy_(random(module.num_features, seed=7))
                module.running_var.copy_(random(module.num_features, seed=8).exp())
    return net


def passed(layer: nn.Module, x: Tensor, lean: Lean | None = None) -> tuple[Tensor, Tensor]:
    """What comes out, and the gradient of what goes in."""
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    with nullcontext() if lean is None else lean:
        made = layer(leaf)
    made.backward(random(*made.shape, seed=3).to(made))
    assert leaf.grad is not None
    return made.detach(), leaf.grad


def outcome(net: Net, x: Tensor, layout: str, *, lean: bool) -> dict[str, Any]:
    """All that comes of a pass forwards and backwards."""
    net = copy.deepcopy(net)
    leaf = laid(x, "planes" if layout == "planes" else "pixels").clone().requires_grad_()
    with Lean(TRICKS) if lean else nullcontext():
        made = net(leaf * 1)
    outputs = [made] if isinstance(made, Tensor) else [*made]
    moving = [output for output in outputs if output.requires_grad]
    gradients = [laid(random(*output.shape, seed=9).to(output.dtype), layout) for output in moving]
    torch.autograd.backward(moving, gradients)
    found = {f"output {number}": output for number, output in enumerate(outputs)}
    found["gradient of the input"] = leaf.grad
    if isinstance(net, nn.Module):
        found |= {f"gradient of {name}": p.grad for name, p in net.named_parameters()}
        found |= dict(net.named_buffers())
    return found


def check(net: Net, x: Tensor, *layouts: str) -> None:
    """Equal to torch's own to 1e-12, in the layouts given or in all that the input can have."""
    for layout in layouts or layouts_of(x):
        ours, torchs = (outcome(net, x, layout, lean=lean) for lean in (True, False))
        for name, right in torchs.items():
            made = ours[name]
            assert (made is None) == (right is None), name
            if right is None:
                continue
            assert (made.dtype, made.shape) == (right.dtype, right.shape), name
            assert strides(made) == strides(right) or name not in ("output 0", "output 1"), name
            error = (made - right).detach().abs().max().item()
            assert error <= 1e-12 * max(1, right.detach().abs().max().item()), (name, layout, error)


def strides(x: Tensor) -> list[int]:
    """Those that say where an element lies: not of dimensions that have one only."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def layouts_of(x: Tensor) -> Sequence[str]:
    return LAYOUTS if x.ndim in PIXELS else LAYOUTS[:1]


def kept(net: Net, x: Tensor, *, lean: bool = True) -> int:
    """Bytes that are kept for backward, each piece of memory once, less what belongs to the network."""
    own = [*net.parameters(), *net.buffers()] if isinstance(net, nn.Module) else []
    seen = {tensor.untyped_storage().data_ptr() for tensor in own}
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            sizes.append(storage.nbytes())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor), Lean(TRICKS) if lean else nullcontext():
        made = net(x)  # noqa: F841  # what is kept stays as long as this does
    return sum(sizes)


def single(*shape: int) -> Tensor:
    return random(*shape, dtype=torch.float32).requires_grad_()


class Program(nn.Module):
    """A network of random parts, each of which takes what any of the earlier ones made."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        super().__init__()
        layers = {
            "norm": lambda: nn.BatchNorm2d(4),
            "conv": lambda: nn.Conv2d(4, 4, 3, padding=1),
            "depthwise": lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4),
            "max": lambda: nn.MaxPool2d(3, 1, 1),
            "average": lambda: nn.AvgPool2d(3, 1, 1),
            "relu": lambda: nn.ReLU(inplace=draw(st.booleans())),
            "relu6": lambda: nn.ReLU6(inplace=draw(st.booleans())),
            "leaky": lambda: nn.LeakyReLU(0.2, inplace=draw(st.booleans())),
            "silu": lambda: nn.SiLU(inplace=draw(st.booleans())),
        }
        kinds = st.sampled_from([*layers, "norm", "add", "add_"])
        self.kinds = draw(st.lists(kinds, min_size=2, max_size=9))
        # where a part takes its input from: most often what came last
        latest = [draw(st.booleans()) for _ in self.kinds]
        self.sources = [
            (i if latest[i] else draw(st.integers(0, i)), draw(st.integers(0, i))) for i in range(len(latest))
        ]
        self.parts = adapting(*(layers[kind]() if kind in layers else nn.Identity() for kind in self.kinds))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = [x * 1]
        for kind, part, (a, b) in zip(self.kinds, self.parts, self.sources, strict=True):  # type: ignore[call-overload]
            if kind == "add":
                found.append(found[a] + found[b])
            elif kind == "add_":
                found.append(found[a].add_(found[b]))
            else:
                found.append(part(found[a]))
        return tuple(found[-2:])

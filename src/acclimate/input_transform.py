"""The trainable input transformation that is put before the network.

    d(x) = gamma * [tau x + (1 - tau) r(x)] + beta

gamma and beta have one entry per channel, tau is a scalar. tau = 1, gamma = 1 and beta = 0 at the
start, so that d(x) = x; the gradient of r is then zero and only tau, gamma and beta move in the
first step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from acclimate.errors import InputError, OptionError

__all__ = ["InputTransformation"]


class InputTransformation(nn.Module):
    """d(x), the identity until it is trained.

    r is a stack of ``depth`` times (3x3 convolution to ``width`` channels, group norm, ReLU) and a
    3x3 convolution back to the input's channels, without activation or clamp after it. Its first weights
    are drawn from ``generator``, by default from torch's own.

    >>> x = torch.rand(2, 3, 8, 8)
    >>> torch.equal(InputTransformation(channels=3)(x), x)
    True
    """

    def __init__(
        self,
        channels: int = 3,
        width: int = 32,
        depth: int = 2,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("channels", channels), ("width", width), ("depth", depth)):
            if not isinstance(value, int) or value < 1:
                raise OptionError(f"{name} of the input transformation must be at least 1, got {value!r}")
        self.tau = nn.Parameter(torch.ones(()))
        self.gamma = nn.Parameter(torch.ones(channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(channels, 1, 1))
        layers: list[nn.Module] = []
        for channels_in in (channels, *[width] * (depth - 1)):
            layers += [
                _convolution(channels_in, width, generator),
                nn.GroupNorm(math.gcd(width, 8), width),
                nn.ReLU(inplace=True),
            ]
        self.r = nn.Sequential(*layers, _convolution(width, channels, generator))

    def forward(self, x: Tensor) -> Tensor:
        # torch.fx traces this module with a proxy, which has no shape to check
        if isinstance(x, Tensor) and (x.ndim != 4 or x.shape[1] != len(self.gamma)):
            raise InputError(
                "the input transformation takes images of the shape "
                f"(N, {len(self.gamma)}, H, W), got {tuple(x.shape)}"
            )
        r: Tensor = self.r(x)
        return self.gamma * (self.tau * x + (1 - self.tau) * r) + self.beta


def _convolution(channels_in: int, channels_out: int, generator: torch.Generator | None) -> nn.Conv2d:
    """A 3x3 convolution with the first weights that torch would give it.

    torch itself draws them from the generator that all threads of a process share.
    """
    made = skip_init(nn.Conv2d, channels_in, channels_out, 3, padding=1)  # type: ignore[no-untyped-call]
    assert isinstance(made, nn.Conv2d)
    assert made.bias is not None
    nn.init.kaiming_uniform_(made.weight, a=math.sqrt(5), generator=generator)
    bound = 1 / math.sqrt(channels_in * 9)
    nn.init.uniform_(made.bias, -bound, bound, generator=generator)
    return made

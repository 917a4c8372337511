"""Small networks that the tests share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.demo.network import SmallResNet

CLASSES = 5


def resnet(seed: int = 0) -> SmallResNet:
    """A batch-norm network with statistics and affines that are not those of a new one."""
    torch.manual_seed(seed)
    model = SmallResNet(blocks=1, num_classes=CLASSES)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return model.eval()


def images(count: int = 24, seed: int = 0, size: int = 16) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


NORMALIZE = ((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
BATCHES = [images(16, seed=i) for i in range(4)]


def adapted_state(adapter: Adapter) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in adapter._engine.changing().items()}

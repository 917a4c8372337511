"""Accuracy of adapted stock networks beside that of their exported twins in evaluation mode.

There are no pretrained weights in this repository: each network is first fitted to half of the
bundled images, which is enough for an accuracy that can be lost and recovered.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from accuracy import accuracy
from records import write
from torch import Tensor, nn

from acclimate import Adapter, corrupt
from acclimate.demo.bundle import MEAN, STD, bundled_images
from acclimate.models.vision import import_torchvision

NETWORKS = ("resnet50", "densenet121", "mobilenet_v2", "resnext50_32x4d")


def fitted(name: str, images: Tensor, labels: Tensor, epochs: int = 8, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = getattr(import_torchvision().models, name)(num_classes=10, **options).train()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=epochs * len(images) // 50)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def row(name: str) -> dict[str, Any]:
    images, labels = bundled_images()
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    model = fitted(name, (images[1000:] - mean) / std, labels[1000:])
    images, labels = images[:1000], labels[:1000]
    shifted = corrupt(images, "gaussian_noise", 5)

    def score(module: nn.Module, pixels: Tensor) -> float:
        with torch.no_grad():
            return accuracy(torch.cat([module((part - mean) / std) for part in pixels.split(100)]), labels)

    adapter = Adapter(model, "slr", normalize=(MEAN, STD), setting="paper")
    adapter.fit(shifted, 2, progress=False)
    stock = getattr(import_torchvision().models, name)(num_classes=10)
    stock.load_state_dict(adapter.export().state_dict(), strict=True)
    return {
        "network": name,
        "clean": score(model, images),
        "source_on_noise": score(model, shifted),
        "adapter": accuracy(adapter.predict(shifted, batch_size=64), labels),
        "exported": score(stock.eval(), shifted),
    }


def main() -> None:
    rows = []
    for name in NETWORKS:
        rows.append(row(name))
        print(rows[-1], flush=True)
    protocol = {"method": "slr", "epochs": 2, "batch_size": 64, "images": 1000, "size": 32, "seed": 0}
    write("export", protocol, rows)


if __name__ == "__main__":
    main()

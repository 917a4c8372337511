"""Train the network that `acclimate` bundles, and cut the 2,000 test images that go with it.

Fashion-MNIST is read from Debian's package `dataset-fashion-mnist` (or from any folder that holds
the four published files):

    python scripts/train_demo_model.py --data /usr/share/datasets/fashion-mnist --out src/acclimate/demo

Seeded; prints the accuracy on the 10,000 test images and on the 2,000 that are bundled, and writes
it into the weights' metadata. The bundled images are the first 200 of each class in the test set,
so that they are balanced, in an order drawn from the seed.
"""

from __future__ import annotations

import argparse
import gzip
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from acclimate.demo.network import SmallResNet

MEAN, STD = 0.286, 0.353  # of the training pixels, the same for the three equal channels


def read_idx(path: Path) -> np.ndarray:
    raw = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def to_input(images: np.ndarray) -> Tensor:
    """28 x 28 grey bytes to 32 x 32 three equal channels, normalised."""
    pixels = F.pad(torch.from_numpy(images.copy()).float() / 255, (2, 2, 2, 2))
    return ((pixels - MEAN) / STD)[:, None].expand(-1, 3, -1, -1)


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to two pixels and mirror half of them."""
    out = torch.empty_like(images)
    shifts = torch.randint(-2, 3, (len(images), 2), generator=generator).tolist()
    mirror = torch.rand(len(images), generator=generator).lt(0.5).tolist()
    for row, ((dy, dx), flip) in enumerate(zip(shifts, mirror, strict=True)):
        image = images[row].roll((dy, dx), (1, 2))
        out[row] = image.flip(2) if flip else image
    return out


@torch.no_grad()
def accuracy(model: torch.nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    hits = [model(x).argmax(1).eq(y) for x, y in zip(images.split(500), labels.split(500), strict=True)]
    return 100 * torch.cat(hits).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--out", type=Path, default=Path("src/acclimate/demo"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=2020)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    train = to_input(read_idx(args.data / "train-images-idx3-ubyte.gz"))
    train_labels = torch.from_numpy(read_idx(args.data / "train-labels-idx1-ubyte.gz").astype(np.int64))
    raw = read_idx(args.data / "t10k-images-idx3-ubyte.gz")
    raw_labels = read_idx(args.data / "t10k-labels-idx1-ubyte.gz")

    model = SmallResNet(blocks=args.blocks).to(memory_format=torch.channels_last)
    steps = args.epochs * (len(train) // 128)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps)
    for epoch in range(args.epochs):
        model.train()
        started = time.perf_counter()
        order = torch.randperm(len(train), generator=generator)
        for rows in order[: len(train) // 128 * 128].split(128):
            images = augment(train[rows], generator).contiguous(memory_format=torch.channels_last)
            loss = F.cross_entropy(model(images), train_labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        seconds = time.perf_counter() - started
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {seconds:.0f} s", flush=True)

    rows = np.concatenate([np.flatnonzero(raw_labels == c)[:200] for c in range(10)])
    rows = np.random.default_rng(args.seed).permutation(rows)
    all_accuracy = accuracy(model, to_input(raw), torch.from_numpy(raw_labels.astype(np.int64)))
    labels = torch.from_numpy(raw_labels[rows].astype(np.int64))
    bundled_accuracy = accuracy(model, to_input(raw[rows]), labels)
    print(
        f"accuracy: {all_accuracy:.2f}% of 10,000 test images, {bundled_accuracy:.2f}% of the bundled 2,000"
    )

    metadata = {
        "accuracy_10000": f"{all_accuracy:.2f}",
        "accuracy_2000": f"{bundled_accuracy:.2f}",
        "blocks": str(args.blocks),
        "mean": str(MEAN),
        "std": str(STD),
        "seed": str(args.seed),
        "epochs": str(args.epochs),
        "data": "Fashion-MNIST (MIT licence)",
    }
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(weights, args.out / "fashion_resnet.safetensors", metadata=metadata)
    np.savez_compressed(args.out / "fashion_images.npz", images=raw[rows], labels=raw_labels[rows])


if __name__ == "__main__":
    main()

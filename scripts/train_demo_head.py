"""Train SHOT's head on the bundled network, for the experiments with a modified network.

Reads Fashion-MNIST's training images as `train_demo_model.py` does; the test images, of which the bundled
ones are some, take no part.

    python scripts/train_demo_head.py --data /usr/share/datasets/fashion-mnist --out src/acclimate/demo
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from train_demo_model import read_idx

from acclimate import Adapter
from acclimate.data import open_data
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.models.heads import attach_head
from acclimate.training import Recipe, train

IMAGES = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--out", type=Path, default=Path("src/acclimate/demo"))
    args = parser.parse_args()
    grey = read_idx(args.data / "train-images-idx3-ubyte.gz")[:IMAGES]
    labels = read_idx(args.data / "train-labels-idx1-ubyte.gz")[:IMAGES]
    pixels = np.pad(grey, ((0, 0), (2, 2), (2, 2)))[..., None].repeat(3, axis=3)
    model = attach_head(bundled_model(), classes=10)
    with tempfile.TemporaryDirectory() as scratch:
        np.savez(Path(scratch) / "train.npz", images=pixels, labels=labels.astype(np.int64))
        images = open_data(Path(scratch) / "train.npz")
        out = args.out / "fashion_resnet_shot.safetensors"
        train(model, images, out, Recipe(epochs=3), normalize=(MEAN, STD), resume=True)
    bundled, truth = bundled_images()
    for name, net in (("stock", bundled_model()), ("modified", model)):
        logits = Adapter(net, "source", normalize=(MEAN, STD)).predict(bundled, batch_size=100)
        print(f"{name}: {100 * logits.argmax(1).eq(truth).float().mean().item():.2f}% of the bundled images")


if __name__ == "__main__":
    main()

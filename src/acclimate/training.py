"""Fine-tune a network with SHOT's head on labelled source data, as SHOT does: smooth labels, a faster head.

An interrupted training goes on from where it stood, to the same weights: the order of the images and what
is random about them are drawn from the seed and the step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from acclimate.data import ImageSet
from acclimate.delta import digests
from acclimate.errors import InputError, OptionError, checked_count, said
from acclimate.files import check_writable, whole_file
from acclimate.interrupts import uninterrupted
from acclimate.mean_std import MeanStd
from acclimate.models.heads import head_name
from acclimate.outputs import logits_of

__all__ = ["Recipe", "kept_beside", "train"]

_META = "training"


@dataclass(frozen=True)
class Recipe:
    """How SHOT trains on source data."""

    epochs: int = 10
    batch_size: int = 64
    lr: float = 1e-2
    """Of the head; it decays by (1 + 10 p)^-0.75 with the share p of the steps that are done."""
    backbone_lr: float = 0.1
    """Of everything else, as a share of the head's."""
    momentum: float = 0.9
    weight_decay: float = 1e-3
    smoothing: float = 0.1
    flip: bool = True
    """Whether images are mirrored at random."""
    size: int | None = None
    """Side to which larger images are cropped at random; None leaves them."""
    seed: int = 0


def train(
    model: nn.Module,
    images: ImageSet,
    out: Path,
    recipe: Recipe | None = None,
    *,
    normalize: MeanStd | None = None,
    device: str | None = None,
    resume: bool = False,
    progress: Callable[[int, int, float], None] = lambda step, total, loss: None,
) -> nn.Module:
    """Train a network on labelled images, and write its weights to ``out``.

    What is needed to go on is kept beside it after every epoch and on an interrupt.
    """
    recipe = recipe or Recipe()
    checked_count("epochs", recipe.epochs)
    checked_count("batch_size", recipe.batch_size)
    check_writable(out)
    labels = _checked_labels(images, recipe)
    model = model.to(device) if device else model
    run = _Run(model, images, labels, normalize, recipe)
    state = kept_beside(out)
    if resume and state.exists():
        run.restore(state)
    total = recipe.epochs * run.batches
    try:
        while run.step < total:
            with uninterrupted():
                loss = run.update(total)
            progress(run.step, total, loss)
            if run.step % run.batches == 0:
                run.keep(state)
    except KeyboardInterrupt:
        run.keep(state)
        raise
    model.eval()
    with whole_file(out) as part:
        part.write_bytes(save({name: value.cpu().contiguous() for name, value in model.state_dict().items()}))
    with contextlib.suppress(OSError):  # all that matters is written
        state.unlink(missing_ok=True)
    return model


def kept_beside(out: Path) -> Path:
    """Where a training that has not ended keeps what it needs to go on."""
    return out.with_name(f"{out.stem}.training.safetensors")


def _checked_labels(images: ImageSet, recipe: Recipe) -> Tensor:
    if images.labels is None:
        raise InputError("training a head needs labelled images: class folders, or an array with labels")
    if len(images) < recipe.batch_size:
        raise InputError(f"{len(images)} images do not fill a batch of {recipe.batch_size}")
    return images.labels


class _Run:
    """A training: the network, its optimiser, and how far it has come."""

    def __init__(
        self,
        model: nn.Module,
        images: ImageSet,
        labels: Tensor,
        normalize: MeanStd | None,
        recipe: Recipe,
    ) -> None:
        self.model, self.images, self.labels, self.recipe = model, images, labels, recipe
        self.batches = len(images) // recipe.batch_size
        self.step = 0
        found = json.dumps(digests(model.state_dict()), sort_keys=True)
        self._begun_with = hashlib.sha256(found.encode()).hexdigest()[:16]
        place = head_name(model).removesuffix(".classifier")
        head = {id(p) for p in model.get_submodule(place).parameters()}
        groups = [
            {"params": [p for p in model.parameters() if (id(p) in head) is own], "share": share}
            for own, share in ((True, 1.0), (False, recipe.backbone_lr))
        ]
        self.optimizer = torch.optim.SGD(
            [group for group in groups if group["params"]],
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.momentum > 0,
        )
        self._device = next(model.parameters()).device
        self._normalize = (
            None
            if normalize is None
            else [torch.tensor(v, device=self._device).view(-1, 1, 1) for v in normalize]
        )

    def update(self, total: int) -> float:
        """One step."""
        decay = (1 + 10 * self.step / total) ** -0.75
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.lr * group["share"] * decay
        positions = self._positions()
        batch = self._augmented(self.images.batch(positions.tolist()).contiguous()).to(self._device)
        if self._normalize is not None:
            batch = (batch - self._normalize[0]) / self._normalize[1]
        self.model.train()
        logits = logits_of(self.model(batch))
        target = self.labels[positions].to(self._device)
        loss = F.cross_entropy(logits, target, label_smoothing=self.recipe.smoothing)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1
        return float(loss.detach())

    def _positions(self) -> Tensor:
        epoch, batch = divmod(self.step, self.batches)
        order = torch.randperm(len(self.images), generator=self._generator(epoch, -1))
        return order[batch * self.recipe.batch_size : (batch + 1) * self.recipe.batch_size]

    def _augmented(self, images: Tensor) -> Tensor:
        generator = self._generator(0, self.step)
        size = self.recipe.size
        if size is not None and min(images.shape[2:]) > size:
            room = [side - size + 1 for side in images.shape[2:]]
            corners = [torch.randint(r, (len(images),), generator=generator).tolist() for r in room]
            images = torch.stack(
                [
                    x[:, top : top + size, left : left + size]
                    for x, top, left in zip(images, *corners, strict=True)
                ]
            )
        if self.recipe.flip:
            mirrored = torch.rand(len(images), generator=generator) < 0.5
            images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)
        return images

    def _generator(self, epoch: int, step: int) -> torch.Generator:
        # one stream for each epoch's order and one for each step's images
        name = f"{self.recipe.seed} {epoch} {step}".encode()
        return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1)

    def _about(self) -> dict[str, Any]:
        normalize = None if self._normalize is None else [v.flatten().tolist() for v in self._normalize]
        return {
            "recipe": asdict(self.recipe),
            "data": self.images.fingerprint(),
            "normalize": normalize,
            "begun_with": self._begun_with,
        }

    def keep(self, path: Path) -> None:
        """Write all that is needed to go on."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for number, parameter in enumerate(self._parameters()):
            momentum = self.optimizer.state[parameter].get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{number}"] = momentum
        contents = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        checksum = _checksum(contents, self.step)
        document = json.dumps({**self._about(), "step": self.step, "checksum": checksum})
        with whole_file(path) as part:
            part.write_bytes(save(contents, metadata={_META: document}))

    def restore(self, path: Path) -> None:
        """Go on from what was kept; an error if it was another training."""
        try:
            with safe_open(path, framework="pt") as file:
                document = dict(json.loads((file.metadata() or {})[_META]))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
                step = int(document.pop("step"))
            whole = document.pop("checksum") == _checksum(tensors, step)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError(f"{path} is damaged, or not what a training kept: {said(error)}") from error
        if not whole:
            raise InputError(f"{path} is damaged: what it holds is not what was kept. Train again without it")
        differs = [key for key, value in self._about().items() if document.get(key) != value]
        if differs:
            what = {
                "recipe": "another recipe",
                "data": "other images",
                "normalize": "another normalisation",
                "begun_with": "other weights or another bottleneck",
            }[differs[0]]
            raise OptionError(f"{path} is of a training with {what}: give the same command")
        state = {name.removeprefix("model."): v for name, v in tensors.items() if name.startswith("model.")}
        try:
            self.model.load_state_dict(state)
        except RuntimeError as error:
            raise InputError(f"{path} is not what this training kept: {said(error)}") from error
        for number, parameter in enumerate(self._parameters()):
            if f"momentum.{number}" in tensors:
                self.optimizer.state[parameter]["momentum_buffer"] = tensors[f"momentum.{number}"].to(
                    self._device
                )
        self.step = step

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def _checksum(tensors: Mapping[str, Tensor], step: int) -> str:
    """Of what a training keeps: damage must not become other weights."""
    found = json.dumps([digests(tensors), step], sort_keys=True)
    return hashlib.sha256(found.encode()).hexdigest()[:16]

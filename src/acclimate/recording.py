"""What a record says of an adaptation: numbers that JSON can hold, curves, small pictures."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from acclimate.adapter import Adapter
from acclimate.data import ImageSet
from acclimate.delta import digests
from acclimate.evaluation import Comparison
from acclimate.fast.precision import precision_taken
from acclimate.metrics import observe
from acclimate.models.heads import head_in
from acclimate.records import SCHEMA, Record, origin
from acclimate.types import Verdict

__all__ = [
    "SHOWN",
    "adaptation_record",
    "alarms_of",
    "class_entropy",
    "curves",
    "picture",
    "rounded",
    "spec_of",
    "spread",
    "weights_digest",
]

SHOWN = 3
"""Images of a gallery."""
_STEPS_KEPT = 64  # of each curve over steps
_NAMED = 100  # classes, of which a record keeps the names
_SIDE = 128  # of a picture
_SMALL = 64  # up to which pictures keep every pixel


def rounded(value: Any) -> Any:
    """Plain JSON, numbers with eight digits: the last ones say nothing. None stands for what is no number."""
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


def curves(adapter: Adapter, accuracy: Sequence[float] = ()) -> dict[str, Any]:
    """Some points of each curve over steps, the last among them, and at which steps they are.

    Accuracies of single batches jump: each point is the mean since the one before.
    """
    found = adapter.history.per_step()
    length = len(found["loss"])
    every = max(1, -(-length // _STEPS_KEPT))
    at = sorted({*range(0, length, every), *([length - 1] if length else [])})
    kept = {name: [values[i] for i in at] for name, values in found.items() if len(values) == length}
    if length and len(accuracy) == length:
        starts = [0, *(i + 1 for i in at[:-1])]
        parts = [accuracy[start : i + 1] for start, i in zip(starts, at, strict=True)]
        kept["accuracy"] = [math.fsum(part) / len(part) for part in parts]
    return {"step": [i + 1 for i in at], **rounded(kept)}


def alarms_of(adapter: Adapter) -> dict[str, Any]:
    """What the guard said, where there is one."""
    if not adapter.options.guard:
        return {}
    return {"alarms": [rounded(dataclasses.asdict(alarm)) for alarm in adapter.history.alarms]}


def class_entropy(adapter: Adapter) -> float | None:
    """Of the running class distribution, where there is one."""
    if adapter.class_distribution is None or adapter.step == 0:
        return None
    p = adapter.class_distribution.double()
    return float(rounded(-torch.special.xlogy(p, p).sum().item()))


def spec_of(
    adapter: Adapter,
    network: nn.Module,
    images: ImageSet,
    *,
    setting: str,
    adapted_to: int,
    protocol: Sequence[str],
) -> dict[str, Any]:
    """What was asked for turned out to be this: all that decides the result."""
    ranks = adapter._engine.ranks.size
    options = json.loads(json.dumps(dataclasses.asdict(adapter.options)))
    if ranks == 1:
        del options["ranks"]  # it decides nothing
    return {
        "weights": weights_digest(network),
        "modified": head_in(network.state_dict()) is not None,
        "data": images.fingerprint(),
        "images": len(images),
        "images_adapted_to": adapted_to,
        "shape": list(images.batch([0]).shape[1:]),
        "layout": images.layout,
        "class_names": _class_names(images),
        "setting": setting,
        "method": {**dataclasses.asdict(adapter.method), "betas": list(adapter.method.betas)},
        "options": options,
        "adapting_values": sum(p.numel() for p in adapter._engine.parameters.values()),
        "protocol": list(protocol),
        "precision": precision_taken(adapter.options.precision, adapter._engine.device),
        "guard": adapter.options.guard,
        "threads": torch.get_num_threads(),
        **({} if ranks == 1 else {"ranks": ranks}),
        **_paper_name(network),
    }


def _paper_name(network: nn.Module) -> dict[str, str]:
    """The network of the paper whose published figures these are compared with, where a factory names one."""
    name = getattr(network, "paper_name", None)
    return {"paper_name": name} if isinstance(name, str) else {}


def _class_names(images: ImageSet) -> list[str] | None:
    """Of the columns of the logits, where the data know them and they are few."""
    if images.class_names is None:
        return None
    chosen = range(len(images.class_names)) if images.classes is None else images.classes
    return [images.class_names[i] for i in chosen] if len(chosen) <= _NAMED else None


@lru_cache(maxsize=2)
def weights_digest(network: nn.Module) -> str:
    found = json.dumps(digests(network.state_dict()), sort_keys=True)
    return hashlib.sha256(found.encode()).hexdigest()[:16]


def spread(count: int, most: int) -> list[int]:
    """At most so many positions from all over a sequence."""
    return sorted(set(torch.linspace(0, count - 1, min(most, count)).round().long().tolist()))


def picture(image: Tensor) -> str:
    """An image (C, H, W) in [0, 1] as text that a page can show, small."""
    pixels = (image.detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    drawn = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    drawn.thumbnail((_SIDE, _SIDE))
    kind, options = ("png", {"optimize": True}) if max(drawn.size) <= _SMALL else ("jpeg", {"quality": 85})
    written = io.BytesIO()
    drawn.save(written, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(written.getvalue()).decode()}"


def adaptation_record(
    adapter: Adapter,
    network: nn.Module,
    images: ImageSet,
    asked: dict[str, Any],
    *,
    logits: tuple[Tensor, Tensor],
    setting: str,
    names: Sequence[str] | None = None,
    seconds: float,
    cautions: Sequence[str] = (),
    left_out: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    verdict: Verdict | None = None,
    evaluation: Comparison | None = None,
) -> Record:
    """The record of an adaptation to images without labels: that of a benchmark less all accuracies.

    Args:
        asked: the fields of a `acclimate.bench.Cell` that are known.
        logits: before and after.
        names: of the classes, if the data do not know them.
        left_out: images that could not be read, and why.
        notes: what else was not read, in sentences.
        verdict: whether the adapted network seems better than the source.
        evaluation: accuracy before and after, if there were labels to measure by.
    """
    spec = spec_of(
        adapter, network, images, setting=setting, adapted_to=len(images), protocol=("after-epoch",)
    )
    if names is not None and len(names) <= _NAMED:
        spec["class_names"] = list(names)
    before, after = (rounded(dataclasses.asdict(observe(found))) for found in logits)
    return {
        "schema": SCHEMA,
        "cell": asked,
        "spec": spec,
        "result": {
            "before": before,
            "after_epoch": {str(asked["epochs"]): {**after, "class_entropy": class_entropy(adapter)}},
            "changed": int(logits[0].argmax(1).ne(logits[1].argmax(1)).sum()),
            "steps": curves(adapter),
            **alarms_of(adapter),
            "gallery": _gallery(adapter, images) if adapter.method.input_transform else [],
            "cautions": list(cautions),
            "left_out": dict(left_out or {}),
            "notes": list(notes),
            "verdict": None if verdict is None else rounded(dataclasses.asdict(verdict)),
            **({} if evaluation is None else {"evaluation": rounded(dataclasses.asdict(evaluation))}),
            **({"temperature": rounded(adapter.temperature)} if adapter.options.calibrate else {}),
        },
        "cost": {"seconds": round(seconds, 3)},
        "origin": origin(),
    }


def _gallery(adapter: Adapter, images: ImageSet) -> list[dict[str, str]]:
    """Some images and what the input transformation makes of them."""
    chosen = spread(len(images), SHOWN)
    shifted = images.batch(chosen)
    pairs = zip(chosen, shifted, adapter.transformed(shifted), strict=True)
    return [{"name": images.names[i], "shifted": picture(x), "transformed": picture(y)} for i, x, y in pairs]

"""How `acclimate doctor` shows a diagnosis: what adapts and what is frozen, the input, the cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.tree import Tree

from acclimate.doctor import Diagnosis, Layer
from acclimate.fast.precision import PRECISIONS
from acclimate.probe import Probe

__all__ = ["diagnosis_tree"]


def diagnosis_tree(diagnosis: Diagnosis) -> Tree:
    """The diagnosis for people."""
    d = diagnosis
    tree = Tree(f"{d.network}: {d.parameters:,} parameters, {d.outputs or 'an unknown number of'} outputs")
    adapting = tree.add(f"{d.adapting:,} adapt ({100 * d.adapting / max(1, d.parameters):.2f}%)")
    for name, layers in _parts(d.layers):
        adapting.add(f"{name}: {_counted(layers)}")
    found = tree.add("found")
    for note in (*d.notes, f"hyperparameters: setting {d.setting!r}"):
        found.add(note)
    fits = tree.add("input")
    for sentence in d.fits:
        fits.add(sentence)
    if d.probe is not None:
        _add_probe(fits, d.probe, stated=d.info is not None and not d.info.assumed)
    cost = tree.add("cost")
    for sentence in _costs(d):
        cost.add(sentence)
    return tree


def _parts(layers: Sequence[Layer]) -> Iterator[tuple[str, list[Layer]]]:
    """Stages by name; one of which a part is frozen, in runs of layers that adapt or do not."""
    for stage, held in groupby(layers, lambda layer: layer.name.partition(".")[0]):
        runs = [list(run) for _, run in groupby(held, lambda layer: layer.adapts)]
        for i, run in enumerate(runs):
            others = [layer.name for other in (*runs[:i], *runs[i + 1 :]) for layer in other]
            yield stage if len(runs) == 1 else _range([layer.name for layer in run], others), run


def _range(names: Sequence[str], others: Sequence[str]) -> str:
    """The shortest names of modules that hold these layers and none of the others, first to last.

    >>> _range(["blocks.0.norm", "blocks.1.norm"], ["blocks.2.norm"])
    'blocks.0 to blocks.1'
    """
    longest = max(name.count(".") for name in names) + 1
    for depth in range(1, longest + 1):
        held, apart = ({".".join(name.split(".")[:depth]) for name in some} for some in (names, others))
        if not held & apart:
            break
    first, last = (".".join(name.split(".")[:depth]) for name in (names[0], names[-1]))
    return first if first == last else f"{first} to {last}"


def _counted(layers: Sequence[Layer]) -> str:
    moving, values = sum(layer.adapts for layer in layers), sum(layer.parameters for layer in layers)
    kinds = ", ".join(sorted({layer.kind for layer in layers}))
    return f"{len(layers)} × {kinds}, {values:,} values, {'adapts' if moving else 'frozen'}"


def _add_probe(tree: Tree, probe: Probe, *, stated: bool) -> None:
    """What the probe says; nothing against a normalisation that the weights themselves state."""
    if probe.caution is None:
        tree.add(probe.sentence)
    elif not stated:
        tree.add(f"caution: {probe.caution}")
    if probe.clean:
        by_confidence = probe.by == "confidence"
        what = "mean confidence" if by_confidence else "divergence from what its first norm remembers"
        ranked = sorted(probe.scores.items(), key=lambda item: item[1], reverse=by_confidence)
        scores = ", ".join(f"{name} {score:.2f}" for name, score in ranked)
        tree.add(f"these images, best normalisation first ({what}): {scores}")
    elif probe.likely:
        ranked = sorted(probe.likely.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{name} {share:.0%}" for name, share in ranked)
        tree.add(f"how likely each is, if its first norm remembers photographs: {shares}")


def _costs(d: Diagnosis) -> Iterator[str]:
    yield f"a step takes {d.flops_ratio:.2f} times the operations of a forward pass"
    yield (
        f"a step takes {_seconds(d.step_seconds)} for {d.timed_images} images, "
        f"{_seconds(d.step_seconds / d.timed_images)} for each, on {d.device}"
    )
    yield f"{d.saved_mib:.1f} MiB are kept for each image until the backward pass"
    if d.largest_batch is not None:
        yield f"about {d.largest_batch:,} images fit into the memory that is available now"
    yield f"precision auto takes {d.precision} on {d.device}; the default is {PRECISIONS[0]}"
    if d.precision_fault is not None:
        yield f"caution: {d.precision_fault}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{1e3 * value:.1f} ms"

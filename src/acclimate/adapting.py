"""From a folder of images to an adapted network and its predictions: what `acclimate adapt` does."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from acclimate.adapter import Adapter
from acclimate.data import ImageSet
from acclimate.delta import read_delta
from acclimate.errors import AcclimateWarning, InputError, OptionError, WorkerError
from acclimate.files import check_writable, whole_file
from acclimate.gate import GATES
from acclimate.interrupts import Ended, uninterrupted
from acclimate.mean_std import MeanStd, fitted
from acclimate.methods import chosen_setting
from acclimate.one_call import before_adapting, concluded
from acclimate.outcome import AdaptOutcome, outcome_of, write_predictions
from acclimate.prepare import count_outputs
from acclimate.ranks import Ranks
from acclimate.recording import adaptation_record
from acclimate.records import write_record

__all__ = ["adapt_images", "check_export"]

_OF_SOURCE = ": they are what is given here, and nothing was exported"


def adapt_images(
    model: nn.Module,
    images: ImageSet,
    *,
    method: str = "slr",
    normalize: MeanStd | None = None,
    epochs: int = 5,
    batch_size: int = 64,
    classes: Sequence[str] | None = None,
    setting: str = "auto",
    device: str | None = None,
    seed: int = 0,
    precision: str = "fp32",
    memory: str = "auto",
    ranks: str = "together",
    guard: bool = True,
    gate: str = GATES[0],
    calibrate: bool = False,
    out: Path | None = None,
    export: Path | None = None,
    predictions: Path | None = None,
    record: Path | None = None,
    asked: Mapping[str, Any] | None = None,
    left_out: Mapping[str, str] | None = None,
    resume: bool = False,
    progress: bool | None = None,
    on_step: Callable[[Adapter], None] = lambda adapter: None,
) -> AdaptOutcome:
    """Adapt a network to unlabelled images, write what was asked for, and say what changed.

    Of several ranks (`torch.distributed`), all call it with the same, and the first writes.

    Args:
        images: what `acclimate.inputs.open_images` gives.
        normalize: what the network's input is normalised with.
        classes: names of the network's outputs, for the predictions.
        precision: as for `Adapter`, of the predictions before as of those after.
        memory: as for `Adapter`.
        ranks: as for `Adapter`, ``"together"`` or ``"local"``.
        guard: as for `Adapter`; what it says is among the cautions.
        gate: whether the adapted network is held against the source: ``"warn"`` tells of harm as a caution,
            ``"refuse"`` also gives the source's predictions and leaves no file at ``export``, ``"off"`` does
            not ask.
        calibrate: as for `Adapter`.
        out: a file for the delta. It is also written after every epoch and when the work is interrupted.
        export: a .safetensors file for the weights of the adapted network, in its stock form.
        predictions: a CSV file of the predictions before and after.
        record: a JSON file of all that can be said without labels, which `acclimate report` shows.
        asked: what the record says was asked for: a `acclimate.bench.Cell` as JSON.
        left_out: images that could not be read, and why, for the record.
        resume: go on from ``out``, if it is there.
        on_step: called before the first update, after each, and when the work is interrupted.
    """
    job = Ranks()
    check_export(export)
    job.first(lambda: check_writable(out, export, predictions, record))
    begun = time.perf_counter()
    if len(images) < 2:
        raise InputError(f"adaptation needs at least 2 images, got {len(images)}")
    with _cautions() as cautions:
        adapter = Adapter(
            model,
            method,
            normalize=fitted(normalize, images.batch([0]).shape[1]),
            classes=images.classes,
            setting=setting,
            device=device,
            seed=seed,
            precision=precision,
            memory=memory,
            ranks=ranks,
            guard=guard,
            calibrate=calibrate,
        )
        if resume and out is not None and job.first(out.exists):
            adapter = _resumed(adapter, out, model, images, device)
        source, before = before_adapting(model, adapter, images, batch_size=batch_size)
        names = _output_names(classes, images.classes, before.shape[1])
        _fit(adapter, images, epochs, batch_size, out, progress, on_step)
        result = concluded(adapter, source, before, images, batch_size=batch_size, gate=gate)
        if predictions is not None and job.writes:
            write_predictions(predictions, images.names, names, before, result.logits)
        if export is not None and job.writes:
            if result.refused:
                export.resolve().unlink(missing_ok=True)  # an older one would pass for this one
            else:
                cautions.append(_export(adapter, model, export))
    used = chosen_setting(setting, count_outputs(model) if images.classes is None else len(names))
    found = [text for text in cautions if text is not None]
    verdict = result.verdict
    if verdict is not None and not verdict.accepted:
        found.append(f"{verdict.reason}{_OF_SOURCE if result.refused else ''}")
    outcome = outcome_of(
        before,
        result.logits,
        names,
        method=adapter.method.name,
        setting=used,
        cautions=found,
        verdict=verdict,
        refused=result.refused,
    )
    if record is not None and job.writes:
        made = adaptation_record(
            adapter,
            model,
            images,
            {"method": method, "epochs": epochs, "batch_size": batch_size, "seed": seed, **(asked or {})},
            logits=(before, result.logits),
            setting=used,
            names=None if classes is None else names,
            seconds=time.perf_counter() - begun,
            cautions=outcome.cautions,
            left_out=left_out,
            verdict=verdict,
        )
        write_record(record, made)
    return outcome


@contextmanager
def _cautions() -> Iterator[list[str | None]]:
    """What acclimate warns of, each once, instead of Python's way to print it."""
    found: list[str | None] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AcclimateWarning)
        yield found
    told = [str(warning.message) for warning in caught if issubclass(warning.category, AcclimateWarning)]
    found[:0] = dict.fromkeys(told)
    for warning in caught:
        if not issubclass(warning.category, AcclimateWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _fit(
    adapter: Adapter,
    images: ImageSet,
    epochs: int,
    batch_size: int,
    out: Path | None,
    progress: bool | None,
    on_step: Callable[[Adapter], None],
) -> None:
    """Adapt, and keep what was reached after every epoch and whatever happens."""
    about = {"data": images.fingerprint()}
    kept = False

    def keep(adapter: Adapter) -> None:
        nonlocal kept
        kept = out is not None and adapter.save(out, about=about)

    on_step(adapter)
    try:
        adapter.fit(images, epochs, batch_size=batch_size, on_step=on_step, on_epoch=keep, progress=progress)
    except KeyboardInterrupt as interrupt:
        if isinstance(interrupt, Ended):  # by a launcher, because another rank is gone
            adapter._engine.ranks.broken = True
        with uninterrupted():  # a launcher asks again, or soon after another rank has died
            keep(adapter)
            on_step(adapter)  # the interrupt came after a step, before it could be told
        raise
    except WorkerError as error:  # of another rank: this one has what all had
        with uninterrupted():
            keep(adapter)
        where = f"; {out} has the first {adapter.step} steps, and --resume goes on from it" if kept else ""
        raise WorkerError(f"{error}{where}") from error
    if not kept and not adapter.method.has_loss:  # what the last epoch keeps says that it is complete
        keep(adapter)


def _resumed(new: Adapter, saved: Path, model: nn.Module, images: ImageSet, device: str | None) -> Adapter:
    """The adapter that was saved, if it is what would be made anew."""
    found = Adapter.load(saved, model, device=device)
    ours, theirs = (
        (options.precision, options.memory, options.ranks) for options in (new.options, found.options)
    )
    data = Ranks().first(lambda: read_delta(saved)[1]).get("about", {}).get("data")
    differs = {
        "method, setting or hyperparameters": found.method != new.method,
        "precision, memory or ranks": ours != theirs,
        "normalisation, classes or seed": found.options != new.options,
        "images": data is not None and data != images.fingerprint(),
    }
    if any(differs.values()):
        what = next(name for name, differ in differs.items() if differ)
        raise OptionError(
            f"{saved} was adapted with other {what} ({found.method.name}): give the same command to go on, "
            "or begin anew"
        )
    return found


def check_export(path: Path | None) -> None:
    """Refuse a name that does not say what is written to it."""
    if path is not None and path.suffix.lower() != ".safetensors":
        raise OptionError(f"weights are exported as safetensors: expected a name.safetensors, got {path}")


def _export(adapter: Adapter, model: nn.Module, path: Path) -> str | None:
    """Write the weights of the adapted network; what should be known of them."""
    state = adapter.export().state_dict()
    found = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    with whole_file(path) as part:
        part.write_bytes(save({name: value.cpu().contiguous().clone() for name, value in found.items()}))
    if found.keys() == model.state_dict().keys():
        return None
    return (
        f"{path} does not load into the stock class: besides the network it holds what was put before it or "
        "into it (an input transformation, a normalisation, affines)"
    )


def _output_names(classes: Sequence[str] | None, kept: Sequence[int] | None, columns: int) -> list[str]:
    """A name for each column of the logits, which may be some of the network's outputs only."""
    expected = columns if kept is None else max(kept) + 1
    if classes is not None and (len(classes) < expected or (kept is None and len(classes) != columns)):
        least = "" if kept is None else "at least "
        raise InputError(f"expected a name for each of {least}{expected} outputs, got {len(classes)}")
    outputs = list(range(columns)) if kept is None else list(kept)
    return [str(output) if classes is None else classes[output] for output in outputs]

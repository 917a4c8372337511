"""The paper's experiments by name: its settings where its text gives them, our choice where it does not.

Every preset is a few specs; what two of them share is one cell and is run once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from acclimate.bench.spec import ORACLE, Cell, Data, Network, Spec, Subset
from acclimate.corruptions import NAMES, VALIDATION_NAMES
from acclimate.errors import OptionError, listed
from acclimate.fast.precision import checked_precision
from acclimate.options import changed_options

__all__ = ["FRACTIONS", "KAPPAS", "PRESETS", "SUBSET_CORRUPTIONS", "Preset", "narrowed"]

SEEDS: Final = (2020, 2021, 2022)
FRACTIONS: Final = (0.1, 0.25, 0.5, 0.75)
"""Of classes, and of samples of each class; the whole is the headline's."""
SUBSET_CORRUPTIONS: Final = ("gaussian_noise", "defocus_blur", "frost", "contrast")
KAPPAS: Final = (0.0, 0.5, 0.9, 0.99)
HEADLINE: Final = ("source", "bn", "pl", "tent", "tent+", "hlr", "slr", ORACLE)
ADAPTING: Final = ("tent", "tent+", "hlr", "slr")
_PARTS: Final = (
    *(Subset(classes=fraction) for fraction in FRACTIONS),
    *(Subset(samples=fraction) for fraction in FRACTIONS),
)

RESNET50: Final = Network(name="resnet50.IMAGENET1K_V1")
# weights of a file, with the crop and the layers of the published first ones
ROBUST: Final = Network(
    name="resnet50.IMAGENET1K_V1", weights="deepaugment_and_augmix.pth.tar", normalize="imagenet"
)
MODIFIED: Final = Network(
    name="resnet50.IMAGENET1K_V1", weights="resnet50_shot.safetensors", normalize="imagenet"
)
NETWORKS: Final = (
    RESNET50,
    Network(name="densenet121.IMAGENET1K_V1"),
    Network(name="resnext50_32x4d.IMAGENET1K_V1"),
    Network(name="mobilenet_v2.IMAGENET1K_V1"),
    ROBUST,
)
IMAGENET_C: Final = Data(name="imagenet-c", layout="imagenet-c", clean="../imagenet")


@dataclass(frozen=True)
class Preset:
    """An experiment, or several that belong together."""

    summary: str
    specs: tuple[Spec, ...]
    data: str
    """What ``--data`` must lead to; empty where nothing is needed."""

    def cells(self) -> Iterator[Cell]:
        """All cells, each once, those that share images next to each other."""
        found = {cell.key: cell for spec in self.specs for cell in spec.cells()}
        groups: dict[Any, list[Cell]] = {}
        for cell in found.values():
            shift = (cell.network.title, cell.data.name, cell.corruption or "", cell.severity or 0)
            groups.setdefault(shift, []).append(cell)
        for group in groups.values():
            yield from group


def _on(network: Network | Sequence[Network], data: Data, methods: Sequence[str], **choices: Any) -> Spec:
    networks = (network,) if isinstance(network, Network) else tuple(network)
    choices = {"evaluate": (1, 5), **choices}
    return Spec(networks=networks, data=(data,), methods=tuple(methods), **choices)


def _kappa(network: Network, data: Data, **choices: Any) -> tuple[Spec, ...]:
    kappas = tuple({"kappa": kappa} for kappa in KAPPAS if kappa != 0.9)
    shared = {"corruptions": VALIDATION_NAMES, **choices}
    return (
        _on(network, data, ("source", "hlr", "slr", "hlr-div", "slr-div"), **shared),
        _on(network, data, ("hlr", "slr"), overrides=kappas, **shared),
    )


def _ablation(network: Network, data: Data, **choices: Any) -> tuple[Spec, ...]:
    shared = {"corruptions": VALIDATION_NAMES, **choices}
    weights = tuple({"pseudo_label_weight": weight} for weight in (0.1, 1.0))
    rates = (2.5e-4, 1e-3, 1e-2)
    tents = tuple({"optimizer": name, "lr": rate} for name in ("sgd", "adam") for rate in rates)
    return (
        _on(network, data, ("source", "bn", "tent", "hlr", "slr", "shot"), **shared),
        _on(network, data, ("hlr", "slr"), overrides=({"freeze": "none"},), **shared),
        _on(network, data, ("shot",), overrides=weights, **shared),
        _on(network, data, ("tent",), overrides=tents[1:], **shared),
    )


_SHOT: Final = ("source", "tent+", "shot", "hlr", "hlr+shot", "slr", "slr+shot")


def _demo() -> tuple[Spec, ...]:
    """Everything on the bundled network: 512 images, severity 5, the setting for few classes."""
    network = Network(name="demo")
    data = Data(name="demo", path="acclimate.demo.bundle:bundled_images", limit=512)
    few: dict[str, Any] = {"settings": ("few",), "evaluate": ()}
    one = {**few, "seeds": SEEDS[:1]}
    return (
        _on(network, data, (*HEADLINE, "slr+it"), corruptions=NAMES, **few),
        _on(network, data, ("source", "bn", *ADAPTING), **few),
        _on(network, data, ADAPTING, corruptions=SUBSET_CORRUPTIONS, subsets=_PARTS, **one),
        _on((network, Network(name="demo-shot")), data, _SHOT, corruptions=NAMES, **one),
        *_kappa(network, data, **few),
        *_ablation(network, data, **one),
    )


_ROWS: Final[dict[str, Preset]] = {
    "imagenet-c": Preset(
        "Table 1 and its error bars; accuracy over 15 corruptions and 5 severities of five networks",
        (
            _on(RESNET50, IMAGENET_C, HEADLINE, corruptions=NAMES),
            _on(
                NETWORKS,
                IMAGENET_C,
                ("source", *ADAPTING),
                corruptions=NAMES,
                severities=(1, 2, 3, 4, 5),
            ),
        ),
        "the folder of ImageNet-C",
    ),
    "imagenet-r": Preset(
        "ImageNet-R, five networks",
        (_on(NETWORKS, Data(name="imagenet-r", layout="imagenet-r"), ("source", "bn", *ADAPTING)),),
        "the folder of ImageNet-R",
    ),
    "imagenet": Preset(
        "what adapting to clean images costs, five networks",
        (_on(NETWORKS, Data(name="imagenet", layout="imagenet"), ("source", "bn", *ADAPTING)),),
        "the folder of ImageNet's validation images",
    ),
    "subsets": Preset(
        "adapt on a fraction of the classes or of the samples, evaluate on all",
        (
            _on(RESNET50, IMAGENET_C, ("source", *ADAPTING), corruptions=SUBSET_CORRUPTIONS),
            _on(RESNET50, IMAGENET_C, ADAPTING, corruptions=SUBSET_CORRUPTIONS, subsets=_PARTS),
        ),
        "the folder of ImageNet-C",
    ),
    "input-transformation": Preset(
        "Table 2: similarity to clean images, and accuracy, with and without it",
        (_on(RESNET50, IMAGENET_C, ("slr", "slr+it"), corruptions=NAMES),),
        "the folder of ImageNet-C, with ImageNet's validation images beside it in `imagenet`",
    ),
    "kappa": Preset(
        "κ, and no regulariser, on the validation corruptions",
        _kappa(RESNET50, IMAGENET_C),
        "the folder of ImageNet-C",
    ),
    "shot": Preset(
        "Tables A2 to A4: SHOT's pseudo labels on a stock and on a modified ResNet-50",
        (_on((RESNET50, MODIFIED), IMAGENET_C, _SHOT, corruptions=NAMES),),
        "the folder of ImageNet-C, with resnet50_shot.safetensors of `acclimate train-head` in it",
    ),
    "visda-c": Preset(
        "VisDA-C: a modified ResNet-101",
        (
            _on(
                Network(
                    name="resnet101.IMAGENET1K_V1",
                    weights="resnet101_visda.safetensors",
                    normalize="imagenet",
                ),
                Data(name="visda-c", layout="visda-c", split="validation"),
                ("source", "bn", "tent+", "slr"),
                settings=("visda-c",),
            ),
        ),
        "the folder of VisDA-C, with resnet101_visda.safetensors of `acclimate train-head` in it",
    ),
    "cifar-10-c": Preset(
        "CIFAR-10-C with a ResNet-20, online and after epochs",
        (
            _on(
                Network(name="cifar-resnet20", weights="cifar10_resnet20.safetensors", normalize="imagenet"),
                Data(name="cifar-10-c", layout="cifar-c", size=0),
                (*HEADLINE, "slr+it"),
                corruptions=NAMES,
                settings=("few",),
            ),
        ),
        "the folder of CIFAR-10-C, with cifar10_resnet20.safetensors in it",
    ),
    "cifar-100-c": Preset(
        "CIFAR-100-C with a network of RobustBench, online and after epochs",
        (
            _on(
                Network(name="robustbench:cifar100/corruptions/Hendrycks2020AugMix_ResNeXt"),
                Data(name="cifar-100-c", layout="cifar-c", size=0),
                (*HEADLINE, "slr+it"),
                corruptions=NAMES,
            ),
        ),
        "the folder of CIFAR-100-C",
    ),
    "ablation": Preset(
        "a frozen top or none, the weight of pseudo labels, TENT's optimiser and learning rate",
        _ablation(RESNET50, IMAGENET_C),
        "the folder of ImageNet-C",
    ),
    "demo": Preset("all of this on the bundled network and images, severity 5", _demo(), ""),
}
PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(_ROWS)
"""Every experiment by name."""


def narrowed(
    cells: Sequence[Cell],
    *,
    networks: Sequence[str] = (),
    methods: Sequence[str] = (),
    corruptions: Sequence[str] = (),
    severities: Sequence[int] = (),
    seeds: Sequence[int] = (),
    **changes: Any,
) -> list[Cell]:
    """Some of the cells, and all of them with other epochs, batches, threads, device or number of images.

    A network that a preset does not have takes the place of those it has. Another precision becomes an
    override of every cell; the default is none, and cells keep their keys.
    """
    found = list(cells)
    there = {cell.network.title for cell in found}
    if networks and not set(networks) & there:
        first = found[0].network.title
        changed = [
            cell.model_copy(update={"network": Network(name=name)})
            for name in networks
            for cell in found
            if cell.network.title == first
        ]
        found, networks = changed, ()
    tests: list[tuple[str, Sequence[Any], Callable[[Cell], Any]]] = [
        ("models", networks, lambda cell: cell.network.title),
        ("methods", methods, lambda cell: cell.method),
        ("corruptions", corruptions, lambda cell: cell.corruption),
        ("severities", severities, lambda cell: cell.severity),
        ("seeds", seeds, lambda cell: cell.seed),
    ]
    for what, chosen, of in tests:
        if not chosen:
            continue
        known = sorted({of(cell) for cell in found} - {None})
        if what == "seeds" and not set(chosen) & set(known):
            found = [
                c.model_copy(update={"seed": seed}) for c in found if c.seed == known[0] for seed in chosen
            ]
            continue
        missing = [value for value in chosen if value not in known]
        if missing:
            raise OptionError(f"{what}: there is no {missing[0]!r} in this, only {listed(known, 20)}")
        keep_source = what == "seeds"
        found = [c for c in found if of(c) in chosen or (keep_source and c.method == "source")]
    return list({cell.key: cell for cell in (_changed(cell, changes) for cell in found)}.values())


def _changed(cell: Cell, changes: Mapping[str, Any]) -> Cell:
    own = {name: value for name, value in changes.items() if value is not None}
    limit, weights, normalize = (own.pop(name, None) for name in ("limit", "weights", "normalize"))
    if "precision" in own:
        asked = changed_options(precision=checked_precision(own.pop("precision")))
        others = {name: value for name, value in cell.overrides.items() if name != "precision"}
        own["overrides"] = {**others, **asked}
    if limit is not None:
        own["data"] = cell.data.model_copy(update={"limit": limit})
    if weights is not None or normalize is not None:
        given = {"weights": weights, "normalize": normalize}
        update = {name: value for name, value in given.items() if value is not None}
        own["network"] = cell.network.model_copy(update=update)
    if not cell.learns:
        own.pop("epochs", None)
    elif own.get("epochs") is not None and cell.evaluate:
        own["evaluate"] = tuple(sorted({min(epoch, own["epochs"]) for epoch in cell.evaluate}))
    return Cell(**{**cell.model_dump(), **{k: _plain(v) for k, v in own.items()}})


def _plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else value

"""What an adapter refuses or warns of: images, options and networks that do not fit, steps that fail."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import acclimate
from acclimate import Adapter
from acclimate.errors import AcclimateWarning, DivergenceError, InputError, ModelError, OptionError
from acclimate.fast import TRICKS
from acclimate.models.vision import import_timm, import_torchvision
from acclimate.objectives import External
from networks import BATCHES, CLASSES, NORMALIZE, adapted_state, images, resnet, same


def test_a_batch_of_one_needs_other_statistics() -> None:
    with pytest.raises(InputError, match=r'statistics="stream", which works with single images'):
        Adapter(resnet(), "slr", statistics="batch")(images(1))
    with pytest.raises(InputError, match="batch of one"):
        Adapter(resnet(), "bn", statistics="batch").predict(images(1))
    for statistics in ("auto", "stream", "running", "blend"):
        adapter = Adapter(resnet(), "slr", statistics=statistics)
        assert adapter(images(1)).isfinite().all()
    assert Adapter(resnet(), "source")(images(1)).shape == (1, CLASSES)


def test_bad_images_change_nothing() -> None:
    adapter = Adapter(resnet(), "slr")
    adapter(BATCHES[0])
    held = adapted_state(adapter)
    for bad in (BATCHES[1] * torch.nan, BATCHES[1].byte(), BATCHES[1][:0]):
        with pytest.raises(InputError):
            adapter(bad)
    assert same(held, adapted_state(adapter))


def not_finite_value(logits: Tensor, index: Tensor | None) -> Tensor:
    return logits.sum() * torch.inf


def not_finite_gradient(logits: Tensor, index: Tensor | None) -> Tensor:
    return (logits - logits).abs().sqrt().sum()


@pytest.mark.parametrize("objective", [not_finite_value, not_finite_gradient])
@pytest.mark.parametrize("first", [True, False])
def test_a_step_that_is_not_finite_changes_nothing(objective: External, first: bool) -> None:
    broken = False

    def sometimes(logits: Tensor, index: Tensor | None) -> Tensor:
        return objective(logits, index) if broken else logits.square().mean()

    adapter, reference = (Adapter(resnet(), "slr", objective=sometimes) for _ in range(2))
    if not first:
        adapter(BATCHES[0])
        reference(BATCHES[0])
    broken = True
    with pytest.raises(DivergenceError, match=r"at step \d; nothing was changed by it.*Lower lr"):
        adapter(BATCHES[1])
    broken = False
    assert same(adapted_state(adapter), adapted_state(reference))
    assert torch.equal(adapter(BATCHES[2]), reference(BATCHES[2]))
    assert torch.equal(adapter.class_distribution, reference.class_distribution)  # type: ignore[arg-type]
    assert adapter.history == reference.history


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "slt"}, "unknown method 'slt'"),
        ({"learning_rate": 1}, "unknown option 'learning_rate': did you mean 'lr'"),
        ({"num_epochs": 3}, "did you mean 'epochs'"),
        ({"weight": 3}, "did you mean 'delta'"),
        ({"input_transform": True}, "mean 0 and std 1"),
        ({"normalize": ((0.5,), (0.0,))}, "std above 0"),
        ({"normalize": ((0.5,), (0.5, 0.5))}, "one entry per channel"),
        ({"classes": [1]}, "at least two"),
        ({"classes": [1, 1, 2]}, "twice: 1"),
        ({"classes": [-1, 2]}, "counted from 0"),
        ({"statistics": "btch"}, "did you mean 'batch'"),
        ({"normalize": "imagnet"}, "normalize must be MEAN/STD, .*, got 'imagnet'"),
        ({"normalize": (0.5, 0.5)}, "two sequences of numbers"),
        ({"prior": [1.0, 0.0, 1, 1, 1]}, "classes="),
        (
            {"prior": [0.5, 0.5]},
            "each of the 5 outputs of the network, got 2: if only 2 can occur",
        ),
        ({"prior": [0.5, 0.5], "classes": [0, 1, 2]}, "each of the 3 classes"),
        ({"classes": [0.5, 1.7, 3]}, "classes must be whole numbers"),
        ({"statistic": "running"}, "'statistics'"),
        ({"normalise": 1}, "did you mean 'normalize'"),
        ({"betas": (1.5, 0.9)}, "adam does not take"),
        ({"method": "bn", "objective": not_finite_value}, "nothing to move"),
        ({"method": "bn", "adapts_parameters": True}, "no loss that could move"),
        ({"batch_size": 8}, "'batch_size' belongs to fit"),
        ({"device": "cuda:77"}, "device 'cuda:77' cannot be used"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Adapter(resnet(), **options)  # type: ignore[arg-type]


def test_options_that_do_not_fit_the_network_are_refused_with_the_first_batch() -> None:
    with pytest.raises(OptionError, match="classes goes up to 9, but the network has 5 outputs"):
        Adapter(resnet(), classes=[0, 9])(BATCHES[0])
    silent = nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(OptionError, match="each of the 3 classes, got 2"):
        Adapter(silent, "tent", prior=[0.5, 0.5])(BATCHES[0])
    with pytest.raises(InputError, match=r"\(N, 3, H, W\).*got \(16, 1, 16, 16\)"):
        Adapter(resnet(), normalize=NORMALIZE)(BATCHES[0][:, :1])
    for epochs in (0, 1.5, "3"):
        message = f"epochs must be a whole number of at least 1, got {epochs!r}"
        with pytest.raises(OptionError, match=message):
            Adapter(resnet()).fit(BATCHES, epochs)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"epochs must be a whole number of at least 1, got 1\.5"):
        acclimate.adapt(resnet(), BATCHES, epochs=1.5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"batch_size must be a whole number of at least 1, got 8\.5"):
        Adapter(resnet()).fit(images(16), batch_size=8.5)  # type: ignore[arg-type]


def test_a_prior_of_as_many_entries_as_the_last_layer_has_outputs_is_taken() -> None:
    class Replaced(nn.Sequential):
        num_classes = 1000  # of the layer that was there before

    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES))
    adapter = Adapter(Replaced(nn.BatchNorm2d(3), head), "tent", prior=[0.2] * CLASSES)
    assert adapter(BATCHES[0]).shape == (16, CLASSES)


def test_objectives_and_networks_that_cannot_be_minimised_are_refused() -> None:
    with pytest.raises(OptionError, match=r"scalar, got the shape \(16,\)"):
        Adapter(resnet(), objective=lambda logits, index: logits.sum(1))(BATCHES[0])

    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = resnet()

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.net(x)
            return logits

    with pytest.raises(ModelError, match="carry no gradient"):
        Adapter(Detached())(BATCHES[0])


def test_one_output_is_not_enough() -> None:
    binary = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(768, 1))
    with pytest.raises(ModelError, match="one output only"):
        Adapter(binary, freeze="none")(BATCHES[0])


def test_options_of_adapt_that_are_unknown_get_the_nearest_known() -> None:
    with pytest.raises(OptionError, match="unknown option 'epoch': did you mean 'epochs'"):
        acclimate.adapt(resnet(), BATCHES, epoch=3)


def test_only_the_transformation_may_adapt() -> None:
    adapter = Adapter(resnet(), "slr+it", normalize=NORMALIZE, freeze="*", statistics="source")
    adapter(BATCHES[0])
    assert all(name.startswith("transform.") for name in adapter.adapting)


def test_the_type_of_images_is_that_of_most_weights() -> None:
    model = resnet()
    odd = nn.Sequential(model)
    odd.register_parameter("odd", nn.Parameter(torch.zeros(1, dtype=torch.float64)))
    assert next(odd.parameters()).dtype == torch.float64
    assert Adapter(odd)(BATCHES[0]).dtype == torch.float32


def test_a_normalisation_that_contradicts_the_weights_is_a_warning() -> None:
    model = import_timm().create_model("vit_tiny_patch16_224", img_size=32, num_classes=4)
    with pytest.warns(AcclimateWarning, match="wrong normalisation"):
        adapter = Adapter(model, normalize=((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert "wrong normalisation" in adapter.notes[-1]


@pytest.mark.parametrize("wrong", [BATCHES[0] * 255, (BATCHES[0] - 0.5) / 0.2])
def test_pixels_outside_their_range_are_a_warning_once(wrong: Tensor) -> None:
    adapter = Adapter(resnet(), normalize=NORMALIZE, statistics="batch")
    with pytest.warns(AcclimateWarning, match="were they normalised before, or are they bytes"):
        adapter(wrong)
    adapter(wrong)


def test_a_network_that_runs_parts_of_itself_again() -> None:
    """Batch norms that follow the target are not the same the second time; layer norms are."""
    own = import_torchvision().models.DenseNet(8, (2, 2), 16, memory_efficient=True, num_classes=CLASSES)
    with pytest.raises(ModelError, match=r"second time.*memory_efficient=False"):
        Adapter(own)(images(4, size=64))
    found = []
    for is_saving in (True, False):
        torch.manual_seed(0)
        vit = import_timm().create_model("vit_tiny_patch16_224", img_size=32, num_classes=CLASSES)
        vit.set_grad_checkpointing(is_saving)
        # what runs again is torch's own, whose products round in another order than packed ones
        adapter = Adapter(vit, fast=[trick for trick in TRICKS if trick != "packing"])
        found.append([adapter(images(4, seed=seed, size=32)) for seed in range(3)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))

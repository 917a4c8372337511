"""What the input is normalised with: as said, and as a look without labels finds it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from acclimate import corrupt
from acclimate.corruptions import VALIDATION_NAMES
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.errors import OptionError
from acclimate.mean_std import NORMALIZATIONS
from acclimate.normalization import Probe, normalization_of, probe_normalization


def test_it_is_the_users_or_the_weights() -> None:
    assert normalization_of(bundled_model(), None) == (MEAN, STD)
    assert normalization_of(nn.Identity(), "imagenet") == NORMALIZATIONS["imagenet"]
    assert normalization_of(nn.Identity(), "0.5,0.4/0.2,0.1") == ((0.5, 0.4), (0.2, 0.1))
    with pytest.raises(OptionError, match="MEAN/STD"):
        normalization_of(nn.Identity(), "a/b")
    with pytest.raises(OptionError, match="does not say what its input was normalised with"):
        normalization_of(nn.Identity(), None)
    with pytest.raises(OptionError, match="a wrong normalisation silently costs accuracy"):
        normalization_of(bundled_model(), "none")


def trained_with(name: str) -> nn.Module:
    """The start of a network whose norm remembers clean images under a normalisation."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16, momentum=None), nn.Flatten())
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in NORMALIZATIONS[name])
    with torch.no_grad():
        model((bundled_images()[0][-512:] - mean) / std)
    return model.eval()


@pytest.mark.parametrize("right", ["imagenet", "half", "none"])
@pytest.mark.parametrize("corruption", [None, *VALIDATION_NAMES])
def test_the_right_one_is_found_without_a_label(right: str, corruption: str | None) -> None:
    images = bundled_images()[0][:64]
    if corruption is not None:
        images = corrupt(images, corruption, 5)
    model = trained_with(right)
    found = probe_normalization(model, images, NORMALIZATIONS[right])
    assert (found.by, found.best, found.caution) == ("statistics", "in use", None)
    for name in NORMALIZATIONS.keys() - {right}:
        caution = probe_normalization(model, images, NORMALIZATIONS[name]).caution
        assert caution is not None
        assert f"the network seems to expect the normalisation {right!r}" in caution


def test_the_divergence_is_that_of_normal_distributions() -> None:
    norm = nn.BatchNorm2d(3)
    norm.running_mean, norm.running_var = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 1.0, 2.0])
    images = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    found = probe_normalization(nn.Sequential(norm, nn.Flatten()).eval(), images, None)
    seen = images.double().transpose(0, 1).flatten(1)
    own = [
        torch.distributions.Normal(mean, (variance + norm.eps).sqrt())
        for mean, variance in (
            (seen.mean(1), seen.var(1, correction=0)),
            (norm.running_mean.double(), norm.running_var.double()),
        )
    ]
    assert found.scores["in use"] == pytest.approx(torch.distributions.kl_divergence(*own).median().item())


def test_a_network_that_remembers_nothing_is_judged_by_its_confidence() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.LazyLinear(5))
    found = probe_normalization(model, torch.rand(40, 3, 8, 8), None)
    assert found.by == "confidence"
    assert set(found.scores) == {"in use", "imagenet", "half"}
    assert all(0.2 <= score <= 1 for score in found.scores.values())
    caution = Probe("confidence", {"in use": 0.5, "half": 0.7}).caution
    assert caution is not None
    assert "'half'" in caution
    assert Probe("confidence", {"in use": 0.5, "half": 0.55}).caution is None


def test_the_network_is_left_as_it_was() -> None:
    model = bundled_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    probe_normalization(model, bundled_images()[0][:8], None)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_images_of_one_channel() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten()).eval()
    untrained = probe_normalization(model, torch.rand(8, 1, 8, 8), ((0.5,), (0.25,)))
    assert untrained.by == "confidence"  # this norm has seen nothing yet
    model[1].running_mean.fill_(0.1)  # type: ignore[union-attr]
    found = probe_normalization(model, torch.rand(8, 1, 8, 8), ((0.5,), (0.25,)))
    assert set(found.scores) == {"in use", "imagenet", "half", "none", "bytes"}

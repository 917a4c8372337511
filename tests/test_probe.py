"""The probe of the normalisation: what a network remembers, clean images, and possibly corrupted ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from acclimate import adapt, corrupt
from acclimate.corruptions import VALIDATION_NAMES
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.mean_std import NORMALIZATIONS, MeanStd
from acclimate.probe import ANOTHER, IN_USE, probe_normalization
from acclimate.remembered import natural_fields, remembered


def photographs(count: int = 64) -> Tensor:
    """Images with the spectrum, mean and contrast of photographs; other ones than the probe itself makes."""
    fields = natural_fields(3, 24, 24, count).flip(0, 1)
    return (0.45 + 0.25 * fields).clamp(0, 1)


def started(normalization: MeanStd, images: Tensor, kernel: int = 3) -> nn.Sequential:
    """The start of a network whose norm remembers images under a normalisation."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, kernel, bias=False), nn.BatchNorm2d(16, momentum=None), nn.ReLU(), nn.Flatten()
    )
    mean, std = (torch.tensor(value).view(-1, 1, 1) for value in normalization)
    with torch.no_grad():
        model((images - mean) / std)
    return model.eval()


def test_mean_and_contrast_are_those_of_what_was_seen() -> None:
    images = photographs()
    model = started(NORMALIZATIONS["half"], images, kernel=1)
    mean, std = images.mean((0, 2, 3)), images.std((0, 2, 3), correction=0).mean()
    found = remembered(model, (images - mean.view(-1, 1, 1)) / std)
    assert found is not None
    assert found.mean == pytest.approx(((mean - 0.5) / 0.5).tolist(), abs=1e-4)
    assert found.std == pytest.approx(std.item() / 0.5, rel=1e-3)
    assert found.pixels(NORMALIZATIONS["half"]) == pytest.approx((mean.mean().item(), std.item()), rel=1e-3)


def test_a_start_that_is_not_linear_cannot_be_read() -> None:
    images = photographs(8)
    bent = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.BatchNorm2d(16, momentum=None), nn.Flatten())
    with torch.no_grad():
        bent((images - 0.5) / 0.5)
    assert remembered(bent.eval(), natural_fields(3, 24, 24)) is None
    found = probe_normalization(bent, images, NORMALIZATIONS["bytes"])
    assert (found.verdict, found.likely) == ("unknown", {})
    known = probe_normalization(bent, images, NORMALIZATIONS["bytes"], clean=True)
    assert (known.verdict, known.better) == ("wrong", "half")
    assert probe_normalization(bent, images, NORMALIZATIONS["half"], clean=True).verdict == "fits"


def test_fields_have_the_spectrum_of_photographs() -> None:
    fields = natural_fields(3, 64, 64)
    assert fields.shape[1:] == (3, 64, 64)
    assert (fields.mean().item(), fields.std().item()) == pytest.approx((0, 1), abs=1e-5)
    assert torch.equal(fields, natural_fields(3, 64, 64))
    window = torch.hann_window(64)
    power = torch.fft.fft2(fields * window * window[:, None]).abs().square().mean((0, 1))
    low, high = (power[k, 0] + power[0, k] for k in (4, 16))
    assert (low / high).log2().item() / 2 == pytest.approx(2.5, abs=0.5)


@pytest.mark.parametrize("right", ["imagenet", "half", "none", "bytes"])
def test_clean_images_tell_which_it_is(right: str) -> None:
    images = photographs()
    model = started(NORMALIZATIONS[right], images)
    fits = probe_normalization(model, images, NORMALIZATIONS[right], clean=True)
    assert (fits.verdict, fits.caution) == ("fits", None)
    for name in NORMALIZATIONS.keys() - {right}:
        found = probe_normalization(model, images, NORMALIZATIONS[name], clean=True)
        assert (found.verdict, found.better) == ("wrong", right)
        assert f"seems to expect the normalisation {right!r}" in str(found.caution)
        assert found.sure is not None
        assert 0.95 <= found.sure <= 1


@pytest.mark.parametrize("right", ["imagenet", "half", "none", "bytes"])
@pytest.mark.parametrize("corruption", [*VALIDATION_NAMES, "fog", "contrast"])
def test_corrupted_images_never_speak_against_the_right_one(right: str, corruption: str) -> None:
    images = photographs()
    model = started(NORMALIZATIONS[right], images)
    shifted = corrupt(images, corruption, 5)
    assert probe_normalization(model, shifted, NORMALIZATIONS[right]).caution is None
    for name in NORMALIZATIONS.keys() - {right}:
        found = probe_normalization(model, shifted, NORMALIZATIONS[name])
        assert found.verdict in ("doubtful", "unknown")
        assert found.better in (None, right)
        assert "look at clean ones" in found.sentence


def test_a_shift_of_the_pixels_changes_no_likelihood() -> None:
    images = photographs()
    model = started(NORMALIZATIONS["half"], images)
    plain, fogged = (
        probe_normalization(model, pixels, NORMALIZATIONS["imagenet"])
        for pixels in (images, 0.2 * images + 0.6)
    )
    assert plain.likely == fogged.likely
    assert sum(plain.likely.values()) == pytest.approx(1)
    assert plain.likely["half"] > 0.9
    assert (plain.verdict, plain.better) == ("doubtful", "half")
    assert fogged.better is None


def test_images_like_what_is_remembered_acquit() -> None:
    """Training images of little contrast are unlike photographs, but they are what is there."""
    dull = 0.45 + 0.4 * (photographs() - 0.45)
    model = started(NORMALIZATIONS["imagenet"], dull)
    found = probe_normalization(model, dull, NORMALIZATIONS["imagenet"])
    assert found.likely[IN_USE] < 0.05
    assert found.caution is None
    assert probe_normalization(model, photographs(), NORMALIZATIONS["imagenet"]).verdict == "doubtful"


def test_the_bundled_network_expects_none_of_the_common_ones() -> None:
    images = bundled_images()[0][:64]
    model = bundled_model()
    for given in NORMALIZATIONS.values():
        found = probe_normalization(model, images, given, clean=True)
        assert (found.verdict, found.better) == ("wrong", None)
        assert found.likely[ANOTHER] > 0.5
        assert found.estimate is not None
        assert found.estimate[0] == pytest.approx(MEAN, abs=0.1)
        assert found.estimate[1] == pytest.approx(STD, abs=0.05)
    assert "none of the common normalisations but about 0.2" in str(found.caution)
    assert probe_normalization(model, images, (MEAN, STD), clean=True).verdict == "fits"


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
    divergence = torch.distributions.kl_divergence(*own).median().item()
    assert found.scores[IN_USE] == pytest.approx(divergence, rel=1e-6)


class SureOf(nn.Module):
    """A network without norms that is sure of images whose mean is near a value."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, images: Tensor) -> Tensor:
        far = (images.mean((1, 2, 3)) - self.value).abs()
        return torch.stack([2 - far, far], dim=1)


def test_a_network_that_remembers_nothing_is_judged_by_its_confidence_on_clean_images_only() -> None:
    images = torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = probe_normalization(SureOf(0), images, NORMALIZATIONS["none"], clean=True)
    assert (found.by, found.verdict, found.sure) == ("confidence", "wrong", None)
    assert found.better in ("half", "imagenet")
    assert set(found.scores) == {IN_USE, "imagenet", "half"}
    shy = probe_normalization(SureOf(0), images, NORMALIZATIONS["none"])
    assert (shy.verdict, shy.caution) == ("unknown", None)
    assert "look at clean ones" in shy.sentence
    assert probe_normalization(SureOf(0), images, NORMALIZATIONS["half"], clean=True).caution is None


def test_the_network_is_left_as_it_was() -> None:
    model = bundled_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    probe_normalization(model, bundled_images()[0][:8], None)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("first", [nn.GroupNorm(2, 8), nn.BatchNorm2d(8)])
def test_a_network_in_training_mode_keeps_its_buffers_and_flags(first: nn.Module) -> None:
    norms = (first, nn.BatchNorm2d(8))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *norms, nn.Dropout(), nn.Flatten(), nn.Linear(288, 4))
    model.train()
    model[4].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    pixels = torch.randint(0, 256, (48, 3, 8, 8), dtype=torch.uint8)
    adapt(model, pixels, "tent", epochs=1, normalize="imagenet", gate="off")
    for clean in (False, True):
        probe_normalization(model, pixels / 255, None, clean=clean)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == flags


def test_images_of_one_channel() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten()).eval()
    untrained = probe_normalization(model, torch.rand(8, 1, 8, 8), ((0.5,), (0.25,)))
    assert untrained.by == "confidence"  # this norm has seen nothing yet
    model[1].running_mean.fill_(0.1)  # type: ignore[union-attr]
    found = probe_normalization(model, torch.rand(8, 1, 8, 8), ((0.5,), (0.25,)))
    assert set(found.scores) == {IN_USE, "imagenet", "half", "none", "bytes"}
    assert set(found.likely) == {*found.scores, ANOTHER}

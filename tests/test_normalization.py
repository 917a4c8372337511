"""What the input is normalised with: as the user says, and as the weights do."""

from __future__ import annotations

import pytest
from torch import nn

from acclimate.demo.bundle import MEAN, STD, bundled_model
from acclimate.errors import OptionError
from acclimate.mean_std import NORMALIZATIONS
from acclimate.normalization import normalization_of


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

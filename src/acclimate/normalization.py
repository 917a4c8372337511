"""What a network's input is normalised with: as the user says, otherwise as its weights do."""

from __future__ import annotations

from torch import nn

from acclimate.errors import OptionError, listed
from acclimate.mean_std import NORMALIZATIONS, MeanStd, mean_and_std
from acclimate.prepare import model_info, normalization_mismatch

__all__ = ["may_be_normalised_otherwise", "normalization_of"]


def normalization_of(model: nn.Module, given: str | MeanStd | None) -> MeanStd:
    """As the user says, otherwise as the network's weights do; an error if the two differ.

    >>> normalization_of(nn.Identity(), "0.5/0.25")
    ((0.5,), (0.25,))
    """
    info = model_info(model)
    if given is None:
        if info is None or info.mean is None or info.std is None:
            raise OptionError(
                "the network does not say what its input was normalised with: give normalize (--normalize), "
                f"MEAN/STD such as 0.5,0.5,0.5/0.2,0.2,0.2, or {listed(NORMALIZATIONS)}"
            )
        return info.mean, info.std
    mean, std = mean_and_std(given)
    mismatch = normalization_mismatch(info, mean, std)
    if mismatch is not None and info is not None and not info.assumed:
        raise OptionError(mismatch)
    return mean, std


def may_be_normalised_otherwise(model: nn.Module) -> bool:
    """Whether the weights leave open what their input was normalised with."""
    info = model_info(model)
    return info is None or info.mean is None or info.assumed

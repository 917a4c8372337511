"""acclimate: adapt a pretrained image classifier to unlabelled data from a shifted distribution."""

from importlib.metadata import version

from acclimate import corruptions, errors, losses
from acclimate.adapter import Adapter
from acclimate.corruptions import corrupt
from acclimate.diversity import ClassDistribution
from acclimate.input_transform import InputTransformation
from acclimate.methods import METHODS, Method
from acclimate.one_call import adapt
from acclimate.types import AdaptationResult, History

__all__ = [
    "METHODS",
    "AdaptationResult",
    "Adapter",
    "ClassDistribution",
    "History",
    "InputTransformation",
    "Method",
    "__version__",
    "adapt",
    "corrupt",
    "corruptions",
    "errors",
    "losses",
]

__version__ = version("acclimate")

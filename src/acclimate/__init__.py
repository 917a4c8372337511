"""acclimate: adapt a pretrained image classifier to unlabelled data from a shifted distribution."""

from importlib.metadata import version

from acclimate import corruptions, errors, losses
from acclimate.adapter import Adapter
from acclimate.corruptions import corrupt
from acclimate.data import open_data
from acclimate.diversity import ClassDistribution
from acclimate.evaluating import evaluate
from acclimate.evaluation import Comparison, Evaluation
from acclimate.input_transform import InputTransformation
from acclimate.methods import METHODS, Method
from acclimate.models.load import load_model
from acclimate.one_call import adapt
from acclimate.result import AdaptationResult
from acclimate.types import History

__all__ = [
    "METHODS",
    "AdaptationResult",
    "Adapter",
    "ClassDistribution",
    "Comparison",
    "Evaluation",
    "History",
    "InputTransformation",
    "Method",
    "__version__",
    "adapt",
    "corrupt",
    "corruptions",
    "errors",
    "evaluate",
    "load_model",
    "losses",
    "open_data",
]

__version__ = version("acclimate")

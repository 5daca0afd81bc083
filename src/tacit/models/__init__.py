"""Models: a prior and a per-record log-likelihood."""

from typing import TYPE_CHECKING, Any

from tacit.models.base import (
    ConjugateGaussian,
    GeneralisedLinear,
    LinearPredictor,
    Model,
    Records,
)
from tacit.models.belief.model import BeliefNetwork
from tacit.models.bnn import NeuralNetwork
from tacit.models.glm.linear import LinearRegression
from tacit.models.glm.logistic import LogisticRegression
from tacit.models.glm.poisson import PoissonRegression
from tacit.models.glm.softmax import SoftmaxRegression
from tacit.models.normal_mean import NormalMean

if TYPE_CHECKING:
    from tacit.models.lda import TopicModel
    from tacit.models.numpyro.model import from_numpyro

__all__ = [
    "BeliefNetwork",
    "ConjugateGaussian",
    "GeneralisedLinear",
    "LinearPredictor",
    "LinearRegression",
    "LogisticRegression",
    "Model",
    "NeuralNetwork",
    "NormalMean",
    "PoissonRegression",
    "Records",
    "SoftmaxRegression",
    "TopicModel",
    "from_numpyro",
]


def __getattr__(name: str) -> Any:
    if name == "from_numpyro":  # NumPyro and JAX are slow to import and often not needed
        from tacit.models.numpyro.model import from_numpyro

        return from_numpyro
    if name == "TopicModel":
        from tacit.models.lda import TopicModel

        return TopicModel
    raise AttributeError(f"module 'tacit.models' has no attribute {name!r}")

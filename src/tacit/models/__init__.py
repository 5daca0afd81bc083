"""Models: each has a prior on its parameters and a log-likelihood of every record.

Names are imported on first use, so that reading a configuration loads no array library.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.models.base import Model, ModelSchema, Records
    from tacit.models.belief.model import BeliefNetwork
    from tacit.models.bnn import NeuralNetwork
    from tacit.models.capabilities import ConjugateGaussian
    from tacit.models.conjugate import ConjugateExponential
    from tacit.models.factors import FactorModel
    from tacit.models.glm.base import GeneralisedLinear, LinearPredictor
    from tacit.models.glm.linear import LinearRegression
    from tacit.models.glm.logistic import LogisticRegression
    from tacit.models.glm.negative_binomial import NegativeBinomialRegression
    from tacit.models.glm.poisson import PoissonRegression
    from tacit.models.glm.softmax import SoftmaxRegression
    from tacit.models.glm.student import StudentRegression
    from tacit.models.lda.model import TopicModel
    from tacit.models.mixture.model import GaussianMixture
    from tacit.models.normal_mean import NormalMean
    from tacit.models.numpyro.model import from_numpyro
    from tacit.models.registry import register
    from tacit.models.settings import ModelSettings, PriorSettings

_HOMES = {
    "NeuralNetwork": "bnn",
    "BeliefNetwork": "belief.model",
    "ConjugateExponential": "conjugate",
    "ConjugateGaussian": "capabilities",
    "FactorModel": "factors",
    "GaussianMixture": "mixture.model",
    "NegativeBinomialRegression": "glm.negative_binomial",
    "NormalMean": "normal_mean",
    "GeneralisedLinear": "glm.base",
    "LinearPredictor": "glm.base",
    "LinearRegression": "glm.linear",
    "LogisticRegression": "glm.logistic",
    "Model": "base",
    "ModelSchema": "base",
    "ModelSettings": "settings",
    "PoissonRegression": "glm.poisson",
    "PriorSettings": "settings",
    "Records": "base",
    "SoftmaxRegression": "glm.softmax",
    "StudentRegression": "glm.student",
    "TopicModel": "lda.model",
    "from_numpyro": "numpyro.model",
    "register": "registry",
}

__all__ = [
    "BeliefNetwork",
    "ConjugateExponential",
    "ConjugateGaussian",
    "FactorModel",
    "GaussianMixture",
    "GeneralisedLinear",
    "LinearPredictor",
    "LinearRegression",
    "LogisticRegression",
    "Model",
    "ModelSchema",
    "ModelSettings",
    "NegativeBinomialRegression",
    "NeuralNetwork",
    "NormalMean",
    "PoissonRegression",
    "PriorSettings",
    "Records",
    "SoftmaxRegression",
    "StudentRegression",
    "TopicModel",
    "from_numpyro",
    "register",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'tacit.models' has no attribute {name!r}")
    return getattr(import_module(f"tacit.models.{_HOMES[name]}"), name)

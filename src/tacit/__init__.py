"""tacit: private federated Bayesian inference.

Several parties learn one posterior together without showing their records. The public names are
listed in `__all__`; each is imported when it is first used, so that `import tacit` is quick.

Importing tacit switches JAX to float64: natural parameters are sums over many records and
parties, and single precision loses the posterior in them. Local work that can bear it asks for
float32 by name.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if "jax" in sys.modules:
    sys.modules["jax"].config.update("jax_enable_x64", True)
else:
    os.environ["JAX_ENABLE_X64"] = "1"

if TYPE_CHECKING:
    from tacit import data
    from tacit.data import Federation
    from tacit.errors import TacitError
    from tacit.expfam import Dirichlet, FullGaussian, Gamma, MeanFieldGaussian
    from tacit.local import (
        DPSGD,
        Exact,
        ExpectedStatistics,
        GradientVI,
        Hybrid,
        NaturalVI,
        PrivateScoring,
        PrivateStatistics,
        PrivateUpdate,
    )
    from tacit.models import (
        BayesianNeuralNetwork,
        BeliefNetwork,
        GaussianMean,
        LinearRegression,
        LogisticRegression,
        PoissonRegression,
        SoftmaxRegression,
        TopicModel,
        from_numpyro,
    )
    from tacit.notebook import Fit, fit
    from tacit.privacy.settings import PartyPrivacy, Privacy
    from tacit.server import Asynchronous, Sequential, Synchronous
    from tacit.wire.blocking import connect, connect_async

_HOMES = {
    "data": "",
    "Federation": "data",
    "TacitError": "errors",
    "Dirichlet": "expfam",
    "FullGaussian": "expfam",
    "Gamma": "expfam",
    "MeanFieldGaussian": "expfam",
    "DPSGD": "local",
    "Exact": "local",
    "ExpectedStatistics": "local",
    "PrivateScoring": "local",
    "GradientVI": "local",
    "NaturalVI": "local",
    "Hybrid": "local",
    "PrivateStatistics": "local",
    "PrivateUpdate": "local",
    "BayesianNeuralNetwork": "models",
    "BeliefNetwork": "models",
    "PoissonRegression": "models",
    "SoftmaxRegression": "models",
    "GaussianMean": "models",
    "LinearRegression": "models",
    "LogisticRegression": "models",
    "TopicModel": "models",
    "from_numpyro": "models",
    "Fit": "notebook",
    "fit": "notebook",
    "PartyPrivacy": "privacy.settings",
    "Privacy": "privacy.settings",
    "Asynchronous": "server",
    "Sequential": "server",
    "Synchronous": "server",
    "connect": "wire.blocking",
    "connect_async": "wire.blocking",
}

__all__ = [
    "DPSGD",
    "Asynchronous",
    "BayesianNeuralNetwork",
    "BeliefNetwork",
    "Dirichlet",
    "Exact",
    "ExpectedStatistics",
    "Federation",
    "Fit",
    "FullGaussian",
    "Gamma",
    "GaussianMean",
    "GradientVI",
    "Hybrid",
    "LinearRegression",
    "LogisticRegression",
    "MeanFieldGaussian",
    "NaturalVI",
    "PartyPrivacy",
    "PoissonRegression",
    "Privacy",
    "PrivateScoring",
    "PrivateStatistics",
    "PrivateUpdate",
    "Sequential",
    "SoftmaxRegression",
    "Synchronous",
    "TacitError",
    "TopicModel",
    "connect",
    "connect_async",
    "data",
    "fit",
    "from_numpyro",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    if not _HOMES[name]:
        return import_module(f"tacit.{name}")
    return getattr(import_module(f"tacit.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

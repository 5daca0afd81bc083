"""Exponential families."""

from tacit.arrays import namespace
from tacit.errors import ConfigError
from tacit.expfam.base import Family, Mean, Natural, check_arrays, check_integers
from tacit.expfam.bernoulli import Bernoulli
from tacit.expfam.categorical import Categorical
from tacit.expfam.dirichlet import Dirichlet, Dirichlets
from tacit.expfam.gamma import Gamma
from tacit.expfam.gaussian import FullGaussian, Gaussian, MeanFieldGaussian

FAMILIES: dict[str, type[Family]] = {
    family.kind: family
    for family in (MeanFieldGaussian, FullGaussian, Dirichlet, Gamma, Bernoulli, Categorical)
}


def make_family(kind: str, dimension: int) -> Family:
    """Return the family with this name.

    >>> make_family("full", 3)
    FullGaussian(3)
    """
    if kind not in FAMILIES:
        raise ConfigError(f"posterior = {kind!r} is unknown; choose one of {', '.join(FAMILIES)}")
    return FAMILIES[kind](dimension)  # pyright: ignore[reportCallIssue]


__all__ = [
    "FAMILIES",
    "Bernoulli",
    "Categorical",
    "Dirichlet",
    "Dirichlets",
    "Family",
    "FullGaussian",
    "Gamma",
    "Gaussian",
    "Mean",
    "MeanFieldGaussian",
    "Natural",
    "check_arrays",
    "check_integers",
    "make_family",
    "namespace",
]

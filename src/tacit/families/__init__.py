"""Families of posteriors: Gaussian (diagonal or full), Dirichlet, gamma, Bernoulli, categorical."""

from __future__ import annotations

from tacit.expfam import (
    Bernoulli,
    Categorical,
    Dirichlet,
    FullGaussian,
    Gamma,
    MeanFieldGaussian,
)

__all__ = ["Bernoulli", "Categorical", "Dirichlet", "FullGaussian", "Gamma", "MeanFieldGaussian"]

"""Families of posteriors: Gaussian with a diagonal or full covariance, Dirichlet and gamma."""

from __future__ import annotations

from tacit.expfam import Dirichlet, FullGaussian, Gamma, MeanFieldGaussian

__all__ = ["Dirichlet", "FullGaussian", "Gamma", "MeanFieldGaussian"]

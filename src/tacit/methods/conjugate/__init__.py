"""Conjugate-exponential models in stages, exact or with noise."""

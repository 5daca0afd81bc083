"""Gaussian mixtures."""

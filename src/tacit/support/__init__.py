"""Helpers that know nothing of inference: BLAS threads, type information, validation."""

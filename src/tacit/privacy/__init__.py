"""Differential privacy: what a release costs, and who remembers."""

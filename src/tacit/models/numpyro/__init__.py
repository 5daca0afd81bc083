"""NumPyro programs as models."""

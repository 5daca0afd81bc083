"""Private Fisher scoring for generalised linear models."""

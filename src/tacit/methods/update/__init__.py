"""Private updates: clipped and noisy changes of natural parameters."""

"""Private centred scores for any model with a differentiable likelihood per record."""

"""Private centred scores for any model that is differentiable record by record."""

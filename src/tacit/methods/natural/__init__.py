"""Natural-gradient variational inference for any differentiable model. Not private."""

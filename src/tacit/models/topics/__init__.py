"""Latent Dirichlet allocation as a model: counts, expectations, what noise does to them."""

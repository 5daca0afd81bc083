"""Latent Dirichlet allocation as a model: expectations, what noise does to them, perplexity."""

from tacit.models.lda.model import TopicModel

__all__ = ["TopicModel"]

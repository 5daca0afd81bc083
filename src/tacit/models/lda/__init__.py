"""Latent Dirichlet allocation: model, expected statistics, denoising and perplexity."""

from tacit.models.lda.model import TopicModel

__all__ = ["TopicModel"]

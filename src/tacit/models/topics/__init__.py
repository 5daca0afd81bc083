"""Latent Dirichlet allocation as a model: counts, expectations, what noise does to them."""

from tacit.models.topics.model import TopicModel
from tacit.models.topics.records import document_records

__all__ = ["TopicModel", "document_records"]

"""Engines: what carries requests to parties and replies back."""

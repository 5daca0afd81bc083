"""Differential privacy: mechanisms, accounting and the ledger."""

"""Schedules: which parties update the posterior, in what order, and with what damping."""

from __future__ import annotations

from tacit.server.schedule import (
    Asynchronous,
    Damping,
    PowerDamping,
    Sequential,
    StalenessDamping,
    Synchronous,
)

__all__ = [
    "Asynchronous",
    "Damping",
    "PowerDamping",
    "Sequential",
    "StalenessDamping",
    "Synchronous",
]

"""The server: state, schedules, step, checkpoint."""

from tacit.schedule import (
    SCHEDULES,
    Asynchronous,
    Damping,
    Schedule,
    Sequential,
    Synchronous,
    resolved_damping,
)
from tacit.server.checkpoint import Checkpoint
from tacit.server.state import (
    Factor,
    Open,
    Rules,
    ServerState,
    initial_state,
    open_requests,
)
from tacit.server.step import begin, negative_elbo, step, step_together

__all__ = [
    "SCHEDULES",
    "Asynchronous",
    "Checkpoint",
    "Damping",
    "Factor",
    "Open",
    "Rules",
    "Schedule",
    "Sequential",
    "ServerState",
    "Synchronous",
    "begin",
    "initial_state",
    "negative_elbo",
    "open_requests",
    "resolved_damping",
    "step",
    "step_together",
]

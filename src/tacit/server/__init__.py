"""The server: state, schedules, step, checkpoint."""

from tacit.schedule import (
    SCHEDULES,
    Asynchronous,
    Damping,
    PowerDamping,
    Schedule,
    Sequential,
    Synchronous,
    resolved_damping,
)
from tacit.server.attendance import leave, leave_out, may_skip, readmit, skip, welcome
from tacit.server.checkpoint import Checkpoint
from tacit.server.state import (
    Factor,
    Open,
    Rules,
    ServerState,
    initial_state,
    open_requests,
)
from tacit.server.step import begin, check_reply, is_plausible, negative_elbo, step, step_together

__all__ = [
    "SCHEDULES",
    "Asynchronous",
    "Checkpoint",
    "Damping",
    "Factor",
    "Open",
    "PowerDamping",
    "Rules",
    "Schedule",
    "Sequential",
    "ServerState",
    "Synchronous",
    "begin",
    "check_reply",
    "initial_state",
    "is_plausible",
    "leave",
    "leave_out",
    "may_skip",
    "negative_elbo",
    "open_requests",
    "readmit",
    "resolved_damping",
    "skip",
    "step",
    "step_together",
    "welcome",
]

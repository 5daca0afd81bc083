"""The server's state and its durable copy, used by every engine and by the live server.

Every change is in the checkpoint before any message that depends on it is sent. A server that was
killed at any moment reads its requests and applied updates from the checkpoint, and repeats the
open requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tacit.arrays import Arrays
from tacit.errors import DataError
from tacit.server import attendance
from tacit.server import state as server_state
from tacit.server import step as server_step
from tacit.server.checkpoint import Checkpoint
from tacit.server.messages import Reply, Request
from tacit.server.state import Log, Rules, ServerState


class ServerRun:
    """One run of the server: applies `step` and `attendance`, and stores and logs the results.

    Parameters
    ----------
    rules
        The server's side of a plan.
    checkpoint
        Storage of the state, from which an interrupted run continues; None to keep the state in
        memory only.
    """

    def __init__(self, rules: Rules, checkpoint: Checkpoint | None = None) -> None:
        self.rules, self.checkpoint = rules, checkpoint
        saved = None if checkpoint is None else checkpoint.load()
        self.state: ServerState | None = None if saved is None else saved[0]
        """The current state; None before `begin`, unless the checkpoint contains a state."""
        if checkpoint is not None and self.state is not None:
            _check_requests(rules, self.state, checkpoint)
        self.history: list[dict[str, Any]] = [] if saved is None else list(saved[1])
        self._held: dict[str, Reply] = {}
        self._asked: tuple[ServerState | None, dict[str, Request]] = (None, {})

    @property
    def finished(self) -> str | None:
        """The reason why the run has ended, or None."""
        return None if self.state is None else self.state.finished

    def begin(self, state: ServerState, now: float = 0.0, log: Log = ()) -> None:
        """Open the first round of a new run.

        A state that has open requests or has ended, as after a restart, is kept unchanged.
        """
        if not state.open and not state.finished:
            state = server_step.begin(self.rules, state, now)
            self.commit(state, log)
        self.state = state

    def requests(self) -> dict[str, Request]:
        """Return the open requests, by party."""
        if self.state is None or self.state.finished:
            return {}
        if self._asked[0] is not self.state:
            asked = {one.party: one for one in server_state.open_requests(self.state)}
            self._asked = (self.state, asked)
        asked = self._asked[1]
        return {party: one for party, one in asked.items() if one.id not in self._held}

    def is_open(self, key: str, party: str) -> bool:
        """True if that request to that party has not been answered yet."""
        request = None if self.state is None else self.state.open.get(key)
        return request is not None and request.party == party and key not in self._held

    def take(self, replies: Sequence[Reply], now: float) -> Log:
        """Apply checked replies in one durable write.

        Replies of a synchronous round are held in memory until the round is complete. If the server
        is killed before that, it repeats the requests and receives the same replies.
        """
        assert self.state is not None
        for reply in replies:
            self._held.setdefault(reply.id, reply)
        if self.rules.order == "synchronous" and not self._held.keys() >= self.state.open.keys():
            return ()
        return self.apply_held(now)

    def apply_held(self, now: float) -> Log:
        """Apply the replies that have arrived, even if the round is not complete."""
        if self.state is None or not self._held:
            return ()
        held, self._held = list(self._held.values()), {}
        state, log = server_step.step_together(self.rules, self.state, held, now)
        self.commit(state, log)
        return log

    def take_sum(self, total: Arrays, terms: Sequence[str], now: float) -> Log:
        """Apply a round of which only the sum `total` of the replies is known.

        `terms` are the names of the parties whose replies are in the sum.
        """
        assert self.state is not None
        others, self._held = list(self._held.values()), {}
        state, log = server_step.step_sum(self.rules, self.state, total, terms, others, now)
        self.commit(state, log)
        return log

    def skip(self, late: Sequence[str], now: float) -> Log:
        """Continue without late parties, if a quorum remains."""
        if self.state is None or self.rules.quorum is None:
            return ()
        log = self.apply_held(now)
        if not attendance.may_skip(self.rules, self.state, late):
            return log
        return (*log, *self._attend(attendance.skip, late, now))

    def leave(self, party: str, now: float) -> Log:
        """Continue without a party that has left permanently."""
        return (*self.apply_held(now), *self._attend(attendance.leave, party, now))

    def leave_out(self, party: str, reason: str, now: float) -> Log:
        """Continue without a party whose update breaks a bound."""
        return (*self.apply_held(now), *self._attend(attendance.leave_out, party, reason, now))

    def readmit(self, party: str, now: float) -> Log:
        """Send requests again to an excluded party."""
        if self.state is None:
            return ()
        return (*self.apply_held(now), *self._attend(attendance.readmit, party, now))

    def welcome(self, party: str, now: float) -> None:
        """Send requests again to a party that was skipped and has returned."""
        if self.state is not None and not self.state.finished:
            self.commit(attendance.welcome(self.rules, self.state, party, now), ())

    def close(self) -> None:
        """Close the checkpoint."""
        if self.checkpoint is not None:
            self.checkpoint.close()

    def commit(self, state: ServerState, log: Log) -> None:
        """Store a new state with its log."""
        if state is self.state:
            return
        if self.checkpoint is not None:
            self.checkpoint.save(state, log)
        self.state = state
        self.history.extend(log)

    def _attend(self, change: Callable[..., tuple[ServerState, Log]], *arguments: Any) -> Log:
        assert self.state is not None
        state, log = change(self.rules, self.state, *arguments)
        self.commit(state, log)
        return log


def _check_requests(rules: Rules, state: ServerState, checkpoint: Checkpoint) -> None:
    """Raise an error if open requests of an earlier version lack an array of their stage."""
    if rules.published is None:
        return
    for request in state.open.values():
        public = state.issued[request.posterior].public
        for name, shape in rules.published(request.stage.name).items():
            if name not in public or np.shape(public[name]) != shape:
                checkpoint.close()
                raise DataError(
                    f'{checkpoint.path} was written by an earlier version of tacit: "{name}" of '
                    f'its requests of the stage "{request.stage.name}" is missing or has another '
                    "shape; finish that run with the version that started it, or start again with "
                    "another --out"
                )

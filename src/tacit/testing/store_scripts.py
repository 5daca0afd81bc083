"""Scripts of steps that write to a store in the same way as a run, with the expected contents after
each step.

A step writes to the store and returns its expected contents. The function `read` of a script reads
the actual contents from a newly opened store. The written floats need all 64 bits, so a loss of
precision is detected.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tacit.engines.execute import carry_out
from tacit.party.store import Stopped
from tacit.server.messages import Reply, Request
from tacit.server.schedule import Sequential
from tacit.server.state import Log, ServerState
from tacit.testing.engine_probe import probe_plan
from tacit.testing.script import Script, Step

FLOATS = np.array([0.1, -0.0, 5e-324, 1.0 + 2.0**-52])


def party_script() -> Script:
    """Return the steps that test a party's store: join a run, store two replies and a memory, stop,
    store the result, and join another run.
    """
    steps = _PartySteps()
    first, second = steps.replies

    def again(store: Any) -> Any:
        return steps.keep(store, second, [None, second], 2)

    script: list[tuple[str, Step]] = [
        ("joined", lambda store: steps.join(store, "run-1")),
        ("keep_reply", lambda store: steps.keep(store, first, [first, None], 1)),
        ("keep_memories", steps.remember),
        ("keep_reply of a second answer", again),
        ("keep_reply of the same answer", again),
        ("stop", lambda store: steps.stop(store, steps.stopped)),
        ("stop(None)", lambda store: steps.stop(store, None)),
        ("finish", steps.finish),
        ("joined, the same run again", lambda store: steps.join(store, "run-1")),
        ("joined, another run", lambda store: steps.join(store, "run-2")),
        ("keep_reply of another run", lambda store: steps.keep(store, first, [first, None], 1)),
    ]  # fmt: skip
    requests = [steps.asked(reply) for reply in steps.replies]
    read = lambda store: _party_state(store, requests)  # noqa: E731
    return Script(read, script, steps.empty, steps.adopt)


class _PartySteps:
    empty: ClassVar[dict[str, Any]] = {
        "run": None, "visits": 0, "factor": None, "result": None, "public": {}, "verdict": None,
        "stopped": None, "replies": [None, None], "memories": [None, None, None],
    }  # fmt: skip
    replies = (
        Reply("r0", "north", 0, {"linear": FLOATS, "quadratic": -FLOATS}, 1.0 / 3.0),
        Reply("r1", "north", 1, {"linear": 3.0 * FLOATS, "quadratic": FLOATS}, None),
    )
    factor: ClassVar[dict[str, Any]] = {"linear": FLOATS[::-1].copy(), "quadratic": np.ones(4)}
    stopped = Stopped(round=2, visit=1, reason="no room for “more”")

    def __init__(self) -> None:
        self.now = dict(self.empty)

    def asked(self, reply: Reply) -> Request:
        """Return the request that `reply` answers."""
        number, factor = reply.version, self.factor
        return Request(reply.id, reply.party, number, number, None, factor, 1.0, True)

    def _wrote(self, **changes: Any) -> dict[str, Any]:
        self.now.update(changes)
        return dict(self.now)

    def join(self, store: Any, run: str) -> Any:
        """Join a run. If it is another run, nothing of the earlier one may be left."""
        store.joined(run)
        return self._wrote(**({} if self.now["run"] == run else self.empty | {"run": run}))

    def keep(self, store: Any, reply: Reply, replies: list[Reply | None], visits: int) -> Any:
        """Store a reply. `replies` and `visits` are expected afterwards."""
        store.keep_reply(self.asked(reply), reply)
        after = {name: self.factor[name] + value for name, value in reply.released.items()}
        return self._wrote(replies=replies, factor=after, visits=visits)

    def remember(self, store: Any) -> Any:
        """Store a method memory."""
        store.keep_memories({"north": (1, {"kept": FLOATS})})
        return self._wrote(memories=[{"kept": FLOATS}, None, {"kept": FLOATS}])

    def stop(self, store: Any, word: Stopped | None) -> Any:
        """Store why the party stopped, or that it answers again."""
        store.stop(word)
        return self._wrote(stopped=word)

    def finish(self, store: Any) -> Any:
        """Store the result with the server's assessment."""
        verdict = {"converged": True, "why": "the last step was “small”", "step": 1.0 / 3.0}
        store.finish({"linear": FLOATS}, {"point": FLOATS[:2]}, verdict)
        public = {"point": FLOATS[:2]}
        return self._wrote(result={"linear": FLOATS}, public=public, verdict=verdict)

    def adopt(self, store: Any, digest: str) -> Any:
        """Assign the store to another configuration."""
        store.adopt(digest)
        return dict(self.now)


def _party_state(store: Any, requests: Sequence[Request]) -> dict[str, Any]:
    return {
        "run": store.run,
        "visits": store.visits,
        "factor": store.factor,
        "result": store.result,
        "public": store.result_public,
        "verdict": store.verdict,
        "stopped": store.stopped,
        "replies": [store.recall(request) for request in requests],
        "memories": [store.memory_at("north", visit) for visit in range(3)],
    }


def checkpoint_script() -> Script:
    """Return the steps that test a checkpoint: save the states of a sequential run, a state with
    replies that wait for the rest of their round, and the memories of parties.
    """
    states: list[tuple[ServerState, Log]] = []
    with tempfile.TemporaryDirectory(prefix="tacit-check-") as folder:
        plan = probe_plan(Path(folder) / "journal", Sequential(rounds=2), insecure_noise_seed=7)
        carry_out(plan, observe=lambda state, log: states.append((state, log)))
    now: dict[str, Any] = {"state": None, "log": (), "kept": {}, "secret": None}
    reply = Reply("r7", "south", 1, {"linear": FLOATS, "quadratic": -FLOATS}, 1.0 / 3.0)

    def save(store: Any, state: ServerState, log: Log) -> Any:
        store.save(state, log)
        now.update(state=state, log=now["log"] + log, secret=store.secret())
        return dict(now)

    def keep(store: Any, visit: int, earlier: Any) -> Any:
        memory = {"kept": FLOATS + visit}
        store.keep({"south": (memory, visit, earlier)})
        now.update(kept={"south": (memory, visit, earlier)}, secret=store.secret())
        return dict(now)

    def read(store: Any) -> Any:
        state, log = store.load() or (None, ())
        # A store that holds nothing yet may draw its secret again.
        secret = None if state is None else store.secret()
        return {"state": state, "log": log, "kept": store.kept(), "secret": secret}

    def adopt(store: Any, digest: str) -> Any:
        state = replace(states[-1][0], arrived={"south": reply._replace(id="r9")})
        log = ({"event": "adopted", "reason": "check"},)
        store.adopt(digest, state, log)
        return now | {"state": state, "log": now["log"] + log}

    waiting = replace(states[2][0], arrived={"south": reply, "west": reply._replace(party="west")})
    steps: list[tuple[str, Step]] = [
        (f"save of state {number}", lambda store, number=number: save(store, *states[number]))
        for number in range(3)
    ]
    steps.insert(1, ("keep_reply", lambda store: keep(store, 0, None)))
    steps.append(("keep of a later memory", lambda store: keep(store, 1, {"kept": FLOATS})))
    steps.append(("save of replies that have arrived", lambda store: save(store, waiting, ())))
    steps.append(("save of the last state", lambda store: save(store, *states[-1])))
    empty = {"state": None, "log": (), "kept": {}, "secret": None}
    return Script(read, steps, empty, adopt)

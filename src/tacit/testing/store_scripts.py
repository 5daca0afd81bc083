"""Scripts of steps that write to a store in the same way as a run, with the expected contents after
each step.

A step writes to the store and returns its expected contents. The function `read` of a script reads
the actual contents from a newly opened store. The written floats need all 64 bits, so a loss of
precision is detected.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tacit.engines.execute import carry_out
from tacit.party.store import Stopped
from tacit.privacy.events import GaussianEvent
from tacit.privacy.ledger.ledger import Budget, ReleaseRequest
from tacit.privacy.ledger.ledger import Reply as Stored
from tacit.server.messages import Reply, Request
from tacit.server.schedule import Sequential
from tacit.testing.engine_probe import probe_plan

Step = Callable[[Any], Any]
FLOATS = np.array([0.1, -0.0, 5e-324, 1.0 + 2.0**-52])


@dataclass
class Script:
    """Named steps that write to a store, and a function that reads the store."""

    read: Callable[[Any], Any]
    steps: list[tuple[str, Step]]
    empty: Any
    """Contents of a new store."""
    drawn: list[bytes] = field(default_factory=list)
    """Random bytes that a ledger drew for its charges, all of which have stored replies after the
    last step.
    """


def party_script() -> Script:
    """Return the steps that test a party's store: join a run, store two replies and a memory, stop,
    and store the result.
    """
    empty = {
        "run": None, "visits": 0, "factor": None, "result": None, "public": {}, "stopped": None,
        "replies": [None, None], "memories": [None, None, None],
    }  # fmt: skip
    now = dict(empty)
    first = Reply("r0", "north", 0, {"linear": FLOATS, "quadratic": -FLOATS}, 1.0 / 3.0)
    second = Reply("r1", "north", 1, {"linear": 3.0 * FLOATS, "quadratic": FLOATS}, None)
    factor = {"linear": FLOATS[::-1].copy(), "quadratic": np.ones(4)}
    stopped = Stopped(round=2, visit=1, reason="no room for “more”")

    def asked(reply: Reply) -> Request:
        """Return the request that `reply` answers."""
        return Request(reply.id, reply.party, reply.version, reply.version, None, factor, 1.0, True)

    def wrote(**changes: Any) -> dict[str, Any]:
        now.update(changes)
        return dict(now)

    def join(store: Any) -> Any:
        store.joined("run-1")
        return wrote(run="run-1")

    def keep(store: Any, reply: Reply, replies: list[Reply | None], visits: int) -> Any:
        store.keep_reply(asked(reply), reply)
        after = {name: factor[name] + value for name, value in reply.released.items()}
        return wrote(replies=replies, factor=after, visits=visits)

    def remember(store: Any) -> Any:
        store.keep_memories({"north": (1, {"kept": FLOATS})})
        return wrote(memories=[{"kept": FLOATS}, None, {"kept": FLOATS}])

    def stop(store: Any, word: Stopped | None) -> Any:
        store.stop(word)
        return wrote(stopped=word)

    def finish(store: Any) -> Any:
        store.finish({"linear": FLOATS}, {"point": FLOATS[:2]})
        return wrote(result={"linear": FLOATS}, public={"point": FLOATS[:2]})

    steps = [
        ("joined", join),
        ("keep_reply", lambda store: keep(store, first, [first, None], 1)),
        ("keep_memories", remember),
        ("keep_reply of a second answer", lambda store: keep(store, second, [None, second], 2)),
        ("stop", lambda store: stop(store, stopped)),
        ("stop(None)", lambda store: stop(store, None)),
        ("finish", finish),
    ]
    requests = [asked(reply) for reply in (first, second)]
    return Script(lambda store: _party_state(store, requests), steps, empty)


def _party_state(store: Any, requests: Sequence[Request]) -> dict[str, Any]:
    return {
        "run": store.run,
        "visits": store.visits,
        "factor": store.factor,
        "result": store.result,
        "public": store.result_public,
        "stopped": store.stopped,
        "replies": [store.recall(request) for request in requests],
        "memories": [store.memory_at("north", visit) for visit in range(3)],
    }


def checkpoint_script() -> Script:
    """Return the steps that test a checkpoint: save the states of a sequential run, and the
    memories of its parties.
    """
    states: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="tacit-check-") as folder:
        plan = probe_plan(Path(folder) / "journal", Sequential(rounds=2), insecure_noise_seed=7)
        carry_out(plan, observe=lambda state, log: states.append((state, log)))
    now: dict[str, Any] = {"state": None, "log": (), "kept": {}, "secret": None}

    def save(store: Any, number: int) -> Any:
        state, log = states[number]
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

    steps: list[tuple[str, Step]] = [
        (f"save of state {number}", lambda store, number=number: save(store, number))
        for number in range(3)
    ]
    steps.insert(1, ("keep_reply", lambda store: keep(store, 0, None)))
    steps.append(("keep of a later memory", lambda store: keep(store, 1, {"kept": FLOATS})))
    steps.append(("save of the last state", lambda store: save(store, len(states) - 1)))
    return Script(read, steps, {"state": None, "log": (), "kept": {}, "secret": None})


def ledger_script() -> Script:
    """Return the steps that test a ledger: set a budget, make two charges at once, and store their
    replies one after the other.
    """
    records = {"a": np.arange(3.0), "b": np.arange(4.0)}
    event = GaussianEvent(clip=1.0, noise_sd=2.0)
    bodies = {"a": bytes(range(256)), "b": b"\0reply"}
    now: dict[str, Any] = {"charged": [], "replies": {}, "keys": {}}

    def ask(store: Any, name: str) -> ReleaseRequest:
        return ReleaseRequest(
            dataset=store.identify({}, {"y": records[name]}), run="run-1", request=name,
            events=[event], unit="record", adjacency="replace-one", purpose=f"{name}, visit 0",
            content=f"question to {name}",
        )  # fmt: skip

    def copied() -> Any:
        return {name: type(value)(value) for name, value in now.items()}

    def allow(store: Any) -> Any:
        limit = Budget(epsilon=50.0, delta=1e-5, adjacency="replace-one", unit="record")
        store.set_budgets({ask(store, name).dataset: limit for name in records}, reason="check")
        return copied()

    def charge(store: Any) -> Any:
        with _recorded(script.drawn):
            replies, opened = store.open_many([ask(store, name) for name in records])
        assert replies == [None, None], "charge: a reply that was never stored was found"
        now.update(charged=sorted(records), keys={one.release.request: one.key for one in opened})
        return copied()

    def answer(store: Any, name: str) -> Any:
        store.store_replies([Stored("run-1", name, bodies[name])])
        now["replies"][name] = bodies[name]
        now["keys"].pop(name)
        return copied()

    def read(store: Any) -> Any:
        charged = sorted(charge.request for charge in store.charges("run-1"))
        stored = {name: store.recall_many([("run-1", name)])[0] for name in records}
        replies = {name: body for name, body in stored.items() if body is not None}
        lost = [name for name in charged if name not in replies]
        _, opened = store.open_many([ask(store, name) for name in lost]) if lost else ([], [])
        keys = {one.release.request: one.key for one in opened}
        return {"charged": charged, "replies": replies, "keys": keys}

    steps = [
        ("set_budgets", allow),
        ("open_many", charge),
        ("store_replies", lambda store: answer(store, "a")),
        ("store_replies of the second", lambda store: answer(store, "b")),
    ]
    script = Script(read, steps, {"charged": [], "replies": {}, "keys": {}})
    return script


@contextmanager
def _recorded(drawn: list[bytes]) -> Iterator[None]:
    """Context in which all random bytes drawn through `secrets` are added to the list `drawn`."""
    draw = secrets.token_bytes

    def recording(count: int | None = None) -> bytes:
        drawn.append(draw(count))
        return drawn[-1]

    with mock.patch.object(secrets, "token_bytes", recording):
        yield

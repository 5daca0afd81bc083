"""Steps that test a ledger: a budget, charges, refusals and stored replies.

Every step also checks what the ledger returns. After a refusal, the ledger must contain what it
contained before.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tacit.errors import PrivacyBudgetError, TacitError
from tacit.privacy.events import GaussianEvent
from tacit.privacy.ledger.ledger import Budget, ReleaseRequest
from tacit.privacy.ledger.ledger import Reply as Stored
from tacit.testing.privacy_loss import oracles
from tacit.testing.script import Script

RUN = "run-1"
DELTA = 1e-5
BUDGET = 10.6
"""ε of the budget. It allows one release of `EVENT` (ε = 4.38) or of `LARGER` (ε = 10.2), but not
both (ε = 11.8).
"""
EVENT = GaussianEvent(clip=1.0, noise_sd=2.0)
LARGER = GaussianEvent(clip=1.0, noise_sd=1.0)
SMALL = GaussianEvent(clip=1.0, noise_sd=20.0)
LOOSEST = 1.25
"""Largest accepted ratio of the reported ε of one release to its exact ε."""
RECORDS = {"a": np.arange(3.0), "b": 10.0 + np.arange(4.0), "new": 20.0 + np.arange(5.0)}
NAMES = ("a", "b")
BODIES = {"a": bytes(range(256)), "b": b"\0reply"}


def ledger_script() -> Script:
    """Return the steps that test a ledger: set a budget, make two charges at once, refuse charges
    over the budget and repeated requests with other content, and store the replies one after the
    other.
    """
    steps = _LedgerSteps()
    return Script(
        steps.read,
        [
            ("set_budgets", steps.allow),
            ("open_many", steps.charge),
            ("open_many over the budget", steps.refuse_too_much),
            ("open_many with other content", steps.refuse_other_content),
            ("store_replies", lambda store: steps.answer(store, "a")),
            ("store_replies of the second", lambda store: steps.answer(store, "b")),
            ("store_replies of another reply", steps.refuse_other_reply),
        ],
        {"charged": {}, "replies": {}, "keys": {}},
        inspect=steps.check_erased,
    )


class _LedgerSteps:
    def __init__(self) -> None:
        self.now: dict[str, Any] = {"charged": {}, "replies": {}, "keys": {}}
        self.drawn: list[bytes] = []
        self.keys: dict[str, bytes] = {}

    def read(self, store: Any) -> Any:
        charged = {one.request: tuple(one.events) for one in store.charges(RUN)}
        stored = {name: store.recall_many([(RUN, name)])[0] for name in NAMES}
        replies = {name: body for name, body in stored.items() if body is not None}
        lost = [name for name in charged if name not in replies]
        _, opened = store.open_many([_asked(store, name) for name in lost]) if lost else ([], [])
        keys = {one.release.request: one.key for one in opened}
        return {"charged": charged, "replies": replies, "keys": keys}

    def _copied(self) -> Any:
        return {name: type(value)(value) for name, value in self.now.items()}

    def allow(self, store: Any) -> Any:
        """Set the budgets. A price must be at least the exact ε of a release."""
        limit = Budget(epsilon=BUDGET, delta=DELTA, adjacency="replace-one", unit="record")
        store.set_budgets({_dataset(store, name): limit for name in NAMES}, reason="check")
        terms: dict[str, Any] = {"unit": "record", "adjacency": "replace-one", "delta": DELTA}
        price = store.price(_dataset(store, "new"), [EVENT], **terms)
        _check_epsilon("price: ε of one release", price)
        return self._copied()

    def charge(self, store: Any) -> Any:
        """Charge two releases. Each needs its own key, and `spent` must contain its exact ε."""
        with _recorded(self.drawn):
            replies, opened = store.open_many([_asked(store, name) for name in NAMES])
        assert replies == [None, None], "charge: a reply that was never stored was found"
        self.keys = {one.release.request: one.key for one in opened}
        assert self.drawn, (
            "noise key: nothing was drawn from `secrets` for two charges: keys are predictable "
            "or shared"
        )
        different = len(set(self.keys.values()))
        assert different == len(NAMES), (
            f"noise key: {len(NAMES)} charges have {different} different noise keys"
        )
        for name in NAMES:
            spent = store.spent(_dataset(store, name)).epsilon
            _check_epsilon(f"spent: ε of data set {name!r} after one release", spent)
        charged = dict.fromkeys(NAMES, (EVENT,))
        self.now.update(charged=charged, keys=dict(self.keys))
        return self._copied()

    def refuse_too_much(self, store: Any) -> Any:
        """Charges that exceed the budget alone or together with earlier ones must be refused."""
        huge = GaussianEvent(clip=1.0, noise_sd=0.1)
        small = _asked(store, "b", request="small", events=[SMALL])
        wanted = {
            "one release": [_asked(store, "a", request="huge", events=[huge])],
            "a release together with the earlier one": [
                _asked(store, "a", request="larger", events=[LARGER])
            ],
            "a release of another run": [
                _asked(store, "a", run="run-2", request="larger", events=[LARGER])
            ],
            "one of two releases": [small, _asked(store, "a", request="huge", events=[huge])],
            "many releases at once": [
                _asked(store, "a", request=f"many-{number}", events=[EVENT]) for number in range(8)
            ],
        }
        for what, releases in wanted.items():
            _check_refused(
                f"budget: {what} exceeds ε = {BUDGET}",
                lambda releases=releases: store.open_many(releases),
                PrivacyBudgetError,
            )
        others = store.charges("run-2")
        assert not others, "budget: a charge that was refused is in the ledger"
        return self._copied()

    def refuse_other_content(self, store: Any) -> Any:
        """A charged request must be refused if it is repeated for another release."""
        wanted = {
            "content": _asked(store, "a", content="another question"),
            "events": _asked(store, "a", events=[SMALL]),
            "data set": _asked(store, "b", request="a"),
        }
        for what, release in wanted.items():
            _check_refused(
                f"content: a charged request was repeated with another {what}",
                lambda release=release: store.open_many([release]),
                TacitError,
            )
        return self._copied()

    def answer(self, store: Any, name: str) -> Any:
        """Store a reply."""
        store.store_replies([Stored(RUN, name, BODIES[name])])
        self.now["replies"][name] = BODIES[name]
        self.now["keys"].pop(name)
        return self._copied()

    def refuse_other_reply(self, store: Any) -> Any:
        """A second reply must be refused, and a repeated request must get the stored reply."""
        for what, reply in {
            "a second, different reply to a request": Stored(RUN, "a", b"another"),
            "a reply to a request that was not charged": Stored(RUN, "c", b"reply"),
        }.items():
            _check_refused(
                f"reply: {what}", lambda reply=reply: store.store_replies([reply]), TacitError
            )
        replies, opened = store.open_many([_asked(store, name) for name in NAMES])
        assert (replies, opened) == ([BODIES[name] for name in NAMES], []), (
            "reply: a repeated request must get the stored reply, and no noise key"
        )
        return self._copied()

    def check_erased(self, folder: Path) -> None:
        """Check that no file contains the noise key of a charge whose reply is stored, or the
        random bytes from which it was derived.
        """
        replies = self.now["replies"]
        secret = [(self.keys[name], "key") for name in replies]
        if len(replies) == len(NAMES):
            secret += [(one, "secret") for one in self.drawn]
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            body = path.read_bytes()
            for one, what in secret:
                assert not _contains(body, one), (
                    f"noise key: {path.name} still holds the {what} of an answer whose reply is "
                    "stored"
                )


def _contains(body: bytes, secret: bytes) -> bool:
    """True if `body` contains the secret as bytes, as Python text, in hex or in base64."""
    plain, url = base64.b64encode(secret), base64.urlsafe_b64encode(secret)
    forms = secret, repr(secret)[2:-1].encode(), plain.rstrip(b"="), url.rstrip(b"=")
    return any(form in body for form in forms) or secret.hex().encode() in body.lower()


def _dataset(store: Any, name: str) -> Any:
    return store.identify({}, {"y": RECORDS[name]})


def _asked(
    store: Any,
    name: str,
    *,
    run: str = RUN,
    request: str | None = None,
    events: Sequence[GaussianEvent] = (EVENT,),
    content: str | None = None,
) -> ReleaseRequest:
    return ReleaseRequest(
        dataset=_dataset(store, name), run=run, request=request or name, events=events,
        unit="record", adjacency="replace-one", purpose=f"{name}, visit 0",
        content=f"question to {name}" if content is None else content,
    )  # fmt: skip


def _check_epsilon(what: str, found: float | None) -> None:
    (exact,) = (one.epsilon(DELTA) for one in oracles([EVENT], "replace-one"))
    assert found is not None, f"{what}: found None, expected {exact:.6g}"
    assert exact <= found <= LOOSEST * exact, (
        f"{what}: found {found:.6g}, expected a value between {exact:.6g} and {LOOSEST} times this"
    )


def _check_refused(what: str, call: Callable[[], Any], error: type[Exception]) -> None:
    try:
        call()
    except error:
        return
    except Exception as other:
        raise AssertionError(
            f"{what}: raised {type(other).__name__}, expected {error.__name__}"
        ) from other
    raise AssertionError(f"{what}: it was accepted, expected {error.__name__}")


@contextmanager
def _recorded(drawn: list[bytes]) -> Iterator[None]:
    """Context in which all random bytes drawn through `secrets` are added to the list `drawn`."""
    draw = secrets.token_bytes

    def recording(count: int | None = None) -> bytes:
        drawn.append(draw(count))
        return drawn[-1]

    with mock.patch.object(secrets, "token_bytes", recording):
        yield

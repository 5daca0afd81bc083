"""What the tests run in processes of their own; importable by name, so that it can be spawned."""

import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from tacit.errors import TacitError
from tacit.privacy.events import Adjacency, GaussianEvent
from tacit.privacy.ledger.ledger import Budget, Ledger, ReleaseRequest
from tacit.privacy.ledger.store import Store, create_store


def zcdp(events: Sequence[GaussianEvent], delta: float, adjacency: Adjacency) -> float:
    """ε = ρ + 2√(ρ ln 1/δ), ρ = Σ Δ²/(2s²) (Bun and Steinke 2016, Prop. 1.3)."""
    rho = sum(e.count * e.sensitivity(adjacency) ** 2 / (2 * e.noise_sd**2) for e in events)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


EVENT = GaussianEvent(clip=1.0, noise_sd=40.0)
TERMS = {"unit": "record", "adjacency": "add-or-remove-one"}


def budget_of(epsilon=1.0, delta=1e-5, adjacency="add-or-remove-one", unit="record"):
    return Budget(epsilon=epsilon, delta=delta, adjacency=adjacency, unit=unit)


def release(path: Path, line: str) -> None:
    """What leaves the process: one unbuffered line."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def charge_forever(path, dataset, run, released, begun):
    with Ledger(path, epsilon=zcdp) as ledger:
        for number in range(10**6):
            ledger.charge(dataset, run, f"r{number}", [EVENT], **TERMS)
            release(released, f"{run} r{number}")
            begun.set()


def charge_until_refused(path, dataset, run, released, gate):
    gate.wait()
    with Ledger(path, epsilon=zcdp) as ledger:
        for number in range(10**6):
            try:
                ledger.charge(dataset, run, f"r{number}", [EVENT], **TERMS)
            except TacitError as error:
                release(released, f"refused {type(error).__name__}")
                return
            release(released, f"{run} r{number}")


def answer_once(path, dataset, released, gate):
    gate.wait()
    with Ledger(path, epsilon=zcdp) as ledger:
        try:
            body = ledger.answer(
                dataset, "run", "same", [EVENT], compute=lambda _: os.urandom(8), **TERMS
            )
        except TacitError as error:
            release(released, f"refused {type(error).__name__}")
        else:
            release(released, f"sent {body.hex()}")


def create_together(path, released, gate):
    gate.wait()
    create_store(path, "2026-01-01T00:00:00.000Z")
    with Ledger(path, create=True, epsilon=zcdp) as ledger:
        release(released, ledger.receipt())


def die_at(path, dataset, point, made):
    """Charge once and be killed at a point of it; `made`: whether the ledger exists already."""

    def killed(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def patch():
        if point == "before the commit":
            original = Store.append
            Store.append = lambda *a: (original(*a), killed())  # pyright: ignore
        elif point == "before the head":
            Store.publish = killed
        elif point == "inside the head":
            os.replace = killed
        elif point == "after the key":
            import tacit.privacy.ledger.store as module

            write = module.write_durably
            module.write_durably = lambda p, b: (write(p, b), p.suffix == ".key" and killed())
        elif point == "before the key":
            import tacit.privacy.ledger.store as module

            write = module.write_durably
            module.write_durably = lambda p, b: killed() if p.suffix == ".key" else write(p, b)

    if not made:
        patch()
    with Ledger(path, create=not made, epsilon=zcdp) as ledger:
        patch()
        ledger.charge(dataset, "run", "doomed", [EVENT], **TERMS)


def asks_of(datasets, run, number, event=EVENT):
    """One round: the same question to every data set."""
    return [
        ReleaseRequest(dataset=each, run=run, request=f"{number}.{place}", events=[event], **TERMS)
        for place, each in enumerate(datasets)
    ]


def answer_rounds_forever(path, datasets, run, released, begun):
    """Rounds of `answer_many`; what left the process is one line a round, after its return."""
    with Ledger(path, epsilon=zcdp) as ledger:
        for number in range(10**6):
            bodies = ledger.answer_many(
                asks_of(datasets, run, number), lambda asks: [os.urandom(500) for _ in asks]
            )
            release(released, f"{run} {number} " + " ".join(body.hex() for body in bodies))
            begun.set()


def answer_rounds_until_refused(path, datasets, run, released, gate):
    gate.wait()
    with Ledger(path, epsilon=zcdp) as ledger:
        for number in range(10**6):
            try:
                ledger.answer_many(
                    asks_of(datasets, run, number), lambda asks: [b"noise"] * len(asks)
                )
            except TacitError as error:
                release(released, f"refused {type(error).__name__}")
                return
            release(released, f"{run} {number}")


def die_in_answer_many(path, datasets, point):
    """Answer one round and be killed at a point of it."""

    def killed(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def compute(asks):
        if point == "computing":
            killed()
        if point == "replies before the commit":
            Store.keep = killed
        if point == "replies before the head":
            Store.publish = killed
        return [b"noise"] * len(asks)

    with Ledger(path, epsilon=zcdp) as ledger:
        if point == "charges before the commit":
            original = Store.append
            Store.append = lambda *a: (original(*a), killed())  # pyright: ignore
        if point == "charges before the head":
            Store.publish = killed
        ledger.answer_many(asks_of(datasets, "run", "doomed"), compute)

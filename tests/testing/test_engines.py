"""The in-process engine passes its suite; engines with a known fault are rejected for it."""

import contextlib
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tacit.engines.in_process import InProcess
from tacit.errors import TacitError
from tacit.party.agent import PartyAgent, conclude
from tacit.server.state import initial_state, open_requests
from tacit.testing import check_engine

pytestmark = pytest.mark.full_optimisation


def with_arrays(reply, change):
    return reply._replace(released={name: change(one) for name, one in reply.released.items()})


def test_the_in_process_engine_passes():
    check_engine(InProcess)


def uncharged(engine, requests):
    """Replies that no ledger knows of."""
    agent = PartyAgent(engine.agreement, engine, engine.store, engine.settled)
    return agent.answer(requests)


class DropsAParty(InProcess):
    """The last party's answer is replaced by one that says nothing."""

    def answer(self, requests):
        *others, last = super().answer(requests)
        return [*others, with_arrays(last, np.zeros_like)]


class DropsAnUpdate(InProcess):
    """The last request has no update."""

    def compute(self, requests, keys):
        found = super().compute(requests, keys)
        return {request.id: found[request.id] for request in requests[:-1]}


class RoundsAnswers(InProcess):
    """Answers travel as float32."""

    def answer(self, requests):
        replies = super().answer(requests)
        return [with_arrays(one, lambda a: a.astype(np.float32).astype(float)) for one in replies]


class SwapsNoise(InProcess):
    """Noise keys are given to the wrong parties."""

    def compute(self, requests, keys):
        turned = dict(zip(keys, [*keys.values()][::-1], strict=True))
        return super().compute(requests, turned)


class DrawsItsOwnNoise(InProcess):
    """The keys of the charges are ignored."""

    def compute(self, requests, keys):
        return super().compute(requests, {})


class ComputesFirst(InProcess):
    """Tries every answer out before it is paid for."""

    def answer(self, requests):
        self.compute(requests, {})
        return super().answer(requests)


class NeverCharges(InProcess):
    """Has a ledger and does not use it."""

    def answer(self, requests):
        return uncharged(self, requests)


class LosesAnswers(InProcess):
    """Charges and computes, and does not store what was paid for."""

    def answer(self, requests):
        if self.charging is None:
            return super().answer(requests)
        stored, wanted, keys = self.charging.open(requests)
        updates = self.compute(wanted, keys)
        replies = stored | {one.id: conclude(one, updates[one.id]) for one in wanted}
        return [replies[request.id] for request in requests]


class ChargesTwice(InProcess):
    """Opens a second request for the same answer."""

    def answer(self, requests):
        if self.charging is not None:
            with contextlib.suppress(KeyError):
                again = [request._replace(id=f"{request.id}0") for request in requests]
                replies = self.agent.answer(again)
                self.agent.answer(requests)
                return [
                    reply._replace(id=request.id)
                    for reply, request in zip(replies, requests, strict=True)
                ]
        return super().answer(requests)


class GoesOnWithoutAParty(InProcess):
    """A party that fails is answered for with nothing."""

    def compute(self, requests, keys):
        try:
            return super().compute(requests, keys)
        except TacitError:
            found = {}
            for request in requests:
                with contextlib.suppress(TacitError):
                    found |= super().compute([request], {request.id: keys[request.id]})
            silent = with_arrays(next(iter(found.values())), np.zeros_like)
            return {request.id: found.get(request.id, silent) for request in requests}


class HidesTheCause(InProcess):
    """An error of a party becomes a general one."""

    def compute(self, requests, keys):
        try:
            return super().compute(requests, keys)
        except TacitError:
            raise RuntimeError("a worker has failed") from None


class IgnoresRefusals(InProcess):
    """Computes although the ledger has refused."""

    def answer(self, requests):
        try:
            return super().answer(requests)
        except TacitError as error:
            if "budget" not in str(error):
                raise
            return uncharged(self, requests)


class ForgetsMemories(InProcess):
    """What a method keeps at a party does not come back."""

    def memories(self, requests):
        return {name: memory and dict.fromkeys(memory, np.zeros(1)) for name, memory in
                super().memories(requests).items()}  # fmt: skip


class SaysNothing(InProcess):
    """The observer is not called."""

    def run(self, server, *, observe=None):
        super().run(server)


class CannotBeStopped(InProcess):
    """What an observer raises is swallowed."""

    def run(self, server, *, observe=None):
        def calm(state, log):
            with contextlib.suppress(Exception):
                observe(state, log)

        super().run(server, observe=observe and calm)


class StartsAnew(InProcess):
    """A resumed run begins again: the checkpoint is written and not read."""

    def run(self, server, *, observe=None):
        if server.state.round:
            server.state = initial_state(self.rules)
        super().run(server, observe=observe)


class SavesNothing(InProcess):
    """Takes no notice of the checkpoint."""

    def run(self, server, *, observe=None):
        server.checkpoint = None
        super().run(server, observe=observe)


class LastComesFirst(InProcess):
    """Asynchronous answers are applied in the opposite order."""

    def following(self, state, clock):
        if self.rules.schedule.kind != "asynchronous":
            return super().following(state, clock)
        _, clock = super().following(state, clock)
        return open_requests(state, only=list(state.open)[-1]), clock


@dataclass
class WithoutPrior(InProcess):
    """Sets up parties, but not a prior that answers like one."""

    def prepare(self):
        self.rules = replace(self.rules, site_prior=False)
        super().prepare()


@dataclass
class OtherSeed(InProcess):
    """Random numbers depend on the order in which parties are named."""

    def prepare(self):
        first = next(iter(self.parties))
        self.agreement = replace(
            self.agreement, insecure_noise_seed=self.agreement.insecure_noise_seed and len(first)
        )
        super().prepare()


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (DropsAParty, r"posterior: each party answered alone: 'linear' of the posterior differs"),
        (
            DropsAnUpdate,
            r"the engine raised DataError: no update for request 'r2' of party '",
        ),
        (RoundsAnswers, r"posterior: each party answered alone: .* expected equal bits"),
        (SwapsNoise, r"charges: party 'north', visit 0: computed with a noise key other than"),
        (DrawsItsOwnNoise, r"charges: .*: computed with a noise key other than that of its charge"),
        (ComputesFirst, r"charges: party 'north', visit 0: computed before it was charged"),
        (NeverCharges, r"charges: party 'north', visit 0: computed before it was charged"),
        (LosesAnswers, r"stored before seen: round 1 was applied while the ledger holds no reply"),
        (ChargesTwice, r"charges: party 'north', visit 0: one answer was given two noise keys"),
        (GoesOnWithoutAParty, r"a party that fails: the run went on to its end"),
        (HidesTheCause, r"a party that fails: the error does not contain .*: a worker has failed"),
        (IgnoresRefusals, r"refused charge: the budget was reached and the run went on"),
        (ForgetsMemories, r"posterior: synchronous schedule: 'linear' of the posterior differs"),
        (SaysNothing, r"progress: the observer was given \(round, exchanges\) \[\]"),
        (CannotBeStopped, r"cancellation: the observer raised, but the run went on to its end"),
        (SavesNothing, r"cancellation: nothing was saved to the checkpoint"),
        (StartsAnew, r"cancellation: after two of three rounds visits \[0, 1, 2\] were computed"),
        (WithoutPrior, r"posterior: a prior outside of the family, .*: the engine raised"),
        (LastComesFirst, r"posterior: asynchronous schedule"),
        (OtherSeed, r"posterior: synchronous schedule"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_broken_engines_are_rejected(engine, message):
    with pytest.raises(AssertionError, match=message):
        check_engine(engine)

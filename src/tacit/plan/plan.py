"""Plans: all decisions of a run, made before anything is computed or charged.

`tacit.engines.execute` runs a plan. `tacit.run.run` adds configuration files and run directories,
and `tacit.fit` is the Python interface.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np

from tacit.arrays import Arrays, Natural
from tacit.errors import ConfigError
from tacit.expfam import Family
from tacit.methods import DPSGD, LocalMethod, PrivateMethod, Terms
from tacit.models import (
    Model,
    Records,
)
from tacit.models.prior import PRIOR_PARTY
from tacit.plan.agreement import Agreement
from tacit.plan.auto import LACKS, choose_method
from tacit.plan.calibrate import Settled, settle
from tacit.plan.checks import (
    Live,
    check_continued,
    check_eager,
    check_events,
    check_in_step,
    check_integers_only,
    check_memory,
    check_parties,
    check_rounding,
    choose_family,
    facts,
    resolved_schedule,
    settled_method,
    shapes_of,
    shares_of,
    units_of,
)
from tacit.privacy.events import GaussianEvent
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.lattice import KEY_BYTES, DiscreteGaussian
from tacit.privacy.secure_sums import Thresholds
from tacit.privacy.settings import Privacy
from tacit.pvi import divide, power
from tacit.server.combine import Combine, Run
from tacit.server.messages import Asked, Request
from tacit.server.schedule import Schedule, Synchronous
from tacit.server.state import LatticeRules, Rules


@dataclass(frozen=True)
class Plan:
    """All decisions of a run.

    Two runs with the same plan have the same posterior, except for secret noise.
    """

    model: Model
    family: Family
    method: LocalMethod
    schedule: Schedule
    parties: dict[str, Records] = field(repr=False)  # keep records out of notebooks and logs
    seed: int = 0
    batch_parties: bool = True
    privacy: Privacy | None = None
    settled: dict[str, Settled] = field(default_factory=dict)
    """Noise, events and guarantee of every party; empty for a run without privacy."""
    live: Live | None = None
    noise_key: tuple[int, ...] | None = field(default=None, repr=False)
    """Key of the noise that the server adds; the checkpoint stores it, so that a repeated round
    draws the same noise.
    """
    report_steps: bool = field(default=True, compare=False)
    """True if the log reports how far each round moved q; False saves that work."""
    why: str = field(default="", compare=False)
    """Reason for the method chosen by "auto"; empty if the method was given."""
    earlier: Natural | None = field(default=None, repr=False)
    """Posterior of earlier records, which replaces the prior."""

    @property
    def prior(self) -> Natural:
        """Natural parameters of the prior, or of the earlier posterior that replaces it."""
        return self.model.prior(self.family) if self.earlier is None else self.earlier

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee that holds for every party: the largest ε and the largest δ of all parties.

        The ε of several parties does not add up, because each record belongs to one party. The
        guarantee is None in a run without privacy.
        """
        if not self.settled:
            return None
        each = [one.guarantee for one in self.settled.values()]
        return msgspec.structs.replace(
            each[0],
            epsilon=max(one.epsilon for one in each),
            delta=max(one.delta for one in each),
        )

    @property
    def rules(self) -> Rules:
        """The part of the plan that the server needs."""
        site, rounds = self.has_prior_party, self.schedule.rounds
        return Rules(
            family=self.family,
            schedule=self.schedule,
            parties=((PRIOR_PARTY,) if site else ()) + tuple(self.parties),
            seed=self.seed,
            prior=self.family.zero() if site else self.prior,
            solver=self.method.solver(self.model, self.family),
            stages=self.method.stage_table(rounds),
            site_prior=site,
            average_last=math.ceil(self.method.average_last * self.schedule.rounds),
            combine=self._combine,
            own_factors=self._own_factors,
            most_visits=self.schedule.rounds if self.settled else None,
            quorum=self._quorum,
            divide_out=self.live is not None and self.live.divide_out,
            leave_out=self.live is not None,
            report_steps=self.report_steps,
            keeps_factors=any(self.method.stage_at(v).needs_factor for v in range(rounds)),
            first_public=self.method.first_public(self.model, self.family),
            reads_public=self.method.reads_public,
            stage_at=self.method.stage_at,
            released=lambda stage: self.method.released_shapes(self.model, self.family, stage),
            published=lambda stage: self.method.public_shapes(self.model, self.family, stage),
            lattice=self._lattice,
            in_step=self.thresholds is not None,
        )

    @property
    def thresholds(self) -> Thresholds | None:
        """Quorum, threshold and number of colluding parties of secure sums; None without secure
        sums.
        """
        return self.privacy and self.privacy.thresholds(len(self.parties))

    @property
    def has_prior_party(self) -> bool:
        """True if the prior is outside the family and the server approximates it by a factor.

        The server refines this factor like that of a party.
        """
        return self.model.has_site_prior and not self.method.holds_prior

    @property
    def agreement(self) -> Agreement:
        """The part of the plan that the parties need."""
        insecure_noise_seed = None if self.privacy is None else self.privacy.insecure_noise_seed
        return Agreement(self.model, self.family, self.method, self.seed, insecure_noise_seed)

    def without_records(self) -> Plan:
        """Return the plan without records and without the key of the server's noise.

        Results contain this plan, so that their files, copies and pickles contain no records.
        """
        return replace(self, parties={name: {} for name in self.parties}, noise_key=None)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling and copying. The state of a private plan contains no
        records.
        """
        kept = self if self.privacy is None else self.without_records()
        return dict(vars(kept))

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    @property
    def _own_factors(self) -> bool:
        """True if the server adds each message to the factor of the party that sent it."""
        if not isinstance(self.method, PrivateMethod):
            return False
        if self._server_adds_noise:
            return self.method.own_factors
        plain = self.privacy is not None and self.privacy.aggregation == "plain"
        return plain and self.method.own_releases

    @property
    def _quorum(self) -> int | None:
        """Number of replies that complete a round; None means all parties.

        If the noise is shared, it is at least the number of messages for which the noise was
        calibrated, because a sum of fewer messages would have less noise.
        """
        if self.thresholds is not None:
            return self.thresholds.quorum
        shares = max((one.shares for one in self.settled.values()), default=1)
        return shares if shares > 1 else None if self.live is None else self.live.quorum

    def read_released(self, request: Request, released: Arrays) -> Arrays:
        """Convert what a party released to floats: integers are multiplied by the step of their
        lattice.

        Parameters
        ----------
        request
            The request to which the party replied.
        released
            The arrays of the reply.
        """
        lattice = self._lattice
        if lattice is None or lattice.shapes(request.stage) is None:
            return released
        parts = (request.party, request.visit, request.stage)
        asked = Asked(*parts, request.q, request.factor, request.damping, request.public)
        return lattice.read(asked, released)

    @property
    def _lattice(self) -> LatticeRules | None:
        """Rules by which the server sums the integers of a private run and converts them to floats.

        They are None in a run without privacy.
        """
        if self.privacy is None or not self.settled:
            return None

        def event_at(party: str, visit: int) -> GaussianEvent:
            settled = self.settled[party]
            events = settled.events_at(visit) or settled.events_at(0)  # a release may be repeated
            return events[0]

        def scale(party: str, visit: int) -> tuple[float, float]:
            event = event_at(party, visit)
            return event.step, event.clip

        def read(asked: Asked, integers: Arrays) -> Arrays:
            event = event_at(asked.party, asked.visit)
            asked = asked._replace(terms=_terms(self.settled[asked.party], event, asked.visit))
            return self.method.from_integers(self.model, self.family, event, asked, integers)

        def noise(number: int, shapes: dict[str, tuple[int, ...]]) -> Arrays:
            lattice = event_at(next(iter(self.settled)), number - 1).lattice
            assert lattice is not None
            draws = DiscreteGaussian(self._server_key(number), lattice.bits)
            return {
                name: draws.draw(math.prod(shape)).reshape(shape)
                for name, shape in sorted(shapes.items())
            }

        return LatticeRules(
            shapes=lambda stage: self.method.integer_shapes(self.model, self.family, stage),
            read=read,
            scale=scale,
            sums=self.privacy.aggregation != "plain",
            noise=noise if self._server_adds_noise else None,
        )

    def _server_key(self, number: int) -> bytes:
        """Return the key of the noise that the server adds in round `number`.

        It is derived from the secret key of the run or from a known seed.
        """
        assert self.privacy is not None
        seed = self.privacy.insecure_noise_seed
        key = self.noise_key if seed is None else (seed,)
        if key is None:
            raise RuntimeError(
                "this plan has no key for the server's noise; call carry_out, which draws one"
            )
        body = "/".join(str(word) for word in (*key, number)).encode()
        return hashlib.blake2b(body, digest_size=KEY_BYTES, person=b"tacit.server").digest()

    @property
    def _server_adds_noise(self) -> bool:
        return self.privacy is not None and self.privacy.aggregation == "server"

    @property
    def _combine(self) -> Combine | None:
        if not isinstance(self.method, PrivateMethod):
            return None
        asked = self.schedule.parties_per_round or len(self.parties)

        def noise_sd(number: int) -> float:
            """Return the standard deviation of the noise in the sum of round `number`."""
            each = [
                max(
                    (event.noise_sd for event in one.events_at(min(number, one.visits) - 1)),
                    default=0.0,
                )
                ** 2
                / one.shares
                for one in self.settled.values()
            ]
            return math.sqrt(sum(each) * asked / len(each))

        return self.method.server(
            Run(
                self.model,
                self.family,
                parties=len(self.parties),
                asked=asked,
                rounds=self.schedule.rounds,
                damping_at=self.schedule.damping_at,
                noise_sd=noise_sd,
                earlier=self.earlier,
            )
        )


def make_plan(
    model: Model,
    parties: dict[str, Records],
    *,
    family: str = "auto",
    method: LocalMethod | None = None,
    schedule: Schedule | None = None,
    seed: int = 0,
    batch_parties: bool = True,
    privacy: Privacy | None = None,
    trust: str | None = None,
    live: Live | None = None,
    earlier: Natural | None = None,
    any_noise: bool = False,
) -> Plan:
    """Choose everything that is set to "auto", check all choices, and return the plan.

    Nothing is run or charged. `trust` replaces the default text of the trust assumption. `live`
    describes a live federation; a party whose records are not in this process then has an empty
    dictionary. `earlier` is the posterior of an earlier run, which replaces the prior. `any_noise`
    is for audits: a private plan is accepted even if its noise is too large for a useful result.
    """
    check_parties(model, parties, seed, live)
    given = schedule = schedule or Synchronous()
    steady, why = live is None or live.quorum is None, ""
    if method is None:
        method, why = choose_method(
            model, privacy=privacy, schedule=schedule, parties=len(parties), steady=steady,
            full=family == "full",
        )  # fmt: skip
    method = method.suited(model)
    if earlier is not None:
        check_continued(method, model)
    check_eager(method, model)
    noisy = isinstance(method, PrivateMethod) and not method.wants_full
    most = method.most_full(everyone=schedule.parties_per_round is None and steady)
    chosen_family = choose_family(family, model, private=noisy, most_full=most)
    units = units_of(method, privacy, parties, live)
    method = settled_method(method, privacy, units, live)
    check_rounding(model, method)
    method.check(model, chosen_family)
    schedule = resolved_schedule(schedule, method, model, chosen_family, len(parties))
    secure = privacy and privacy.thresholds(len(parties))
    check_memory(method, model, chosen_family, schedule, live, secure=secure)
    known = facts(schedule, privacy, live, parties=len(parties), model=model, family=chosen_family)
    method.check_run(known)
    method = method.for_run(known)
    plan = Plan(
        model, chosen_family, method, schedule, parties, seed, batch_parties, live=live, why=why,
        earlier=earlier,
    )  # fmt: skip
    if privacy is None:
        return plan
    again = partial(
        make_plan, model, parties, family=family, schedule=given, seed=seed, privacy=privacy,
        batch_parties=batch_parties, trust=trust, live=live, earlier=earlier,
    )  # fmt: skip
    instead = partial(_second_choice, again, plan, privacy, given)
    return _private_plan(plan, privacy, units, trust, None if any_noise else instead)


def _second_choice(
    again: Callable[..., Plan],
    plan: Plan,
    privacy: Privacy,
    schedule: Schedule,
    kind: str,
    reason: str,
) -> Plan:
    """Return a plan with the method that "auto" chooses if `kind` is excluded. `reason` says why
    `kind` was refused.
    """
    method, why = choose_method(
        plan.model, privacy=privacy, schedule=schedule, parties=len(plan.parties),
        steady=plan.live is None or plan.live.quorum is None, refused=(kind,),
    )  # fmt: skip
    why = LACKS if isinstance(method, DPSGD) else why
    return replace(again(method=method), why=f"{kind} is not used: {reason}; {why}")


def _private_plan(
    plan: Plan,
    privacy: Privacy,
    units: dict[str, int],
    trust: str | None,
    instead: Callable[[str, str], Plan] | None,
) -> Plan:
    """Return the plan with clip, noise and guarantee of each party.

    If "auto" has chosen the method and its noise is too large, the function `instead` makes the
    plan. If `instead` is None, any noise is accepted.
    """
    method = plan.method
    assert isinstance(method, PrivateMethod)
    method.check_server(plan.family)
    settled = _settled(plan, method, privacy, units, trust)
    try:
        if instead is not None:
            method.check_settled(plan.model, settled)
    except ConfigError as refused:
        if not plan.why or instead is None:
            raise
        return instead(method.kind, str(refused))
    return replace(plan, privacy=privacy, settled=settled)


def _elsewhere(plan: Plan) -> list[str] | None:
    """Return the parties of a live federation whose number of units is not known in this process.

    The result is None if the number of units of every party is known.
    """
    if plan.live is None or plan.live.one_party:
        return None
    return [name for name, records in plan.parties.items() if not records]


def _settled(
    plan: Plan, method: PrivateMethod, privacy: Privacy, units: dict[str, int], trust: str | None
) -> dict[str, Settled]:
    """Return clip, noise, events and guarantee of every party."""
    thresholds = privacy.thresholds(len(plan.parties))
    # The search for a noise level asks for the size of every visit many times.
    size_of = cache(partial(method.release_size, plan.model, plan.family))
    settled = settle(
        privacy,
        method,
        shapes_of(plan.schedule, units, plan.seed),
        shares=shares_of(privacy, plan.schedule, len(plan.parties), plan.live),
        trust=trust or (thresholds.trust if thresholds else None),
        numbers=lambda visit: size_of(method.stage_at(visit).name),
        total_units=method.total_units,
        summed_parts=plan.model.summed_parts,
        elsewhere=_elsewhere(plan),
    )
    check_events(method, settled)
    if thresholds is not None:
        check_integers_only(plan.model, plan.family, method, plan.schedule.rounds)
    elif privacy.aggregation != "plain":
        check_in_step(settled, plan.schedule, plan.live)
    return settled


def _terms(settled: Settled, event: GaussianEvent, visit: int) -> Terms:
    """Return clip, noise and counts of one visit, as `Task.terms` contains them."""
    return Terms(
        clip=settled.clip,
        noise_sd=settled.noise_sd,
        shares=float(settled.shares),
        units=settled.units,
        releases=settled.releases,
        clips=np.array([event.clip]),
        noise_sds=np.array([event.noise_sd]),
        progress=visit / max(1, settled.visits - 1),
    )


def first_factors(plan: Plan) -> dict[str, Natural]:
    """Return the initial factors of the parties. The first q is the prior times these factors.

    Some methods need a first q equal to the model's `start`. Every party then gets the factor
    (start/prior)^(1/M), where M is the number of parties; it is public. Otherwise, or if the run
    continues an earlier one, the parties have no initial factors. If the prior is outside the
    family, the initial factor of its pseudo-party is the approximation of the prior.
    """
    prior = plan.model.prior(plan.family)
    factors = {PRIOR_PARTY: prior} if plan.has_prior_party else {}
    if plan.earlier is None and not plan.method.starts_at_prior(plan.model):
        start = plan.model.start(plan.family) or prior
        share = power(divide(start, prior), 1.0 / len(plan.parties))
        factors |= dict.fromkeys(plan.parties, share)
    return factors

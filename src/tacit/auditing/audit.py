"""The audit of a plan: for each kind of release, the claimed ε and a lower bound on ε."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from tacit.auditing.canaries import canaries_in_one_run
from tacit.auditing.party import (
    AuditedParty,
    WorstPair,
    bits_epsilon,
    distance_below,
    reply_epsilon,
)
from tacit.errors import ConfigError
from tacit.methods import PrivateMethod
from tacit.plan.plan import Plan
from tacit.privacy.accounting import epsilon
from tacit.privacy.events import GaussianEvent
from tacit.testing.privacy_loss import oracles
from tacit.testing.releases import noted

DRAWS = 4_000
LOW_BIT_DRAWS = 1_000
WRONG_NOISE = 0.5
"""The test of the audit's power multiplies the noise by this factor."""

Kind = Literal["release", "reply", "low bits", "run", "canaries", "files"]
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of an audit: a claimed ε, and the lower bound on ε that was measured.

    Parameters
    ----------
    kind
        The attacked object: one release, its low bits, a complete reply, all releases of the run,
        the result of one run with canaries, or the files of a run directory.
    what
        Stage and number of the release.
    claim
        ε that the guarantee allows, at its δ.
    bound
        Lower bound on ε; None if nothing could be measured.
    wrong_noise
        Lower bound measured with half of the noise, which shows whether the test can detect too
        little noise; None if not measured.
    confidence
        Probability with which the bound holds.
    note
        How the bound was measured, or why it was not.
    """

    kind: Kind
    what: str
    claim: float
    bound: float | None
    wrong_noise: float | None = None
    confidence: float = 0.9999
    note: str = ""

    @property
    def holds(self) -> bool:
        """False if the lower bound is above the claim."""
        return self.bound is None or self.bound <= self.claim


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All findings about one plan, with the δ, unit and adjacency of its guarantee."""

    method: str
    unit: str
    adjacency: str
    delta: float
    epsilon: float
    findings: tuple[Finding, ...]
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """True if no measured lower bound on ε exceeds the claimed ε."""
        return all(one.holds for one in self.findings)


def audit(
    plan: Plan,
    *,
    party: str | None = None,
    draws: int = DRAWS,
    seconds: float = 120.0,
    canaries: bool = True,
    progress: Progress | None = None,
    seed: int = 0,
) -> Audit:
    """Audit the releases of one party of a private plan, with secret noise.

    For each kind of release, many pairs of neighbouring data sets are tried, and the pair whose
    exact sums differ most is kept. The party's code then draws the noise many times. The
    distribution of the noise along the difference of the two sums gives a lower bound on ε. The
    test is repeated with half of the noise. If it is powerful enough, its bound is then above the
    claimed ε.

    Parameters
    ----------
    plan
        A plan with `privacy`, made for synthetic records. Its noise seed is ignored.
    party
        The party to audit; by default the first.
    draws
        Number of draws per release.
    seconds
        Time after which drawing stops; each test takes a minimum number of draws even then.
    canaries
        Whether to run the plan once with canaries among the party's records.
    progress
        Called with a line of text before each step.
    seed
        Seed of neighbours and canaries.
    """
    assert plan.privacy is not None
    _check_gaussian(plan)
    started = time.monotonic()
    tell = progress or (lambda _: None)
    privacy = msgspec.structs.replace(plan.privacy, insecure_noise_seed=None)
    plan = replace(plan, privacy=privacy)
    party = party or next(iter(plan.parties))
    audited = AuditedParty(plan, party, seed=seed)
    visits = audited.visits()
    share = seconds / (2 * len(visits) + 1)
    findings: list[Finding] = []
    shown: dict[tuple[int, int], float] = {}
    for visit in visits:
        findings += _audit_visit(audited, visit, draws, share, tell, shown)
    findings.append(_whole_run(plan, party, visits, shown))
    if canaries:
        tell("a run with canaries")
        findings.append(canaries_in_one_run(plan, party, seed))
    guarantee = plan.settled[party].guarantee
    return Audit(
        method=plan.method.kind, unit=privacy.unit, adjacency=privacy.adjacency,
        delta=guarantee.delta, epsilon=guarantee.epsilon, findings=tuple(findings),
        seconds=time.monotonic() - started,
    )  # fmt: skip


def _check_gaussian(plan: Plan) -> None:
    assert isinstance(plan.method, PrivateMethod)
    if plan.method.pure:
        raise ConfigError(
            "privacy.delta = 0; the audit supports Gaussian noise only: audit the same study with "
            "a small delta (tests/privacy/test_pure.py tests the Laplace noise)"
        )


def _audit_visit(
    audited: AuditedParty,
    visit: int,
    draws: int,
    seconds: float,
    tell: Progress,
    shown: dict[tuple[int, int], float],
) -> list[Finding]:
    """Return the findings about one visit.

    For each release, `shown[visit, number of the release]` is set to the measured distance between
    neighbours divided by the charged distance.
    """
    plan = audited.plan
    assert plan.privacy is not None
    stage, plain = plan.method.stage_at(visit).name, plan.privacy.aggregation == "plain"
    findings: list[Finding] = []
    with noted():
        tell(f"{stage}: looking for the worst pair of neighbours")
        pairs = audited.worst_pairs(visit)
        tell(f"{stage}: drawing noise")
        for one in _releases(audited, pairs, draws, time.monotonic() + seconds):
            findings.append(one.finding)
            shown[visit, one.place] = one.share
        if plain and pairs and pairs[0].event.sampling is None:
            findings.append(_low_bits(audited, pairs[0]))
    if plain and pairs and not _absent(plan):
        tell(f"{stage}: attacking replies")
        findings.append(_replies(audited, pairs[0], draws, time.monotonic() + seconds))
    return findings


@dataclass(frozen=True)
class _Shown:
    """A finding about one release; `share` is the measured distance between neighbours, divided by
    the charged distance.
    """

    place: int
    share: float
    finding: Finding


def _releases(
    audited: AuditedParty, pairs: Sequence[WorstPair], draws: int, until: float
) -> list[_Shown]:
    plan = audited.plan
    assert plan.privacy is not None
    settled, adjacency = plan.settled[audited.party], plan.privacy.adjacency
    wrong, shares = replace(audited, noise_factor=WRONG_NOISE), settled.shares
    if plan.privacy.aggregation == "server":
        # The server adds all of the noise of a sum, so no share is scaled up.
        shares = 1
        sample = [audited.server_draws(pair, draws) for pair in pairs]
        less = [wrong.server_draws(pair, draws // 2) for pair in pairs]
    else:
        sample = audited.draws(pairs, pairs[0].first, draws, until)
        less = wrong.draws(pairs, pairs[0].first, draws // 2, until)
    found = []
    for pair, own, halved in zip(pairs, sample, less, strict=True):
        charged = pair.event.sensitivity(adjacency) / pair.event.noise_sd
        shown = distance_below(pair, own, shares)
        weak = distance_below(pair, halved, shares)
        part = 0.0 if shown is None else shown / charged
        delta = settled.guarantee.delta
        found.append(
            _Shown(
                pair.place,
                part,
                Finding(
                    kind="release",
                    what=f"{_stage_of(audited, pair)}, release {pair.place + 1}",
                    claim=_claim([pair.event], delta, adjacency),
                    bound=_shown_epsilon([pair.event], part, delta, adjacency),
                    wrong_noise=None
                    if weak is None
                    else _shown_epsilon([pair.event], weak / charged, delta, adjacency),
                    note=f"{len(own.noised):,} draws; the pair moves the sum by "
                    f"{pair.moved / pair.event.sensitivity(adjacency):.1%} of its sensitivity",
                ),
            )
        )
    return found


def _stage_of(audited: AuditedParty, pair: WorstPair) -> str:
    stage_at = audited.plan.method.stage_at
    visits = [one for one in audited.visits() if stage_at(one).name == pair.stage]
    return f"{pair.stage} at visit {pair.visit + 1}" if len(visits) > 1 else pair.stage


def _absent(plan: Plan) -> bool:
    # An absent party sends no reply that could be compared.
    assert plan.privacy is not None
    return plan.privacy.unit == "party" and plan.privacy.adjacency == "add-or-remove-one"


def _replies(audited: AuditedParty, pair: WorstPair, draws: int, until: float) -> Finding:
    plan = audited.plan
    assert plan.privacy is not None
    settled = plan.settled[audited.party]
    first, second = (
        audited.replies(pair, records, draws, until) for records in (pair.first, pair.second)
    )
    delta = settled.guarantee.delta
    return Finding(
        kind="reply",
        what=_stage_of(audited, pair),
        claim=_claim(settled.events_at(pair.visit), delta, plan.privacy.adjacency),
        bound=reply_epsilon(first, second, delta),
        note=f"threshold test of {len(first):,} + {len(second):,} replies",
    )


def _low_bits(audited: AuditedParty, pair: WorstPair) -> Finding:
    plan = audited.plan
    assert plan.privacy is not None
    delta = plan.settled[audited.party].guarantee.delta
    first, second = (
        audited.draws([pair], records, LOW_BIT_DRAWS, 0.0)[0]
        for records in (pair.first, pair.second)
    )
    return Finding(
        kind="low bits",
        what=f"{_stage_of(audited, pair)}, release {pair.place + 1}",
        claim=_claim([pair.event], delta, plan.privacy.adjacency),
        bound=bits_epsilon(pair, (first, second), delta),
        note="integers" if getattr(pair.event, "lattice", None) else "floating point",
    )


def _whole_run(
    plan: Plan, party: str, visits: Sequence[int], shown: dict[tuple[int, int], float]
) -> Finding:
    """Return a lower bound on ε for all audited releases of the run together.

    A visit that was not audited is treated like the closest earlier visit of the same stage that
    was audited.
    """
    assert plan.privacy is not None
    settled, adjacency = plan.settled[party], plan.privacy.adjacency
    events: list[GaussianEvent] = []
    for visit in range(settled.visits):
        stage, place = plan.method.stage_at(visit).name, 0
        like = max(
            (one for one in visits if one <= visit and plan.method.stage_at(one).name == stage),
            default=-1,
        )
        for event in settled.events_at(visit):
            for _ in range(event.count):
                part = shown.get((like, place), shown.get((like, 0), 0.0))
                single = msgspec.structs.replace(event, count=1)
                if 0.0 < part < math.inf:
                    events.append(_scaled(single, part))
                elif part == math.inf:
                    return Finding(
                        kind="run", what="all releases", claim=settled.guarantee.epsilon,
                        bound=math.inf, note="a release has no noise in some direction",
                    )  # fmt: skip
                place += 1
    bound = _oracle(_merged(events), settled.guarantee.delta, adjacency) if events else None
    return Finding(
        kind="run", what="all releases", claim=settled.guarantee.epsilon, bound=bound,
        note=f"{len(events):,} of {settled.releases:,} releases; lower bound of their composition",
    )  # fmt: skip


def _claim(events: Sequence[GaussianEvent], delta: float, adjacency: str) -> float:
    return epsilon(list(events), delta, adjacency)  # pyright: ignore[reportArgumentType]


def _shown_epsilon(
    events: Sequence[GaussianEvent], part: float, delta: float, adjacency: str
) -> float | None:
    if part == math.inf:
        return math.inf
    return _oracle([_scaled(one, part) for one in events], delta, adjacency) if part > 0 else None


def _scaled(event: GaussianEvent, part: float) -> GaussianEvent:
    """Return the event with its clip multiplied by `part`, and without its lattice."""
    changes = {"lattice": None} if hasattr(event, "lattice") else {}
    return msgspec.structs.replace(event, clip=event.clip * part, **changes)


def _oracle(events: Sequence[GaussianEvent], delta: float, adjacency: str) -> float:
    try:
        found = oracles(list(events), adjacency)  # pyright: ignore[reportArgumentType]
        return max(one.epsilon(delta) for one in found)
    except (ValueError, OverflowError):  # ε is in the hundreds
        return math.inf


def _merged(events: Sequence[GaussianEvent]) -> list[GaussianEvent]:
    counts: dict[GaussianEvent, int] = {}
    for event in events:
        counts[event] = counts.get(event, 0) + 1
    return [msgspec.structs.replace(event, count=n) for event, n in counts.items()]

"""Conformance suite of accountants: compare them with independent lower bounds of ε and δ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from tacit.errors import ConfigError
from tacit.privacy.events import Adjacency, GaussianEvent, Poisson, Sampling, WithoutReplacement
from tacit.testing.privacy_loss import oracles

Events = Sequence[GaussianEvent]
EpsilonOf = Callable[[Events, float, Adjacency], float]
DeltaOf = Callable[[Events, float, Adjacency], float]

DELTAS = (1e-5, 1e-2)
GRID = 1e-3
"""Relative tolerance for results that should be equal or ordered."""


class Case(NamedTuple):
    """Releases whose ε has a known lower bound."""

    name: str
    adjacency: Adjacency
    events: tuple[GaussianEvent, ...]


class Wrong(NamedTuple):
    """A deliberate error of an accountant. The function `changed` converts the given events to the
    events that an accountant with this error would use.
    """

    name: str
    changed: Callable[[Events], Events]


def check_accountant(
    epsilon: EpsilonOf, delta: DeltaOf | None = None, *, power: bool = True
) -> float:
    """Assert that an accountant never reports less than the actual privacy loss.

    An accountant computes ε or δ from Gaussian events. For releases without sampling, the suite
    compares the result with the closed form. For sampled releases, alone and mixed with others, the
    suite compares it with a numerically integrated privacy loss. Both adjacencies are tested. The
    following properties are also checked:

    * ε increases with the number of releases, the sampling rate and 1/δ, and decreases if there is
      more noise;
    * ε does not depend on the order and grouping of events, or on the unit of clip and noise;
    * events without a guarantee are refused.

    Parameters
    ----------
    epsilon
        `epsilon(events, delta, adjacency)` returns an upper bound of ε. It may raise a
        `ConfigError` for sampled events for which the accountant has no bound.
    delta
        `delta(events, epsilon, adjacency)` returns an upper bound of δ. If None, δ is not checked.
    power
        Also test four variants of this accountant with a known error: half the sampling rate, a
        sensitivity too small by √2, one release missing, one of several events ignored. The suite
        must reject each variant. If the accountant's ε is so large that it exceeds the true ε even
        with the error, the variant is not rejected and the accountant fails. Set `power` to False
        if such a loose accountant is intended.

    Returns
    -------
    float
        The minimum over all cases of the accountant's ε divided by the lower bound of ε; 1 for an
        exact accountant.
    """
    kinds = _supported(epsilon)
    cases = _cases(kinds)
    ratios = [_check_bound(epsilon, delta, case, level) for case in cases for level in DELTAS]
    _check_monotone(epsilon, kinds)
    _check_composition(epsilon, cases)
    _check_refusals(epsilon, delta)
    if power:
        for wrong in WRONG:
            _check_power(epsilon, wrong, cases, min(ratios))
    return min(ratios)


def _event(
    noise: float,
    count: int = 1,
    sampling: Sampling | None = None,
    *,
    clip: float = 1.0,
    nonnegative: bool = False,
) -> GaussianEvent:
    return GaussianEvent(
        clip=clip, noise_sd=noise * clip, count=count, sampling=sampling, nonnegative=nonnegative
    )


_POISSON, _BATCH = Poisson(rate=0.05), WithoutReplacement(batch=5, total=100)
_KINDS: tuple[tuple[Adjacency, Sampling | None], ...] = (
    ("add-or-remove-one", None),
    ("add-or-remove-one", _POISSON),
    ("replace-one", None),
    ("replace-one", _POISSON),
    ("replace-one", _BATCH),
)
Kinds = list[tuple[Adjacency, Sampling | None]]


def _supported(epsilon: EpsilonOf) -> Kinds:
    kinds: Kinds = []
    for adjacency, sampling in _KINDS:
        try:
            epsilon([_event(2.0, 1, sampling)], DELTAS[0], adjacency)
        except ConfigError as error:
            if sampling is None:
                raise AssertionError(
                    f"support: the accountant refuses releases without sampling under {adjacency} "
                    f"({error}); expected a bound, because there is a closed form"
                ) from None
        else:
            kinds.append((adjacency, sampling))
    return kinds


def _cases(kinds: Kinds) -> list[Case]:
    cases = []
    for adjacency, sampling in kinds:
        how = "no sampling" if sampling is None else type(sampling).__name__
        noise = 2.0 if sampling is None else 1.2
        lists = {
            "one release": (_event(noise, 1, sampling),),
            "two releases": (_event(noise, 2, sampling, clip=0.25),),
            "many releases": (_event(2.0 * noise, 60, sampling),),
            "nonnegative": (_event(noise, 3, sampling, nonnegative=True),),
            "mixed events": (
                _event(3.0 * noise, 5, sampling),
                _event(4.0, 2, clip=7.0),
                _event(noise, 3, sampling, nonnegative=True),
            ),
        }
        if sampling is None:
            lists["a large ε"] = (_event(0.1, clip=10.0),)
        cases += [Case(f"{name}, {how}", adjacency, events) for name, events in lists.items()]
    return cases


def _check_bound(epsilon: EpsilonOf, delta: DeltaOf | None, case: Case, level: float) -> float:
    """Check that ε and δ are not below their known lower bounds; return the ratio of ε to its lower
    bound.
    """
    where = f"{case.name}, {case.adjacency}, δ = {level:g}"
    reported = float(epsilon(case.events, level, case.adjacency))
    assert reported >= 0, f"epsilon: {where}: reported {reported}, expected a number ≥ 0"
    bounds = oracles(case.events, case.adjacency)
    least = max(bound.epsilon(level) for bound in bounds)
    assert reported >= least, (
        f"epsilon: {where}: reported ε = {reported:.6g}, but ε is at least {least:.6g}"
    )
    if delta is not None:
        at = 0.9 * least
        found, lost = delta(case.events, at, case.adjacency), max(one.delta(at) for one in bounds)
        assert lost <= found <= 1, (
            f"delta: {where}: reported δ = {found:.6g} at ε = {at:.6g}, expected a value "
            f"between the lower bound {lost:.6g} and 1"
        )
        if math.isfinite(reported):
            back = delta(case.events, reported, case.adjacency)
            assert back <= level * (1 + GRID), (
                f"inverse: {where}: δ at the reported ε is {back:.6g}, expected at most {level:g}"
            )
    return reported / least


def _check_monotone(epsilon: EpsilonOf, kinds: Kinds) -> None:
    level = DELTAS[0]
    for adjacency, sampling in kinds:
        how = "no sampling" if sampling is None else type(sampling).__name__
        here = epsilon([_event(2.0, 10, sampling)], level, adjacency)
        dearer = {
            "releases": epsilon([_event(2.0, 11, sampling)], level, adjacency),
            "1/noise": epsilon([_event(1.8, 10, sampling)], level, adjacency),
            "1/δ": epsilon([_event(2.0, 10, sampling)], level / 2, adjacency),
        }
        if sampling is not None:
            larger = (
                Poisson(rate=1.2 * sampling.rate)
                if isinstance(sampling, Poisson)
                else WithoutReplacement(batch=sampling.batch + 1, total=sampling.total)
            )
            dearer["rate"] = epsilon([_event(2.0, 10, larger)], level, adjacency)
            dearer["rate up to 1"] = epsilon([_event(2.0, 10)], level, adjacency)
        for what, more in dearer.items():
            assert more >= here * (1 - GRID), (
                f"monotone in {what}: {how}, {adjacency}: ε falls from {here:.6g} to {more:.6g}"
            )


def _check_composition(epsilon: EpsilonOf, cases: Sequence[Case]) -> None:
    level = DELTAS[0]
    for case in cases:
        if not case.name.startswith("mixed"):
            continue
        where = f"{case.name}, {case.adjacency}"
        whole = epsilon(case.events, level, case.adjacency)
        singles = [_changed(e, count=1) for e in case.events for _ in range(e.count)]
        scaled = [_changed(e, clip=8 * e.clip, noise_sd=8 * e.noise_sd) for e in case.events]
        for what, events in {
            "order": case.events[::-1],
            "grouping": singles[::2] + singles[1::2],
            "unit of clip and noise": scaled,
        }.items():
            other = epsilon(events, level, case.adjacency)
            assert abs(other - whole) <= GRID * whole, (
                f"composition: {where}: ε = {whole:.6g} becomes {other:.6g} with another {what}"
            )
        for left_out in range(len(case.events)):
            rest = [event for place, event in enumerate(case.events) if place != left_out]
            less = epsilon(rest, level, case.adjacency)
            assert less <= whole * (1 + GRID), (
                f"composition: {where}: ε = {whole:.6g} of all events, but {less:.6g} without "
                f"event {left_out}"
            )


def _check_refusals(epsilon: EpsilonOf, delta: DeltaOf | None) -> None:
    event = _event(2.0)
    for bad in (1.0, -1e-5, math.nan):
        _refused(f"delta = {bad}", lambda bad=bad: epsilon([event], bad, "add-or-remove-one"))
    _check_no_pure_epsilon(lambda: epsilon([event], 0.0, "add-or-remove-one"))
    _refused(
        "sampling without replacement under add-or-remove-one, which reveals the number of units",
        lambda: epsilon([_event(2.0, 1, _BATCH)], DELTAS[0], "add-or-remove-one"),
    )
    if delta is not None:
        for bad in (-0.1, math.nan):
            _refused(f"epsilon = {bad}", lambda bad=bad: delta([event], bad, "add-or-remove-one"))


def _check_no_pure_epsilon(call: Callable[[], float]) -> None:
    """Check that the accountant refuses δ = 0 or returns an infinite ε, because Gaussian noise
    gives no finite ε at δ = 0.
    """
    try:
        answer = call()
    except ConfigError:
        return
    if answer != math.inf:
        raise AssertionError(
            f"refusal: delta = 0.0: the accountant returned {answer}, expected infinity or a "
            "ConfigError"
        )


def _refused(what: str, call: Callable[[], float]) -> None:
    try:
        answer = call()
    except ConfigError:
        return
    raise AssertionError(
        f"refusal: {what}: the accountant returned {answer}, expected a ConfigError"
    )


def _check_power(epsilon: EpsilonOf, wrong: Wrong, cases: Sequence[Case], ratio: float) -> None:
    """Check that an accountant with this error fails in at least one case."""
    if wrong.name == HALF_RATE and not any(e.sampling for case in cases for e in case.events):
        return  # it has no bound for sampled releases: there is no rate to get wrong
    for case in cases:
        changed = wrong.changed(case.events)
        reported = epsilon(changed, DELTAS[0], case.adjacency) if changed else 0.0
        bounds = oracles(case.events, case.adjacency)
        if reported < max(bound.epsilon(DELTAS[0]) for bound in bounds):
            return
    raise AssertionError(
        f"power: even with a deliberate error ({wrong.name}) the accountant reports more than the "
        "lower bound of ε in all cases, because without the error it reports at least "
        f"{ratio:.3g} times this bound; make it tighter, or set power=False to accept this"
    )


def _halved(event: GaussianEvent) -> GaussianEvent:
    sampling = event.sampling
    if sampling is None:
        return event
    if isinstance(sampling, Poisson):
        return _changed(event, sampling=Poisson(rate=sampling.rate / 2))
    half = WithoutReplacement(batch=sampling.batch, total=2 * sampling.total)
    return _changed(event, sampling=half)


def _one_fewer(events: Events) -> Events:
    first, *rest = events
    return [_changed(first, count=first.count - 1), *rest] if first.count > 1 else rest


def _changed(event: GaussianEvent, **fields: object) -> GaussianEvent:
    return msgspec.structs.replace(event, **fields)


HALF_RATE = "half of the sampling rate"
WRONG = (
    Wrong(HALF_RATE, lambda events: [_halved(event) for event in events]),
    Wrong(
        "a sensitivity too small by √2",
        lambda events: [_changed(e, noise_sd=math.sqrt(2.0) * e.noise_sd) for e in events],
    ),
    Wrong("one release too few", _one_fewer),
    Wrong("only the first of several events", lambda events: events[:1]),
)

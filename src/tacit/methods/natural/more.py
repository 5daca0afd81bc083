"""The phase of `NaturalSolver` that takes more draws where the result is not precise enough.

Every result that consists of weighted draws has Monte-Carlo errors
(`tacit.methods.natural.precision`). If an error is above its limit, or if the weights are not good
enough, the solver fits a mixture of Student-t distributions to the weighted draws
(`tacit.methods.natural.adapt`) and requests the log-likelihood at more draws from this mixture. If
the result is a split with good weights, the first of these draws are from the split. At most
`MOST_EXCHANGES` such exchanges follow each other, each with a mixture that is fitted to the last
draws. This is adaptive importance sampling.

A result that was trusted before is replaced if the new draws have good weights, smaller errors and
more effective draws. A result that was not trusted is replaced only if the new draws have good
weights and small errors, and if their moments agree with those of the exchange before: draws from a
proposal that misses a part of the posterior may have good weights too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacit.arrays import Arrays
from tacit.expfam.quadrature import many_draws, weighing_draws
from tacit.methods.natural import adapt, split_phases
from tacit.methods.natural.heavy import SOBOL_UP_TO, TAILS, tail_draws
from tacit.methods.natural.move import Place
from tacit.methods.natural.precision import EXACT, Precision, precision_of
from tacit.methods.natural.scale_prior import mixture_draws
from tacit.methods.natural.split_phases import NODES_KEPT
from tacit.methods.natural.stages import MORE
from tacit.methods.natural.weights import (
    CLOSE_SHARE,
    DOUBTED,
    Weighed,
    is_believed,
    weigh_draws,
)
from tacit.server.combine import RoundSum, Shared

if TYPE_CHECKING:
    from tacit.methods.natural.solver import NaturalSolver

MORE_PHASE = 10
MIXTURE, SPLIT, SCALES = 1.0, 2.0, 3.0
"""Where draws of this phase come from: a fitted mixture, the split of the result before, or the
mixture over the scales of the default prior.
"""
MOST_EXCHANGES = 4
MAX_MORE_K = 0.5
"""Largest Pareto shape k̂ of accepted weights; their variance is then finite."""
AGREEING = 0.1
"""Largest difference of means (in sds) and of log sds between two exchanges that agree."""
BEFORE, LAST, BEST = "more.before.", "more.last.", "more.best."


def checked(solver: NaturalSolver, ended: Shared) -> Shared:
    """Return a finished state with the errors of its result in the server's memory, or a request
    for more draws if the result should be improved.

    With the default prior, a result that is trusted but imprecise takes more draws from the mixture
    over the scales of the prior, in one exchange.
    """
    memory, public = dict(ended.memory or {}), ended.public
    if "weighted" not in public or "pareto_k" not in memory:
        return ended
    drawn = _result_draws(public)
    precision = EXACT if drawn is None else _precision(solver, memory, public, *drawn)
    memory |= _packed(precision)
    trusted = is_trusted(memory)
    if not solver.affordable or (trusted and precision.enough):
        return ended._replace(memory=_tidied(memory))
    if solver.scale_prior is not None and not trusted:
        return ended._replace(memory=_tidied(memory))
    if drawn is None:
        drawn = _wide_start(public)
    facts = {"finished": np.asarray(float(ended.finished == "converged"))}
    memory |= {f"{BEFORE}{name}": one for name, one in (public | facts).items()}
    if solver.scale_prior is not None:
        more = _more_scales(solver, memory)
        if more is None:
            return ended._replace(memory=_tidied(memory))
        return _asked(ended, memory, *more, MOST_EXCHANGES, SCALES)
    if trusted and "split.axis" in memory and any(n.startswith(NODES_KEPT) for n in memory):
        again = split_phases.more_draws(memory, many_draws(solver.family.dimension))
        return _asked(ended, memory, again.theta, again.log_density, 1, SPLIT)
    return _request(ended, memory, *drawn, 1)


def _more_scales(solver: NaturalSolver, memory: Arrays) -> tuple[np.ndarray, np.ndarray] | None:
    """Return draws from the mixture over the scales of the prior, and their log-densities; None if
    no draws can be made.
    """
    place = Place.unpack(memory)
    assert solver.scale_prior is not None
    assert place is not None
    names = ("q.mean", "q.root") if "q.mean" in memory else (f"{BEFORE}mean", f"{BEFORE}root")
    mean, root = (memory[name] for name in names)
    try:
        return mixture_draws(solver.scale_prior, place, mean, root, many_draws(len(mean)))
    except np.linalg.LinAlgError:  # the likelihood is not finite there
        return None


def _tidied(memory: Arrays) -> Arrays:
    """Return the server's memory without arrays that only this phase needs."""
    return {name: one for name, one in memory.items() if not name.startswith(("more.", NODES_KEPT))}


def is_trusted(memory: Arrays) -> bool:
    """True if the weights in the server's memory are those of a result that is accepted."""
    whole = float(memory.get("split.cut_off", 0.0)) == 0.0 and "split.value" not in memory
    good = is_believed(float(memory["pareto_k"]), float(memory["effective_share"]))
    return good and whole and bool(memory["settled"]) and DOUBTED not in memory


def after_more(solver: NaturalSolver, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
    """Compute importance weights of the additional draws. Return the final result, or a request
    for draws from a mixture that is fitted to these draws.
    """
    theta = shared.public["draws"]
    found = weigh_draws(theta, memory["more.log_density"], solver.log_joint(theta, answers))
    exchanges = int(memory["more.exchanges"])
    precision = precision_of(theta, found.log_weights, solver.sites)
    trusted = is_trusted(memory)
    good = found.even or (found.sound and found.pareto_k <= MAX_MORE_K)
    if trusted:
        if good and _improves(memory, found, precision):
            memory |= _kept(theta, found, precision, memory["more.source"])
        # Nearly all draws are effective: another proposal would not give smaller errors.
        done = good and (precision.enough or found.effective_share >= CLOSE_SHARE)
    else:
        done = good and precision.enough and _agrees(memory, found)
        if done:
            memory |= _kept(theta, found, precision, memory["more.source"])
    if done or exchanges >= MOST_EXCHANGES or not found.effective_share > 0:
        return finish(solver, memory)
    memory |= {f"{LAST}mean": found.mean, f"{LAST}variance": np.diagonal(found.covariance).copy()}
    return _request(shared, memory, theta, found.log_weights, exchanges + 1)


def finish(solver: NaturalSolver, memory: Arrays) -> Shared:
    """End the run with the best additional draws, or with the result from before them."""
    kept = {n.removeprefix(BEST): one for n, one in memory.items() if n.startswith(BEST)}
    before = {n.removeprefix(BEFORE): one for n, one in memory.items() if n.startswith(BEFORE)}
    memory = _tidied(memory)
    if not kept:
        finished = "converged" if bool(before.pop("finished")) else "rounds"
        q = solver.natural(*_moments(solver, before))
        note = "more draws were not better"
        return Shared(q, before, memory, finished=finished, note=note)
    names = ("pareto_k", "effective_share", "skewness", "mean_error", "sd_error")
    if float(kept["source"]) != SPLIT:
        memory = {name: one for name, one in memory.items() if not name.startswith("split.")}
    memory |= {name: kept[name] for name in names} | {"settled": np.asarray(1.0)}
    memory.pop(DOUBTED, None)
    public = {name: kept[name] for name in ("mean", "root", "more_log_weights", "more_draws")}
    public |= {"weighted": np.asarray(1.0)}
    q = solver.natural(kept["mean"], kept["root"])
    return Shared(q, public, memory | {"more": kept["source"]}, finished="converged")


def _request(
    shared: Shared, memory: Arrays, theta: np.ndarray, log_weights: np.ndarray, exchanges: int
) -> Shared:
    mixture = adapt.fitted(theta, log_weights, exchanges)
    draws = mixture.draw(many_draws(theta.shape[1]), exchanges)
    return _asked(shared, memory, draws, mixture.log_density(draws), exchanges, MIXTURE)


def _asked(
    shared: Shared,
    memory: Arrays,
    draws: np.ndarray,
    log_density: np.ndarray,
    exchanges: int,
    source: float,
) -> Shared:
    memory |= {
        "more.log_density": log_density,
        "more.exchanges": np.asarray(exchanges),
        "more.source": np.asarray(source),
        "phase": np.asarray(MORE_PHASE),
    }
    return Shared(shared.q, {"draws": draws}, memory, stage=MORE, note="more draws")


def _result_draws(public: Arrays) -> tuple[np.ndarray, np.ndarray] | None:
    if not public["weighted"]:
        return None
    if "draws" in public:
        return public["draws"], public["log_weights"]
    return public["mean"] + weighing_draws(len(public["mean"])) @ public["root"].T, public[
        "log_weights"
    ]


def _wide_start(public: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return draws with equal weights, with the moments of the result and heavier tails."""
    points = tail_draws(len(public["mean"]))[0]
    theta = public["mean"] + points @ public["root"].T
    return theta, np.full(len(theta), -np.log(len(theta)))


def _precision(
    solver: NaturalSolver,
    memory: Arrays,
    public: Arrays,
    theta: np.ndarray,
    log_weights: np.ndarray,
) -> Precision:
    exact, size = None, theta.shape[1]
    if "draws" not in public:
        exact = weighing_draws(size)
    elif TAILS in memory and size <= SOBOL_UP_TO:
        exact = tail_draws(size)[0]  # averages over a Sobol sequence are nearly exact
    return precision_of(theta, log_weights, solver.sites, exact)


def _improves(memory: Arrays, found: Weighed, precision: Precision) -> bool:
    """True if new draws have smaller errors than the best ones so far, and more of them are
    effective.
    """
    if f"{BEST}worst" in memory:
        worst, effective = float(memory[f"{BEST}worst"]), float(memory[f"{BEST}effective"])
    else:
        worst = Precision(float(memory["mean_error"]), float(memory["sd_error"])).worst
        effective = float(memory["effective_share"]) * len(memory[f"{BEFORE}log_weights"])
    more = found.effective_share * len(found.log_weights) > effective
    return more and precision.worst < worst


def _agrees(memory: Arrays, found: Weighed) -> bool:
    if f"{LAST}mean" not in memory:
        return False
    variance = np.diagonal(found.covariance)
    moved = np.abs(found.mean - memory[f"{LAST}mean"]) / np.sqrt(variance)
    widened = 0.5 * np.abs(np.log(variance / memory[f"{LAST}variance"]))
    return bool(np.all(moved <= AGREEING) and np.all(widened <= AGREEING))


def _kept(theta: np.ndarray, found: Weighed, precision: Precision, source: np.ndarray) -> Arrays:
    kept = found.facts | _packed(precision)
    kept |= {"mean": found.mean, "root": found.root(np.eye(len(found.mean)))}
    kept |= {"more_draws": theta, "more_log_weights": found.log_weights}
    kept |= {"worst": np.asarray(precision.worst), "source": source}
    kept["effective"] = np.asarray(found.effective_share * len(theta))
    return {f"{BEST}{name}": one for name, one in kept.items()}


def _packed(precision: Precision) -> Arrays:
    return {name: np.asarray(min(one, 1e9)) for name, one in precision._asdict().items()}


def _moments(solver: NaturalSolver, public: Arrays) -> tuple[np.ndarray, np.ndarray]:
    from tacit.expfam.rooted import RootedGaussian

    return RootedGaussian(solver.family.dimension).moments(public)

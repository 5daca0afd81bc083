"""Hierarchical models whose groups are the parties, against NUTS, under every schedule.

Random intercepts with a normal or a yes/no outcome, written centred and non-centred, 3, 8 and 85
groups of unequal size with 900 records in all; each group's records are one party's. The reference
is NumPyro's NUTS on the non-centred form, four chains, with R-hat < 1.01 and 400 effective draws of
every quantity, or more draws until that is so; it is kept in benchmarks/results/hierarchical.

Printed per case and schedule: the largest error of a fixed effect in reference sds, the extreme
ratios of their sds, the same of the scale of the intercepts, the exchanges per party, whether the
fit flags itself, and how far the schedules are apart. A case counts as right if every fixed effect
is within .1 sd with a ratio of .85 to 1.15, and every schedule gives the same within .02 sd.

    python -m benchmarks.hierarchical [--groups 3 8 85] [--schedules synchronous] [--sampling]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

import tacit

RECORDS = 900
GROUPS = (3, 8, 85)
OUTCOMES = ("normal", "logistic")
FORMS = ("centred", "non-centred")
SCHEDULES = ("synchronous", "sequential", "asynchronous")
FIXED = ("intercept", "beta[1]", "beta[2]")
SCALE = "tau"
MEAN_ERROR, SD_BAND, SAME = 0.1, (0.85, 1.15), 0.02
CHAINS, WARMUP, DRAWS, MOST_DRAWS = 4, 1_000, 2_000, 16_000
MOST_RHAT, LEAST_ESS = 1.01, 400
POSTERIOR_DRAWS = 100_000
RESULTS = Path(__file__).resolve().parent / "results" / "hierarchical"

Records = dict[str, np.ndarray]


class Case(NamedTuple):
    """One data set."""

    groups: int
    outcome: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.outcome}, {self.groups} groups"


def make_records(case: Case) -> Records:
    """Records of unequal groups; the effects are of the size of the noise."""
    rng = np.random.default_rng([case.seed, case.groups, OUTCOMES.index(case.outcome)])
    shares = rng.dirichlet(np.full(case.groups, 4.0))
    sizes = 2 + rng.multinomial(RECORDS - 2 * case.groups, shares)
    group = np.repeat(np.arange(case.groups), sizes)
    x = rng.normal(size=(RECORDS, 2)) + 0.5 * rng.normal(size=(case.groups, 2))[group]
    eta = 0.3 + x @ [0.8, -0.5] + 0.7 * rng.normal(size=case.groups)[group]
    if case.outcome == "normal":
        y = eta + 1.5 * rng.normal(size=RECORDS)
    else:
        y = (eta + rng.logistic(size=RECORDS) > 0).astype(np.float64)
    return {"x": x, "group": group, "y": y}


def make_model(outcome: str, form: str) -> Callable[..., None]:
    """The model as a user would write it."""

    def model(x, group, groups, y=None):
        intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
        tau = numpyro.sample(SCALE, dist.HalfNormal(2.0))
        with numpyro.plate("groups", groups):
            if form == "centred":
                effect = numpyro.sample("effect", dist.Normal(0.0, tau))
            else:
                effect = tau * numpyro.sample("raw", dist.Normal(0.0, 1.0))
        eta = intercept + x @ beta + jnp.asarray(effect)[group]
        if outcome == "normal":
            sigma = numpyro.sample("sigma", dist.HalfNormal(5.0))
            observed = dist.Normal(eta, sigma)
        else:
            observed = dist.Bernoulli(logits=eta)
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", observed, obs=y)

    return model


def columns(sites: dict[str, Any]) -> np.ndarray:
    """Draws of the fixed effects and of tau, side by side."""
    intercept, tau = (np.asarray(sites[name])[:, None] for name in ("intercept", SCALE))
    return np.hstack([intercept, np.asarray(sites["beta"]), tau])


def reference(case: Case) -> dict[str, Any]:
    """Mean and sd by NUTS, or those of an earlier run of the same case."""
    asked = {"case": list(case), "numpyro": numpyro.__version__, "draws": DRAWS, "form": 1}
    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    path = RESULTS / f"{digest}.json"
    if path.is_file():
        return json.loads(path.read_text())
    found = sample_reference(case)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found))
    return found


def sample_reference(case: Case) -> dict[str, Any]:
    records, draws = make_records(case), DRAWS
    started = time.process_time()
    while True:
        sampler = MCMC(
            NUTS(make_model(case.outcome, "non-centred"), target_accept_prob=0.95),
            num_warmup=WARMUP, num_samples=draws, num_chains=CHAINS,
            chain_method="sequential", progress_bar=False,
        )  # fmt: skip
        sampler.run(jax.random.key(case.seed), **records, groups=case.groups)
        found = columns(sampler.get_samples())
        chains = found.reshape(CHAINS, draws, -1)
        rhat = float(np.max(split_gelman_rubin(chains)))
        ess = float(np.min(effective_sample_size(chains)))
        trusted = rhat < MOST_RHAT and ess >= LEAST_ESS
        if trusted or 2 * draws > MOST_DRAWS:
            break
        draws *= 2
    return {
        "mean": found.mean(axis=0).tolist(),
        "sd": found.std(axis=0, ddof=1).tolist(),
        "rhat": rhat,
        "ess": ess,
        "trusted": trusted,
        "cpu_s": time.process_time() - started,
    }


def run(case: Case, form: str, schedule: str, method: Any = "auto") -> dict[str, Any]:
    """One fit with the groups as parties; mean and sd of the compared quantities."""
    records = make_records(case)
    parties = {
        f"group-{g + 1:02d}": {key: value[records["group"] == g] for key, value in records.items()}
        for g in range(case.groups)
    }
    example = {key: value[:4] for key, value in records.items()}
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = tacit.from_numpyro(
            make_model(case.outcome, form), example, arguments={"groups": case.groups}
        )
        fit = tacit.fit(
            model, parties, privacy="none", schedule=schedule, seed=case.seed, method=method
        )
    spent = time.process_time() - started
    found = columns(fit.posterior.draws(POSTERIOR_DRAWS, seed=case.seed))
    with tempfile.TemporaryDirectory() as folder:
        saved = json.loads((fit.save(Path(folder) / "fit") / "result.json").read_text())
    return {
        "mean": found.mean(axis=0),
        "sd": found.std(axis=0, ddof=1),
        "exchanges": saved["exchanges"] / case.groups,
        "flagged": not fit.converged or bool(fit.cautions),
        "why": "; ".join([*([] if fit.converged else [fit.why]), *fit.cautions]),
        "cpu_s": spent,
    }


def judge(found: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    """Errors against the reference, fixed effects and tau apart."""
    mean, sd = np.asarray(truth["mean"]), np.asarray(truth["sd"])
    error, ratio = np.abs(found["mean"] - mean) / sd, found["sd"] / sd
    fixed = slice(0, len(FIXED))
    low, high = ratio[fixed].min(), ratio[fixed].max()
    right = error[fixed].max() <= MEAN_ERROR and SD_BAND[0] <= low and high <= SD_BAND[1]
    return {
        "error": float(error[fixed].max()),
        "sd_low": float(low),
        "sd_high": float(high),
        "tau_error": float(error[-1]),
        "tau_ratio": float(ratio[-1]),
        "right": bool(right),
    }


def apart(found: list[dict[str, Any]], truth: dict[str, Any]) -> float:
    """The largest difference between the means of two schedules, in reference sds."""
    means = np.stack([one["mean"] for one in found])
    return float(np.max(np.ptp(means, axis=0) / np.asarray(truth["sd"])))


def line(case: Case, form: str, schedule: str, found: dict[str, Any], one: dict[str, Any]) -> str:
    verdict = "right" if one["right"] else "flagged" if found["flagged"] else "WRONG"
    also = ", flagged" if one["right"] and found["flagged"] else ""
    also += f": {found['why']}" if found["flagged"] else ""
    return (
        f"{case.name:22} {form:12} {schedule:13} {one['error']:8.3f} "
        f"{one['sd_low']:6.3f}-{one['sd_high']:<6.3f} {one['tau_error']:8.3f} "
        f"{one['tau_ratio']:6.3f} {found['exchanges']:6.1f} {found['cpu_s']:7.1f}  {verdict}{also}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, nargs="+", default=GROUPS)
    parser.add_argument("--outcomes", choices=OUTCOMES, nargs="+", default=OUTCOMES)
    parser.add_argument("--schedules", choices=SCHEDULES, nargs="+", default=SCHEDULES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sampling", action="store_true", help="method.sampling = true")
    chosen = parser.parse_args()
    method = tacit.methods.NaturalVI(sampling=True) if chosen.sampling else "auto"
    print(
        f"{'case':22} {'form':12} {'schedule':13} {'error':>8} {'sd ratio':13} {'tau err':>8} "
        f"{'ratio':>6} {'exch.':>6} {'CPU s':>7}"
    )
    counts = {"right": 0, "flagged": 0, "WRONG": 0, "apart": 0}
    for groups, outcome in product(chosen.groups, chosen.outcomes):
        case = Case(groups, outcome, chosen.seed)
        truth = reference(case)
        if not truth["trusted"]:
            print(f"{case.name}: no reference, R-hat {truth['rhat']:.3f}, ESS {truth['ess']:.0f}")
            continue
        for form in FORMS:
            every = []
            for schedule in chosen.schedules:
                found = run(case, form, schedule, method)
                one = judge(found, truth)
                every.append(found)
                counts["right" if one["right"] else "flagged" if found["flagged"] else "WRONG"] += 1
                print(line(case, form, schedule, found, one), flush=True)
            distance = apart(every, truth)
            counts["apart"] += distance > SAME
            print(f"{'':36}schedules differ by {distance:.4f} sd", flush=True)
    print(
        f"\n{counts['right']} right, {counts['flagged']} flagged, {counts['WRONG']} wrong in "
        f"silence; schedules differ in {counts['apart']} cases"
    )
    return 1 if counts["WRONG"] else 0


if __name__ == "__main__":
    raise SystemExit(main())

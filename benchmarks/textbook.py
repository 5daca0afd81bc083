"""Textbook models in raw units with default inference at 1, 5 and 20 parties, against NUTS.

The models are those of `benchmarks.textbook_models`: none is in posteriordb, and none was used to
choose a default. Records are dealt to the parties at random. References are NumPyro's NUTS on all
records in coordinates in which the posterior has about unit scale, with a dense mass matrix, four
chains from starts that are further apart than the posterior is wide; R-hat < 1.01, 1,000 effective
draws of every coordinate and a standard error of its sd of at most 4 % (long tails make it large),
or twice as many draws until that is so. With one coordinate they are by quadrature.
They are kept in benchmarks/results/textbook.

A fit is right if every mean is within .1 sd and every ratio of sds in .88 to 1.1, over all
coordinates of all sites; flagged if it is not right and the fit says so; WRONG otherwise. Models
that cannot be fitted as sums over independent records should be refused with one line.

    python -m benchmarks.textbook [NAME ...] [--parties 1 5 20] [--seed 0] [--sampling]
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import inspect
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.flatten_util import ravel_pytree
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS, init_to_median
from numpyro.infer.util import initialize_model

import tacit
from benchmarks import textbook_models
from benchmarks.textbook_models import CASES, Case, make_case
from benchmarks.textbook_more import MORE
from benchmarks.textbook_small import SMALL
from tacit.methods.natural.curvature import absolute_eigen
from tacit.methods.natural.party import with_hessian
from tacit.methods.natural.search import find_mode

CASES.update(MORE)
CASES.update(SMALL)
PARTIES = (1, 5, 20)
CHAINS, WARMUP, DRAWS, MOST_DRAWS = 4, 500, 1_000, 16_000
MOST_RHAT, LEAST_ESS, SD_ERROR = 1.01, 1_000, 0.04
STUCK_RHAT = 2.0
MEAN_ERROR, SD_BAND = 0.1, (0.88, 1.1)
POSTERIOR_DRAWS = 50_000
GRID_REACH, GRID_POINTS = 300.0, 120_001
RESULTS = Path(__file__).resolve().parent / "results" / "textbook"


def reference(name: str, seed: int) -> dict[str, Any]:
    """Moments of every site by NUTS, or those of an earlier run of the same case."""
    case = make_case(name, seed)
    source = inspect.getsource(CASES[name]) + inspect.getsource(textbook_models.ordered)
    asked = [source, seed, CHAINS, WARMUP, DRAWS, MOST_DRAWS, numpyro.__version__, 2]
    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]
    path = RESULTS / f"{name}-{digest}.json"
    if path.is_file():
        return json.loads(path.read_text())
    found = sampled_reference(case, seed)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found))
    return found


def sampled_reference(case: Case, seed: int) -> dict[str, Any]:
    started = time.process_time()
    given = {key: jnp.asarray(value) for key, value in case.records.items()} | case.arguments
    facts = initialize_model(
        jax.random.key(seed), case.reference or case.model, model_kwargs=given,
        init_strategy=init_to_median(), dynamic_args=False,
    )  # fmt: skip
    start, shaped = ravel_pytree(facts.param_info.z)
    potential: Callable[..., Any] = facts.potential_fn

    def log_joint(theta: Any) -> Any:
        return -potential(shaped(theta))

    mode = find_mode(lambda theta: with_hessian(log_joint, theta, len(start)), start)
    eigen = absolute_eigen(-jax.hessian(log_joint)(mode))
    root = eigen.inverse_root

    def in_z(z: Any) -> Any:
        return -log_joint(mode + root @ z)

    if len(start) == 1:  # quadrature, which finds every mode
        return gridded(lambda z: -in_z(z), lambda z: facts.postprocess_fn(shaped(mode + root @ z)))
    draws, reach = DRAWS, 1.5
    while True:
        kernel = NUTS(potential_fn=in_z, dense_mass=True, target_accept_prob=0.95)
        sampler = MCMC(
            kernel, num_warmup=WARMUP, num_samples=draws, num_chains=CHAINS,
            chain_method="sequential", progress_bar=False,
        )  # fmt: skip
        first = reach * jax.random.normal(jax.random.key(seed + 1), (CHAINS, len(start)))
        sampler.run(jax.random.key(seed), init_params=first)
        z = sampler.get_samples()
        sites = jax.vmap(lambda one: facts.postprocess_fn(shaped(mode + root @ one)))(z)
        rhat, ess, sd_error, moments = 0.0, np.inf, 0.0, {}
        for name, value in sites.items():
            flat = np.asarray(value, np.float64).reshape(CHAINS, draws, -1)
            used = flat.std(axis=(0, 1)) > 1e-9 * (1e-300 + np.abs(flat).max(axis=(0, 1)))
            moments[name] = {
                "mean": flat.mean(axis=(0, 1)).tolist(),
                "sd": np.where(used, flat.std(axis=(0, 1)), 0.0).tolist(),
            }
            if np.any(used):
                rhat = max(rhat, float(np.max(split_gelman_rubin(flat[..., used]))))
                ess = min(ess, float(np.min(effective_sample_size(flat[..., used]))))
                sd_error = max(sd_error, error_of_sd(flat[..., used]))
        trusted = rhat < MOST_RHAT and ess >= LEAST_ESS and sd_error <= SD_ERROR
        if trusted or 2 * draws > MOST_DRAWS:
            break
        draws *= 2
        reach = 0.5 if rhat > STUCK_RHAT else reach  # a chain began where it cannot move
    spent = time.process_time() - started
    return {
        "sites": moments,
        "rhat": rhat,
        "ess": ess,
        "sd_error": sd_error,
        "trusted": trusted,
        "cpu_s": spent,
    }


def gridded(log_density: Callable[[Any], Any], sites_at: Callable[[Any], Any]) -> dict[str, Any]:
    """Moments of every site of a posterior with one coordinate, by quadrature."""
    started = time.process_time()
    grid = jnp.linspace(-GRID_REACH, GRID_REACH, GRID_POINTS)[:, None]
    logs = np.asarray(jax.lax.map(log_density, grid, batch_size=1024), np.float64)
    logs = np.where(np.isfinite(logs), logs, -np.inf)
    weights = np.exp(logs - np.max(logs))
    weights /= np.sum(weights)
    moments = {}
    for name, value in jax.lax.map(sites_at, grid, batch_size=1024).items():
        flat = np.asarray(value, np.float64).reshape(GRID_POINTS, -1)
        mean = weights @ flat
        sd = np.sqrt(weights @ np.square(flat - mean))
        moments[name] = {"mean": mean.tolist(), "sd": sd.tolist()}
    facts = {"rhat": 1.0, "ess": GRID_POINTS, "sd_error": 0.0, "trusted": True}
    return {"sites": moments, "cpu_s": time.process_time() - started} | facts


def error_of_sd(chains: np.ndarray) -> float:
    """Largest relative standard error of the sds of draws (chains, draws, coordinates)."""
    square = np.square(chains - chains.mean(axis=(0, 1)))
    spread = square.std(axis=(0, 1)) / np.sqrt(effective_sample_size(square))
    return float(np.max(0.5 * spread / square.mean(axis=(0, 1))))


class Errors(NamedTuple):
    """How far a posterior is from its reference."""

    mean: float
    site: str
    low: float
    high: float

    @property
    def right(self) -> bool:
        return self.mean <= MEAN_ERROR and self.low >= SD_BAND[0] and self.high <= SD_BAND[1]


def errors_of(draws: dict[str, Any], sites: dict[str, Any]) -> Errors:
    """The worst coordinate of all sites; constant entries of a Cholesky factor do not count."""
    worst, site, low, high = 0.0, "", np.inf, 0.0
    for name in sites.keys() & draws.keys():
        mean, sd = np.asarray(sites[name]["mean"]), np.asarray(sites[name]["sd"])
        found = np.asarray(draws[name], np.float64).reshape(-1, len(mean))[:, sd > 0]
        if not found.size:
            continue
        error = np.abs(found.mean(axis=0) - mean[sd > 0]) / sd[sd > 0]
        ratio = found.std(axis=0) / sd[sd > 0]
        if not np.max(error) <= worst:
            worst = float(np.max(error))
            site = f"{name}[{int(np.argmax(error))}]" if len(error) > 1 else name
        low, high = min(low, float(np.min(ratio))), max(high, float(np.max(ratio)))
    return Errors(worst, site, low, high)


def dealt(case: Case, parties: int, seed: int) -> dict[str, Any]:
    """The records at that many parties, or at one party per record."""
    count = len(next(iter(case.records.values())))
    order = np.random.default_rng(seed).permutation(count)
    shares = np.array_split(order, min(parties, count))
    return {
        f"party-{k + 1:02d}": {key: value[share] for key, value in case.records.items()}
        for k, share in enumerate(shares)
    }


@functools.cache
def adapted(name: str, seed: int) -> Any:
    """The model of a case, the same for all numbers of parties, so that less is compiled."""
    case = make_case(name, seed)
    example = {key: value[:4] for key, value in case.records.items()}
    return tacit.from_numpyro(case.model, example, arguments=case.arguments)


def run(name: str, parties: int, seed: int, method: Any = "auto") -> tuple[str, str]:
    """The verdict and one line on one fit."""
    case = make_case(name, seed)
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = adapted(name, seed)
            fit = tacit.fit(model, dealt(case, parties, seed), privacy="none", method=method)
        except tacit.TacitError as error:
            return "refused" if case.refused else "REFUSED", f"{type(error).__name__}: {error}"
    spent, found = time.process_time() - started, fit.diagnostics
    cautions = " | ".join(fit.cautions)
    facts = (
        f"{len(fit.history):3d} exchanges {spent:6.1f} s, share "
        f"{found.get('effective_share', np.nan):.2f}, k {found.get('pareto_k', np.nan):.2f}, split "
        f"{found.get('split_along')}, R-hat {found.get('nested_r_hat', np.nan):.3f}; "
        f"{'' if fit.converged else fit.why} {cautions}"
    )
    truth = reference(name, seed)
    errors = errors_of(fit.posterior.draws(POSTERIOR_DRAWS, seed=0), truth["sites"])
    flagged = not fit.converged or bool(fit.cautions)
    word = "right" if errors.right else "flagged" if flagged else "WRONG"
    word = "doubted" if errors.right and flagged else word
    doubt = f" (R-hat {truth['rhat']:.3f}, ESS {truth['ess']:.0f}, sd ± {truth['sd_error']:.0%})"
    doubt = "" if truth["trusted"] else doubt
    return word, (
        f"{errors.mean:7.3f} {errors.site:14s} {errors.low:5.2f}-{errors.high:<5.2f} {facts}"
        f" NUTS {truth['cpu_s']:.0f} s{doubt}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--parties", type=int, nargs="+", default=PARTIES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sampling", action="store_true", help="method.sampling = true")
    chosen = parser.parse_args()
    method = tacit.methods.NaturalVI(sampling=True) if chosen.sampling else "auto"
    counts: dict[str, int] = {}
    for name in chosen.names or CASES:
        for parties in chosen.parties:
            try:
                word, line = run(name, parties, chosen.seed, method)
            except Exception as error:  # one model must not end the others
                word, line = "ERROR", f"{type(error).__name__}: {error}"
            counts[word] = counts.get(word, 0) + 1
            print(f"{name:18s} {parties:2d} {word:8s} {line}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return int(any(word.isupper() for word in counts))


if __name__ == "__main__":
    raise SystemExit(main())

"""The runs of the posteriordb study: tacit with defaults, NumPyro's SVI, and NUTS references.

Every run returns a plain dictionary, which is stored as JSON. A run of tacit is also identified by
a digest of the installed library, so that a later version does not use results of an earlier one.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
from jax.experimental.compilation_cache import compilation_cache
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO, autoguide
from numpyro.infer.reparam import LocScaleReparam, Reparam

import tacit
from tacit.errors import TacitError
from tacit_studies.posteriordb_data import Posterior, Records, split, stan_columns, stan_names

Result = dict[str, Any]
MEAN_ERROR, SD_LOW, SD_HIGH = 0.1, 0.88, 1.1
"""Limits of a right posterior: every mean is within `MEAN_ERROR` reference sds of the reference
mean, and every sd is between `SD_LOW` and `SD_HIGH` reference sds.
"""
RATE, STEPS, MOST_STEPS = 0.01, 10_000, 20_000
"""Adam's step size, SVI's default number of steps, and the largest number of steps."""
CHUNK = 250
MOST_NUMBERS = 4_000_000
"""Largest number of values in the draws for a comparison, over all coordinates."""
CHAINS, WARMUP, DRAWS, MOST_DRAWS = 4, 1_500, 2_500, 20_000
MOST_RHAT, LEAST_ESS = 1.01, 400


def compare(draws: np.ndarray, names: tuple[str, ...], mean: np.ndarray, sd: np.ndarray) -> Result:
    """Errors of draws × names against the reference.

    `mean_error` is the largest |mean − reference| in reference sds, `worst` its coordinate,
    `sd_low` and `sd_high` the extreme ratios of sds; `finite` is False if a draw is not finite.
    """
    if not np.all(np.isfinite(draws)):
        return {"mean_error": None, "worst": None, "sd_low": None, "sd_high": None, "finite": False}
    errors = np.abs(draws.mean(axis=0) - mean) / sd
    ratios = draws.std(axis=0, ddof=1) / sd
    return {
        "mean_error": float(errors.max()),
        "worst": names[int(errors.argmax())],
        "sd_low": float(ratios.min()),
        "sd_high": float(ratios.max()),
        "finite": True,
    }


def is_right(
    result: Result, mean: float = MEAN_ERROR, low: float = SD_LOW, high: float = SD_HIGH
) -> bool:
    """Return True if the errors of a result, as made by `compare`, are within these limits."""
    return (
        result.get("mean_error") is not None
        and result["mean_error"] <= mean
        and low <= result["sd_low"]
        and result["sd_high"] <= high
    )


def draw_count(coordinates: int) -> int:
    """Number of draws for a comparison: 100,000 for a small posterior, 10,000 for the largest."""
    return int(np.clip(MOST_NUMBERS // coordinates, 10_000, 100_000))


@contextmanager
def without_compilation_cache() -> Iterator[None]:
    """Context without JAX's compilation cache, so that every compilation is done and counted."""
    before = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


@cache
def library_digest() -> str:
    """A digest of the library's source."""
    digest = hashlib.sha256()
    folder = Path(tacit.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def run_tacit(
    posterior: Posterior, reference: Result, parties: int, seed: int, *, sampling: bool = False
) -> Result:
    """Fit with `tacit.fit` and its defaults; return errors, costs and the fit's own assessment.

    Costs are exchanges per party and CPU time in seconds. The assessment is whether the fit has
    converged, why, and its cautions. If the fit fails, only the message is returned (`refused`).
    With `sampling`, `method.sampling` is set, and only one fit is made, with compilation.
    """
    method = tacit.methods.NaturalVI(sampling=True) if sampling else "auto"
    records, arguments = posterior.load()
    dealt = split(records, parties, seed)
    facts = {"parties": len(dealt), "records": len(next(iter(records.values())))}
    jax.clear_caches()
    started = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the returned assessment has the same information
            example = {key: value[:4] for key, value in records.items()}
            model = tacit.from_numpyro(posterior.function, example, arguments=arguments)
            fit = tacit.fit(model, dealt, privacy="none", seed=seed, method=method)
            first, again = time.process_time() - started, None
            if not sampling:
                started = time.process_time()
                fit = tacit.fit(model, dealt, privacy="none", seed=seed)
                again = time.process_time() - started
    except TacitError as error:
        return {**facts, "refused": str(error)}
    except Exception as error:  # an error of the library is a result, not the end of the study
        return {**facts, "refused": f"{type(error).__name__}: {error}"}
    names, mean, sd = _reference_arrays(reference)
    draws = fit.posterior.draws(draw_count(len(names)), seed=seed)
    return {
        **facts,
        **compare(stan_columns(draws, names), names, mean, sd),
        "exchanges": exchanges(fit) / len(dealt),
        "converged": fit.converged,
        "why": fit.why,
        "cautions": fit.cautions,
        "cpu_s": again,
        "cpu_with_compilation_s": first,
    }


def exchanges(fit: tacit.Fit) -> int:
    """Number of answered requests of all parties, from result.json."""
    with tempfile.TemporaryDirectory() as folder:
        saved = fit.save(Path(folder) / "fit")
        return json.loads((saved / "result.json").read_text(encoding="utf-8"))["exchanges"]


def run_svi(
    posterior: Posterior, reference: Result, guide: str, seed: int, *, most: int = MOST_STEPS
) -> Result:
    """NumPyro's SVI on all records in one place, with Adam and an automatic guide.

    Errors are those after 10,000 steps. `cpu_to_right_s` is the CPU time until the posterior is
    first right (`is_right`), which is checked every 250 to 1,000 steps; None if it is not right
    within `most` steps.
    """
    records, arguments = posterior.load()
    kwargs = {**records, **arguments}
    names, mean, sd = _reference_arrays(reference)
    values = _site_values(posterior, records, arguments)
    jax.clear_caches()
    started = time.process_time()
    automatic = getattr(autoguide, guide)(posterior.function)
    optimiser = numpyro.optim.Adam(RATE)
    svi = SVI(posterior.function, automatic, optimiser, Trace_ELBO())
    state = svi.init(jax.random.key(seed), **kwargs)
    advance = _chunk(svi, kwargs).lower(state).compile()
    compiling = time.process_time() - started
    spent, right_s, right_step, errors = 0.0, None, None, {}
    for step in range(CHUNK, most + 1, CHUNK):
        started = time.process_time()
        state = jax.block_until_ready(advance(state))
        spent += time.process_time() - started
        at_end = step == STEPS
        if at_end or step <= 2_000 or step % 1_000 == 0:
            found = automatic.sample_posterior(
                jax.random.key(step), svi.get_params(state), sample_shape=(10_000,)
            )
            now = compare(stan_columns(values(found), names), names, mean, sd)
            if right_s is None and is_right(now):
                right_s, right_step = spent, step
            if at_end:
                errors = {**now, "cpu_s": spent}
            if not now["finite"]:
                break  # Adam does not recover
        if step >= min(STEPS, most) and (right_s is not None or step >= most):
            break
    errors = errors or {**now, "cpu_s": spent}
    return {
        **errors,
        "cpu_with_compilation_s": errors["cpu_s"] + compiling,
        "cpu_to_right_s": right_s,
        "compilation_s": compiling,
        "steps_to_right": right_step,
        "most_steps": most,
    }


def _chunk(svi: SVI, kwargs: dict[str, Any]) -> Any:
    def step(state: Any, _: None) -> tuple[Any, Any]:
        return svi.update(state, **kwargs)

    return jax.jit(lambda state: jax.lax.scan(step, state, None, length=CHUNK)[0])


def _site_values(
    posterior: Posterior, records: Records, arguments: dict[str, Any]
) -> Callable[[dict[str, Any]], dict[str, np.ndarray]]:
    """Function from draws of latent sites to draws of all sites, also deterministic ones."""
    few = {key: value[:1] for key, value in records.items()}

    def of_one(point: dict[str, Any]) -> dict[str, Any]:
        model = handlers.substitute(handlers.seed(posterior.function, 0), data=point)
        sites = handlers.trace(model).get_trace(**few, **arguments)
        made = {n: site["value"] for n, site in sites.items() if site["type"] == "deterministic"}
        return point | made

    return jax.jit(jax.vmap(of_one))


def published_reference(posterior: Posterior) -> Result:
    """The statistics of posteriordb in the form that the other functions use."""
    found = posterior.reference()
    return {"names": list(found.names), "mean": found.mean.tolist(), "sd": found.sd.tolist()}


def nuts_reference(
    posterior: Posterior,
    seed: int,
    *,
    warmup: int = WARMUP,
    draws: int = DRAWS,
    most: int = MOST_DRAWS,
) -> Result:
    """Means and sds of NUTS, with four chains and non-centred sites.

    The number of draws is doubled until every coordinate has R-hat < 1.01 and at least 400
    effective draws; `trusted` is False if `most` draws per chain are not enough.
    """
    records, arguments = posterior.load()
    config: dict[str, Reparam] = {site: LocScaleReparam(0.0) for site in posterior.noncentred}
    model = handlers.reparam(posterior.function, config=config)
    started = time.process_time()
    while True:
        sampler = MCMC(
            NUTS(model, target_accept_prob=0.9),
            num_warmup=warmup, num_samples=draws, num_chains=CHAINS,
            chain_method="sequential", progress_bar=False,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler.run(jax.random.key(seed), **records, **arguments)
        samples = {
            name: np.asarray(value)
            for name, value in sampler.get_samples(group_by_chain=True).items()
        }
        flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in samples.items()}
        names = stan_names(flat, posterior.compared)
        found = stan_columns(flat, names)
        chains = found.reshape(CHAINS, draws, -1)
        rhat = float(np.max(split_gelman_rubin(chains)))
        ess = float(np.min(effective_sample_size(chains)))
        trusted = rhat < MOST_RHAT and ess >= LEAST_ESS
        if trusted or 2 * draws > most:
            break
        draws *= 2
    return {
        "names": list(names),
        "mean": found.mean(axis=0).tolist(),
        "sd": found.std(axis=0, ddof=1).tolist(),
        "rhat": rhat,
        "ess": ess,
        "draws": CHAINS * draws,
        "trusted": trusted,
        "cpu_s": time.process_time() - started,
    }


def _reference_arrays(reference: Result) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    return tuple(reference["names"]), np.asarray(reference["mean"]), np.asarray(reference["sd"])

"""Structure of a NumPyro model: latent sites, observed sites and the record plate.

The model is traced with two different numbers of records. The record plate is the plate around the
observations whose size equals the number of records. All other sizes must not change. Models whose
log-likelihood is not a sum over records given one θ are refused here, before any party starts.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro import distributions as dist
from numpyro.distributions import biject_to

from tacit.errors import ConfigError, TacitError
from tacit.models.base import Output
from tacit.models.numpyro.program import Latent, Program

_ADVICE = "size the record plate by the batch's length, as in numpyro.plate('records', x.shape[0])"
_LABELS = (dist.CategoricalProbs, dist.CategoricalLogits)  # no mean: NumPyro returns NaN
_WRAPPERS = (dist.ExpandedDistribution, dist.MaskedDistribution, dist.Independent)


class Layout(NamedTuple):
    """The latent sites in the order in which the model samples them, the observed sites, and the
    plate over records.
    """

    latents: tuple[Latent, ...]
    observed: tuple[str, ...]
    plate: str
    target: str | None
    """The site that `response` refers to: the only observed site, if it has one mean per record."""
    output: Output
    scales: tuple[str, ...] = ()
    """Latent sites with support from 0 upwards, such as standard deviations."""


class _Site(NamedTuple):
    name: str
    observed: bool
    factor: bool
    discrete: bool
    altered: bool
    plates: dict[str, int]
    shape: tuple[int, ...]
    free_shape: tuple[int, ...] | None
    core: type
    scale: bool = False


def find_layout(program: Program, size: int) -> Layout:
    """Find the layout of a model from traces with `size` and `size + 1` records."""
    sites = _trace(program, size, f"the model fails on the example's {size} records")
    latents = [site for site in sites if not site.observed]
    observed = [site for site in sites if site.observed]
    if not observed and program.absent:
        raise ConfigError(
            f"the model has no observed site: its argument {' or '.join(program.absent)} is not "
            f"among the columns that it was given ({', '.join(program.columns)}); give argument "
            "and column the same name"
        )
    if not observed:
        raise ConfigError(
            "the model has no observed site; pass the data to a sample statement, as in obs=y"
        )
    if not latents:
        raise ConfigError("the model has no latent site to learn; add one with numpyro.sample")
    _check_latents(latents)
    more = _trace(program, size + 1, f"the model works on {size} records but not on {size + 1}")
    if [(site.name, site.observed) for site in more] != [
        (site.name, site.observed) for site in sites
    ]:
        raise ConfigError(
            f"the model has different sites for {size + 1} and {size} records; "
            "its sites must not depend on the number of records"
        )
    plate = _record_plate(observed, {site.name: site for site in more}, size)
    for first, second in zip(sites, more, strict=True):
        if not first.observed and (plate in first.plates or first.shape != second.shape):
            raise ConfigError(
                f"latent site '{first.name}' has a value for each record, but all parties share "
                "the latent sites; pass it as obs=… if it is data, otherwise integrate it out"
            )
    target = _target(observed, size)
    return Layout(
        latents=_place(latents),
        observed=tuple(site.name for site in observed),
        plate=plate,
        target=target.name if target else None,
        output=_output(target.core) if target and len(observed) == 1 else "other",
        scales=tuple(site.name for site in latents if site.scale),
    )


def _target(observed: list[_Site], size: int) -> _Site | None:
    values = [site for site in observed if not site.factor]
    if len(values) != 1 or math.prod(values[0].shape) != size or values[0].core in _LABELS:
        return None
    return values[0]


def _place(latents: list[_Site]) -> tuple[Latent, ...]:
    """Return the slice of θ of each latent site, in the order in which the model samples them."""
    placed, start = [], 0
    for site in latents:
        shape = site.free_shape or ()
        stop = start + math.prod(shape)
        placed.append(Latent(site.name, shape, start, stop))
        start = stop
    return tuple(placed)


def _trace(program: Program, size: int, failure: str) -> list[_Site]:
    """Return the sample sites of the model for `size` records. The model is called with abstract
    arrays, so nothing is computed.
    """
    found: list[_Site] = []

    def call(records: dict[str, Any]) -> None:
        sites, _ = program.run(records)
        _check_kinds(sites)
        found.extend(_describe(site) for site in sites.values() if site["type"] == "sample")

    try:
        jax.eval_shape(call, program.blank(size))
    except TacitError:
        raise
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise ConfigError(
            f"{failure}: it uses values of records in Python code ({type(error).__name__}); use "
            "jax.numpy instead, and pass sizes such as a number of groups in arguments={…}"
        ) from error
    except NotImplementedError as error:
        raise ConfigError(
            f"{failure}: it has a distribution that cannot be drawn from; "
            "give every latent site a proper prior, not ImproperUniform"
        ) from error
    except Exception as error:
        reason = (str(error).strip() or "no message").splitlines()[0]
        about_shapes = isinstance(error, TypeError | ValueError | IndexError)
        advice = f"check the shapes, and {_ADVICE}" if about_shapes else "correct the function"
        raise ConfigError(f"{failure} ({type(error).__name__}: {reason}); {advice}") from error
    return found


def _check_kinds(sites: dict[str, dict[str, Any]]) -> None:
    for name, site in sites.items():
        if site["type"] in ("param", "mutable"):
            raise ConfigError(
                f"the model has a numpyro.{site['type']} site '{name}'; "
                "make it a sample site with a prior, or a constant"
            )
        if site["type"] == "plate" and site["args"][1] is not None:
            raise ConfigError(
                f"plate '{name}' has a subsample_size; remove this argument, because tacit draws "
                "the minibatches"
            )


def _describe(site: dict[str, Any]) -> _Site:
    core, altered = site["fn"], site["scale"] is not None
    while isinstance(core, _WRAPPERS):
        altered = altered or isinstance(core, dist.MaskedDistribution)
        core = core.base_dist
    support, observed = site["fn"].support, site["is_observed"]
    discrete = bool(support is not None and support.is_discrete)
    shape = tuple(np.shape(site["value"]))
    free_shape = None
    if not observed and not discrete:
        free_shape = _free_shape(site["name"], support, shape)
    return _Site(
        name=site["name"],
        observed=observed,
        factor=isinstance(core, dist.Unit),
        discrete=discrete,
        altered=altered,
        plates={frame.name: frame.size for frame in site["cond_indep_stack"]},
        shape=shape,
        free_shape=free_shape,
        core=type(core),
        scale=not observed and _starts_at_zero(support),
    )


def _starts_at_zero(support: Any) -> bool:
    """True if a support is the positive half-line or an interval that begins at 0."""
    bound = getattr(support, "lower_bound", None)
    return isinstance(bound, int | float) and bound == 0


def _free_shape(name: str, support: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return tuple(biject_to(support).inverse_shape(shape))
    except NotImplementedError as error:
        raise ConfigError(
            f"latent site '{name}' has support {support}, to which NumPyro has no transform from "
            "ℝᵈ; rewrite the site with numpyro.handlers.reparam"
        ) from error


def _check_latents(latents: list[_Site]) -> None:
    for site in latents:
        if site.discrete:
            raise ConfigError(
                f"latent site '{site.name}' is discrete ({site.core.__name__}); marginalise it "
                "(numpyro.distributions.MixtureSameFamily), or use a continuous relaxation"
            )
        if site.altered:
            raise ConfigError(
                f"latent site '{site.name}' is under handlers.scale or handlers.mask, so its prior "
                "is not a density; use these handlers for observed sites only"
            )
        if site.core is dist.Delta:
            raise ConfigError(
                f"latent site '{site.name}' is a Delta; use numpyro.deterministic for a constant"
            )


def _record_plate(observed: list[_Site], more: dict[str, _Site], size: int) -> str:
    """Return the name of the plate over records: the only plate around all observed sites whose
    size is the number of records.
    """
    plates: dict[str, str] = {}
    for site in observed:
        what = f"numpyro.factor '{site.name}'" if site.factor else f"observed site '{site.name}'"
        if not site.plates:
            raise ConfigError(
                f"{what} is in no plate, so its log-probability is not a sum over records; "
                "put it in a plate over records, as in numpyro.plate('records', x.shape[0]), or, "
                "if it is part of the prior, write it as the distribution of a latent site"
            )
        follows = [
            name
            for name, length in site.plates.items()
            if length == size and more[site.name].plates.get(name) == size + 1
        ]
        if not follows:
            raise ConfigError(
                f"{what} is in plate(s) {site.plates} for {size} records and "
                f"{more[site.name].plates} for {size + 1}; {_ADVICE}"
            )
        if len(follows) > 1:
            raise ConfigError(
                f"{what} is in {len(follows)} plates of the batch's length ({follows}); "
                "put it in only one plate over the records"
            )
        plates[follows[0]] = site.name
    if len(plates) > 1:
        raise ConfigError(
            f"observations are in different record plates {sorted(plates)}; "
            "put every observed site in one plate"
        )
    return next(iter(plates))


def _output(core: type) -> Output:
    if core in (dist.BernoulliProbs, dist.BernoulliLogits):
        return "bernoulli"
    return "gaussian" if core is dist.Normal else "other"

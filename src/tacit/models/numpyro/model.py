"""Any NumPyro model with continuous latent sites and one plate over records.

`from_numpyro` traces the function on abstract batches, finds the plate over records and refuses
models that are not a sum over records given one shared θ. θ contains the unconstrained values θₛ of
all latent sites s, in the order in which the model samples them. With xₛ = biject_to(support of
s)(θₛ), the log-prior is

    log p(θ) = Σₛ log p(xₛ) + Σₛ log|dxₛ/dθₛ|.

**Prior.** If p(θ) is the density of independent normals, `prior` is exact. This is the case if
every latent site is normal, or is normal in unconstrained space like a LogNormal. Otherwise
`has_site_prior` is True, and `prior` is a normal approximation. It is computed from robust
quantiles of prior draws (the median, and half the width of the central 68 % interval), so that a
heavy tail such as that of a HalfCauchy does not determine its scale. The server stores the
approximation as its first factor and refines it like the factor of a party, with `log_prior` as the
likelihood. After convergence, the exact prior has replaced the approximation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from itertools import product
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to

from tacit.arrays import Array
from tacit.errors import ConfigError, DataError
from tacit.expfam import Family, Natural
from tacit.models.base import Model, ModelSchema, Records, gaussian_natural
from tacit.models.numpyro.counts import ComparedCounts
from tacit.models.numpyro.effects import StandardisedEffects
from tacit.models.numpyro.indices import IndexRange, check_indices, index_ranges
from tacit.models.numpyro.layout import find_layout
from tacit.models.numpyro.outcomes import SimulatedOutcomes, checked_columns
from tacit.models.numpyro.prior import independent_normals, robust_quantiles
from tacit.models.numpyro.program import Program, Sites, load_program
from tacit.models.settings import NumPyroSettings

DRAWS = 500
HALF_BATCH = 3
"""Half the number of records with which independence of records is checked."""
START_SD = 0.1


def from_numpyro(
    function: Callable[..., Any],
    example: Records,
    *,
    arguments: Mapping[str, Any] | None = None,
    columns: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> NumPyroModel:
    """Convert a NumPyro function with one plate over records to a federated model.

    Parameters
    ----------
    function
        The NumPyro model. Its arguments are columns of the records.
    example
        A few records, real or synthetic, with the names of the function's arguments as keys.
        Columns that the function does not take are ignored.
    arguments
        Arguments of the function that are not records, such as a number of groups.
    columns
        Public facts about columns, which private scores need: the number k of levels of a column
        with codes 0 … k − 1, or the smallest and largest value of a numeric column. Numeric columns
        that are not declared are assumed to be standardised.
    seed
        Seed of the starting point, which all parties share.

    Returns
    -------
    Model
        A model that `tacit.fit` takes.

    Examples
    --------
    >>> import numpyro, numpyro.distributions as dist
    >>> def regression(x, y=None):
    ...     slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    ...     noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    ...     with numpyro.plate("records", x.shape[0]):
    ...         numpyro.sample("y", dist.Normal(slope * x, noise), obs=y)
    >>> adapted = from_numpyro(regression, {"x": np.ones(2), "y": np.ones(2)})
    >>> adapted.names, adapted.output, adapted.has_site_prior
    (('slope', 'noise'), 'gaussian', True)
    """
    model = NumPyroModel(function, example, arguments=arguments or {}, seed=seed)
    model.columns = checked_columns(columns, model.program.keys)
    return model


class NumPyroModel(SimulatedOutcomes, ComparedCounts, StandardisedEffects, Model):
    """A model whose prior and per-record log-likelihood are those of a NumPyro function (module
    docstring).
    """

    kind: ClassVar[str] = "numpyro"
    Settings = NumPyroSettings
    seeded: ClassVar[bool] = True
    reads_example: ClassVar[bool] = True
    user_program: ClassVar[bool] = True

    def __init__(
        self,
        function: Callable[..., Any],
        example: Records,
        *,
        arguments: Mapping[str, Any],
        seed: int,
    ) -> None:
        self.program = Program(function, example, arguments)
        records = self.program.batch(example)
        size = len(next(iter(records.values())))
        self.layout = find_layout(self.program, size)
        self.output = self.layout.output
        self.names = tuple(
            name for latent in self.layout.latents for name in _names(latent.name, latent.shape)
        )
        self.reported: tuple[str, ...] = ()
        rng = np.random.default_rng([seed, self.dimension])
        noise = rng.standard_normal((8, self.dimension))
        for probe in (1, size, size + 1):
            jax.eval_shape(self.log_likelihood, noise[0], self.program.blank(probe))
        _check_gradient(self, noise[0])
        self.reported = _shared_sites(self, noise, records)
        keys = jax.random.split(jax.random.key(seed), DRAWS)
        draw = partial(self._draw, records=self.program.blank(1))
        median, spread = robust_quantiles(jax.vmap(draw)(keys), self.names)
        # A median that is 0 up to sampling error is set to exactly 0.
        self.median = np.where(np.abs(median) < 0.2 * spread, 0.0, median)
        self._probe = self.median + 0.1 * noise[0]
        few = _cast_rows(records, np.arange(HALF_BATCH) % size)
        other = _shifted(few)
        batch = {key: np.concatenate([few[key], other[key]]) for key in few}
        _check_independence(self, self._probe, batch)
        exact = independent_normals(self.log_prior, self.median + 2.0 * spread * noise)
        self.has_site_prior = exact is None
        self.prior_mean, self.prior_sd = exact or (self.median, spread)

    @classmethod
    def build(cls, settings: NumPyroSettings, schema: ModelSchema) -> NumPyroModel:
        function = load_program(settings.function)
        model = cls(function, schema.example(), arguments=settings.arguments, seed=schema.seed)
        model.columns = checked_columns(settings.columns, model.program.keys)
        model.x_layout = schema.layout
        return model

    @property
    def record_columns(self) -> tuple[str, ...]:
        return tuple(self.program.keys)

    @property
    def scale_coordinates(self) -> tuple[int, ...]:
        return tuple(
            place
            for latent in self.layout.latents
            if latent.name in self.layout.scales
            for place in range(latent.start, latent.stop)
        )

    @cached_property
    def index_ranges(self) -> dict[str, IndexRange]:
        """The range of valid values of every column that the function uses as an index."""
        return index_ranges(self)

    def check_records(self, party: str, records: Records) -> None:
        check_indices(self.index_ranges, self.columns, party, records)
        if not set(self.program.keys) <= set(records):
            return  # records without an outcome, for a prediction
        # As many rows as in the check of the example, so that nothing is compiled.
        batch = self.program.batch(records)
        size, rows = len(next(iter(batch.values()))), 2 * HALF_BATCH
        for some in (np.arange(rows) % size, np.linspace(0, size - 1, rows).astype(int)):
            _check_independence(self, self._probe, _cast_rows(batch, some), f"party {party!r}: ")

    @property
    def mixes(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if a latent or an observed site is a mixture of distributions."""
        found: list[bool] = []

        def call(records: Records) -> None:
            sites, _ = self.program.run(records, key=jax.random.key(0), blank=True)
            names = (*self.layout.observed, *(latent.name for latent in self.layout.latents))
            found.extend(_is_mixture(sites[name]["fn"]) for name in names)

        # Traced, not computed: zeros may be invalid, e.g. as weights of handlers.scale.
        jax.eval_shape(call, self.program.blank(1))
        return any(found)

    def log_likelihood(self, theta: Array, records: Records) -> Array:
        return self._log_likelihood(jnp.asarray(theta), self.program.batch(records))

    def log_prior(self, theta: Array) -> Array:
        """Compute the log-density of θ in unconstrained space, including the Jacobian.

        The computation uses float64 for any type of θ, because NumPyro checks simplices and
        matrices to a tolerance that float32 does not always meet.
        """
        theta = jnp.asarray(theta)
        value, _ = self._shared(theta.astype(jnp.result_type(float)), self.program.blank(1))
        return value.astype(theta.dtype)

    def prior(self, family: Family) -> Natural:
        return gaussian_natural(family, mean=self.prior_mean, sd=self.prior_sd, model=self.kind)

    def start(self, family: Family) -> Natural:
        """Return a starting point for q: the median of the prior with a small standard deviation,
        as in NumPyro's automatic guides.
        """
        sd = np.full(self.dimension, START_SD)
        return gaussian_natural(family, mean=self.median, sd=sd, model=self.kind)

    def response(self, theta: Array, records: Records) -> Array:
        if self.layout.target is None:
            raise ConfigError(
                f"observed sites {list(self.layout.observed)} do not have one mean per record; "
                "the method response needs a single observed site with one number (not a class) "
                "per record; use the method predictive instead"
            )
        return self._response(jnp.asarray(theta), self.program.batch(records))

    def constrain(self, theta: Array) -> dict[str, Array]:
        """Convert θ to the values of the latent sites, within their supports, and of those
        deterministic sites that do not depend on records.

        θ is one vector, or a matrix with one draw per row. The result has one array per site.
        """
        theta = jnp.asarray(theta)
        call = partial(self._shared, records=self.program.blank(1))
        _, values = jax.vmap(call)(theta) if theta.ndim == 2 else call(theta)
        return {name: values[name] for name in self.reported}

    def predictive(self, draws: Array, records: Records, *, seed: int = 0) -> dict[str, Array]:
        """Draw new observations of the records for each row of `draws`, which contains draws of θ.

        Observed values in `records` are ignored. The result has an array of shape (draws, …) for
        each observed site.
        """
        batch = self.program.batch(records)
        draws = jnp.atleast_2d(jnp.asarray(draws))
        keys = jax.random.split(jax.random.key(seed), len(draws))
        return jax.vmap(partial(self._simulate, records=batch))(draws, keys)

    def draw_outcomes(
        self, theta: np.ndarray, means: np.ndarray, records: Records, seed: int
    ) -> np.ndarray:
        del means
        draws = self.predictive(theta, records, seed=seed)
        if len(draws) != 1:
            raise ConfigError(
                f"the model observes several sites ({', '.join(draws)}), so a record has no single "
                "outcome; use model.predictive(draws, records)"
            )
        (value,) = draws.values()
        return np.asarray(value, np.float64)

    def simulate(
        self,
        theta: np.ndarray,
        records: Records,
        rng: np.random.Generator,
        bounds: tuple[float, float] | None = None,
    ) -> np.ndarray:
        """Simulate the model's only observed site for each record; `bounds` is ignored."""
        del bounds
        draws = self.predictive(theta[None], records, seed=int(rng.integers(2**31)))
        size = len(records["y"])
        shapes = {name: np.shape(value)[1:] for name, value in draws.items()}
        if len(draws) != 1 or (size,) not in shapes.values():
            raise ConfigError(
                f"the NumPyro model observes sites of shapes {shapes} for {size} records, but "
                "synthetic records need a single number per record; observe only the argument y"
            )
        (value,) = draws.values()
        return np.asarray(value[0], np.float64)

    # Compiled even for one call: traced values skip NumPyro's validation, so a batch with a padded
    # or bad record gives the same numbers and no warning for every caller.

    @partial(jax.jit, static_argnums=0)
    def _log_likelihood(self, theta: Array, records: Records) -> Array:
        sites = self._sites(theta, records)
        total: Array = 0.0
        for name in self.layout.observed:
            total = total + self._per_record(sites[name], records)
        return total.astype(theta.dtype)

    @partial(jax.jit, static_argnums=0)
    def _shared(self, theta: Array, records: Records) -> tuple[Array, dict[str, Array]]:
        """Return the log-prior at θ, and the values of all latent and deterministic sites."""
        sites, log_det = self.program.run(records, theta=theta, latents=self.layout.latents)
        names = [latent.name for latent in self.layout.latents]
        total = log_det + sum(
            jnp.sum(sites[name]["fn"].log_prob(sites[name]["value"])) for name in names
        )
        names += [name for name, site in sites.items() if site["type"] == "deterministic"]
        return total, {name: jnp.asarray(sites[name]["value"]) for name in names}

    @partial(jax.jit, static_argnums=0)
    def _response(self, theta: Array, records: Records) -> Array:
        distribution = self._sites(theta, records)[self.layout.target or ""]["fn"]
        try:
            mean = distribution.mean
        except NotImplementedError as error:
            raise ConfigError(
                f"the distribution of observed site '{self.layout.target}' has no mean in NumPyro; "
                "use predictive instead of response"
            ) from error
        return jnp.broadcast_to(mean, distribution.shape()).reshape(-1).astype(theta.dtype)

    @partial(jax.jit, static_argnums=0)
    def _simulate(self, theta: Array, key: Array, records: Records) -> dict[str, Array]:
        sites, _ = self.program.run(
            records, theta=theta, latents=self.layout.latents, key=key, simulate=True
        )
        return {
            name: sites[name]["value"]
            for name in self.layout.observed
            if not sites[name]["infer"].get("is_auxiliary")  # a numpyro.factor has no value
        }

    @partial(jax.jit, static_argnums=0)
    def _draw(self, key: Array, records: Records) -> Array:
        """Return one draw of θ from the prior. The records are zeros, which may make parameters of
        the likelihood invalid, so these parameters are not checked.
        """
        sites, _ = self.program.run(records, key=key, blank=True)
        parts = (sites[latent.name] for latent in self.layout.latents)
        return jnp.concatenate(
            [jnp.ravel(biject_to(site["fn"].support).inv(site["value"])) for site in parts]
        )

    def _sites(self, theta: Array, records: Records) -> Sites:
        return self.program.run(records, theta=theta, latents=self.layout.latents)[0]

    def _per_record(self, site: dict[str, Any], records: Records) -> Array:
        """Return the log-probability of an observed site for each record, summed over all other
        axes.
        """
        name, size = site["name"], len(next(iter(records.values())))
        if not site["is_observed"]:
            raise DataError(f"records have no value for observed site '{name}'; add its column")
        axis = next(
            (frame.dim for frame in site["cond_indep_stack"] if frame.name == self.layout.plate), 0
        )
        value, shape = site["fn"].log_prob(site["value"]), site["fn"].batch_shape
        if site["scale"] is not None:
            value = site["scale"] * value
        if axis == 0 or value.shape != shape or shape[axis] != size:
            raise ConfigError(
                f"observed site '{name}' has log-probabilities of shape {value.shape}, but its "
                f"distribution has batch shape {shape} for {size} records; give obs=… the shape of "
                "the distribution, with one axis for the records"
            )
        return jnp.moveaxis(value, axis, 0).reshape(size, -1).sum(axis=1)


def _is_mixture(distribution: Any) -> bool:
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return type(distribution).__name__.startswith("Mixture")


def _names(site: str, shape: tuple[int, ...]) -> list[str]:
    if not shape:
        return [site]
    return [f"{site}[{','.join(map(str, index))}]" for index in product(*map(range, shape))]


def _shifted(records: Records) -> Records:
    """Return records in which every real number is changed. Integers are not changed, because they
    may be indices.
    """
    return {
        key: 1.5 * array + 1.0 if array.dtype.kind == "f" else array
        for key, array in records.items()
    }


def _shared_sites(model: NumPyroModel, thetas: Array, records: Records) -> tuple[str, ...]:
    """Return the names of the sites that depend on θ alone. Raise a ConfigError if the prior
    depends on the records or on their number.
    """
    longer = len(next(iter(records.values()))) + 1
    (blank_prior, blank), (prior, values) = (
        jax.vmap(partial(model._shared, records=batch))(thetas)
        for batch in (model.program.blank(longer), _shifted(records))
    )
    same = partial(np.allclose, rtol=1e-6, atol=1e-9, equal_nan=True)
    if not same(blank_prior, prior):
        raise ConfigError(
            "the prior changes with the records or with their number, but all parties share one "
            "prior; pass the numbers that it needs in arguments={…}"
        )
    latents = [latent.name for latent in model.layout.latents]
    return tuple(
        name
        for name in (*latents, *sorted(set(blank) - set(latents)))
        if blank[name].shape == values[name].shape and same(blank[name], values[name])
    )


def _check_gradient(model: NumPyroModel, theta: Array) -> None:
    """Refuse a likelihood that JAX cannot differentiate in reverse."""

    def fit(at: Array) -> Array:
        return jnp.sum(model.log_likelihood(at, model.program.blank(1)))

    try:
        jax.eval_shape(jax.grad(fit), theta)
    except (TypeError, ValueError, NotImplementedError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"the log-likelihood has no gradient ({reason.rstrip('.')}); use jax.lax.scan, or "
            "jax.lax.fori_loop with fixed bounds, instead of jax.lax.while_loop and callbacks"
        ) from error


def _cast_rows(records: Records, rows: np.ndarray) -> Records:
    """Return some rows of the records, with real numbers in double precision."""
    arrays = {key: np.asarray(array)[rows] for key, array in records.items()}
    return {
        key: array.astype(np.float64) if array.dtype.kind == "f" else array
        for key, array in arrays.items()
    }


def _check_independence(model: NumPyroModel, theta: Array, batch: Records, where: str = "") -> None:
    """Raise a ConfigError if the log-likelihood of a record depends on another record.

    The result would depend on how records are distributed to parties, minibatches would bias it,
    and clipping would not bound the effect of one record.
    """
    together = model.log_likelihood(theta, batch)
    singles = {key: array[:, None] for key, array in batch.items()}
    alone = jax.vmap(partial(model.log_likelihood, theta))(singles)[:, 0]
    if not np.allclose(together, alone, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise ConfigError(
            f"{where}a record's log-likelihood changes with the other records of its batch; "
            "compute it from this record alone: standardise columns before the fit, and add lagged "
            "values as columns"
        )

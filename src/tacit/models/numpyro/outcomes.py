"""The distribution of the observed sites of a NumPyro model, and the columns on which it depends.

The parameters of an outcome's distribution are the NumPyro distribution objects themselves, which
are pytrees. The user's program runs once per record, and the score of each outcome is one backward
pass through it. Which functions a distribution supports (a small finite support, quantiles,
moments, a distribution function) is determined once, on abstract values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist
from numpyro.distributions import constraints

from tacit.arrays import Array
from tacit.data.schema.layout import Feature, Layout
from tacit.errors import ConfigError
from tacit.models.base import Records
from tacit.models.outcomes import MOST_VALUES, Covariates, OutcomeLaw, Proposal, Support

if TYPE_CHECKING:
    from tacit.models.numpyro.layout import Layout as Sites
    from tacit.models.numpyro.program import Program

Columns = Mapping[str, Any]
_WIDER = 1.2
"""Scale of the proposal relative to the scale of the distribution."""
_WRAPPERS = (dist.ExpandedDistribution, dist.Independent)


class SimulatedOutcomes:
    """Mixin that gives a NumPyro model the ability `SimulatesOutcomes`."""

    program: Program
    layout: Sites
    columns: Columns = {}  # noqa: RUF012 - never written to
    """Public facts about columns: a number of levels, or the smallest and largest value."""
    x_layout: Layout | None = None
    """One feature per column of x, as the public schema declares it; None without a schema."""

    def outcome_law(self) -> OutcomeLaw:
        """Return the distribution p(outcome | covariates, θ). Raise a ConfigError with the reason
        if the model has none.
        """
        return self._outcome_law

    @cached_property
    def _outcome_law(self) -> OutcomeLaw:
        return NumPyroLaw(self.program, self.layout, self.columns, self.x_layout)


def checked_columns(columns: Columns | None, keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the declarations of columns after checking them. A declaration is a number of levels ≥
    2, or a pair (low, high) with low < high.
    """
    checked: dict[str, Any] = {}
    for name, value in (columns or {}).items():
        if name not in keys:
            raise ConfigError(
                f"columns declares {name!r}, but the model takes only {list(keys)}; remove "
                "the declaration"
            )
        if isinstance(value, int) and not isinstance(value, bool) and value >= 2:
            checked[name] = value
            continue
        try:
            low, high = map(float, value)  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError):
            low = high = math.nan
        if not -math.inf < low < high < math.inf:
            raise ConfigError(
                f"columns[{name!r}] = {value!r}; give the number of levels, at least 2, or the "
                "smallest and largest value, e.g. (0, 120)"
            )
        checked[name] = (low, high)
    return checked


class NumPyroCovariates(Covariates):
    """All columns except the outcome. Numeric columns are unchanged, and columns of codes are
    converted to one-hot columns.
    """

    def __init__(
        self, program: Program, outcomes: frozenset[str], columns: Columns, x_layout: Layout | None
    ) -> None:
        self.program = program
        self.keys = tuple(key for key in program.keys if key not in outcomes)
        self.levels: dict[str, int] = {}
        features: list[Feature] = []
        for key in self.keys:
            features += self._features(key, columns.get(key), x_layout)
        # Without covariates there is still the number of records to count.
        self.layout = tuple(features) or (Feature("level", "constant"),)

    def _features(self, key: str, declared: Any, x_layout: Layout | None) -> Layout:
        shape, dtype = self.program.shapes[key], self.program.dtypes[key]
        width = math.prod(shape)
        if key == "x" and x_layout is not None and len(x_layout) == width:
            return x_layout
        if isinstance(declared, int):
            if shape:
                raise ConfigError(
                    f"columns[{key!r}] = {declared} levels, but the column has several numbers "
                    "per record; split it into columns of codes, or declare (low, high)"
                )
            self.levels[key] = declared
            return (Feature("level", key),) * declared
        names = [key] if not shape else [f"{key}[{place}]" for place in range(width)]
        if dtype.kind == "b":
            return tuple(Feature("level", name) for name in names)
        if declared is None and dtype.kind in "iu":
            raise ConfigError(
                f"column {key!r} holds whole numbers of unknown range, and private scores need the "
                f"range; declare columns={{{key!r}: number of levels}} or {{{key!r}: (low, high)}}"
            )
        low, high = declared or (-math.inf, math.inf)
        return tuple(Feature("numeric", name, low, high) for name in names)

    def flat(self, records: Records) -> Array:
        parts = [] if self.keys else [jnp.ones((len(next(iter(records.values()))), 1))]
        for key in self.keys:
            value = jnp.asarray(records[key])
            if key in self.levels:
                parts.append(value[:, None] == jnp.arange(self.levels[key]))
            else:
                parts.append(value.reshape(value.shape[0], -1))
        return jnp.concatenate([part.astype(jnp.float64) for part in parts], axis=1)

    def records(self, rows: np.ndarray) -> Records:
        found, start = dict(self.program.blank(len(rows))), 0
        for key in self.keys:
            shape, dtype = self.program.shapes[key], self.program.dtypes[key]
            width = self.levels.get(key, math.prod(shape))
            part, start = rows[:, start : start + width], start + width
            if key in self.levels:
                found[key] = np.argmax(part, axis=1).astype(dtype)
            elif dtype.kind == "b":
                found[key] = (part > 0.5).reshape(len(rows), *shape)
            else:
                part = np.round(part) if dtype.kind in "iu" else part
                found[key] = part.reshape(len(rows), *shape).astype(dtype)
        return found


class NumPyroLaw(OutcomeLaw):
    """Joint distribution of all observed sites of one record. An outcome is a dictionary with one
    value per site.
    """

    def __init__(
        self, program: Program, layout: Sites, columns: Columns, x_layout: Layout | None
    ) -> None:
        self.program, self.layout = program, layout
        self.names = layout.observed
        self.dimension = layout.latents[-1].stop
        outcomes = self._check()
        self.covariates = NumPyroCovariates(program, outcomes, columns, x_layout)
        self.scalar = self.names[0] if self._is_scalar() else None
        self.has_support = self._works(self._support)
        self.has_quantile = not self.has_support and self._works(
            lambda fn: fn.icdf(jnp.full((1,), 0.5))
        )
        self.has_proposal = not self.has_quantile and self._works(
            lambda fn: None if (found := self._proposal(fn)) is None else found[:2]
        )
        self.has_distribution = not self.has_support and self._works(
            lambda fn: self._ends(fn, jnp.ones(fn.batch_shape))
        )

    def parameters(self, theta: Array, record: Records) -> dict[str, Any]:
        sites = self._sites(theta, record)
        return {name: sites[name]["fn"] for name in self.names}

    def log_prob(self, parameters: dict[str, Any], outcome: dict[str, Array]) -> Array:
        return sum(jnp.sum(parameters[name].log_prob(outcome[name])) for name in self.names)

    def observed(self, record: Records) -> dict[str, Array]:
        sites = self._sites(jnp.zeros(self.dimension), record)
        return {name: jnp.asarray(sites[name]["value"]) for name in self.names}

    def sample(self, parameters: dict[str, Any], key: Array) -> dict[str, Array]:
        keys = jax.random.split(key, len(self.names))
        return {
            name: parameters[name].sample(one) for name, one in zip(self.names, keys, strict=True)
        }

    def support(self, parameters: dict[str, Any]) -> Support | None:
        if not self.has_support or self.scalar is None:
            return None
        found = self._support(parameters[self.scalar])
        return None if found is None else Support({self.scalar: found[0]}, found[1])

    def quantile(self, parameters: dict[str, Any], place: Array) -> dict[str, Array] | None:
        if not self.has_quantile or self.scalar is None:
            return None
        fn = parameters[self.scalar]
        shape = fn.batch_shape + fn.event_shape
        return {self.scalar: jax.vmap(lambda one: fn.icdf(jnp.full(shape, one)))(place)}

    def of_number(self, parameters: dict[str, Any], number: Array) -> dict[str, Array]:
        fn = parameters[self.scalar or ""]
        return {self.scalar or "": jnp.full(fn.batch_shape + fn.event_shape, number)}

    def proposal(self, parameters: dict[str, Any]) -> Proposal | None:
        if not self.has_proposal or self.scalar is None:
            return None
        return self._proposal(parameters[self.scalar])

    def distribution(
        self, parameters: dict[str, Any], outcome: dict[str, Array]
    ) -> tuple[Array, Array] | None:
        if not self.has_distribution or self.scalar is None:
            return None
        return self._ends(parameters[self.scalar], outcome[self.scalar])

    def mean(self, parameters: dict[str, Any]) -> Array:
        if self.scalar is None:
            return jnp.zeros(())
        support = self.support(parameters)
        if support is not None:
            values = support.values[self.scalar].reshape(len(support.probabilities))
            return jnp.sum(values * support.probabilities)
        try:
            return jnp.sum(jnp.broadcast_to(parameters[self.scalar].mean, ()))
        except (NotImplementedError, ValueError):
            return jnp.sum(jnp.asarray(getattr(parameters[self.scalar], "loc", 0.0)))

    def number(self, parameters: dict[str, Any], outcome: dict[str, Array]) -> Array:
        if self.scalar is None:
            return self.log_prob(parameters, outcome)
        return jnp.sum(outcome[self.scalar]).astype(jnp.float64)

    def _sites(self, theta: Array, record: Records) -> dict[str, Any]:
        records = {key: record[key] for key in self.program.keys if key in record}
        return self.program.run(records, theta=theta, latents=self.layout.latents)[0]

    def _check(self) -> frozenset[str]:
        """Return the columns that contain the outcomes. Raise a ConfigError for sites whose
        outcomes cannot be drawn.
        """
        blank = self.program.blank(1)
        found: set[str] = set()

        def call(records: Records) -> None:
            sites = self.program.run(
                records, theta=jnp.zeros(self.dimension), latents=self.layout.latents
            )[0]
            for name in self.names:
                fn, value = sites[name]["fn"], sites[name]["value"]
                while isinstance(fn, _WRAPPERS):
                    fn = fn.base_dist
                altered = sites[name]["scale"] is not None or isinstance(
                    fn, dist.MaskedDistribution
                )
                if altered or isinstance(fn, dist.Unit | dist.Delta):
                    raise ConfigError(
                        f"observed site {name!r} is a factor, masked or scaled, so no outcome can "
                        "be drawn for it, but private scores need outcomes; use method.kind = "
                        "'dp-sgd'"
                    )
                found.update(key for key, column in records.items() if column is value)

        jax.eval_shape(call, blank)
        return frozenset(found)

    def _is_scalar(self) -> bool:
        shapes = jax.eval_shape(self.observed, self.program.blank(1))
        return len(self.names) == 1 and math.prod(shapes[self.names[0]].shape) == 1

    def _works(self, ability: Callable[[Any], Any]) -> bool:
        """True if the function `ability` can be evaluated for the distribution of the only scalar
        site. It is tested with abstract values.
        """
        name = self.scalar
        if name is None:
            return False

        def call(theta: Array, records: Records) -> Any:
            return ability(self.parameters(theta, records)[name])

        try:
            found = jax.eval_shape(call, jnp.zeros(self.dimension), self.program.blank(1))
        except (AttributeError, ImportError, NotImplementedError, TypeError, ValueError):
            return False
        return found is not None

    @staticmethod
    def _support(fn: Any) -> tuple[Array, Array] | None:
        if not fn.has_enumerate_support:
            return None
        values = fn.enumerate_support(expand=True)
        if len(values) > MOST_VALUES:
            return None
        log_probs = jnp.stack([jnp.sum(fn.log_prob(values[place])) for place in range(len(values))])
        return values, jnp.exp(log_probs)

    @staticmethod
    def _proposal(fn: Any) -> Proposal | None:
        kind: str | None = None
        support: Any = fn.support
        if type(support) is type(constraints.real):
            kind = "real"
        elif getattr(support, "lower_bound", None) == 0 and not hasattr(support, "upper_bound"):
            kind = "count" if support.is_discrete else "positive"
        if kind is None:
            return None
        core: Any = fn
        while isinstance(core, _WRAPPERS):
            core = core.base_dist
        if kind == "real" and hasattr(core, "loc") and hasattr(core, "scale"):
            location, scale = core.loc, core.scale
        else:
            location, scale = fn.mean, jnp.sqrt(fn.variance)
        location, scale = (
            jnp.sum(jnp.broadcast_to(jnp.ravel(one), (1,))) for one in (location, scale)
        )
        if kind == "positive":
            ratio = jnp.log1p(jnp.square(scale / location))
            location, scale = jnp.log(location) - 0.5 * ratio, jnp.sqrt(ratio)
        if kind == "count":
            location = location + 0.5
        return Proposal(location, _WIDER * scale, kind)

    @staticmethod
    def _ends(fn: Any, value: Array) -> tuple[Array, Array]:
        upper = jnp.sum(fn.cdf(value))
        if fn.support is None or not fn.support.is_discrete:
            return upper, upper
        lower = jnp.sum(fn.cdf(jnp.maximum(value - 1, 0)))
        return jnp.where(jnp.sum(value) >= 1, lower, 0.0), upper

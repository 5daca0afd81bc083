"""Base classes of models: a prior on a vector θ and a log-likelihood that sums over records.

Records are a dictionary of arrays with one leading axis, the record: `{"x": (n, d), "y": (n,)}` for
regression, or other columns that the model needs. `log_likelihood` and `response` are JAX-traceable
and return one number per record, as minibatches, padding and per-record clipping require.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from tacit.arrays import Array
from tacit.data.records import len_records
from tacit.data.schema.layout import Layout, unknown_layout
from tacit.errors import ConfigError, DataError
from tacit.expfam import Family, FullGaussian, MeanFieldGaussian, Natural
from tacit.models.equal import first_equal
from tacit.models.predictive import Prediction, average_over_draws
from tacit.models.settings import ModelSettings
from tacit.models.statistics import Quadratic, Statistics, Working, gaussian_factor
from tacit.support.validation import check_sd

if TYPE_CHECKING:
    from tacit.data.federation import Federation

Records = dict[str, Array]
Output = Literal["bernoulli", "gaussian", "categorical", "other"]
OUTCOMES = {"bernoulli": "yes/no", "gaussian": "numeric", "categorical": "one of several levels"}
"""Descriptions of the kinds of outcome, for messages."""


def checked_names(names: Sequence[str], argument: str = "names") -> tuple[str, ...]:
    """Validate the names of columns or levels; a single string is refused.

    >>> checked_names(["age", "sex"])
    ('age', 'sex')
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        one = f"({names!r},)" if isinstance(names, str) else "('age', 'sex')"
        raise ConfigError(f"{argument} = {names!r}; expected a sequence of names, e.g. {one}")
    found = tuple(names)
    for name in found:
        if not isinstance(name, str):
            raise ConfigError(f"{argument} contains {name!r}; expected strings, e.g. {str(name)!r}")
    if not found:
        raise ConfigError(f"{argument} is empty; give at least one name")
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise ConfigError(f"{argument} contains {twice!r} twice; names must differ")
    return found


def checked_layout(columns: tuple[str, ...], layout: Layout | None) -> Layout:
    """Return the layout, one feature per column of x: as given, or else features without
    declarations.
    """
    layout = unknown_layout(columns) if layout is None else layout
    if len(layout) != len(columns):
        raise ConfigError(
            f"the layout describes {len(layout)} columns of x, but there are {len(columns)} names; "
            "give one feature per column"
        )
    return layout


def no_records() -> Records:
    """Return no records: the default example of a schema."""
    return {}


class Description(NamedTuple):
    """A table that describes a posterior in the user's terms, such as its clusters."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    """Cells as text; the first one names the row."""


ColumnUnits = Mapping[str, tuple[float, float]]
"""Centre and scale of each column that was rescaled: the original value is centre + scale·x."""


@dataclass(frozen=True)
class ModelSchema:
    """Public facts about the records that a model is built for; contains no record.

    Parameters
    ----------
    names
        Names of the columns of x.
    outcome
        Name of the outcome.
    layout
        Description of each column of x; None without a schema.
    y_bounds
        Smallest and largest outcome, if declared.
    levels
        Levels of the outcome, if it is one of several.
    """

    names: tuple[str, ...]
    output: Output
    """Kind of outcome: yes/no, a number, one of several levels, or none ("other")."""
    outcome: str | None = None
    layout: Layout | None = None
    y_bounds: tuple[float, float] | None = None
    levels: tuple[str, ...] = ()
    y_scale: float | None = None
    """The declared scale by which a numeric outcome was divided; None if it was not rescaled."""
    seed: int = 0
    """Seed for a model with a random starting point (`Model.seeded`)."""
    example: Callable[[], Records] = field(default=no_records, compare=False, repr=False)
    """A few rows with the columns and types of the records (`Model.reads_example`)."""

    @classmethod
    def of(cls, federation: Federation, seed: int = 0) -> ModelSchema:
        """Make the schema of a federation; records are read only if a model needs the example."""

        def example() -> Records:
            largest = max(federation.parties.values(), key=len_records)
            return {key: value[:8] for key, value in largest.items()}

        outcome = None
        if federation.schema is not None:
            outcome = federation.schema.declared(federation.outcome)
        return cls(
            names=federation.names,
            output=federation.output,
            outcome=federation.outcome,
            layout=federation.layout,
            y_bounds=federation.y_bounds,
            levels=federation.levels,
            y_scale=None if outcome is None else outcome.scale,
            seed=seed,
            example=example,
        )

    def with_seed(self, seed: int) -> ModelSchema:
        """Return the schema with another seed."""
        return replace(self, seed=seed)


class Model(abc.ABC):
    """A prior and a per-record log-likelihood over θ ∈ ℝᵈ."""

    kind: ClassVar[str]
    Settings: ClassVar[type[ModelSettings]] = ModelSettings
    """The [model] table of this kind; its tag is `kind`."""
    serves: ClassVar[tuple[Output, ...]] = ("bernoulli", "gaussian", "categorical")
    """Kinds of target that the model supports."""
    seeded: ClassVar[bool] = False
    """True if `build` uses the schema's seed."""
    reads_example: ClassVar[bool] = False
    """True if `build` uses the schema's example; the model is then not cached."""
    output: Output
    names: tuple[str, ...]
    undeclared: tuple[str, ...] = ()
    """Constructor arguments that were left out on purpose; their attributes have placeholder
    values.
    """
    has_site_prior: bool = False
    """True if the prior is not in the family. It is then evaluated through `log_prior`: either
    parties add shares of it, or the server keeps it as an extra factor that starts from `prior`."""
    is_prior: ClassVar[bool] = False
    """True for the pseudo-party that represents a prior outside the family."""
    multimodal: ClassVar[bool] = False
    """True if the posterior has many equivalent modes, as for a neural network."""
    traceable: ClassVar[bool] = True
    """False if the model computes in NumPy; parties are then computed one at a time."""
    ties_at_prior: ClassVar[bool] = False
    """True if the prior is symmetric in the components, so that q must start at `start`."""
    nonnegative_statistics: ClassVar[bool] = False
    """True if no coordinate of `statistics` is ever negative."""
    rounding_grows: ClassVar[bool] = False
    """True if, for some q, rounding errors grow as large as the values (by an iteration or a
    discontinuity). Results then depend on array shapes.
    """
    summed_parts: ClassVar[float] = 1.0
    """If a clipped contribution is computed from several terms, a bound on the sum of their norms
    relative to the clip. It is more than 1 if statistics are differences of sums; rounding errors
    grow with it.
    """
    listed: ClassVar[bool] = True
    """False if single coordinates have no meaning; results then do not list them."""
    uncalibrated: ClassVar[str | None] = None
    """Known error of the intervals of this model, in one sentence."""
    augmented: ClassVar[bool] = False
    """True if `statistics` average over latent variables that are added to make the model
    conjugate. A q made from them is narrower than the posterior.
    """
    mixes: bool = False
    """True if the likelihood of a record is a mixture, whose posterior may have several modes."""
    user_program: ClassVar[bool] = False
    """True if the likelihood is user code that may fail on records; it is tested before a run."""

    @classmethod
    def build(cls, settings: Any, schema: ModelSchema) -> Model:
        """Build the model that a [model] table describes, for the columns of a public schema."""
        del settings
        return cls(schema.names)  # pyright: ignore[reportCallIssue]

    def stand_in(self, records: Records) -> Records | None:
        """Return neutral records of the same shapes, to test a computation; None if the model has
        none.

        For models that are not traceable. The first axis of each column is the party.
        """
        del records
        return None

    @property
    def statistics_unit(self) -> float:
        """Factor from `statistics` to natural parameters: their size for statistics of norm 1."""
        return 1.0

    @property
    def dimension(self) -> int:
        """Number of coordinates of θ."""
        return len(self.names)

    @property
    def labels(self) -> int:
        """Number of labels of y, for label-agnostic clipping."""
        return 2

    @property
    def scale_coordinates(self) -> tuple[int, ...]:
        """Coordinates of θ that are logarithms of scales, along which a posterior may be skewed."""
        return ()

    @property
    def compiled_as(self) -> Model:
        """The model that is the key of compiled functions.

        Equal models of this library share one, so a second fit compiles nothing; see
        `tacit.models.equal`. Models that differ only in `start` may share one too, because the
        start is an argument of compiled functions. A sweep over seeds then compiles only once.
        """
        return first_equal(self)

    @property
    def own_family(self) -> Family | None:
        """The model's posterior family if it is not Gaussian, else None."""
        return None

    @property
    def record_columns(self) -> tuple[str, ...] | None:
        """Names of the columns that the model reads directly; None for a model that reads x and
        y.
        """
        return None

    @property
    def prediction_words(self) -> tuple[str, tuple[str, ...]] | None:
        """Description of the values that `predict` returns for each record, and the names of the
        result's columns.

        None for a model that predicts an outcome.
        """
        return None

    @property
    def x_columns(self) -> int | None:
        """Number of columns of x, or None if unknown."""
        return None

    def check_records(self, party: str, records: Records) -> None:
        """Raise a DataError if the model cannot read a party's records."""
        del party, records

    @abc.abstractmethod
    def log_likelihood(self, theta: Array, records: Records) -> Array:
        """Compute log p(record | θ) for each record, shape (n,)."""

    @abc.abstractmethod
    def response(self, theta: Array, records: Records) -> Array:
        """Compute E[y | record, θ] for each record, shape (n,): a probability for a Bernoulli
        output.

        For a categorical output, the probability of each level, shape (n, K).
        """

    def working(self, family: Family, q: Natural, records: Records) -> Working | None:
        """Return the records' expected statistics if E_q[log p(record | θ)] is quadratic in θ, else
        None.
        """
        del family, q, records
        return None

    def statistics(
        self,
        family: Family,
        q: Natural,
        records: Records,
        weights: Array,
        *,
        balance: float = 1.0,
        key: Array = None,
    ) -> Statistics | None:
        """Compute the expected statistics, at q, of the records with nonzero weight; None if the
        model has none.

        `balance` is the share of second moments in their norm. `key` is the random key of a private
        answer, for models that resample each record; None: no resampling.
        """
        del weights, key
        parts = self.working(family, q, records)
        if parts is None:
            return None
        unit = self.statistics_unit
        return Quadratic(family=family, q=q, parts=parts, balance=balance, unit=unit)

    def factor(self, family: Family, q: Natural, total: Any, *, balance: float = 1.0) -> Natural:
        """Return λ of the factor, given a total of `statistics` at q, which may include noise."""
        whole = {name: self.statistics_unit * value for name, value in total.items()}
        return gaussian_factor(family, q, whole, balance)

    @property
    def has_statistics(self) -> bool:
        """True if the model has `statistics`."""
        kind = type(self)
        return (kind.working, kind.statistics) != (Model.working, Model.statistics)

    @property
    def statistics_have_l1_norms(self) -> bool:
        """True if the L1 norms of `statistics` are known, which Laplace noise needs."""
        return type(self).statistics is Model.statistics and self.has_statistics

    @abc.abstractmethod
    def prior(self, family: Family) -> Natural:
        """Return λ of the prior, or of its approximation if `has_site_prior`."""

    def predict(
        self, family: Family, natural: Natural, records: Records, *, draws: int, seed: int
    ) -> Prediction:
        """Compute the predictive distribution of each record; by default an average over draws of
        θ.
        """
        return average_over_draws(self, family, natural, records, draws, seed)

    def draw_outcomes(
        self, theta: np.ndarray, means: np.ndarray, records: Records, seed: int
    ) -> np.ndarray:
        """Draw outcomes of records for each draw of θ; `means` is E[y | x, θ], of shape (draws, n).

        For a categorical output `means` has shape (draws, n, K), and an outcome is a level's code.
        """
        del theta, records
        rng = np.random.default_rng([seed, 1])
        noise_sd = getattr(self, "noise_sd", None)
        if self.output == "bernoulli":
            return (rng.random(means.shape) < means).astype(np.float64)
        if self.output == "categorical":
            places = rng.random((*means.shape[:-1], 1)) * np.sum(means, axis=-1, keepdims=True)
            return np.sum(np.cumsum(means, axis=-1) < places, axis=-1).astype(np.float64)
        if self.output == "gaussian" and noise_sd is not None:
            return means + noise_sd * rng.standard_normal(means.shape)
        raise ConfigError(
            f"model {self.kind!r} cannot draw outcomes; use kind='draws' for draws of their mean"
        )

    def posterior_fault(self, family: Family, natural: Natural) -> str | None:
        """Return the reason why q cannot be the model's posterior, or None."""
        del family, natural
        return None

    def result_tables(self, natural: Natural, names: Sequence[str]) -> dict[str, Any]:
        """Return the model's own tables for a result, such as topics; `names` are the column
        names.
        """
        del natural, names
        return {}

    def described(self, natural: Natural, units: ColumnUnits) -> list[Description]:
        """Return tables that describe a result in the user's terms; `units` are (centre, scale) of
        rescaled columns.
        """
        del natural, units
        return []

    def measured(self, natural: Natural, records: Records, seed: int) -> dict[str, float] | None:
        """Compute held-out metrics of a model that predicts no y; None for other models."""
        del natural, records, seed
        return None

    def clip_scales(self) -> Array | float:
        """Public weight α of each coordinate's gradient in the clipped norm; 1 by default."""
        return 1.0

    def score_parts(
        self, theta: Array, records: Records, squares: Array, *, label_agnostic: bool
    ) -> tuple[Array, Array, Callable[[Array], Array]] | None:
        """Compute norms and weighted sums of the gradients ∇ log p(record | θ) in closed form, or
        return None.

        The first is √Σ_j squares_j (∂_j log p)² for each record, or, label-agnostic, the largest
        over the labels; the second is the plain norm ‖∇ log p‖; the third maps weights w to Σ wᵢ ∇
        log p(recordᵢ | θ) and must ignore records of weight 0.
        """
        del theta, records, squares, label_agnostic
        return None

    def log_prior(self, theta: Array) -> Array:
        """log p(θ); needed only when `has_site_prior`."""
        raise NotImplementedError

    def constrain(self, theta: Array) -> dict[str, Array]:
        """Convert draws of θ to the user's parameters."""
        return {}

    def start(self, family: Family) -> Natural | None:
        """Return the starting point of a local optimiser while q is the prior; None: start at q."""
        return None


class GaussianPriorModel(Model):
    """A model whose prior is N(mean, sd²) in each coordinate."""

    def __init__(
        self, names: tuple[str, ...], prior_mean: Array | float, prior_sd: Array | float
    ) -> None:
        self.names = tuple(names)
        self.prior_mean = self._each(prior_mean, "model.prior_mean")
        self.prior_sd = self._each(prior_sd, "model.prior_sd")
        for sd in np.unique(self.prior_sd):
            check_sd(sd, "model.prior_sd")
        if not np.all(np.isfinite(self.prior_mean)):
            raise ConfigError(f"model.prior_mean = {prior_mean}; it must be a finite number")

    def check_records(self, party: str, records: Records) -> None:
        if self.output == "bernoulli" and not np.all(np.isin(records["y"], (0, 1))):
            raise DataError(
                f"party {party!r}: y holds values other than 0 and 1, which model "
                f"{self.kind!r} needs; recode them or choose another model"
            )

    def _each(self, value: Array | float, key: str) -> np.ndarray:
        """Convert a number or an array to one number per coordinate."""
        try:
            return np.broadcast_to(np.asarray(value, np.float64), (self.dimension,))
        except (TypeError, ValueError):
            raise ConfigError(
                f"{key} = {value!r}; give one number, or an array of {self.dimension}"
            ) from None

    def prior(self, family: Family) -> Natural:
        return gaussian_natural(family, mean=self.prior_mean, sd=self.prior_sd, model=self.kind)


def gaussian_natural(family: Family, *, mean: Array, sd: Array, model: str) -> Natural:
    """Return λ of independent normals in a Gaussian family."""
    if isinstance(family, MeanFieldGaussian):
        return family.natural(mean=mean, sd=sd)
    if isinstance(family, FullGaussian):
        return family.natural(mean=mean, covariance=np.diag(np.square(sd)))
    raise ConfigError(
        f"model {model!r} has a Gaussian posterior, not {family.kind!r}; "
        "set family to 'mean-field' or 'full'"
    )

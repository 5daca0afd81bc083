"""Base classes of models: a prior on a vector θ and a log-likelihood that sums over records.

Records are a dictionary of arrays whose first axis runs over the records: `{"x": (n, d), "y":
(n,)}` for regression, or other columns that the model needs. `log_likelihood` and `response` can be
traced by JAX. They return one value per record, which is needed for minibatches, for padding and
for clipping single records.
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
    """Return names of columns or levels as a tuple of strings. Raise a ConfigError for other input,
    for no names, and for a repeated name.

    `argument` is the name of the argument in the error message.

    >>> checked_names(["age", "sex"])
    ('age', 'sex')
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        one = f"({names!r},)" if isinstance(names, str) else "('age', 'sex')"
        raise ConfigError(f"{argument} = {names!r}; give a sequence of names, e.g. {one}")
    found = tuple(names)
    for name in found:
        if not isinstance(name, str):
            raise ConfigError(f"{argument} contains {name!r}; give strings, e.g. {str(name)!r}")
    if not found:
        raise ConfigError(f"{argument} is empty; give at least one name")
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise ConfigError(f"{argument} contains {twice!r} twice; list each name once")
    return found


def checked_layout(columns: tuple[str, ...], layout: Layout | None) -> Layout:
    """Return `layout`, or a layout without declared bounds if `layout` is None.

    Raise a ConfigError unless the layout has one feature per entry of `columns`.
    """
    layout = unknown_layout(columns) if layout is None else layout
    if len(layout) != len(columns):
        raise ConfigError(
            f"the layout describes {len(layout)} columns of x, but there are {len(columns)} names; "
            "give a layout with one feature per name"
        )
    return layout


def no_records() -> Records:
    """Return an empty dictionary, the default of `ModelSchema.example`."""
    return {}


class Description(NamedTuple):
    """A table that describes a posterior in the user's terms, such as its clusters."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    """Cells as text, one tuple per row; the first cell names the row."""


ColumnUnits = Mapping[str, tuple[float, float]]
"""Centre and scale of each column that was rescaled: the original value is centre + scale·x."""


@dataclass(frozen=True)
class ModelSchema:
    """Public facts about the records that a model is built for. It contains no records.

    Parameters
    ----------
    names
        Names of the columns of x.
    outcome
        Name of the outcome.
    layout
        Description of each column of x; None if the columns are not described.
    y_bounds
        Smallest and largest outcome, if declared.
    levels
        Names of the levels of a categorical outcome; empty for other outcomes.
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
        """Make the schema of a federation. Its `example` function returns the first records of the
        largest party.
        """

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
        """Return a copy of the schema with another seed."""
        return replace(self, seed=seed)


class Model(abc.ABC):
    """A prior of θ ∈ ℝᵈ and the log-likelihood of each record given θ."""

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
    identity_link: ClassVar[bool | None] = None
    """True if the expected outcome is in the unit of y, so that it must be converted back if y was
    centred and scaled. None: true for `output` "gaussian" only.
    """
    has_site_prior: bool = False
    """True if the prior is not in the family. It is then evaluated through `log_prior`: either
    parties add shares of it, or the server keeps it as an extra factor that starts from `prior`."""
    is_prior: ClassVar[bool] = False
    """True for the pseudo-party that represents a prior outside the family."""
    multimodal: ClassVar[bool] = False
    """True if the posterior has many equivalent modes, as for a neural network."""
    traceable: ClassVar[bool] = True
    """False if the model computes in NumPy, not JAX; updates of several parties are then computed
    one after another.
    """
    ties_at_prior: ClassVar[bool] = False
    """True if the prior is symmetric in the components. q must then start at `start`."""
    nonnegative_statistics: ClassVar[bool] = False
    """True if no coordinate of `statistics` is ever negative."""
    rounding_grows: ClassVar[bool] = False
    """True if, for some q, an iteration or a discontinuity makes rounding errors as large as the
    values. Results then depend on array shapes.
    """
    summed_parts: ClassVar[float] = 1.0
    """A clipped contribution is computed from one or several terms. This is an upper bound on the
    sum of the norms of these terms, relative to the clip. It is more than 1 if a contribution is a
    difference of terms that may be larger than the result. Bounds on rounding errors grow with it.
    """
    listed: ClassVar[bool] = True
    """False if single coordinates have no meaning; results then do not list them."""
    uncalibrated: ClassVar[str | None] = None
    """Known error of the intervals of this model, in one sentence; None if no error is known."""
    augmented: ClassVar[bool] = False
    """True if `statistics` average over latent variables that are added to make the model
    conjugate. A q that is computed from such statistics is narrower than the posterior.
    """
    mixes: bool = False
    """True if the likelihood of a record is a mixture, whose posterior may have several modes."""
    user_program: ClassVar[bool] = False
    """True if the likelihood is user code that may fail on records; it is tested before a run."""

    @classmethod
    def build(cls, settings: Any, schema: ModelSchema) -> Model:
        """Build the model from a [model] table of its kind and the public schema of the records."""
        del settings
        return cls(schema.names)  # pyright: ignore[reportCallIssue]

    def stand_in(self, records: Records) -> Records | None:
        """Return artificial records with the same shapes as `records`, or None if the model makes
        none.

        A computation is tested on these records before a run. Only models that are not `traceable`
        need them. The first axis of each array is the party.
        """
        del records
        return None

    @property
    def statistics_unit(self) -> float:
        """Number by which a sum of `statistics` is multiplied to obtain natural parameters."""
        return 1.0

    @property
    def dimension(self) -> int:
        """Number of coordinates of θ."""
        return len(self.names)

    @property
    def labels(self) -> int:
        """Number of possible values of y, for label-agnostic clipping."""
        return 2

    @property
    def scale_coordinates(self) -> tuple[int, ...]:
        """Indices of the coordinates of θ that are logarithms of scales. A posterior may be skewed
        along these.
        """
        return ()

    @property
    def compiled_as(self) -> Model:
        """The model object that is the key of cached compiled functions.

        Equal models of this library share one object (`tacit.models.equal`). A second fit with an
        equal model therefore reuses the compiled functions. Models that differ only in `start` may
        share one object as well, because the starting point is an argument of compiled functions.
        """
        return first_equal(self)

    @property
    def own_family(self) -> Family | None:
        """The model's posterior family, or None if it is Gaussian."""
        return None

    @property
    def record_columns(self) -> tuple[str, ...] | None:
        """Names of the columns that the model reads from the records; None if it reads x and y."""
        return None

    @property
    def prediction_words(self) -> tuple[str, tuple[str, ...]] | None:
        """A description of the result of `predict` for each record, and the names of its columns.

        None for a model that predicts an outcome y.
        """
        return None

    @property
    def x_columns(self) -> int | None:
        """Number of columns of x, or None if unknown."""
        return None

    def check_records(self, party: str, records: Records) -> None:
        """Raise a DataError if the model cannot use a party's records."""
        del party, records

    @abc.abstractmethod
    def log_likelihood(self, theta: Array, records: Records) -> Array:
        """Compute log p(record | θ) for each record, shape (n,)."""

    @abc.abstractmethod
    def response(self, theta: Array, records: Records) -> Array:
        """Compute E[y | record, θ] for each record. The shape is (n,).

        For a categorical output with K levels, return the probability of each level. The shape is
        (n, K).
        """

    def working(self, family: Family, q: Natural, records: Records) -> Working | None:
        """Return the coefficients s and ω of each record (`Working`), or None if the model has
        none.

        In the update, s·(x·θ) − ½ω(x·θ)² replaces log p(record | θ), up to a constant. It is equal
        to the log-likelihood, or is the lower bound that is closest for θ ~ q.
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
        """Compute the expected sufficient statistics, under q, of the records with nonzero weight.
        Return None if the model has no such statistics.

        Second moments are multiplied by `balance` before clipping, which changes their weight in
        the clipped norm relative to the first moments. `key` is a random key for models that
        resample each record in a private run; None means no resampling.
        """
        del weights, key
        parts = self.working(family, q, records)
        if parts is None:
            return None
        unit = self.statistics_unit
        return Quadratic(family=family, q=q, parts=parts, balance=balance, unit=unit)

    def factor(self, family: Family, q: Natural, total: Any, *, balance: float = 1.0) -> Natural:
        """Return the natural parameters of a party's factor. `total` is the sum of the party's
        `statistics` at q, possibly with noise.
        """
        whole = {name: self.statistics_unit * value for name, value in total.items()}
        return gaussian_factor(family, q, whole, balance)

    @property
    def has_statistics(self) -> bool:
        """True if the model defines `statistics`, directly or by `working`."""
        kind = type(self)
        return (kind.working, kind.statistics) != (Model.working, Model.statistics)

    @property
    def statistics_have_l1_norms(self) -> bool:
        """True if the L1 norms of `statistics` are available. Laplace noise needs these."""
        return type(self).statistics is Model.statistics and self.has_statistics

    @abc.abstractmethod
    def prior(self, family: Family) -> Natural:
        """Return the natural parameters of the prior. If `has_site_prior`, return those of an
        approximation of the prior in the family.
        """

    def predict(
        self, family: Family, natural: Natural, records: Records, *, draws: int, seed: int
    ) -> Prediction:
        """Compute the predictive distribution of each record. The default is an average over
        `draws` draws of θ.
        """
        return average_over_draws(self, family, natural, records, draws, seed)

    def draw_outcomes(
        self, theta: np.ndarray, means: np.ndarray, records: Records, seed: int
    ) -> np.ndarray:
        """Draw one outcome per record for each draw of θ.

        `means` is E[y | x, θ], of shape (draws, n). For a categorical output with K levels it
        contains the probabilities of the levels, of shape (draws, n, K), and an outcome is the
        index of a level.
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
            f"model {self.kind!r} cannot draw outcomes (it has no method draw_outcomes); predict "
            "with kind='draws' to get draws of the expected outcome"
        )

    @property
    def predicts_in_outcome_unit(self) -> bool:
        """True if predictions and coefficients are in the unit of a numeric outcome."""
        return self.output == "gaussian" if self.identity_link is None else self.identity_link

    def posterior_fault(self, family: Family, natural: Natural) -> str | None:
        """Return the reason why q cannot be a posterior of this model, or None if there is no such
        reason.
        """
        del family, natural
        return None

    def result_tables(self, natural: Natural, names: Sequence[str]) -> dict[str, Any]:
        """Return the tables that this model adds to a result, such as its topics. `names` are the
        names of the columns.
        """
        del natural, names
        return {}

    def described(self, natural: Natural, units: ColumnUnits) -> list[Description]:
        """Return tables that describe the posterior to a user, on the original scales of the
        columns.

        `units` contains the pair (centre, scale) of each rescaled column. An original value is
        centre + scale·x.
        """
        del natural, units
        return []

    def measured(self, natural: Natural, records: Records, seed: int) -> dict[str, float] | None:
        """Compute metrics of held-out records for a model that has no outcome y. Return None for
        other models.
        """
        del natural, records, seed
        return None

    def clip_scales(self) -> Array | float:
        """Return the public weight of each coordinate of a gradient in the norm that is clipped.
        The default is 1 for all coordinates.
        """
        return 1.0

    def score_parts(
        self, theta: Array, records: Records, squares: Array, *, label_agnostic: bool
    ) -> tuple[Array, Array, Callable[[Array], Array]] | None:
        """Compute norms and weighted sums of the gradients ∇ log p(record | θ) in closed form.
        Return None if there is no closed form.

        The first result is a weighted norm of each record's gradient, √Σ_j squares_j (∂ log
        p/∂θ_j)². If `label_agnostic`, it is the largest such norm over all possible values of y.
        The second result is the unweighted norm of each record's gradient. The third is a function
        that takes one weight per record and returns the weighted sum of the gradients. It ignores
        records of weight 0.
        """
        del theta, records, squares, label_agnostic
        return None

    def log_prior(self, theta: Array) -> Array:
        """Return log p(θ). Needed only if `has_site_prior`."""
        raise NotImplementedError

    def constrain(self, theta: Array) -> dict[str, Array]:
        """Convert draws of θ to a dict from the name of each declared parameter to its draws."""
        return {}

    def start(self, family: Family) -> Natural | None:
        """Return the natural parameters at which a local optimiser starts while q is still the
        prior. If the result is None, the optimiser starts at q.
        """
        return None


class GaussianPriorModel(Model):
    """A model in which the coordinates of θ are independent and normal under the prior."""

    def __init__(
        self, names: tuple[str, ...], prior_mean: Array | float, prior_sd: Array | float
    ) -> None:
        self.names = tuple(names)
        self.prior_mean = self._each(prior_mean, "model.prior_mean")
        self.prior_sd = self._each(prior_sd, "model.prior_sd")
        for sd in np.unique(self.prior_sd):
            check_sd(sd, "model.prior_sd")
        if not np.all(np.isfinite(self.prior_mean)):
            raise ConfigError(f"model.prior_mean = {prior_mean}; it must be finite")

    def check_records(self, party: str, records: Records) -> None:
        if self.output == "bernoulli" and not np.all(np.isin(records["y"], (0, 1))):
            raise DataError(
                f"party {party!r}: y holds values other than 0 and 1, but model {self.kind!r} "
                "needs these two; recode y or choose another model"
            )

    def _each(self, value: Array | float, key: str) -> np.ndarray:
        try:
            return np.broadcast_to(np.asarray(value, np.float64), (self.dimension,))
        except (TypeError, ValueError):
            raise ConfigError(
                f"{key} = {value!r}; give one number, or an array of {self.dimension} numbers"
            ) from None

    def prior(self, family: Family) -> Natural:
        return gaussian_natural(family, mean=self.prior_mean, sd=self.prior_sd, model=self.kind)


def gaussian_natural(family: Family, *, mean: Array, sd: Array, model: str) -> Natural:
    """Return the natural parameters of independent normal distributions in a Gaussian family.

    For another family, raise a ConfigError that mentions `model`, the kind of the model.
    """
    if isinstance(family, MeanFieldGaussian):
        return family.natural(mean=mean, sd=sd)
    if isinstance(family, FullGaussian):
        return family.natural(mean=mean, covariance=np.diag(np.square(sd)))
    raise ConfigError(
        f"model {model!r} needs a Gaussian posterior, not {family.kind!r}; "
        "set posterior to 'mean-field' or 'full'"
    )

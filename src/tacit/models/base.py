"""What a model is: a prior on a vector θ and a log-likelihood that is a sum over records.

Records are a dictionary of arrays with one leading axis, the record: `{"x": (n, d), "y": (n,)}`
for regression, whatever the model asks for otherwise. `log_likelihood` and `response` are
JAX-traceable and answer one number a record, which is all that minibatches, padding and
per-record clipping need.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from tacit.arrays import Array
from tacit.data.records import len_records
from tacit.data.schema.layout import Layout
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
TARGETS = {"bernoulli": "yes/no", "gaussian": "numeric", "categorical": "one of several levels"}
"""What a target is, in words."""


def checked_names(names: Sequence[str], argument: str = "names") -> tuple[str, ...]:
    """The names of columns or levels; a single string would be read letter by letter.

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
        raise ConfigError(f"{argument} is empty; give one name for each")
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise ConfigError(f"{argument} contains {twice!r} twice; give each another name")
    return found


def no_records() -> Records:
    """The example of a schema whose records are elsewhere."""
    return {}


@dataclass(frozen=True)
class ModelSchema:
    """What is public about the records that a model is built for; no record is part of it.

    Parameters
    ----------
    names
        Names of the columns of x.
    target
        Name of the outcome.
    layout
        What each column of x is; None without a schema.
    y_bounds
        Least and largest outcome, if declared.
    levels
        Levels of the outcome, if it is one of several.
    """

    names: tuple[str, ...]
    output: Output
    """What the target is: yes or no, a number, one of several levels, or none ("other")."""
    target: str | None = None
    layout: Layout | None = None
    y_bounds: tuple[float, float] | None = None
    levels: tuple[str, ...] = ()
    seed: int = 0
    """For a model that starts at random (`Model.seeded`)."""
    example: Callable[[], Records] = field(default=no_records, compare=False, repr=False)
    """A few rows whose columns and types are those of the records (`Model.reads_example`)."""

    @classmethod
    def of(cls, federation: Federation, seed: int = 0) -> ModelSchema:
        """That of a federation; its records are read only if a model asks for the example."""

        def example() -> Records:
            largest = max(federation.parties.values(), key=len_records)
            return {key: value[:8] for key, value in largest.items()}

        return cls(
            names=federation.names,
            output=federation.output,
            target=federation.target,
            layout=federation.layout,
            y_bounds=federation.y_bounds,
            levels=federation.levels,
            seed=seed,
            example=example,
        )

    def with_seed(self, seed: int) -> ModelSchema:
        """The same with another seed."""
        return replace(self, seed=seed)


class Model(abc.ABC):
    """A prior and a per-record log-likelihood over θ ∈ ℝᵈ."""

    kind: ClassVar[str]
    Settings: ClassVar[type[ModelSettings]] = ModelSettings
    """The [model] table of this kind; its tag is `kind`."""
    serves: ClassVar[tuple[Output, ...]] = ("bernoulli", "gaussian", "categorical")
    """Targets that it has a likelihood for."""
    seeded: ClassVar[bool] = False
    """True when `build` uses the schema's seed."""
    reads_example: ClassVar[bool] = False
    """True when `build` uses the schema's example: the model is then built anew each time."""
    output: Output
    names: tuple[str, ...]
    has_site_prior: bool = False
    """True when the prior is not in the family: the server then keeps it as a first factor that
    it refines like a party's (`log_prior`), starting from `prior`."""
    traceable: ClassVar[bool] = True
    """False when its arithmetic is NumPy's: parties are then answered one after the other."""
    ties_at_prior: ClassVar[bool] = False
    """True when everything is alike at the prior and would stay so: q starts at `start`."""
    nonnegative_statistics: ClassVar[bool] = False
    """Whether no coordinate of `statistics` is ever negative."""
    rounding_grows: ClassVar[bool] = False
    """True when there are q that make the rounding of a record's numbers as large as the numbers,
    by an iteration or by a jump: they then depend on the shape of the arrays they are in."""
    listed: ClassVar[bool] = True
    """False when a coordinate means little on its own: results then do not list all of them."""
    user_program: ClassVar[bool] = False
    """True when the likelihood is a program that may fail on records: it is tried before a run."""

    @classmethod
    def build(cls, settings: Any, schema: ModelSchema) -> Model:
        """The model that a [model] table describes, for the columns of a public schema."""
        del settings
        return cls(schema.names)  # pyright: ignore[reportCallIssue]

    def stand_in(self, records: Records) -> Records | None:
        """Columns of the same shapes that say nothing, to try out an answer; None: there are none.

        For a model that is not traceable; the columns have the parties as their first axis.
        """
        del records
        return None

    @property
    def statistics_unit(self) -> float:
        """What a norm of 1 in `statistics` is, in natural parameters."""
        return 1.0

    @property
    def dimension(self) -> int:
        """Number of coordinates of θ."""
        return len(self.names)

    @property
    def labels(self) -> int:
        """How many labels y may be, where a contribution is clipped by the worst of them."""
        return 2

    @property
    def compiled_as(self) -> Model:
        """The model under which functions of it are compiled.

        Equal models of this library have one in common, so that a second fit compiles nothing; see
        `tacit.models.equal`. So may models that differ in `start` alone: a start is an argument of
        what is compiled, and a sweep over seeds then compiles once and not once per seed.
        """
        return first_equal(self)

    @property
    def own_family(self) -> Family | None:
        """The only family that fits, where that is not a Gaussian one."""
        return None

    @property
    def x_columns(self) -> int | None:
        """How many columns of x a record has; None where the model does not say."""
        return None

    def check_records(self, party: str, records: Records) -> None:
        """Raise a DataError if a party's records are not what this model reads."""
        del party, records

    @abc.abstractmethod
    def log_likelihood(self, theta: Array, records: Records) -> Array:
        """log p(record | θ) for each record, shape (n,)."""

    @abc.abstractmethod
    def response(self, theta: Array, records: Records) -> Array:
        """E[y | record, θ] for each record, shape (n,): a probability for a Bernoulli output.

        Of a categorical output the probability of each level, shape (n, K).
        """

    def working(self, family: Family, q: Natural, records: Records) -> Working | None:
        """Expected statistics where E_q[log p(record | θ)] is quadratic in θ; None: it is not."""
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
        """Expected statistics at q of the records whose weight is not 0; None: it has none.

        `balance` is the second moments' share in their norm, where there are any; `key` is that of
        a private answer, for a model that draws something of its own for each record; None: the
        records are taken as they are.
        """
        del weights, key
        parts = self.working(family, q, records)
        if parts is None:
            return None
        unit = self.statistics_unit
        return Quadratic(family=family, q=q, parts=parts, balance=balance, unit=unit)

    def factor(self, family: Family, q: Natural, total: Any, *, balance: float = 1.0) -> Natural:
        """λ of the factor that a total of `statistics` at q is, noise included."""
        whole = {name: self.statistics_unit * value for name, value in total.items()}
        return gaussian_factor(family, q, whole, balance)

    @property
    def has_statistics(self) -> bool:
        """Whether `statistics` answers."""
        kind = type(self)
        return (kind.working, kind.statistics) != (Model.working, Model.statistics)

    @abc.abstractmethod
    def prior(self, family: Family) -> Natural:
        """λ of the prior, or of its stand-in when `has_site_prior`."""

    def predict(
        self, family: Family, natural: Natural, records: Records, *, draws: int, seed: int
    ) -> Prediction:
        """The predictive distribution of each record; by default an average over draws of θ."""
        return average_over_draws(self, family, natural, records, draws, seed)

    def posterior_fault(self, family: Family, natural: Natural) -> str | None:
        """Why this q cannot be the model's posterior, if that shows; None: it does not."""
        del family, natural
        return None

    def result_tables(self, natural: Natural, names: Sequence[str]) -> dict[str, Any]:
        """Tables of its own for a result, such as topics; `names` are those of the columns."""
        del natural, names
        return {}

    def measured(self, natural: Natural, records: Records, seed: int) -> dict[str, float] | None:
        """How good q is on held-out records, for a model that predicts no y; None: it does."""
        del natural, records, seed
        return None

    def clip_scales(self) -> Array | float:
        """How much of a clip each coordinate's gradient may use: public, 1 if nothing is known."""
        return 1.0

    def score_parts(
        self, theta: Array, records: Records, squares: Array, *, label_agnostic: bool
    ) -> tuple[Array, Array, Callable[[Array], Array]] | None:
        """Norms of ∇ log p(record | θ) and their weighted sum in closed form; None: no such form.

        The first is √Σ_j squares_j (∂_j log p)² for each record, or, label-agnostic, the largest
        over the labels; the second is the plain norm ‖∇ log p‖; the third maps weights w to
        Σ wᵢ ∇ log p(recordᵢ | θ) and must not look at a record of weight 0.
        """
        del theta, records, squares, label_agnostic
        return None

    def log_prior(self, theta: Array) -> Array:
        """log p(θ); needed only when `has_site_prior`."""
        raise NotImplementedError

    def constrain(self, theta: Array) -> dict[str, Array]:
        """The quantities a user thinks in, for draws of θ, where those are not θ itself."""
        return {}

    def start(self, family: Family) -> Natural | None:
        """Where a local optimiser starts while q is still the prior; None: at q itself."""
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
        """One number for each coordinate."""
        try:
            return np.broadcast_to(np.asarray(value, np.float64), (self.dimension,))
        except (TypeError, ValueError):
            raise ConfigError(
                f"{key} = {value!r}; give one number, or an array of {self.dimension}"
            ) from None

    def prior(self, family: Family) -> Natural:
        return gaussian_natural(family, mean=self.prior_mean, sd=self.prior_sd, model=self.kind)


def gaussian_natural(family: Family, *, mean: Array, sd: Array, model: str) -> Natural:
    """λ of independent normals in either Gaussian family."""
    if isinstance(family, MeanFieldGaussian):
        return family.natural(mean=mean, sd=sd)
    if isinstance(family, FullGaussian):
        return family.natural(mean=mean, covariance=np.diag(np.square(sd)))
    raise ConfigError(
        f"model {model!r} has a Gaussian posterior, not {family.kind!r}; "
        "set family to 'mean-field' or 'full'"
    )

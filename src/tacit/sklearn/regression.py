"""Regressions as scikit-learn estimators: logistic (or softmax), linear and Poisson.

An estimator converts X to a `Federation` with one party per value of `groups`, calls `tacit.fit`,
and converts coefficients and predictions back to the units of X and y.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    check_random_state,
    validate_data,
)

from tacit.data import Federation
from tacit.data.schema.columns import ColumnConfig
from tacit.data.schema.layout import layout_of
from tacit.data.schema.table import SourceSchema
from tacit.errors import ConfigError, DataError
from tacit.fitting.fit import fit
from tacit.fitting.privacy import FitPrivacy
from tacit.fitting.result import Fit
from tacit.models import LinearRegression as LinearModel
from tacit.models import LogisticRegression as LogisticModel
from tacit.models import Model
from tacit.models import PoissonRegression as PoissonModel
from tacit.models import SoftmaxRegression as SoftmaxModel
from tacit.models.glm.normal import NormalRegression as NormalModel
from tacit.privacy.settings import Privacy
from tacit.results.predict import predict

PrivacyArgument = Literal["none"] | Privacy | None
Pair = tuple[float, float]
ONE_PARTY = "all"


class InputError(DataError, ValueError):
    """Records or arguments that an estimator cannot use; a ValueError, as in scikit-learn."""


class _Regression(BaseEstimator):
    """Base class of the estimators. It makes columns and parties, fits the model, and converts the
    results to the original units.
    """

    classes_: np.ndarray
    coef_: np.ndarray
    """Posterior means of the coefficients, per unit of each column of X."""
    intercept_: Any
    """Posterior mean of the intercept."""
    fit_: Fit
    """The result of `tacit.fit`, with posterior, verdict, summary and report."""
    privacy_: FitPrivacy
    """The guarantee of the fit."""
    n_features_in_: int

    def __init__(
        self,
        privacy: PrivacyArgument,
        *,
        bounds: Any = None,
        prior_sd: float | None = None,
        random_state: Any = 0,
    ) -> None:
        self.privacy: PrivacyArgument = privacy
        self.bounds = bounds
        self.prior_sd = prior_sd
        self.random_state = random_state

    @property
    def _private(self) -> bool:
        return isinstance(self.privacy, Privacy)

    def _fit(self, X: Any, y: np.ndarray, groups: Any, outcome: ColumnConfig) -> None:
        """Fit to y, which is on the model's scale, and set the fitted attributes."""
        names = [str(name) for name in getattr(self, "feature_names_in_", ())]
        names = names or [f"x{index}" for index in range(X.shape[1])]
        while outcome.name in names:  # a column of X has that name
            outcome = msgspec.structs.replace(outcome, name=f"{outcome.name}_")
        columns = self._columns(X, names)
        pairs = [column.affine for column in columns]
        self._center = np.array([0.0 if pair is None else pair[0] for pair in pairs])
        self._scale = np.array([1.0 if pair is None else pair[1] for pair in pairs])
        self._limits = np.array(
            [
                (-math.inf if c.low is None else c.low, math.inf if c.high is None else c.high)
                for c in columns
            ]
        )
        layout = layout_of(columns)
        design = self._design(X)
        rows_of = _rows_of(groups, len(y))
        parties = {name: {"x": design[rows], "y": y[rows]} for name, rows in rows_of.items()}
        federation = Federation(
            parties=parties,
            test=None,
            names=("intercept", *names),
            outcome=outcome.name,
            output=self._output,
            scaling="public" if all(column.bounded for column in columns) else "pooled",
            notes=(),
            raw={
                name: {
                    f"target {outcome.name}": y[rows],
                    **dict(zip(names, X[rows].T, strict=True)),
                }
                for name, rows in rows_of.items()
            },
            unbounded=tuple(column.name for column in columns if not column.bounded),
            layout=layout,
            y_bounds=_in_unit(outcome),
            schema=SourceSchema(
                columns=(*columns, outcome),
                outcome=outcome.name,
                positive=outcome.levels[1] if self._output == "bernoulli" else None,
            ),
            levels=outcome.levels if self._output == "categorical" else (),
        )
        model = self._model(("intercept", *names), layout, federation)
        self.fit_ = fit(
            model,
            federation,
            privacy=self.privacy,
            seed=_seed(self.random_state),
        )
        self.privacy_ = self.fit_.privacy
        mean, width = self.fit_.posterior.mean, 1 + len(names)
        weights = mean[: len(mean) - len(mean) % width].reshape(-1, width)
        self.coef_ = weights[:, 1:] / self._scale
        self.intercept_ = weights[:, 0] - self.coef_ @ self._center

    @property
    def _output(self) -> Any:
        raise NotImplementedError

    def _model(self, names: tuple[str, ...], layout: Any, federation: Federation) -> Model:
        raise NotImplementedError

    def _columns(self, X: np.ndarray, names: list[str]) -> list[ColumnConfig]:
        """Make the public schema from the declared bounds. Without privacy, a column without bounds
        is scaled by its mean and sd.
        """
        pairs = _bounds_of(self.bounds, names)
        missing = [name for name in names if name not in pairs]
        if self._private and missing:
            raise ConfigError(
                f"bounds of {missing[0]} are missing; a private fit needs public bounds of every "
                "column: bounds=(low, high) for all, a list of pairs, or a dictionary by column"
            )
        columns = []
        for name, values in zip(names, X.T, strict=True):
            if name in pairs:
                low, high = pairs[name]
                columns.append(ColumnConfig(name=name, low=low, high=high))
                continue
            spread = float(np.std(values))
            known = spread > 1e-12 * max(1.0, float(np.max(np.abs(values))))
            center, scale = float(np.mean(values)), spread if known else 1.0
            columns.append(ColumnConfig(name=name, center=center, scale=scale))
        return columns

    def _design(self, X: np.ndarray) -> np.ndarray:
        """Return the design matrix: a constant, and the columns of X, clipped to their bounds and
        scaled.
        """
        inside = np.clip(X, self._limits[:, 0], self._limits[:, 1])
        return np.column_stack([np.ones(len(X)), (inside - self._center) / self._scale])

    def _predicted(self, X: Any) -> np.ndarray:
        """Compute the posterior predictive mean on the model's scale."""
        check_is_fitted(self, "fit_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        q = self.fit_.posterior
        return predict(q.model, q.family, q.natural, {"x": self._design(X)}).mean


class LogisticRegression(ClassifierMixin, _Regression):
    """Bayesian logistic regression of one or several parties; softmax for more than two classes.

    With privacy every cross-validation fold is a further fit on the same records, and the costs of
    all folds add up.

    Parameters
    ----------
    privacy
        `tacit.Privacy(epsilon=…)`; None or "none" for exact updates without differential privacy.
    bounds
        Public bounds of the columns: one pair (low, high) for all, a list with a pair per column,
        or a dictionary by column name. Values outside the bounds are clipped. Bounds are required
        with privacy. A column without bounds is scaled by its mean and standard deviation.
    prior_sd
        Prior standard deviation of the intercept and of each coefficient of a scaled column.
        Columns are divided by half the width of their bounds, or by their standard deviation. By
        default it is learned as in `tacit.fit` if the method supports this, and is 1 otherwise.
        `fit_.summary()` states the prior.
    classes
        All classes of y. With privacy they are public facts and required unless they are 0 and 1.
    random_state
        Seed of everything random except privacy noise.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    >>> model = LogisticRegression(privacy=None).fit(X[["mean radius", "mean texture"]], y)
    >>> model.coef_.shape, bool(model.score(X[["mean radius", "mean texture"]], y) > 0.85)
    ((1, 2), True)
    """

    def __init__(
        self,
        privacy: PrivacyArgument,
        *,
        bounds: Any = None,
        prior_sd: float | None = None,
        classes: Any = None,
        random_state: Any = 0,
    ) -> None:
        super().__init__(privacy, bounds=bounds, prior_sd=prior_sd, random_state=random_state)
        self.classes = classes

    @property
    def _output(self) -> Any:
        return "bernoulli" if len(self.classes_) == 2 else "categorical"

    def fit(self, X: Any, y: Any, groups: Any = None) -> LogisticRegression:
        """Fit the posterior.

        Parameters
        ----------
        X
            Numbers, one row per record.
        y
            The class of each record.
        groups
            The party of each record; by default one party holds all.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_ = self._classes(np.asarray(y))
        place = np.searchsorted(self.classes_, y)
        place = np.minimum(place, len(self.classes_) - 1)
        if not np.all(self.classes_[place] == y):
            raise InputError("y has a class that is missing from classes; add it to classes")
        levels = tuple(str(one) for one in self.classes_)
        outcome = ColumnConfig(name="y", levels=levels, feature=False)
        self._fit(X, place.astype(np.float64), groups, outcome)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Compute the posterior predictive probability of each class, in the order of `classes_`.

        Parameters
        ----------
        X
            Numbers, one row per record.
        """
        mean = self._predicted(X)
        return mean if mean.ndim == 2 else np.column_stack([1.0 - mean, mean])

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each record.

        Parameters
        ----------
        X
            Numbers, one row per record.
        """
        best = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[best]

    def _classes(self, y: np.ndarray) -> np.ndarray:
        if self.classes is not None:
            found = np.unique(np.asarray(self.classes))
        elif self._private:
            if y.dtype.kind not in "biuf" or not np.all(np.isin(y, (0, 1))):
                raise ConfigError(
                    "classes is missing; a private fit needs the classes of y as public facts, "
                    "unless they are 0 and 1: give classes=[…]"
                )
            found = np.unique(np.array([0, 1], dtype=y.dtype))
        else:
            found = np.unique(y)
        if len(found) < 2:
            raise InputError(f"y has {len(found)} class; at least two classes are needed")
        return found

    def _model(self, names: tuple[str, ...], layout: Any, federation: Federation) -> Model:
        if self._output == "bernoulli":
            return LogisticModel(names, prior_sd=self.prior_sd, layout=layout)
        return SoftmaxModel(names, levels=federation.levels, prior_sd=self.prior_sd, layout=layout)


class _Numeric(RegressorMixin, _Regression):
    """Base class of regressions with a numeric outcome."""

    _y_center, _y_scale = 0.0, 1.0

    @property
    def _output(self) -> Any:
        return "gaussian"

    def fit(self, X: Any, y: Any, groups: Any = None) -> Any:
        """Fit the posterior.

        Parameters
        ----------
        X
            Numbers, one row per record.
        y
            The outcome of each record.
        groups
            The party of each record; by default one party holds all.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = np.asarray(y, np.float64)
        outcome = self._outcome(y)
        if outcome.low is not None and outcome.high is not None:
            y = np.clip(y, outcome.low, outcome.high)
        center, scale = outcome.center, outcome.scale
        self._y_center = 0.0 if center is None else center
        self._y_scale = 1.0 if scale is None else scale
        y = (y - self._y_center) / self._y_scale
        self._fit(X, y, groups, outcome)
        self.coef_ = self.coef_[0] * self._y_scale
        self.intercept_ = float(self.intercept_[0]) * self._y_scale + self._y_center
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Compute the posterior predictive mean of each record.

        Parameters
        ----------
        X
            Numbers, one row per record.
        """
        return self._predicted(X) * self._y_scale + self._y_center

    def _outcome(self, y: np.ndarray) -> ColumnConfig:
        raise NotImplementedError


class LinearRegression(_Numeric):
    """Bayesian linear regression of one or several parties.

    Parameters
    ----------
    privacy
        `tacit.Privacy(epsilon=…)`; None or "none" for exact updates without differential privacy.
    bounds
        Public bounds of the columns, as for `LogisticRegression`.
    outcome_bounds
        Public bounds (low, high) of y; values outside the bounds are clipped. They are required
        with privacy. By default y is scaled by its mean and standard deviation.
    noise_sd
        Standard deviation of y given X, in the unit of y, if it is known; by default it is
        inferred with the coefficients.
    prior_sd
        Prior standard deviation of the intercept and of each coefficient, with X and y scaled; the
        default is as for `LogisticRegression`.
    random_state
        Seed of everything random except privacy noise.

    Examples
    --------
    >>> X = np.arange(20.0)[:, None]
    >>> model = LinearRegression(privacy=None, prior_sd=10.0).fit(X, 5.0 + 2.0 * X[:, 0])
    >>> np.round(model.coef_, 2), round(model.intercept_, 1)
    (array([2.]), 5.0)
    """

    def __init__(
        self,
        privacy: PrivacyArgument,
        *,
        bounds: Any = None,
        outcome_bounds: Pair | None = None,
        noise_sd: float | None = None,
        prior_sd: float | None = None,
        random_state: Any = 0,
    ) -> None:
        super().__init__(privacy, bounds=bounds, prior_sd=prior_sd, random_state=random_state)
        self.outcome_bounds = outcome_bounds
        self.noise_sd = noise_sd

    def _outcome(self, y: np.ndarray) -> ColumnConfig:
        if self._private and self.outcome_bounds is None:
            raise ConfigError(
                "outcome_bounds is missing; a private fit needs public bounds of y: give "
                "outcome_bounds=(low, high), in the unit of y"
            )
        if self.outcome_bounds is None:
            spread = float(np.std(y))
            center, scale = float(np.mean(y)), spread if spread > 0 else 1.0
            return ColumnConfig(name="y", center=center, scale=scale, feature=False)
        low, high = _pair(self.outcome_bounds, "outcome_bounds")
        return ColumnConfig(
            name="y", low=low, high=high, center=(low + high) / 2, scale=(high - low) / 2,
            feature=False,
        )  # fmt: skip

    def _model(self, names: tuple[str, ...], layout: Any, federation: Federation) -> Model:
        if self.noise_sd is None:
            return NormalModel(
                names, prior_sd=self.prior_sd, layout=layout, bounds=federation.y_bounds
            )
        return LinearModel(
            names,
            noise_sd=self.noise_sd / self._y_scale,
            prior_sd=self.prior_sd,
            layout=layout,
            bounds=federation.y_bounds,
        )


class PoissonRegression(_Numeric):
    """Bayesian Poisson regression of counts with a log link, of one or several parties.

    `score` is the share of explained deviance (D²), as in scikit-learn's `PoissonRegressor`.

    Parameters
    ----------
    privacy
        `tacit.Privacy(epsilon=…)`; None or "none" for exact updates without differential privacy.
    bounds
        Public bounds of the columns, as for `LogisticRegression`.
    max_count
        Public upper bound on the counts; larger counts are clipped. It is required with privacy.
        The default is the largest count.
    prior_sd
        Prior standard deviation of the intercept and of each coefficient of a scaled column; the
        default is as for `LogisticRegression`.
    random_state
        Seed of everything random except privacy noise.
    """

    def __init__(
        self,
        privacy: PrivacyArgument,
        *,
        bounds: Any = None,
        max_count: float | None = None,
        prior_sd: float | None = None,
        random_state: Any = 0,
    ) -> None:
        super().__init__(privacy, bounds=bounds, prior_sd=prior_sd, random_state=random_state)
        self.max_count = max_count

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute D² = 1 − a/b, where a is the deviance of the predictions, and b is the deviance
        of a constant rate.

        Parameters
        ----------
        X
            Numbers, one row per record.
        y
            Observed counts.
        sample_weight
            Weight of each record.
        """
        from sklearn.metrics import d2_tweedie_score

        mean = self.predict(X)
        return float(d2_tweedie_score(y, mean, sample_weight=sample_weight, power=1))

    def _outcome(self, y: np.ndarray) -> ColumnConfig:
        if np.any(y < 0):
            raise InputError("y has a negative value; a Poisson regression needs counts")
        if self._private and self.max_count is None:
            raise ConfigError(
                "max_count is missing; a private fit needs a public upper bound on the counts: "
                "give max_count=…"
            )
        high = float(np.max(y)) if self.max_count is None else float(self.max_count)
        return ColumnConfig(name="y", low=0.0, high=max(high, 1.0), feature=False)

    def _model(self, names: tuple[str, ...], layout: Any, federation: Federation) -> Model:
        assert federation.y_bounds is not None
        return PoissonModel(
            names, max_count=federation.y_bounds[1], prior_sd=self.prior_sd, layout=layout
        )


def _rows_of(groups: Any, count: int) -> dict[str, np.ndarray]:
    if groups is None:
        return {ONE_PARTY: np.arange(count)}
    labels = np.asarray(groups).astype(str)
    check_consistent_length(labels, np.empty(count))
    return {str(name): np.flatnonzero(labels == name) for name in np.unique(labels)}


def _bounds_of(bounds: Any, names: list[str]) -> dict[str, Pair]:
    if bounds is None:
        return {}
    if isinstance(bounds, Mapping):
        unknown = [name for name in bounds if name not in names]
        if unknown:
            raise ConfigError(f"bounds[{unknown[0]!r}]: X has no such column; it has {names[:10]}")
        return {str(name): _pair(pair, f"bounds[{name!r}]") for name, pair in bounds.items()}
    if np.shape(bounds) == (2,):
        return dict.fromkeys(names, _pair(bounds, "bounds"))
    if len(bounds) != len(names):
        raise ConfigError(
            f"bounds has {len(bounds)} pairs, but X has {len(names)} columns; give one pair "
            "(low, high) per column"
        )
    return {
        name: _pair(pair, f"bounds of {name}") for name, pair in zip(names, bounds, strict=True)
    }


def _pair(given: Any, what: str) -> Pair:
    try:
        low, high = (float(value) for value in given)
    except (TypeError, ValueError):
        raise ConfigError(f"{what} = {given!r}; give two numbers, (low, high)") from None
    if not -math.inf < low < high < math.inf:
        raise ConfigError(f"{what} = ({low:g}, {high:g}); low must be less than high, both finite")
    return low, high


def _in_unit(outcome: ColumnConfig) -> Pair | None:
    """Convert the bounds of a numeric outcome to the model's scale; return None if it has no
    bounds.
    """
    if outcome.levels or outcome.low is None or outcome.high is None:
        return None
    center = 0.0 if outcome.center is None else outcome.center
    scale = 1.0 if outcome.scale is None else outcome.scale
    return (outcome.low - center) / scale, (outcome.high - center) / scale


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))

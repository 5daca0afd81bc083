"""Metrics of predictive distributions, as plain floats for result.json."""

from __future__ import annotations

import math

import numpy as np

from tacit.errors import DataError
from tacit.expfam import Family, Natural
from tacit.models import Model, Records
from tacit.models.predictive import Prediction, count_records
from tacit.results.predict import predict
from tacit.results.summary import CalibrationBin, Metrics

BINS = 15
"""Equal-width bins of the calibration plot (Guo et al. 2017, §4, use 15)."""

NORMAL_90 = 1.6448536269514722
"""Half-width, in standard deviations, of a normal's central 90 % interval."""


def evaluate(
    model: Model,
    family: Family,
    natural: Natural,
    records: Records,
    *,
    draws: int = 100,
    seed: int = 0,
) -> Metrics | None:
    """Compute metrics of q on `records`; None if there are no records.

    A metric that is not finite is None, because JSON has no NaN.
    """
    if count_records(records) == 0:
        return None
    return score(model, predict(model, family, natural, records, draws=draws, seed=seed), records)


def score(model: Model, prediction: Prediction, records: Records) -> Metrics:
    """Compute metrics of a prediction, for at least one record.

    * all outputs: `log_predictive_density`, the mean of log p(y | x) in nats per record
    * Bernoulli: `accuracy` at threshold ½, `brier` = mean (p − y)², `calibration_error`, and
      `auroc`, the probability that a record with y = 1 has a larger p than one with y = 0
    * categorical: `accuracy` of the likeliest level, `brier` = mean ½ Σₖ (pₖ − 1{y = k})², which
      equals the Bernoulli score if there are two levels, and `calibration_error` of the most
      probable level
    * Gaussian: `rmse`, and `coverage_90`, the share of y inside the central 90 % interval
    * Gaussian and counts: `c_index`, the share of pairs of records whose means are in the same
      order as their y
    """
    values = {"log_predictive_density": float(np.mean(prediction.log_density))}
    if model.output == "bernoulli":
        y = _labels(records["y"])
        right = np.where(np.isfinite(prediction.mean), (prediction.mean > 0.5) == y, np.nan)
        values["accuracy"] = float(np.mean(right))
        values["brier"] = float(np.mean((prediction.mean - y) ** 2))
        values["calibration_error"] = calibration_error(prediction.mean, y)
        values["auroc"] = concordance(prediction.mean, y)
    elif model.output == "categorical" and prediction.mean.ndim == 2:
        confidence, right = likeliest(prediction.mean, records["y"])
        own = np.asarray(records["y"])[:, None] == np.arange(prediction.mean.shape[1])
        values["accuracy"] = float(np.mean(np.where(np.isfinite(confidence), right, np.nan)))
        values["brier"] = float(np.mean(np.sum((prediction.mean - own) ** 2, axis=1)) / 2)
        values["calibration_error"] = calibration_error(confidence, right)
    elif model.output == "gaussian":
        error = np.asarray(records["y"], np.float64) - prediction.mean
        values["rmse"] = float(np.sqrt(np.mean(error**2)))
        if prediction.sd is not None:
            inside = np.where(
                np.isfinite(error), np.abs(error) <= NORMAL_90 * prediction.sd, np.nan
            )
            values["coverage_90"] = float(np.mean(inside))
    if model.output in ("gaussian", "other") and prediction.mean.ndim == 1 and "y" in records:
        values["c_index"] = concordance(prediction.mean, records["y"])
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def concordance(predicted: np.ndarray, y: np.ndarray) -> float:
    """Compute the share of pairs with different y whose predictions are in the same order as their
    y; equal predictions count half.

    This is Harrell's C-index without censoring, and the area under the ROC curve if y is 0 or 1. It
    is NaN if all predictions or all y are equal.

    >>> concordance(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    predicted, y = np.asarray(predicted, np.float64), np.asarray(y, np.float64)
    if not np.all(np.isfinite(predicted)) or len(y) < 2:
        return math.nan
    _, order = np.unique(predicted, return_inverse=True)
    levels, counts = np.unique(y, return_counts=True)
    pairs = (len(y) ** 2 - float(np.sum(counts.astype(np.float64) ** 2))) / 2
    if order.max() == 0 or pairs == 0:
        return math.nan
    if len(levels) == 2:
        upper = y == levels[1]
        below = np.cumsum(np.bincount(order[~upper], minlength=order.max() + 1))
        same = np.bincount(order[~upper], minlength=order.max() + 1)
        return float(np.sum((below - 0.5 * same)[order[upper]]) / pairs)
    return _ordered_pairs(order, y) / pairs


def _ordered_pairs(order: np.ndarray, y: np.ndarray) -> float:
    """Count the pairs of records that have different y and are ordered alike by `order` and by y.

    A pair with equal values of `order` counts as one half. The function uses a Fenwick tree.
    """
    size = int(order.max()) + 1
    tree = [0] * (size + 1)

    def below(place: int) -> int:
        total = 0
        while place > 0:
            total += tree[place]
            place -= place & -place
        return total

    right = 0.0
    codes = order[np.argsort(y, kind="stable")].tolist()
    ends = np.cumsum(np.unique(y, return_counts=True)[1]).tolist()
    start = 0
    for end in ends:
        for code in codes[start:end]:  # against all records with smaller y
            right += 0.5 * (below(code) + below(code + 1))
        for code in codes[start:end]:
            place = code + 1
            while place <= size:
                tree[place] += 1
                place += place & -place
        start = end
    return right


def likeliest(probabilities: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two numbers per record: the probability of its most probable level, and 1 if this
    level is y, otherwise 0.

    >>> likeliest(np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]), np.array([0, 1]))
    (array([0.5, 0.8]), array([1., 0.]))
    """
    right = np.argmax(probabilities, axis=1) == np.asarray(y)
    return np.max(probabilities, axis=1), right.astype(np.float64)


def calibration_bins(
    probability: np.ndarray, y: np.ndarray, *, bins: int = BINS
) -> list[CalibrationBin]:
    """Compare the mean predicted probability with the observed frequency of y = 1, bin by bin.

    Bins have equal width on [0, 1] and include their lower edge; the last bin also includes its
    upper edge. Empty bins are left out. A record whose probability is not finite is in no bin.

    >>> calibration_bins(np.array([0.1, 0.2, 0.9]), np.array([0, 1, 1]), bins=2)[0].observed
    0.5
    """
    probability, y = np.asarray(probability, np.float64), _labels(y)
    finite = np.isfinite(probability)
    probability, y = probability[finite], y[finite]
    edges = np.linspace(0.0, 1.0, bins + 1)
    index = np.clip(np.searchsorted(edges, probability, side="right") - 1, 0, bins - 1)
    rows: list[CalibrationBin] = []
    for k in np.unique(index):
        member = index == k
        rows.append(
            CalibrationBin(
                low=float(edges[k]),
                high=float(edges[k + 1]),
                predicted=float(probability[member].mean()),
                observed=float(y[member].mean()),
                count=int(member.sum()),
            )
        )
    return rows


def calibration_error(probability: np.ndarray, y: np.ndarray, *, bins: int = BINS) -> float:
    """Compute the expected calibration error Σₖ (nₖ/n) |observedₖ − predictedₖ| over the bins of
    `calibration_bins`.

    `probability` is that of y = 1. With more than two levels, callers pass the probability of the
    most probable level, as Guo et al. (2017, eq. 3) do. The result is NaN if a probability is not
    finite or if there are no records. It is biased upwards by about 1/√nₖ per bin, so compare only
    values on the same records.
    """
    if not np.all(np.isfinite(probability)):
        return math.nan
    rows = calibration_bins(probability, y, bins=bins)
    total = sum(row.count for row in rows)
    gap = sum(row.count * abs(row.observed - row.predicted) for row in rows)
    return gap / total if total else math.nan


def _labels(y: np.ndarray) -> np.ndarray:
    y = np.asarray(y, np.float64)
    wrong = y[~((y == 0) | (y == 1))]
    if wrong.size:
        raise DataError(f"y holds {wrong[0]:g}; a Bernoulli output needs 0 or 1 in every record")
    return y

"""What private scoring costs in fit: python benchmarks/scoring.py [--splits A-B] [--setting WORDS].

Regret is the held-out mean log-likelihood of the posterior without privacy minus that of the
private one, on the same split: (1, 1e-5) and ten parties that add their own noise unless a line
says otherwise, substitution of a record, defaults only; "N(0, I)" is the same with that prior. Each
line is a mean over splits, its standard
error, the largest, and beside it what predicting the overall rate would lose. The splits of the
figures in docs/methods/private-scoring.md are ones that no choice was made on.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common import held_out  # noqa: E402
from tacit.data.federation import split  # noqa: E402
from tacit.data.schema.layout import INTERCEPT, Feature  # noqa: E402
from tacit.datasets import load  # noqa: E402
from tacit.engines.execute import carry_out  # noqa: E402
from tacit.methods import DPSGD, PrivateScoring  # noqa: E402
from tacit.models import LogisticRegression  # noqa: E402
from tacit.plan.plan import make_plan  # noqa: E402
from tacit.privacy.settings import Privacy  # noqa: E402

NUMBERS = {
    "time_in_hospital": (1, 14),
    "num_lab_procedures": (0, 132),
    "num_procedures": (0, 6),
    "num_medications": (1, 81),
    "number_outpatient": (0, 42),
    "number_emergency": (0, 76),
    "number_inpatient": (0, 21),
    "number_diagnoses": (1, 16),
}
CATEGORIES = (
    *("race", "gender", "age", "admission_type_id", "discharge_disposition_id"),
    *("admission_source_id", "payer_code", "max_glu_serum", "A1Cresult", "metformin"),
    *("glipizide", "glyburide", "insulin", "change", "diabetesMed"),
)
SCORING = {"default": PrivateScoring(), "N(0, I)": PrivateScoring(empirical_bayes=False)}
WITH_DPSGD = {**SCORING, "dp-sgd": DPSGD()}


class Split(NamedTuple):
    parties: dict[str, dict[str, np.ndarray]]
    test: dict[str, np.ndarray]
    layout: Any


class Setting(NamedTuple):
    split: Any
    """seed -> Split."""
    methods: dict[str, Any] = SCORING
    epsilon: float = 1.0
    aggregation: Any = "plain"
    secure: Any = {}  # noqa: RUF012 - thresholds, never written to


def adult(held: float, **given: Any) -> Any:
    def one(seed: int) -> Split:
        found = load("adult", held_out=held, seed=seed, **{"parties": 10, **given})
        return Split(dict(found.parties), found.test, found.layout)

    return one


def dealt(x: np.ndarray, y: np.ndarray, layout: Any, seed: int) -> Split:
    """A fifth held out, the rest at ten parties."""
    train, test = split({"x": x, "y": y}, held_out=0.2, seed=seed)
    parties = {str(i): {name: train[name][i::10] for name in train} for i in range(10)}
    return Split(parties, test, layout)


def rare_adult(seed: int) -> Split:
    """Adult with as many of its positives as make 2 %."""
    found = load("adult", parties=1, held_out=0.0, seed=seed)
    (records,) = found.parties.values()
    rng = np.random.default_rng([seed, 1])
    positive, rest = (np.flatnonzero((records["y"] > 0) == which) for which in (True, False))
    rows = np.append(rest, rng.choice(positive, len(rest) // 49, replace=False))
    rows = rng.permutation(rows)
    return dealt(records["x"][rows], records["y"][rows], found.layout, seed)


def made_up(seed: int, rate: float = 0.02, records: int = 40_000) -> Split:
    """Numbers, some of them skewed with wide bounds, and categories of up to 30 levels."""
    rng = np.random.default_rng([seed, 2])
    hidden = rng.standard_normal((records, 4))
    columns, layout = [np.ones(records)], [INTERCEPT]
    for i in range(8):
        value = 0.7 * hidden[:, i % 4] + 0.7 * rng.standard_normal(records)
        value = np.minimum(np.exp(value), 60.0) / 30.0 - 1.0 if i < 4 else value / 6.0
        columns.append(np.clip(value, -1.0, 1.0))
        layout.append(Feature("numeric", f"v{i}", -1.0, 1.0))
    for i, levels in enumerate((2, 3, 5, 12, 30)):
        value = hidden[:, i % 4] + rng.standard_normal(records)
        cuts = np.quantile(value, np.cumsum(rng.dirichlet(0.7 * np.ones(levels)))[:-1])
        code = np.searchsorted(cuts, value)
        columns.extend((code == level) * 1.0 for level in range(levels))
        layout.extend([Feature("level", f"c{i}")] * levels)
    x = np.column_stack(columns)
    eta = x @ (0.5 * rng.standard_normal(x.shape[1]) * np.where(np.arange(x.shape[1]) < 9, 3, 1))
    eta = eta - eta.mean() + logit(rate)
    for _ in range(50):
        eta += logit(rate) - logit(np.mean(expit(eta)))
    y = (rng.random(records) < expit(eta)) * 1.0
    return dealt(x, y, tuple(layout), seed)


def diabetes(step: int = 1) -> Any:
    """Readmission within 30 days; every `step`-th stay."""
    path = Path(os.environ["TACIT_DATA"]) / "diabetes130" / "diabetic_data.csv.gz"
    return table(path, NUMBERS, CATEGORIES, lambda row: row["readmitted"] == "<30", step)


GUSTO_NUMBERS = {"age": (18, 110), "pulse": (0, 220), "sysbp": (0, 280), "height": (140, 212)}
GUSTO_NUMBERS |= {"weight": (36, 180), "ste": (0, 11)}
GUSTO_CATEGORIES = ("sho", "hig", "dia", "hyp", "hrt", "ttr", "sex", "Killip", "ant", "miloc")
GUSTO_CATEGORIES += ("pmi", "htn", "smk", "pan", "fam", "prevcvd", "prevcabg", "regl", "tx")


def table(
    path: Path, numbers: dict[str, tuple[float, float]], categories: Any, positive: Any, step: int
) -> Any:
    """Every `step`-th row of a CSV file: numbers scaled by public bounds, categories as levels."""
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))[::step]
    columns, layout = [np.ones(len(rows))], [INTERCEPT]
    for name, (low, high) in numbers.items():
        value = np.clip([float(row[name] or (low + high) / 2) for row in rows], low, high)
        columns.append((2.0 * value - low - high) / (high - low))
        layout.append(Feature("numeric", name, -1.0, 1.0))
    for name in categories:
        value = np.array([row[name] for row in rows])
        for level in np.unique(value):
            columns.append((value == level) * 1.0)
            layout.append(Feature("level", name))
    x, y = np.column_stack(columns), np.array([positive(row) for row in rows]) * 1.0
    return lambda seed: dealt(x, y, tuple(layout), seed)


def gusto() -> Any:
    """Death within 30 days of a myocardial infarction."""
    path = Path(os.environ["TACIT_DATA"]) / "gusto" / "gusto.csv.gz"
    return table(path, GUSTO_NUMBERS, GUSTO_CATEGORIES, lambda row: row["day30"] == "1", 1)


def settings() -> dict[str, Setting]:
    found = {
        "Adult 50/50": Setting(adult(0.5)),
        "Adult 80/20": Setting(adult(0.2)),
        "Adult 50/50, only the sum released": Setting(adult(0.5), aggregation="trusted"),
        "Adult 50/50, secure sums": Setting(adult(0.5), aggregation="secure"),
        "Adult 50/50, secure sums without dropouts": Setting(
            adult(0.5), aggregation="secure", secure={"quorum": 10}
        ),
        "Adult 80/20, only the sum released": Setting(adult(0.2), aggregation="trusted"),
        "Adult 50/50, 200 parties, eps 0.5, only the sum released": Setting(
            adult(0.5, parties=200), epsilon=0.5, aggregation="trusted"
        ),
        "Adult 50/50, unbalanced": Setting(adult(0.5, size_skew=0.75, label_skew=0.7)),
        "Adult 50/50, eps 100": Setting(adult(0.5), epsilon=100.0),
        "Adult 80/20, 2 % positives": Setting(rare_adult, WITH_DPSGD),
        "made-up records, 2 % positives": Setting(made_up, WITH_DPSGD),
    }
    if (Path(os.environ.get("TACIT_DATA", "")) / "diabetes130").is_dir():
        found["diabetes 80/20, 11 % positives"] = Setting(diabetes(), WITH_DPSGD)
        found["a fifth of diabetes 80/20"] = Setting(diabetes(5), WITH_DPSGD)
    if (Path(os.environ.get("TACIT_DATA", "")) / "gusto").is_dir():
        found["gusto 80/20, 7 % positives"] = Setting(gusto(), WITH_DPSGD)
    return found


def without_privacy(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the Laplace approximation, N(0, I) prior, by Newton's method."""
    mean = np.zeros(x.shape[1])
    for _ in range(60):
        p = expit(x @ mean)
        precision = (x * (p * (1.0 - p))[:, None]).T @ x + np.eye(len(mean))
        step = np.linalg.solve(precision, x.T @ (y - p) - mean)
        mean = mean + step * min(1.0, 5.0 / np.max(np.abs(x @ step)))
        if np.max(np.abs(step)) < 1e-8:
            break
    return mean, np.linalg.inv(precision)


def show(name: str, setting: Setting, seeds: range, models: dict[Any, Any]) -> None:
    lost: dict[str, list[float]] = {name: [] for name in (*setting.methods, "constant")}
    cpu: dict[str, list[float]] = {name: [] for name in setting.methods}
    for seed in seeds:
        parties, test, layout = setting.split(seed)
        x, y = (np.concatenate([r[key] for r in parties.values()]) for key in ("x", "y"))
        base = held_out(*without_privacy(np.asarray(x, float), np.asarray(y, float)), test)
        rate, outcome = np.mean(y), np.asarray(test["y"], float)
        constant = np.mean(outcome * np.log(rate) + (1.0 - outcome) * np.log1p(-rate))
        lost["constant"].append(base - constant)
        names = ("intercept", *(str(i) for i in range(1, x.shape[1])))
        model = models.setdefault(layout, LogisticRegression(names, layout=layout))
        for which, method in setting.methods.items():
            privacy = Privacy(
                epsilon=setting.epsilon,
                delta=1e-5,
                insecure_noise_seed=seed,
                aggregation=setting.aggregation,
                secure=setting.secure,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # δ is not small against parties of few records
                plan = make_plan(model, parties, method=method, privacy=privacy)
            time.sleep(0.2)  # BLAS threads of the fit without privacy spin for a while
            began = time.process_time()
            q = carry_out(plan).posterior
            cpu[which].append(time.process_time() - began)
            covariance = q.family.covariance(q.natural)
            lost[which].append(base - held_out(q.mean, covariance, test))
    for which, values in lost.items():
        error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
        seconds = f"{min(cpu[which]):7.2f} s CPU" if which in cpu else ""
        print(
            f"{name:58} {which:13} {np.mean(values):8.5f} +- {error:.5f}"
            f"  largest {max(values):.5f}{seconds}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", default="301-305", help="first and last seed")
    parser.add_argument("--setting", default="", help="only those whose name has these words")
    given = parser.parse_args()
    first, last = map(int, given.splits.split("-"))
    models: dict[Any, Any] = {}
    for name, setting in settings().items():
        if given.setting in name:
            show(name, setting, range(first, last + 1), models)


if __name__ == "__main__":
    main()

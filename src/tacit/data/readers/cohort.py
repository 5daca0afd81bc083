"""Synthetic cohort: hospital stays at unequal sites, with readmission as the outcome.

The outcome is drawn from a logistic model of the *prepared* columns. Logistic regression is
therefore the true model, with known coefficients. The sites differ in size (by a factor of 20) and
in the severity of their cases, and thus in readmission rates. The coefficients are the same at all
sites.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tacit.data.config import ColumnConfig
from tacit.data.prepare import encode, read_column
from tacit.data.schema.table import SourceSchema, Table
from tacit.errors import ConfigError

DEFAULT_RECORDS = 10_000
DEFAULT_SITES = 10
RECORDS_PER_SITE = 50
SIZE_RATIO = 20.0
GENERATE, PATIENTS = 0, 4
"""Ids of random streams; patients are drawn independently of all other numbers."""
FIRST_STAY = 0.7

OUTCOME = "readmitted"

FEATURES = (
    ColumnConfig(name="age", low=18, high=105, center=65, scale=15),
    ColumnConfig(name="systolic", low=70, high=240, center=135, scale=20),
    ColumnConfig(name="bmi", low=12, high=70, center=28, scale=6, missing="indicator"),
    ColumnConfig(name="creatinine", low=0.2, high=8, center=1.1, scale=0.5),
    ColumnConfig(name="hba1c", low=3.5, high=16, center=6.2, scale=1.2, missing="indicator"),
    ColumnConfig(name="previous_stays", low=0, high=12, center=1, scale=1.2),
    ColumnConfig(name="days", low=1, high=60, center=6, scale=5),
    ColumnConfig(name="sex", kind="categorical", levels=("female", "male"), reference="female"),
    ColumnConfig(
        name="smoking",
        kind="categorical",
        levels=("never", "former", "current"),
        reference="never",
        missing="level",
    ),
    ColumnConfig(
        name="admission",
        kind="categorical",
        levels=("elective", "urgent", "emergency"),
        reference="elective",
    ),
    ColumnConfig(
        name="diabetes_medication",
        kind="categorical",
        levels=("none", "oral", "insulin"),
        reference="none",
    ),
)

_WEIGHTS = {
    "intercept": -1.75,
    "age": 0.35,
    "systolic": -0.1,
    "bmi": 0.08,
    "bmi missing": 0.15,
    "creatinine": 0.25,
    "hba1c": 0.2,
    "hba1c missing": -0.2,
    "previous_stays": 0.5,
    "days": 0.2,
    "sex=male": 0.1,
    "smoking=current": 0.3,
    "smoking=former": 0.1,
    "smoking missing": 0.0,
    "admission=urgent": 0.2,
    "admission=emergency": 0.55,
    "diabetes_medication=oral": 0.15,
    "diabetes_medication=insulin": 0.45,
}


def schema(sites: int = DEFAULT_SITES) -> SourceSchema:
    """Return the public schema of a cohort with this number of sites."""
    if not sites >= 1:
        raise ConfigError(f"sites = {sites}; it must be at least 1")
    width = len(str(sites))
    names = tuple(f"hospital-{number:0{width}d}" for number in range(1, sites + 1))
    columns = (
        *FEATURES,
        ColumnConfig(name="site", kind="categorical", levels=names, feature=False),
        ColumnConfig(name=OUTCOME, kind="categorical", levels=("no", "yes")),
    )
    return SourceSchema(columns=columns, outcome=OUTCOME, positive="yes", site="site")


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """A synthetic cohort: the raw table, the schema of its columns, and the true coefficients."""

    frame: pl.DataFrame
    columns: tuple[ColumnConfig, ...]
    true_values: dict[str, float]


def synthetic_cohort(
    *, records: int | None = None, sites: int = DEFAULT_SITES, seed: int = 0
) -> Cohort:
    """Generate the cohort. The default is ten sites with about 150 to 3,000 stays each.

    There are 10,000 records by default, or 50 per site for more than 200 sites. The distribution of
    patients at each site does not depend on `seed`, but the patients themselves do.
    """
    records = max(DEFAULT_RECORDS, RECORDS_PER_SITE * sites) if records is None else records
    if not 1 <= sites <= records:
        raise ConfigError(
            f"the synthetic cohort has {sites} sites but {records} records; each site needs at"
            " least one record"
        )
    rng = np.random.default_rng([seed, GENERATE])
    public = schema(sites)
    named = public.declared("site")
    assert named is not None
    site = np.repeat(np.arange(sites), _site_sizes(records, sites))
    # Multiples of the golden ratio fill [-1, 1] evenly, unrelated to size.
    severity = 2 * ((0.5 + np.arange(sites) * (np.sqrt(5) - 1) / 2) % 1) - 1
    frame = _stays(severity[site], rng)
    columns = [read_column(frame[config.name], config, pooled=False) for config in FEATURES]
    x, prepared = encode(columns, records)
    truth = {name: _WEIGHTS[name] for name in prepared}
    logit = x @ np.array(list(truth.values()))
    returned = rng.random(records) < 1 / (1 + np.exp(-logit))
    frame = frame.with_columns(
        pl.Series("patient", _patients(frame, site, np.random.default_rng([seed, PATIENTS]))),
        pl.Series("site", np.array(named.levels)[site], dtype=pl.String),
        pl.Series(OUTCOME, np.where(returned, "yes", "no"), dtype=pl.String),
    )
    return Cohort(frame=frame, columns=public.columns, true_values=truth)


def read(*, records: int | None, sites: int, seed: int, site: str | None = None) -> Table:
    """Generate the cohort and return its table, or only the rows of `site`.

    All sites are always generated, so that a site has the same rows in both cases.
    """
    cohort = synthetic_cohort(records=records, sites=sites, seed=seed)
    frame = cohort.frame if site is None else cohort.frame.filter(pl.col("site") == site)
    return Table(frame=frame, schema=schema(sites), true_values=cohort.true_values)


def _site_sizes(records: int, sites: int) -> np.ndarray:
    """Return the number of records of each site, at least 1.

    The sizes approximately form a geometric sequence, and their sum is `records`.
    """
    share = np.geomspace(1.0, SIZE_RATIO, sites)
    ideal = (records - sites) * share / share.sum()
    sizes = 1 + np.floor(ideal).astype(np.int64)
    over = records - int(sizes.sum())
    sizes[np.argsort(-(ideal % 1), kind="stable")[:over]] += 1
    return sizes


def _patients(frame: pl.DataFrame, site: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a patient number for each stay. Stays of one patient have the same site, sex and age.

    All other values of two stays are independent, even if the stays belong to one patient. The true
    coefficients of the outcome therefore stay valid.
    """
    age, male = frame["age"].to_numpy(), (frame["sex"] == "male").to_numpy()
    order = np.lexsort((rng.random(len(site)), age, male, site))
    alike = np.zeros(len(site), dtype=bool)
    alike[1:] = np.all([np.diff(column[order]) == 0 for column in (site, male * 1, age)], axis=0)
    begins = ~alike | (rng.random(len(site)) < FIRST_STAY)
    patients = np.empty(len(site), dtype=np.int64)
    patients[order] = np.cumsum(begins)
    return patients


def _stays(severity: np.ndarray, rng: np.random.Generator) -> pl.DataFrame:
    """Draw one stay per entry of `severity`.

    An entry is the severity, from -1 to 1, of the cases at the site of the stay.
    """
    n = len(severity)
    age = np.clip(rng.normal(64 + 7 * severity, 15), 18, 105).round()
    older = (age - 65) / 15
    diabetes = rng.random(n) < 1 / (1 + np.exp(0.9 - 0.6 * severity - 0.3 * older))
    bmi = rng.lognormal(np.log(27.5) + 0.05 * severity + 0.06 * diabetes, 0.18)
    hba1c = rng.normal(5.5 + 0.1 * older, 0.4) + diabetes * rng.gamma(3.0, 0.6, n)
    previous = rng.poisson(0.8 * np.exp(0.5 * severity + 0.2 * older))
    urgency = rng.random(n) + 0.25 * severity
    treated = rng.random(n)
    smoking = np.array(["never", "former", "current", None], dtype=object)[
        np.searchsorted([0.46, 0.76, 0.96], rng.random(n) + 0.04 * severity)
    ]
    medication = np.where(treated < 0.15, "none", np.where(treated < 0.65, "oral", "insulin"))
    numbers = {
        "age": age,
        "systolic": rng.normal(134 + 5 * older, 19).round(),
        "bmi": np.where(rng.random(n) < 0.04, np.nan, bmi.round(1)),
        "creatinine": rng.lognormal(0.1 * severity + 0.08 * older, 0.35).round(2),
        # A site with milder cases measures blood sugar less often.
        "hba1c": np.where(rng.random(n) < 0.12 - 0.08 * severity, np.nan, hba1c.round(1)),
        "previous_stays": previous.astype(np.float64),
        "days": 1.0 + rng.poisson(rng.gamma(1.3, 3.8, n)),
    }
    frame = pl.DataFrame(numbers).fill_nan(None)
    return frame.with_columns(
        pl.Series("sex", np.where(rng.random(n) < 0.5, "female", "male"), dtype=pl.String),
        pl.Series("smoking", smoking.tolist(), dtype=pl.String),
        pl.Series(
            "admission",
            np.where(urgency < 0.3, "elective", np.where(urgency < 0.6, "urgent", "emergency")),
            dtype=pl.String,
        ),
        pl.Series("diabetes_medication", np.where(diabetes, medication, "none"), dtype=pl.String),
    )

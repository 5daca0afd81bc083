"""MIMIC-III: 21,139 intensive-care stays; the outcome is death in hospital.

The first 48 hours of a stay become 714 numbers, as in the benchmark's logistic regression
(Harutyunyan et al., Scientific Data 6, 2019): six statistics of 17 channels over seven time spans.
Unlike the benchmark, preparation uses no statistics of the records (docs/data.md).
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tacit.data.balance import balance_rng, surplus, surplus_note
from tacit.data.readers.mimic3.files import (
    Series,
    Stay,
    local_folder,
    read_series,
    read_stays,
)
from tacit.data.readers.mimic3.schema import (
    CHANNELS,
    FEATURES,
    OUTCOME,
    PERSON,
    SCHEMA,
    SPANS,
    STATISTICS,
    Channel,
    column_name,
)
from tacit.data.schema.table import Table

RECORDS = 21_139
"""Number of stays in both sets, as reported by the benchmark."""

_SLACK = 1e-6


def read(*, path: str | None, balance: bool, seed: int) -> Table:
    """Return one row per stay of the training and test sets.

    If `balance`, stays of the larger class are dropped first, and only the files of the remaining
    stays are opened.
    """
    stays = read_stays(local_folder(path))
    notes: list[str] = []
    if balance:
        over = surplus(np.array([stay.died for stay in stays]), balance_rng(seed))
        stays = [stay for stay, out in zip(stays, over, strict=True) if not out]
        notes.append(surplus_note(int(over.sum()), len(stays)))
    statistics: dict[str, np.ndarray] = {}
    for name, series in read_series(stays).items():
        numbers, clipped = _channel(name, CHANNELS[name], series, len(stays))
        statistics |= numbers
        if clipped:
            bounds = f"[{CHANNELS[name].low:g}, {CHANNELS[name].high:g}]"
            notes.append(f'channel "{name}": measurements clipped to {bounds}: {clipped}')
    return Table(
        frame=_frame(stays, statistics),
        schema=SCHEMA,
        notes=tuple(notes),
    )


def _frame(stays: list[Stay], statistics: dict[str, np.ndarray]) -> pl.DataFrame:
    """Return the table of the stays.

    A missing statistic is replaced by the `center` of its column, which becomes 0 in x.
    """
    columns: dict[str, pl.Series] = {}
    for config in FEATURES:
        assert config.low is not None
        assert config.center is not None
        values = np.clip(statistics[config.name], config.low, config.high)
        filled = np.where(np.isnan(values), config.center, values)
        columns[config.name] = pl.Series(config.name, filled)
    columns[PERSON] = pl.Series(PERSON, [stay.subject for stay in stays], dtype=pl.String)
    died = ["yes" if stay.died else "no" for stay in stays]
    columns[OUTCOME] = pl.Series(OUTCOME, died, dtype=pl.String)
    return pl.DataFrame(columns)


def _channel(
    name: str, channel: Channel, series: Series, stays: int
) -> tuple[dict[str, np.ndarray], int]:
    """Return the statistics of one channel, and the number of its measurements that were clipped.

    The statistics are arrays with one entry per stay, by name of the column.
    """
    stay = np.array(series.stay, dtype=np.int64)
    hour, raw = np.array(series.hour), np.array(series.value)
    value = np.clip(raw, channel.low, channel.high)
    first, last = np.full(stays, np.inf), np.full(stays, -np.inf)
    np.minimum.at(first, stay, hour)
    np.maximum.at(last, stay, hour)
    found: dict[str, np.ndarray] = {}
    for span, (begin, end) in SPANS.items():
        length = last[stay] - first[stay]
        after = hour > first[stay] + begin * length - _SLACK
        before = hour < first[stay] + end * length + _SLACK
        inside = after & before
        numbers = _statistics(stay[inside], value[inside], stays)
        found |= {
            column_name(name, span, statistic): column
            for statistic, column in zip(STATISTICS, numbers, strict=True)
        }
    return found, int((value != raw).sum())


def _statistics(stay: np.ndarray, value: np.ndarray, stays: int) -> tuple[np.ndarray, ...]:
    """Return minimum, maximum, mean, standard deviation, skewness and count for each stay.

    The divisor of the second and third moments is the count. For a stay without values, all
    statistics except the count are NaN. If all values are equal, the skewness is 0.
    """
    count = np.bincount(stay, minlength=stays).astype(np.float64)
    there = np.where(count > 0, count, np.nan)
    low, high = np.full(stays, np.inf), np.full(stays, -np.inf)
    np.minimum.at(low, stay, value)
    np.maximum.at(high, stay, value)
    low, high = np.where(count > 0, low, np.nan), np.where(count > 0, high, np.nan)
    mean = np.bincount(stay, value, minlength=stays) / there
    deviation = value - mean[stay]
    second = np.bincount(stay, deviation**2, minlength=stays) / there
    third = np.bincount(stay, deviation**3, minlength=stays) / there
    spread = np.sqrt(second)
    level = low == high
    skew = np.where(level, 0.0, third / np.where(level, 1.0, second) ** 1.5)
    return low, high, mean, np.where(level, 0.0, spread), skew, count

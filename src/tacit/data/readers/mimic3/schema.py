"""MIMIC-III's public schema: 17 channels, 7 time spans and 6 statistics make 714 columns.

All bounds, centres and scales are general clinical knowledge (normal values, typical ranges,
charting frequencies). None is computed from the records, which are not public.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

from tacit.data.config import ColumnConfig
from tacit.data.schema.table import SourceSchema

OUTCOME = "died"
PERSON = "subject"
HOURS = 48.0

STATISTICS = ("min", "max", "mean", "std", "skew", "count")
SPANS: dict[str, tuple[float, float]] = {
    # As fractions of the time from a channel's first to its last measurement.
    "all": (0.0, 1.0),
    "first 10%": (0.0, 0.1),
    "first 25%": (0.0, 0.25),
    "first 50%": (0.0, 0.5),
    "last 10%": (0.9, 1.0),
    "last 25%": (0.75, 1.0),
    "last 50%": (0.5, 1.0),
}

_SKEW = 4.0
_FEW, _MANY = 1.0, 6.0
"""Bounds for the number of measurements in a span of time: the expected number is at least `_FEW`,
and the declared upper bound is `_MANY` times the expected number.
"""


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One measured quantity.

    It has bounds, a normal value (`center`), a typical deviation from it (`scale`) and a usual
    number of measurements per day.
    """

    low: float
    high: float
    center: float
    scale: float
    daily: float
    texts: dict[str, float] = field(default_factory=dict[str, float])
    """Numeric value of each text (in lower case) that may be charted instead of a number."""


_REFILL = {"brisk": 0, "normal <3 secs": 0, "delayed": 1, "abnormal >3 secs": 1}
_EYES = {
    **{"none": 1, "1 no response": 1, "no response": 1, "2 to pain": 2, "to pain": 2},
    **{"3 to speech": 3, "to speech": 3, "4 spontaneously": 4, "spontaneously": 4},
}
_MOTOR = {
    **{"1 no response": 1, "no response": 1, "2 abnorm extensn": 2, "abnormal extension": 2},
    **{"3 abnorm flexion": 3, "abnormal flexion": 3, "4 flex-withdraws": 4, "flex-withdraws": 4},
    **{"5 localizes pain": 5, "localizes pain": 5, "6 obeys commands": 6, "obeys commands": 6},
}
_VERBAL = {
    **{"1 no response": 1, "no response": 1, "1.0 et/trach": 1, "no response-ett": 1},
    **{"2 incomp sounds": 2, "incomprehensible sounds": 2, "3 inapprop words": 3},
    **{"inappropriate words": 3, "4 confused": 4, "confused": 4, "5 oriented": 5, "oriented": 5},
}

CHANNELS: dict[str, Channel] = {
    # 0: the colour returns within three seconds, 1: it takes longer.
    "Capillary refill rate": Channel(
        low=0, high=1, center=0, scale=1, daily=4, texts=dict(_REFILL)
    ),
    "Diastolic blood pressure": Channel(low=10, high=200, center=70, scale=15, daily=24),
    "Fraction inspired oxygen": Channel(low=0.21, high=1, center=0.21, scale=0.25, daily=4),
    "Glascow coma scale eye opening": Channel(
        low=1, high=4, center=4, scale=1, daily=6, texts=dict(_EYES)
    ),
    "Glascow coma scale motor response": Channel(
        low=1, high=6, center=6, scale=1.5, daily=6, texts=dict(_MOTOR)
    ),
    "Glascow coma scale total": Channel(low=3, high=15, center=15, scale=4, daily=6),
    "Glascow coma scale verbal response": Channel(
        low=1, high=5, center=5, scale=1.5, daily=6, texts=dict(_VERBAL)
    ),
    "Glucose": Channel(low=20, high=800, center=110, scale=60, daily=6),
    "Heart Rate": Channel(low=20, high=250, center=80, scale=20, daily=24),
    "Height": Channel(low=120, high=220, center=170, scale=10, daily=0.5),
    "Mean blood pressure": Channel(low=20, high=250, center=85, scale=15, daily=24),
    "Oxygen saturation": Channel(low=40, high=100, center=97, scale=4, daily=24),
    "Respiratory rate": Channel(low=2, high=70, center=16, scale=6, daily=24),
    "Systolic blood pressure": Channel(low=30, high=300, center=120, scale=20, daily=24),
    "Temperature": Channel(low=28, high=43, center=37, scale=0.8, daily=6),
    "Weight": Channel(low=30, high=300, center=80, scale=20, daily=1),
    "pH": Channel(low=6.7, high=7.8, center=7.4, scale=0.08, daily=4),
}


def column_name(channel: str, span: str, statistic: str) -> str:
    """Return the name of the column of x that contains a statistic of a channel over a time
    span.
    """
    return f"{channel} {statistic} {span}"


def _column(channel: str, span: str, statistic: str) -> ColumnConfig:
    name, about = column_name(channel, span, statistic), CHANNELS[channel]
    if statistic == "std":
        # A spread is at most half the range; four usual deviations are already extreme.
        half = about.scale / 2
        high = min((about.high - about.low) / 2, 4 * about.scale)
        return ColumnConfig(name=name, low=0, high=high, center=half, scale=half)
    if statistic == "skew":
        return ColumnConfig(name=name, low=-_SKEW, high=_SKEW, center=0, scale=1)
    if statistic == "count":
        begin, end = SPANS[span]
        usual = max(_FEW, about.daily * HOURS / 24 * (end - begin))
        return ColumnConfig(name=name, low=0, high=_MANY * usual, center=usual, scale=usual)
    return ColumnConfig(
        name=name, low=about.low, high=about.high, center=about.center, scale=about.scale
    )


FEATURES = tuple(_column(*which) for which in product(CHANNELS, SPANS, STATISTICS))
COLUMNS = (*FEATURES, ColumnConfig(name=OUTCOME, kind="categorical", levels=("no", "yes")))
SCHEMA = SourceSchema(columns=COLUMNS, outcome=OUTCOME, positive="yes")

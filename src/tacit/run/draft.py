"""Drafts of study files: a public schema suggested from records, to be confirmed by the user.

Bounds are rounded outwards, and a suggestion that equals the smallest or largest value of the
records is marked as such. Every suggestion has `draft = true`, which a private run refuses, because
the bounds and levels of a private study must be known without looking at the records.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from tacit import __version__
from tacit.data.codes import ISO_DATE, UNKNOWN, is_coded, missing_code
from tacit.data.frames import RawFrame
from tacit.data.prepare import as_text, names_of, refuse_decimal_comma
from tacit.data.schema.columns import LARGEST
from tacit.data.study import open_parties
from tacit.errors import ConfigError, DataError
from tacit.support.validation import near_word

MOST_LEVELS = 20
"""Text columns with more distinct values than this are left out of a draft."""
MOST_PARTIES = 1000
"""If there are more parties than this, their names are not listed."""
MARK = "CONFIRM"
GAPS = "some values are missing, and their records are dropped"
POSITIVE = ("yes", "y", "true", "1", "ja", "oui", "si", "sí", "positive", "case", "dead", "died")
"""Levels of a binary outcome that become the last level, which is y = 1."""
MOST_TEXTS = 5
"""If a column of numbers also contains at most this many distinct texts, they may be codes for
missing values.
"""
Ask = Callable[[str, float, float], tuple[float, float]]


@dataclass(frozen=True)
class Draft:
    """A draft of a study file, and the columns in it that the user must confirm."""

    text: str
    confirm: tuple[str, ...]
    """Columns whose facts were suggested from the records."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Columns that were left out of the file. Keys are their names, and values are the reasons."""


@dataclass(frozen=True)
class _Row:
    """One line of the [columns] table."""

    name: str
    facts: dict[str, Any]
    remark: str = ""
    draft: bool = True

    def line(self) -> str:
        facts = self.facts | ({"draft": True} if self.draft else {})
        body = ", ".join(f"{key} = {_toml(value)}" for key, value in facts.items())
        remark = f"  # {self.remark}" if self.remark else ""
        return f"{_key(self.name)} = {{ {body} }}{remark}"


def draft_study(
    path: str,
    outcome: str,
    party: str | None = None,
    *,
    epsilon: float | None = 1.0,
    ask: Ask | None = None,
    separator: str = ",",
) -> Draft:
    """Return a study file for a table of records, with a draft of its public schema.

    Parameters
    ----------
    path
        A CSV or Parquet file, or a pattern with one file per party.
    outcome
        The outcome column.
    party
        The column that names the party of each record.
    epsilon
        ε of the study; None for a study without privacy.
    ask
        Function that asks the user for the bounds of a numeric column, given its name and a
        suggestion. Bounds that the user gives need no confirmation.
    separator
        Separator of CSV files.
    """
    del separator
    frames = open_parties(path, party)
    first = next(iter(frames.values()))
    for role, name in (("outcome", outcome), ("party", party)):
        if name is not None and name not in first.names:
            near = near_word(name, first.names)
            advice = f"did you mean {near}?" if near else f"choose from {', '.join(first.names)}"
            raise ConfigError(f"--{role} {name}; {first.where} has no such column: {advice}")
    if party == outcome:
        raise ConfigError(f"--party {party} is the outcome too; name another column")
    rows: list[_Row] = []
    left_out: dict[str, str] = {}
    for name in first.names:
        if name in (outcome, party):
            continue
        series = _stacked(frames, name)
        found = _column(name, series, ask)
        if isinstance(found, str):
            left_out[name] = found
        else:
            rows.append(found)
    target, model = _outcome(outcome, _stacked(frames, outcome), ask)
    if not rows:
        raise DataError(f"{first.where} has no column that could explain {outcome}; add some")
    parties = [] if party is None else _parties(party, _stacked(frames, party))
    text = _text(
        path, outcome, party, rows, [target, *parties], model, left_out, epsilon, len(frames)
    )
    confirm = tuple(row.name for row in (*rows, target, *parties) if row.draft)
    return Draft(text, confirm, left_out)


def _stacked(frames: dict[str, RawFrame], name: str) -> pl.Series:
    """Return the values of one column in all tables; as text if its type differs between tables."""
    parts = []
    for frame in frames.values():
        parts.append(frame.select([name])[name])
    kinds = {part.dtype for part in parts}
    return pl.concat([as_text(part) for part in parts]) if len(kinds) > 1 else pl.concat(parts)


def _column(name: str, series: pl.Series, ask: Ask | None) -> _Row | str:
    """Return the column's line in the [columns] table, or the reason why the column is left out."""
    if series.dtype.is_temporal():
        return "dates or times: convert them to a number, e.g. years since a public date"
    text = names_of(series)
    refuse_decimal_comma(text, f'column "{name}"')
    gaps = text.null_count()
    missing = {"missing": "drop"} if gaps else {}
    values = text.drop_nulls()
    if not len(values):
        return "no values"
    numbers = values.cast(pl.Float64, strict=False)
    if series.dtype == pl.Boolean:
        return _Row(name, {"levels": ["false", "true"], **missing}, draft=False)
    if _are_dates(values):
        return "dates or times: convert them to a number, e.g. years since a public date"
    codes = _codes(values)
    if codes:
        row = _column(name, text.set(text.is_in(codes), None), ask)
        return row if isinstance(row, str) else _with_codes(row, codes)
    different = values.n_unique()
    if numbers.null_count() or isinstance(series.dtype, pl.Enum | pl.Categorical):
        if different > MOST_LEVELS:
            return f"{different} different texts: group them, or leave it out"
        levels = sorted(values.unique().to_list())
        remark = f"{MARK}: levels read from the records; list those of the code book"
        return _Row(name, {"levels": levels, **missing}, _with_gaps(remark, gaps))
    whole = bool((numbers == numbers.round()).all())
    if whole and different == len(numbers) > MOST_LEVELS:
        return "a different whole number in every record, like an identifier"
    if set(numbers.unique().to_list()) <= {0.0, 1.0} or different == 2:
        levels = ["0", "1"] if different < 2 else sorted(values.unique().to_list(), key=float)
        remark = f"{MARK}: every value is {levels[0]} or {levels[1]}"
        return _Row(name, {"levels": levels, **missing}, _with_gaps(remark, gaps))
    _refuse_large(name, text)
    return _number(name, numbers, missing, gaps, ask)


def _refuse_large(name: str, text: pl.Series) -> None:
    """Refuse numbers that no bounds could contain."""
    numbers = text.cast(pl.Float64, strict=False)
    large = ((numbers.abs() > LARGEST) & numbers.is_finite()).fill_null(False)
    if large.any():
        row = large.arg_max()
        assert row is not None
        raise DataError(
            f'column "{name}", data row {row + 1}: {text[row]} exceeds {LARGEST:g}, the largest '
            "size of a number; fix the cell, or leave it empty if the value is missing"
        )


def _are_dates(values: pl.Series) -> bool:
    """True if all texts are ISO dates, possibly with a time."""
    return bool(values.str.contains(ISO_DATE).all())


def _codes(values: pl.Series) -> list[str]:
    """Return the values that look like codes for missing values: words such as "unknown", texts
    among numbers, and numbers such as 999.
    """
    words = [one for one in values.unique().to_list() if one.lower() in UNKNOWN]
    rest = values.filter(~values.is_in(words))
    numbers = rest.cast(pl.Float64, strict=False)
    texts = rest.filter(numbers.is_null())
    few = texts.n_unique() <= MOST_TEXTS and len(texts) < 0.2 * len(rest)
    if len(texts) and few and numbers.n_unique() > MOST_LEVELS:
        words, texts = [*words, *texts.unique().to_list()], texts.clear()
    finite = numbers.filter(numbers.is_finite().fill_null(False))
    code = None if len(texts) else missing_code(finite.unique().to_list())
    found = rest.filter(numbers == code).unique().to_list() if code is not None else []
    return sorted([*words, *found])


def _shortest(text: str) -> str:
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def _with_codes(row: _Row, codes: list[str]) -> _Row:
    """Return a copy of a [columns] line in which these codes are declared as missing values."""
    if "low" in row.facts:  # numbers are compared as such: 999 is 999.0
        codes = list(dict.fromkeys(map(_shortest, codes)))
    facts = {name: one for name, one in row.facts.items() if name != "missing"}
    facts |= {"missing": "drop", "missing_values": codes}
    one = len(codes) == 1
    words = (
        f"{', '.join(codes)} look{'s' if one else ''} like {'a code' if one else 'codes'} for "
        f"missing: if {'it is a value' if one else 'they are values'}, remove missing_values"
    )
    remark = row.remark.removesuffix(GAPS).removesuffix("; ").removesuffix(": ") or MARK
    remark += ": " if remark == MARK else "; "
    return _Row(row.name, facts, f"{remark}{words}; {GAPS}")


def _number(
    name: str, numbers: pl.Series, missing: dict[str, Any], gaps: int, ask: Ask | None
) -> _Row | str:
    finite = numbers.filter(numbers.is_finite())
    if not len(finite):
        return "no finite values"
    least, most = float(finite.min()), float(finite.max())  # pyright: ignore[reportArgumentType]
    low, high = rounded_outwards(least, most)
    if ask is not None:
        low, high = ask(name, low, high)
        return _Row(name, {"low": low, "high": high, **missing}, _with_gaps("", gaps), draft=False)
    exact = [word for word, equal in (("low", low == least), ("high", high == most)) if equal]
    remark = f"{MARK}: rounded outwards from the records"
    if is_coded(finite.unique().to_list()):
        remark += f"; if {least:g} to {most:g} are codes of a category, list them as levels"
    if exact:
        remark += f"; {' and '.join(exact)} occur{'s' if len(exact) == 1 else ''} in them"
    return _Row(name, {"low": low, "high": high, **missing}, _with_gaps(remark, gaps))


def _with_gaps(remark: str, gaps: int) -> str:
    if not gaps:
        return remark
    return f"{remark}; {GAPS}" if remark else f"{MARK}: {GAPS}"


def rounded_outwards(least: float, most: float) -> tuple[float, float]:
    """Return round numbers below `least` and above `most`, for use as bounds of a column.

    Each has one or two significant digits and is at least a tenth of the range away from the
    values. If all values have the same sign, a bound that would have the opposite sign is 0.

    >>> rounded_outwards(18, 97), rounded_outwards(0.7, 13.2), rounded_outwards(-3.1, 2.0)
    ((10.0, 110.0), (0.0, 16.0), (-4.0, 3.0))
    """
    spread = most - least or abs(most) or 1.0
    step = 10.0 ** math.floor(math.log10(1.25 * spread))
    for finer in (5.0, 2.0):
        if spread / (step / finer) <= 10:
            step /= finer
            break
    margin = 0.1 * spread
    low, high = math.floor((least - margin) / step) * step, math.ceil((most + margin) / step) * step
    if least >= 0:
        low = max(low, 0.0)
    if most <= 0:
        high = min(high, 0.0)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return round(low, digits), round(high, digits)


def _outcome(name: str, series: pl.Series, ask: Ask | None) -> tuple[_Row, list[str]]:
    """Return the outcome's line in the [columns] table, and the lines of the [model] table."""
    if series.dtype.is_temporal():
        raise DataError(f'outcome "{name}" holds dates or times; convert it to a number')
    text = names_of(series)
    refuse_decimal_comma(text, f'outcome "{name}"')
    values = text.drop_nulls()
    if not len(values):
        raise DataError(f'outcome "{name}" has no values; name another column')
    missing = {"missing": "drop"} if text.null_count() else {}
    numbers = values.cast(pl.Float64, strict=False)
    codes = [] if series.dtype == pl.Boolean else _codes(values)
    if codes:
        row, model = _outcome(name, text.set(text.is_in(codes), None), ask)
        return _with_codes(row, codes), model
    levels = values.unique().to_list()
    if numbers.null_count():
        levels = sorted(levels, key=lambda one: (one.lower() in POSITIVE, one))
    else:
        levels = sorted(levels, key=float)
    yes_no = set(numbers.drop_nulls().unique().to_list()) <= {0.0, 1.0}
    two = len(levels) == 2
    if series.dtype == pl.Boolean:
        return _Row(name, {"levels": ["false", "true"], **missing}, draft=False), []
    if numbers.null_count() or yes_no or two:
        if len(levels) > MOST_LEVELS:
            raise DataError(
                f'outcome "{name}" has {len(levels)} different texts, more than the {MOST_LEVELS} '
                "levels that an outcome may have; merge levels, or name another column"
            )
        if len(levels) < 2:
            raise DataError(
                f'outcome "{name}" has one value in all records, so nothing can be learned; name '
                "another column"
            )
        levels = ["0", "1"] if yes_no and not numbers.null_count() else levels
        remark = f"{MARK}: read from the records"
        if len(levels) == 2:
            remark += "; the last level is y = 1"
        return _Row(name, {"levels": levels, **missing}, remark), []
    _refuse_large(name, text)
    row = _number(name, numbers, missing, text.null_count(), ask)
    assert isinstance(row, _Row)
    low, high = row.facts["low"], row.facts["high"]
    middle, half = (low + high) / 2, (high - low) / 2
    row = _Row(name, row.facts | {"center": middle, "scale": half}, row.remark, row.draft)
    lines = ["[model]", 'kind = "linear"', ""]
    if is_count(numbers):
        lines[1:1] = [f'# "{name}" has whole numbers ≥ 0: for counts use kind = "poisson"']
    return row, lines


def is_count(numbers: pl.Series) -> bool:
    """True if all values are whole numbers that are not negative."""
    present = numbers.drop_nulls()
    return bool(len(present) and (present >= 0).all() and (present == present.round(0)).all())


def _parties(name: str, series: pl.Series) -> list[_Row]:
    """Return a list with the party column's line in [columns], which names all parties; an empty
    list if there are too many parties.
    """
    found = sorted(names_of(series).drop_nulls().unique().to_list())
    if len(found) > MOST_PARTIES:
        return []
    remark = f"{MARK}: names of the parties, read from the records"
    return [_Row(name, {"levels": found, "feature": False}, remark)]


def _text(
    path: str,
    outcome: str,
    party: str | None,
    rows: list[_Row],
    targets: list[_Row],
    model: list[str],
    left_out: dict[str, str],
    epsilon: float | None,
    files: int,
) -> str:
    terms = [f"C({_term(r.name)})" if "levels" in r.facts else _term(r.name) for r in rows]
    today = datetime.date.today().isoformat()
    lines = [
        f"# Draft of a study, written by `tacit init` {__version__} on {today}.",
        f"# Lines marked {MARK} were suggested by the records. Replace them by what is known",
        "# without looking at the records (code book, plausible ranges), then remove draft = true:",
        "# a private run refuses drafts, because a bound read from records would reveal them.",
        "",
        f"name = {_toml(Path(path).name.partition('.')[0].strip('*') or 'study')}",
        f"formula = {_toml(f'{_term(outcome)} ~ ' + ' + '.join(terms))}",
        *(['privacy = "none"'] if epsilon is None else []),
        "",
        "[data]",
        f"path = {_toml(path)}" + ("  # one party per file" if files > 1 and not party else ""),
        *([f"party = {_toml(party)}"] if party else []),
        "held_out = 0.2",
        '# person = "patient_id"   # for unit = "person"',
        "",
        '[columns]   # unit = "year" names the unit of a number in results',
        *(row.line() for row in rows),
        *(row.line() for row in targets),
        *(f"# left out: {_key(name)} ({why})" for name, why in left_out.items()),
        "",
        *model,
    ]
    if not party and files == 1:
        lines += [
            "# One party with all records. To simulate several, uncomment:",
            "# [partition]",
            "# parties = 3",
            "[partition]",
            "parties = 1",
            "",
        ]
    if epsilon is not None:
        lines += [
            "[privacy]",
            f"epsilon = {_toml(float(epsilon))}",
            "delta = 1e-5",
            'unit = "record"               # person | party',
            'adjacency = "replace-one"     # add-or-remove-one',
        ]
    return "\n".join(lines).rstrip() + "\n"


def _term(name: str) -> str:
    return name if re.fullmatch(r"[^\W\d]\w*", name) and name != "C" else f"`{name}`"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if value != int(value) or abs(value) > 1e15 else str(int(value))
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)

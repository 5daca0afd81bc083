"""Locate, read and validate the files of the MIMIC-III benchmark.

The layout is that of the benchmark's in-hospital-mortality task. The folders train/ and test/ each
contain a listfile.csv with the columns stay and y_true, and one time series per stay. A time series
has one row per point in time; empty cells are missing measurements.
"""

from __future__ import annotations

import math
import os
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tacit.data.readers.mimic3.schema import CHANNELS, HOURS, Channel
from tacit.errors import DataError

PARTS = ("train", "test")
TASK = "in-hospital-mortality"
_STAY = re.compile(r"(\d+)_episode\d+_timeseries\.csv")
_SLACK = 1e-6

HOW = (
    "they need credentialed access and are never downloaded: get MIMIC-III v1.4 (PATIENTS,"
    " ADMISSIONS, ICUSTAYS, DIAGNOSES_ICD, D_ICD_DIAGNOSES, CHARTEVENTS, LABEVENTS and"
    " OUTPUTEVENTS) from https://physionet.org/content/mimiciii/1.4/, run the scripts"
    " extract_subjects, validate_events, extract_episodes_from_subjects, split_train_and_test and"
    " create_in_hospital_mortality of https://github.com/YerevaNN/mimic3-benchmarks, and put its"
    f" data/{TASK} (train/ and test/, each with listfile.csv and *_timeseries.csv) in"
    " $TACIT_DATA/mimic3, or name that folder in data.path"
)


@dataclass(frozen=True, kw_only=True)
class Stay:
    """One stay: its file of measurements, its patient, and whether the patient died."""

    file: Path
    subject: str
    died: bool


@dataclass(frozen=True, kw_only=True)
class Series:
    """All measurements of one channel.

    Entry i of `stay`, `hour` and `value` belongs to measurement i.
    """

    stay: array[int] = field(default_factory=lambda: array("q"))
    hour: array[float] = field(default_factory=lambda: array("d"))
    value: array[float] = field(default_factory=lambda: array("d"))


def locate(path: str | None = None) -> Path | None:
    """Return the folder that contains train/listfile.csv and test/listfile.csv; None if there is no
    such folder.

    The folder is searched for in `path`, or in $TACIT_DATA/mimic3 if `path` is None.
    """
    return next((f for f in _places(path) if all(_listfile(f, part) for part in PARTS)), None)


def local_folder(path: str | None) -> Path:
    """Return the folder that `locate` finds; if there is none, raise an error that says how to get
    the files.
    """
    folder = locate(path)
    if folder is None:
        looked = f'data.path = "{path}"' if path else "$TACIT_DATA/mimic3"
        raise DataError(
            f'the files of "mimic3" are missing: {looked} does not contain both train/listfile.csv'
            f" and test/listfile.csv; {HOW}"
        )
    return folder


def _places(path: str | None) -> list[Path]:
    given = os.environ.get("TACIT_DATA")
    if path is not None:
        base = Path(path).expanduser()
    elif given:
        base = Path(given).expanduser() / "mimic3"
    else:
        return []
    return [base, base / TASK]


def _listfile(folder: Path, part: str) -> bool:
    return (folder / part / "listfile.csv").is_file()


def read_stays(folder: Path) -> list[Stay]:
    """Return the stays of both listfiles as one list; those of the training set come first."""
    stays = [stay for part in PARTS for stay in _read_listfile(folder / part / "listfile.csv")]
    if not stays:
        raise DataError(f"{folder}: both listfiles are empty; run the benchmark's scripts again")
    return stays


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line.

    A line whose number of cells differs from that of the header raises an error.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file} cannot be read ({error}); run the benchmark's scripts again"
        ) from error
    width = 0
    for number, line in enumerate(text.splitlines(), start=1):
        cells = line.split(",")
        width = width or len(cells)
        if len(cells) != width:
            raise DataError(
                f"{file}, line {number} has {len(cells)} cells, but the header has {width}; fix the"
                " line, or run the benchmark's scripts again"
            )
        yield number, cells


def _places_of(file: Path, header: list[str], names: list[str]) -> list[int]:
    for name in names:
        if name not in header:
            raise DataError(
                f'{file} has no column "{name}" (its header is {",".join(header)}); make the'
                " files with the benchmark's in-hospital-mortality script"
            )
    return [header.index(name) for name in names]


def _read_listfile(file: Path) -> Iterator[Stay]:
    lines = _lines(file)
    _, header = next(lines, (1, []))
    stay_at, label_at = _places_of(file, header, ["stay", "y_true"])
    seen: set[str] = set()
    for number, cells in lines:
        name, label = cells[stay_at].strip(), cells[label_at].strip()
        match = _STAY.fullmatch(name)
        if match is None or name in seen:
            wrong = "occurs twice" if name in seen else "is not <subject>_episode<n>_timeseries.csv"
            raise DataError(f'{file}, line {number}: stay "{name}" {wrong}; fix the line')
        if label not in ("0", "1"):
            raise DataError(
                f'{file}, line {number}: y_true = "{label}" must be 0 or 1; fix the line'
            )
        seen.add(name)
        yield Stay(file=file.parent / name, subject=match[1], died=label == "1")


def read_series(stays: list[Stay]) -> dict[str, Series]:
    """Return the measurements of the first 48 hours, by name of the channel.

    `Series.stay` contains indices into `stays`.
    """
    series = {name: Series() for name in CHANNELS}
    for row, stay in enumerate(stays):
        lines = _lines(stay.file)
        _, header = next(lines, (1, []))
        hour_at, *channel_at = _places_of(stay.file, header, ["Hours", *CHANNELS])
        places = list(zip(channel_at, CHANNELS.items(), series.values(), strict=True))
        for number, cells in lines:
            hour = _number(cells[hour_at], None, stay.file, number, "Hours")
            if not -_SLACK < hour < HOURS + _SLACK:
                continue
            for at, (name, channel), into in places:
                if cells[at]:
                    into.stay.append(row)
                    into.hour.append(hour)
                    into.value.append(_number(cells[at], channel, stay.file, number, name))
    return series


def _number(text: str, channel: Channel | None, file: Path, line: int, column: str) -> float:
    if channel is not None and channel.texts:
        known = channel.texts.get(text.strip().lower())
        if known is not None:
            return known
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        words = f" and none of {', '.join(channel.texts)}" if channel and channel.texts else ""
        raise DataError(
            f'{file}, line {line}, column "{column}": "{text}" is not a number{words}; fix the'
            " cell, or empty it if nothing was measured"
        )
    return value

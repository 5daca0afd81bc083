"""Find the separator of a CSV file in its header, and describe lines that do not fit it.

Only the header determines the separator. Two files that differ in one record are therefore read in
the same way.
"""

from __future__ import annotations

import codecs
import csv
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tacit.errors import DataError

USUAL = ","
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def separator_of(path: Path, where: str, separator: str) -> str:
    """Return the separator of a CSV file.

    There are two cases; in all others an error is raised.

    1. `separator` splits the header into several columns, or no other separator does: the result is
       `separator`.
    2. `separator` is the comma, and of semicolons and tabs one splits the header: the result is
       that one.

    Parameters
    ----------
    path
        The file.
    where
        The beginning of error messages.
    separator
        The declared separator.
    """
    header = _header(path, separator)
    if len(header) != 1:
        return separator
    others = [one for one in SEPARATORS if one != separator and len(_header(path, one)) > 1]
    if not others:
        return separator
    if separator == USUAL and len(others) == 1:
        return others[0]
    found = " or ".join(f"{one!r}" for one in others)
    raise DataError(
        f'{where}; with data.separator = "{separator}" the file has one column, named '
        f'"{_shown(header[0])}": set data.separator to {found}, or save the file with commas'
    )


def refuse_header(path: Path, where: str, separator: str) -> None:
    """Raise an error if two columns of a CSV file have the same name.

    Columns without a name may occur several times, as at the end of lines that spreadsheets write.
    """
    names = [name for name in _header(path, separator) if name]
    for name in names:
        if names.count(name) > 1:
            raise DataError(
                f'{where}; the file has two columns "{_shown(name)}": rename or remove one'
            )


def refuse_encoding(path: Path, where: str) -> None:
    """Raise an error if the header of a CSV file is not UTF-8."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    with opener(path, "rb") as stream:
        first = stream.readline()
    try:
        first.decode("utf-8")
    except UnicodeDecodeError:
        wide = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        raise not_utf8(where, "utf-16" if wide else "latin1") from None


def not_utf8(where: str, encoding: str = "latin1") -> DataError:
    """Return the error for a file with another encoding than UTF-8."""
    return DataError(
        f"{where}; the file is not UTF-8: convert it, e.g. from {encoding} with `iconv -f "
        f"{encoding} -t utf-8 old.csv > new.csv`, or save it as UTF-8"
    )


def ragged_line(path: Path, separator: str) -> str | None:
    """Describe the first line that has more fields than the header; return None if there is no such
    line.
    """
    with _opened(path) as stream:
        rows = csv.reader(stream, delimiter=separator)
        width = len(next(rows, []))
        for row in rows:
            if len(row) > width:
                advice = ""
                if separator == USUAL:
                    advice = "; if numbers have decimal commas, save the file with decimal points"
                return (
                    f"line {rows.line_num} has {len(row)} fields and the header {width}; put "
                    f'fields that contain "{separator}" in quotes{advice}'
                )
    return None


def _header(path: Path, separator: str) -> list[str]:
    with _opened(path) as stream:
        return next(csv.reader(stream, delimiter=separator), [])


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as stream:
        yield stream  # pyright: ignore[reportReturnType]


def _shown(name: str) -> str:
    text = name.replace("\t", "\\t")
    return text if len(text) <= 60 else f"{text[:57]}…"

"""Detect numbers that are probably codes: for missing values (such as 999) or for categories (1 …
k).
"""

from __future__ import annotations

import re
from collections.abc import Collection

UNKNOWN = (
    "?", ".", "-", "na", "n/a", "nan", "null", "missing", "unknown", "not known", "unbekannt",
    "k.a.", "k. a.", "inconnu", "desconocido", "sconosciuto", "onbekend",
)  # fmt: skip
"""Texts, in lower case, that stand for a missing value."""
DECIMAL_COMMA = r"^[+-]?\d+,\d+$"
THOUSANDS = r"^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?$"
"""Numbers with commas between thousands; "1,234" may also have a decimal comma."""
GROUPED = r"^[+-]?[1-9]\d{0,2}(\.\d{3})+,\d+$"
"""Numbers with points between thousands and a decimal comma."""
ISO_DATE = r"^\d{4}-\d\d-\d\d([ T].*)?$"
MOST_CODES = 12
"""Largest k for which integers 1 … k may be codes of categories."""


class MissingCodeWarning(UserWarning):
    """Warning that a number that looks like a code for a missing value is used as a number."""


def missing_code(values: Collection[float]) -> float | None:
    """Return the distinct value that looks like a code for missing data, or None.

    If exactly one value is negative, it is a code if it is -1 or a number such as -9 or -99. The
    largest value is a code if it repeats the digit 7, 8 or 9, and if its distance to the second
    largest value exceeds the range of the other values.

    >>> missing_code([18, 40, 97, 999]), missing_code([0, 1, 2, -1]), missing_code([0, 1, 9])
    (999.0, -1.0, 9.0)
    >>> missing_code([18, 60, 99]), missing_code([-3, -1, 2])
    (None, None)
    """
    known = sorted({float(one) for one in values})
    if len(known) < 3:
        return None
    least, most = known[0], known[-1]
    if known[1] >= 0 and _is_code(-least) and (least == -1 or -least >= 7):
        return least
    others = known[:-1]
    far = most - others[-1] > others[-1] - others[0]
    return most if far and most >= 9 and _is_code(most) else None


def _is_code(value: float) -> bool:
    return value > 0 and re.fullmatch(r"1|7+|8+|9+", f"{value:.15g}") is not None


def is_coded(values: Collection[float]) -> bool:
    """Return True if the distinct values look like codes of categories.

    Such values are consecutive integers that begin with 0 or 1, and there are at least 3 and at
    most `MOST_CODES` of them.

    >>> is_coded([1, 2, 3, 4]), is_coded([0, 1]), is_coded([1.5, 2, 3]), is_coded(range(1, 90))
    (True, False, False, False)
    """
    known = sorted({float(one) for one in values})
    first = known[0] if known else -1.0
    whole = first in (0.0, 1.0) and known == [first + place for place in range(len(known))]
    return whole and 3 <= len(known) <= MOST_CODES

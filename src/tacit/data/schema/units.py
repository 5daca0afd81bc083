"""Units of measurement of columns.

The unit "year" is only a label. The unit "10 years" also means that effects are reported per 10
years.
"""

from __future__ import annotations

import math
import re

EXAMPLE = 'give a number above 0, a space and the unit, e.g. "10 years", or the unit alone, "year"'
_NUMBER = re.compile(r"(?>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_WORDS = re.compile(r"\s+(?![-+–,.]|\d+\s)\S.*|(?!(?:st|nd|rd|th|k)\b)(?:[^\W\d_]|[%‰°]).*")
_NUMBER_WORDS = (
    "zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|"
    "fifty|sixty|seventy|eighty|ninety|hundred|thousand|million|half(?!-)|dozen"
)
_HIDDEN = re.compile(rf"(?:[^\W\d_]+\.?\s+)?[^\w\s×·]?\s*(?:[\d½¼¾⅓]|(?:{_NUMBER_WORDS})\b)", re.I)


def parse_unit(text: str) -> tuple[float, str] | None:
    """Split a unit into a number and a name: "10 years" gives 10 and "years".

    The number is 1 if the text does not begin with one. The result is None if the text is empty or
    not a unit.

    >>> parse_unit("year"), parse_unit("10 mmHg"), parse_unit("10years"), parse_unit("per 10 years")
    ((1.0, 'year'), (10.0, 'mmHg'), (10.0, 'years'), None)
    """
    text = text.strip()
    number = _NUMBER.match(text)
    if number is None:
        return None if not text or _HIDDEN.match(text) else (1.0, text)
    size, words = float(number[0]), text[number.end() :]
    if not 0 < size < math.inf or not _WORDS.fullmatch(words):
        return None
    return size, words.strip()

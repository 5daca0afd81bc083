"""Find the columns that a NumPyro model uses as indices, and their valid ranges.

JAX silently clamps an index that is too large and wraps a negative index. With codes 1 … k for a
plate of size k, the last group would get the records of two groups, and the first group none. The
model is therefore run with index checks (`jax.experimental.checkify`) on an artificial record in
which all columns are 0 except the column that is tested. No actual record is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from tacit.arrays import Array
from tacit.errors import DataError
from tacit.models.base import Records

if TYPE_CHECKING:
    from tacit.models.numpyro.model import NumPyroModel

LARGEST = 2**30


class IndexRange(NamedTuple):
    """Smallest and largest value of a column that is a valid index."""

    low: int
    high: int


def index_ranges(model: NumPyroModel) -> dict[str, IndexRange]:
    """Return the range of valid values of every column that the model uses as an index.

    The range of a column is found while all other columns are 0. A column for which neither 0 nor 1
    is valid is left out.
    """
    blank = model.program.blank(1)

    def value(records: Records) -> Array:
        return model.log_likelihood(jnp.zeros(model.dimension), records)

    text = str(jax.make_jaxpr(value)(blank))
    if "gather" not in text and "dynamic_slice" not in text:
        return {}
    checked = jax.jit(checkify.checkify(value, errors=checkify.index_checks))

    def valid(column: str, number: int) -> bool:
        changed = np.full_like(blank[column], number)
        return checked(blank | {column: changed})[0].get() is None

    found = {column: _range(lambda number, of=column: valid(of, number), blank[column].dtype)
             for column in blank if blank[column].dtype.kind in "iuf"}  # fmt: skip
    return {column: one for column, one in found.items() if one is not None}


def _range(valid: Callable[[int], bool], dtype: np.dtype) -> IndexRange | None:
    whole = dtype.kind in "iu"
    top = min(LARGEST, int(np.iinfo(dtype).max)) if whole else LARGEST
    bottom = max(-LARGEST, int(np.iinfo(dtype).min)) if whole else -LARGEST
    if valid(top):  # not used as an index
        return None
    start = next((number for number in (0, 1) if valid(number)), None)
    if start is None:
        return None
    high = _last(valid, start, top)
    if valid(bottom):
        return IndexRange(bottom, high)
    low = _last(valid, start, bottom)
    # An index into k places is valid from −k to k − 1: the negative half counts from the end.
    return IndexRange(low + (high - low + 1) // 2 if bottom < 0 else low, high)


def _last(valid: Callable[[int], bool], inside: int, outside: int) -> int:
    """Return the last valid number in the direction from `inside`, which is valid, to `outside`,
    which is not.
    """
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        inside, outside = (middle, outside) if valid(middle) else (inside, middle)
    return inside


def check_indices(
    ranges: Mapping[str, IndexRange], declared: Mapping[str, Any], party: str, records: Records
) -> None:
    """Raise a DataError if a code is outside the valid range of an index, or exceeds the declared
    number of levels. JAX would silently replace an invalid index.

    The message contains no value of the records, so that it may be shown in a private fit.
    """
    known = {
        column: (IndexRange(0, levels - 1), f"has {levels} declared levels, 0 … {levels - 1}")
        for column, levels in declared.items()
        if isinstance(levels, int)
    }
    known |= {
        column: (
            found,
            f"is used by the model as an index from {found.low} to {found.high}, and JAX silently "
            "replaces an index outside of this range",
        )
        for column, found in ranges.items()
    }
    for column, (valid, use) in known.items():
        values = np.asarray(records[column]) if column in records else np.zeros(0)
        if np.any(values > valid.high):
            beyond, step = f"above {valid.high}", "if codes start at 1, subtract 1"
        elif np.any(values < valid.low):
            beyond, step = f"below {valid.low}", "drop missing values or give them their own code"
        else:
            continue
        raise DataError(
            f"party {party!r}, column {column!r}: a value is {beyond}, but the column {use}; {step}"
        )

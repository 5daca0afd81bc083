"""Records as dictionaries of arrays, one array per column."""

from __future__ import annotations

from typing import Any

import numpy as np

Records = dict[str, Any]


def len_records(records: Records) -> int:
    """Return the number of records. A column may be an array or a sparse matrix."""
    return np.shape(next(iter(records.values())))[0]


def pooled(parties: dict[str, Records]) -> Records:
    """Concatenate the records of all parties. This is possible only in a simulation."""
    first = next(iter(parties.values()))
    whole = {key: np.concatenate([records[key] for records in parties.values()]) for key in first}
    if "person" in first:  # person codes are local to a party
        counts = [int(records["person"].max()) + 1 for records in parties.values()]
        sizes = [len_records(records) for records in parties.values()]
        whole["person"] = whole["person"] + np.repeat(np.cumsum(counts) - counts, sizes)
    return whole

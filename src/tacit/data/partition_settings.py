"""The [partition] table of a configuration: how records are distributed over parties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from tacit.errors import TacitError
from tacit.support.tables import Table
from tacit.support.validation import BelowOne, Count


class PartitionConfig(Table, frozen=True, kw_only=True):
    """How records are distributed over parties, if data.party does not name a column with the
    parties.

    "balanced" distributes records at random over `parties` parties of equal size. "skew" makes half
    of the parties small, with different shares of the labels (TMLR Appendix B). "source" makes one
    party of each site of the source.
    """

    place: ClassVar[str] = "partition"
    kind_key: ClassVar[str] = "kind"
    keys_of: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "balanced": ("parties",),
        "skew": ("parties", "size_skew", "label_skew"),
        "source": ("parties",),
    }
    renamed: ClassVar[Mapping[str, str]] = {"column": "party in [data]"}
    renamed_kinds: ClassVar[Mapping[str, str]] = {
        "column": 'name the column in [data] instead, e.g. party = "hospital"'
    }

    kind: Literal["balanced", "skew", "source"] = "balanced"
    """How records are distributed over parties."""
    parties: Count = 10
    """Number of parties; the heart data have a fixed number of sites."""
    size_skew: BelowOne = 0.0
    """With kind = "skew": a small party has (1 − size_skew) times the average number of records."""
    label_skew: Annotated[float, Meta(le=1)] = 0.0
    """With kind = "skew": 0 gives the small parties the overall mix of labels, and 1 gives them
    only the most frequent label. A negative number gives them fewer records with that label.
    """

    def faults(self) -> Iterator[str | TacitError]:
        if self.kind == "skew" and self.parties < 2:
            yield f"partition.parties = {self.parties}; a skewed partition needs at least 2"

"""Tables 2 to 4 of the TMLR paper: how the records were distributed, beside the printed values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tacit.data import PartitionConfig
from tacit.data.partition import balanced, skew
from tacit.errors import DataError
from tacit_studies.tables import Cell, Table
from tacit_studies.tmlr_published import SPLIT_TABLES, Split
from tacit_studies.tmlr_runs import records_of
from tacit_studies.tmlr_settings import Settings, partition_of
from tacit_studies.tmlr_tables import SPLITS

MIMIC3_RECORDS = 4475
"""Training records of the balanced MIMIC-III data (Appendix B)."""
Labels = dict[str, np.ndarray]


class Described(NamedTuple):
    """What a table describes: a data set, the figure with its parties, all figures that use it."""

    data: str
    figure: int
    used_by: tuple[int, ...]
    title: str


TABLES = {
    2: Described("adult", 1, (1, 4, 5), "Adult data, 10 clients data split"),
    3: Described("adult", 3, (3,), "Adult data, 200 clients data split"),
    4: Described("mimic3", 2, (2,), "Balanced MIMIC-III data, 10 clients data split"),
}
_LARGE = (
    "λ_large follows, as a mean, from the other columns; the paper's unbalanced values differ from "
    "it and may be those of a single party."
)
SPECIAL = {
    2: "With κ = −3, λ_small is 4λ − 3, about 0.043, and varies by 0.008 with the held-out half. "
    "The paper's λ_large are approximate.",
    3: f"{_LARGE} With κ = −3 a small party has one record of the majority label: 1/36.",
    4: f"{_LARGE} The 5 that the paper prints for κ is a misprint: λ_small = 0.25 needs −0.5.",
}
"""What the note of each table adds."""


def split_tables(settings: Settings, figures: Sequence[int], seed: int) -> list[Table]:
    """The tables of the splits that these figures use, on the records of the first seed."""
    return [
        _split_table(settings, number, seed)
        for number, what in TABLES.items()
        if set(figures) & set(what.used_by)
    ]


def _split_table(settings: Settings, number: int, seed: int) -> Table:
    what = TABLES[number]
    parties = settings.figures[str(what.figure)].parties
    rows, from_files = [], True
    for split, theirs in SPLIT_TABLES[number].items():
        partition = partition_of(settings, what.data, split, parties)
        try:
            federation = records_of(settings.data[what.data], partition, seed)
            labels = {name: own["y"] for name, own in federation.parties.items()}
        except DataError:
            if what.data != "mimic3":
                raise
            labels, from_files = _labels_alone(partition, seed), False
        rows.append(_row(split, measured(partition, labels), theirs))
    names = ("ρ", "κ", "n_small", "λ_small", "λ_large")
    columns = [name for pair in ((name, f"paper: {name}") for name in names) for name in pair]
    return Table(
        name=f"table-{number}",
        title=f"Table {number}: {what.title}",
        columns=("split", *columns),
        rows=rows,
        note=_note(number, seed, from_files),
        digits=dict.fromkeys(columns, 4),
    )


def measured(partition: PartitionConfig, labels: Labels) -> Split:
    """The row of a split, from the labels of each party.

    In a balanced split the first half of the parties takes the place of the small ones. Shares of
    the majority label are means over parties.
    """
    pooled = np.concatenate(list(labels.values()))
    majority = float(np.mean(pooled) > 0.5)
    shares = {name: float(np.mean(own == majority)) for name, own in labels.items()}
    names = list(labels)
    small = names[: len(names) // 2]
    return Split(
        rho=partition.size_skew,
        kappa=partition.label_skew,
        n_small=min(len(own) for own in labels.values()),
        small=float(np.mean([shares[name] for name in small])),
        large=float(np.mean([shares[name] for name in names[len(small) :]])),
    )


def _labels_alone(partition: PartitionConfig, seed: int) -> Labels:
    """4,475 labels with classes of equal size, distributed as the records of MIMIC-III would be."""
    y = np.arange(MIMIC3_RECORDS) % 2 * 1.0
    rng = np.random.default_rng(seed)
    if partition.kind == "balanced":
        rows = balanced(len(y), partition.parties, rng)
    else:
        rows, _ = skew(
            y, parties=partition.parties, size_skew=partition.size_skew,
            label_skew=partition.label_skew, binary=True, rng=rng,
        )  # fmt: skip
    return {name: y[own] for name, own in rows.items()}


def _row(split: str, ours: Split, theirs: Split) -> list[Cell]:
    pairs = zip(ours, theirs, strict=True)
    return [SPLITS[split], *(value for pair in pairs for value in pair)]


def _note(number: int, seed: int, from_files: bool) -> str:
    note = (
        "ρ and κ are the skew of sizes and of labels, n_small is the number of records of a small "
        "party, and λ is the share of the majority label, as a mean over the small and over the "
        f"large parties. Ours is the split of seed {seed}. {SPECIAL[number]}"
    )
    if number == 4 and not from_files:
        note += (
            " The files of MIMIC-III are not here, and the table does not need them: it "
            f"distributes {MIMIC3_RECORDS:,} labels with classes of equal size."
        )
    return note

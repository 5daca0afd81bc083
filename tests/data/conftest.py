from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tacit.data import ColumnConfig, DataConfig, Federation, PartitionConfig, load_federation
from tacit.data.readers.download import locate

Need = Callable[[str], None]


@pytest.fixture
def need() -> Need:
    """Skip a test, with the reason, where a public data set is not at hand."""

    def skip_unless_present(name: str) -> None:
        if locate(name) is None:
            pytest.skip(f"{name} is neither in $TACIT_DATA nor in the cache")

    return skip_unless_present


AGE = ColumnConfig(name="age", low=0, high=100, center=50, scale=10)
COLOUR = ColumnConfig(name="colour", kind="categorical", levels=("red", "blue"))
GOOD = {"age": ["40", "50", "60", "70"], "colour": ["red", "blue", "red", "red"]}


@pytest.fixture
def load_table(tmp_path: Path) -> Callable[..., Federation]:
    """Write columns of text to a CSV and load it as one party; `columns` replace the schema."""

    def load_cells(
        cells: dict[str, list[str]] | None = None,
        *columns: ColumnConfig,
        partition: PartitionConfig | None = None,
        **data: object,
    ) -> Federation:
        path = tmp_path / "table.csv"
        table = {**GOOD, "ill": ["yes", "no", "yes", "no"], **(cells or {})}
        pl.DataFrame(table, strict=False).write_csv(path)
        by_name = {column.name: column for column in (AGE, COLOUR, *columns)}
        settings = {"held_out": 0.0, "outcome": "ill", "positive": "yes", **data}
        config = DataConfig(
            source="file", path=str(path), columns=tuple(by_name.values()), **settings
        )
        one = PartitionConfig() if config.party else PartitionConfig(parties=1)
        return load_federation(config, partition or one, seed=0)

    return load_cells


_HEADER = (
    "Hours,Capillary refill rate,Diastolic blood pressure,Fraction inspired oxygen,"
    "Glascow coma scale eye opening,Glascow coma scale motor response,Glascow coma scale total,"
    "Glascow coma scale verbal response,Glucose,Heart Rate,Height,Mean blood pressure,"
    "Oxygen saturation,Respiratory rate,Systolic blood pressure,Temperature,Weight,pH"
)
_COLUMNS = _HEADER.split(",")

_WORDS = {
    "Capillary refill rate": ["0.0", "1.0"],
    "Glascow coma scale eye opening": ["4 Spontaneously", "To Speech", "None", "2 To pain"],
    "Glascow coma scale motor response": ["6 Obeys Commands", "Localizes Pain", "No response"],
    "Glascow coma scale total": ["15", "11", "3"],
    "Glascow coma scale verbal response": ["5 Oriented", "1.0 ET/Trach", "Confused"],
}
_NORMAL = {
    "Diastolic blood pressure": (65, 10),
    "Fraction inspired oxygen": (0.5, 0.1),
    "Glucose": (130, 30),
    "Heart Rate": (85, 15),
    "Height": (170, 9),
    "Mean blood pressure": (80, 10),
    "Oxygen saturation": (97, 2),
    "Respiratory rate": (18, 4),
    "Systolic blood pressure": (120, 18),
    "Temperature": (37, 0.5),
    "Weight": (80, 15),
    "pH": (7.38, 0.05),
}


def _row(hour: float, **cells: str) -> str:
    """One line; keywords are channels with underscores for spaces."""
    named = {key.replace("_", " "): value for key, value in cells.items()}
    return ",".join([str(hour), *(named.get(column, "") for column in _COLUMNS[1:])])


def write_stay(path: Path, rows: list[str], header: str = _HEADER) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")


def write_listfile(folder: Path, stays: dict[str, int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{name},{label}\n" for name, label in stays.items())
    (folder / "listfile.csv").write_text("stay,y_true\n" + lines)


def write_benchmark(folder: Path, *, subjects: int = 30, seed: int = 0) -> dict[str, int]:
    """Both sets; every third subject has two stays, a sixth of the stays end in death."""
    rng = np.random.default_rng(seed)
    stays: dict[str, dict[str, int]] = {"train": {}, "test": {}}
    number = 0
    for subject in range(subjects):
        part = "test" if subject % 5 == 4 else "train"
        for episode in range(1, 3 if subject % 3 == 0 else 2):
            name = f"{10_000 + subject}_episode{episode}_timeseries.csv"
            stays[part][name] = int(number % 6 == 0)
            write_stay(folder / part / name, _random_rows(rng))
            number += 1
    for part, listed in stays.items():
        write_listfile(folder / part, listed)
    return stays["train"] | stays["test"]


def _random_rows(rng: np.random.Generator) -> list[str]:
    hours = np.sort(rng.uniform(0, 48, rng.integers(1, 12)))
    lines = []
    for hour in hours:
        cells: dict[str, str] = {}
        for column in _COLUMNS[1:]:
            if rng.random() < 0.6:
                continue
            if column in _WORDS:
                cells[column] = str(rng.choice(_WORDS[column]))
            else:
                cells[column] = str(round(rng.normal(*_NORMAL[column]), 2))
        lines.append(_row(float(hour), **cells))
    return lines


@pytest.fixture
def mimic3() -> SimpleNamespace:
    """Writers of a folder as the MIMIC-III benchmark leaves it, with made-up stays."""
    return SimpleNamespace(
        header=_HEADER,
        row=_row,
        write_stay=write_stay,
        write_listfile=write_listfile,
        write_benchmark=write_benchmark,
    )

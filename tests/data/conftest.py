from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tacit.data import ColumnConfig, DataConfig, Federation, PartitionConfig, load_federation
from tacit.data.download import locate

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
        settings = {"held_out": 0.0, "target": "ill", "positive": "yes", **data}
        config = DataConfig(
            source="file", path=str(path), columns=tuple(by_name.values()), **settings
        )
        return load_federation(config, partition or PartitionConfig(parties=1), seed=0)

    return load_cells

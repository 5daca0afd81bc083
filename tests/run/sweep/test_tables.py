"""Means, standard errors, and the tables of a sweep."""

import json

import numpy as np
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import ConfigError, DataError
from tacit.run.sweep.job import Job, failed_row, start_row
from tacit.run.sweep.store import Store
from tacit.run.sweep.summary import mean_and_error, summarise


def job(number: int, **case) -> Job:
    return Job(id=f"{number:016x}", case=case, seed=number, config={})


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_mean_and_standard_error_are_those_of_numpy(values):
    mean, error = mean_and_error(values)
    scale = 1e-9 * max(1.0, max(map(abs, values)))
    assert mean == pytest.approx(np.mean(values), abs=scale)
    assert error == pytest.approx(np.std(values, ddof=1) / np.sqrt(len(values)), abs=scale)


def test_a_case_is_summed_over_its_seeds_and_counts_its_failures():
    jobs = [job(1, x=1), job(2, x=1), job(3, x=2), job(4, x=1)]
    rows = [
        start_row(jobs[0]) | {"held_out.accuracy": 0.5, "timing.wall_s": 3.0},
        start_row(jobs[1]) | {"held_out.accuracy": 0.7, "timing.wall_s": 4.0},
        start_row(jobs[2]) | {"held_out.accuracy": 0.9},
        failed_row(jobs[3], "no\nroom", 3),
    ]
    first, second = summarise(jobs, rows)
    assert (first["x"], first["runs"], first["failed"]) == (1, 2, 1)
    assert first["held_out.accuracy"] == pytest.approx(0.6)
    assert first["held_out.accuracy ±"] == pytest.approx(0.1)
    assert "timing.wall_s" not in first
    assert (second["held_out.accuracy"], second["held_out.accuracy ±"]) == (0.9, None)


def test_an_epsilon_is_never_summed_without_what_it_is_for():
    told = {"delta": 1e-5, "unit": "record", "adjacency": "replace-one", "trust": "nobody"}
    jobs = [job(1), job(2)]
    rows = [
        start_row(one) | {"guarantee.epsilon": epsilon}
        | {f"guarantee.{key}": value for key, value in told.items()}
        for one, epsilon in zip(jobs, (1.0, 1.5), strict=True)
    ]  # fmt: skip
    (summary,) = summarise(jobs, rows)
    assert summary["guarantee.epsilon"] == 1.5, "the weakest"
    assert {key: summary[f"guarantee.{key}"] for key in told} == told


def test_tables_hold_every_row_whatever_its_columns(tmp_path):
    store = Store(tmp_path / "out")
    jobs = [job(1, damping=0.5), job(2, damping={"start": 1.0})]
    with store.held("x = 1\n", overwrite=False):
        store.put(start_row(jobs[0]) | {"held_out.accuracy": 1})
        store.put(failed_row(jobs[1], "broken", 4))
        done = store.get(jobs[0])
        assert done is not None
        assert store.get(jobs[1]) is None, "a run that failed is tried again"
        store.write_tables([done, failed_row(jobs[1], "broken", 4)], [])
        with (
            pytest.raises(ConfigError, match="in use by another sweep"),
            Store(tmp_path / "out").held("", overwrite=True),
        ):
            pass  # fmt: skip
    for table in (
        polars.read_parquet(tmp_path / "out" / "table.parquet"),
        polars.read_csv(tmp_path / "out" / "table.csv"),
    ):
        assert table["status"].to_list() == ["done", "failed"]
        assert [json.loads(value) for value in table["damping"]] == [0.5, {"start": 1.0}]
        assert table["held_out.accuracy"].to_list() == [1, None]


def test_a_half_written_row_is_no_row(tmp_path):
    store = Store(tmp_path)
    with store.held("", overwrite=False):
        store.put(start_row(job(1)))
        file = tmp_path / "rows" / f"{job(1).id}.json"
        file.write_text(file.read_text()[:-5])
        assert store.get(job(1)) is None


def test_somebody_elses_directory_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    store = Store(tmp_path)
    with pytest.raises(ConfigError, match="is not empty"):
        store.check(resume=False, overwrite=False)
    with pytest.raises(ConfigError, match="is not overwritten"):
        store.check(resume=False, overwrite=True)
    with pytest.raises(DataError, match="not a sweep directory"):
        store.check(resume=True, overwrite=False)

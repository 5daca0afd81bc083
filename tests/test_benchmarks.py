"""The benchmarks still fit the code: a stale one would measure nothing when it is needed."""

import importlib
import pkgutil
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PEERS = {"opacus_peer", "topics_peer"}
"""They import packages of other projects, which only a benchmark installs."""


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_every_benchmark_can_be_imported():
    names = {one.name for one in pkgutil.iter_modules([str(ROOT / "benchmarks")])} - PEERS
    assert {"kills", "mutants", "units"} <= names
    for name in names:
        importlib.import_module(f"benchmarks.{name}")


def test_every_mutant_changes_one_place_of_its_file():
    mutants = importlib.import_module("benchmarks.mutants")
    stale = [one.name for one in mutants.MUTANTS if mutants._text(one).count(one.old) != 1]
    assert stale == []


def test_every_test_that_a_mutant_names_exists():
    mutants = importlib.import_module("benchmarks.mutants")
    named = {name.partition("::")[0] for one in mutants.MUTANTS for name in one.tests}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_no_function_of_the_library_is_longer_than_60_lines():
    size = importlib.import_module("benchmarks.size")
    files = [size.size_of(path) for path in sorted(size.LIBRARY.rglob("*.py"))]
    functions = [(n, f"{one.path.name}:{name}") for one in files for n, name in one.functions]
    assert len(functions) > 1_000
    assert [name for lines, name in functions if lines > 60] == []


def test_hierarchical_cases_are_whole_and_judged_by_both_bands():
    hierarchical = importlib.import_module("benchmarks.hierarchical")
    for groups in hierarchical.GROUPS:
        for outcome in hierarchical.OUTCOMES:
            records = hierarchical.make_records(hierarchical.Case(groups, outcome, 0))
            assert {len(column) for column in records.values()} == {hierarchical.RECORDS}
            assert np.bincount(records["group"]).min() >= 2
            assert len(np.bincount(records["group"])) == groups
    truth = {"mean": [0.0, 1.0, 2.0, 3.0], "sd": [1.0, 2.0, 1.0, 1.0]}
    mean, sd = np.array(truth["mean"]), np.array(truth["sd"])
    near = hierarchical.judge(
        {"mean": mean + np.array([0, 0.18, 0, 5]), "sd": sd * [1, 1, 0.9, 3]}, truth
    )
    assert near["right"], "tau is reported, not judged"
    assert (near["error"], near["tau_error"]) == pytest.approx((0.09, 5.0))
    assert not hierarchical.judge({"mean": mean + np.array([0.2, 0, 0, 0]), "sd": sd}, truth)[
        "right"
    ]
    assert not hierarchical.judge({"mean": mean, "sd": sd * [1, 1.2, 1, 1]}, truth)["right"]
    shifted = [{"mean": mean}, {"mean": mean + np.array([0, 1.0, 0, 0])}]
    assert hierarchical.apart(shifted, truth) == pytest.approx(0.5)

"""The benchmarks still fit the code: a stale one would measure nothing when it is needed."""

import importlib
import pkgutil
import sys
from pathlib import Path

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

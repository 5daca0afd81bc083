"""A ledger with a budget, a plain accountant, and processes to kill."""

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ledger_worker import budget_of, zcdp

from tacit.privacy.ledger.ledger import Ledger


@pytest.fixture
def place(tmp_path):
    """A directory in memory where there is one: a killed process, unlike a power cut, loses no page
    that was written, so that waiting for the disk would test nothing more.
    """
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


@pytest.fixture
def path(place):
    return place / "state" / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    with Ledger(path, create=True, epsilon=zcdp) as opened:
        yield opened


@pytest.fixture
def dataset(ledger):
    """A data set that may cost ε = 1."""
    found = ledger.first_version_id(["schema"], {"y": np.arange(5.0)})
    ledger.set_budget(found, budget_of(), reason="the ethics board, 12 May")
    return found


@pytest.fixture(scope="session")
def processes():
    """Clean processes that have the ledger imported and nothing else running."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ledger_worker"])
    return context

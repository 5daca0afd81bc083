"""Lets the tests here import the modules that lie beside them, and share compilations."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def shared_models(monkeypatch):
    """Ends of one federation in one process compile a model once, not once each."""
    import wire_harness

    monkeypatch.setattr("tacit.live.plan.make_model", wire_harness.shared_model)

"""A private authority and a small federation for the tests of live runs."""

import harness
import pytest


@pytest.fixture(scope="session")
def pki(tmp_path_factory) -> harness.Pki:
    """Certificates that no test takes back: north, south, west, east and the server's."""
    return harness.Pki.make(
        tmp_path_factory.mktemp("pki") / "pki", ("north", "south", "west", "east")
    )


@pytest.fixture
def federation(tmp_path, pki) -> harness.Federation:
    """The mean of a normal, two parties, two synchronous rounds."""
    return harness.Federation.make(tmp_path, pki)


@pytest.fixture
def shared_models(monkeypatch):
    """Compile each model once for all ends of a federation in this process."""
    import wire_harness

    monkeypatch.setattr("tacit.live.plan.make_model", wire_harness.shared_model)

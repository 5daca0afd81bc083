"""A private authority and a small federation for the tests of live runs."""

from types import SimpleNamespace

import harness
import numpy as np
import pytest

from tacit.live.secure.kept_party import KeptParty
from tacit.live.server.sums import ServerSums


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


@pytest.fixture
def watched(monkeypatch):
    """What parties mask, by slot and party, and what the server unmasks, by slot."""
    seen = SimpleNamespace(vectors={}, sums={}, survivors={})
    mask, total = KeptParty.masked, ServerSums.total

    def masked(self, request, released, shapes):
        before = seen.vectors.setdefault((request.visit, self._name), released)
        for name, value in before.items():
            assert np.array_equal(value, released[name]), "a vector is answered again unchanged"
        return mask(self, request, released, shapes)

    def totalled(self, shapes):
        slot = self.open
        survivors, found = total(self, shapes)
        seen.survivors[slot], seen.sums[slot] = survivors, found
        return survivors, found

    monkeypatch.setattr(KeptParty, "masked", masked)
    monkeypatch.setattr(ServerSums, "total", totalled)
    return seen

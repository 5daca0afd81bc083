"""A private authority for the tests of this directory, and `import harness`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # pytest imports test files by path alone

import harness


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

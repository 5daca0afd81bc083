"""What all tests share: 64 bits, repeatable examples, and a small regression to federate."""

import gc
import os
import sys
from collections.abc import Callable

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

jax.config.update("jax_enable_x64", True)
# Tracing makes many objects that live on: looking through all of them often takes time and finds
# little.
gc.set_threshold(100_000, 50, 100)
# Read when ray is imported: a test that joins another's cluster may be a process's first.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

settings.register_profile(
    "tacit",
    deadline=None,  # nothing is timed
    derandomize=True,  # the same examples on every machine
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("tacit")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test of what a compiler can change says nothing of programs compiled in another way."""
    if item.get_closest_marker("full_optimisation"):
        flags = os.environ.get("XLA_FLAGS", "")
        changed = ("optimization_level", "disable_expensive_passes", "fusion_emitters")
        assert not any(one in flags for one in changed), f"not to be run with XLA_FLAGS={flags}"


@pytest.fixture(autouse=True)
def _own_state_directory(tmp_path_factory, request, monkeypatch):
    """Private fits are charged to a ledger in the state directory: every test has its own."""
    base = tmp_path_factory.getbasetemp() / "state"
    monkeypatch.setenv("TACIT_STATE", str(base / f"{abs(hash(request.node.nodeid)):x}"))


Parties = dict[str, dict[str, np.ndarray]]


@pytest.fixture(scope="session")
def make_parties() -> Callable[..., Parties]:
    """Parties of the given sizes with correlated columns x, and y of the given output."""

    def make(sizes: tuple[int, ...], *, output: str = "gaussian", d: int = 3, seed: int = 0):
        rng = np.random.default_rng([seed, d])
        mix = np.eye(d) + 0.5 * rng.normal(size=(d, d)) / np.sqrt(d)
        weights = np.linspace(1.0, -1.0, d)
        parties = {}
        for number, size in enumerate(sizes):
            # Each party lives somewhere else: federated answers are not averages of local ones.
            x = rng.normal(size=(size, d)) @ mix + rng.normal(size=d) * 0.5
            if output == "gaussian":
                y = x @ weights + rng.normal(size=size)
            else:
                y = (x @ weights + rng.logistic(size=size) > 0).astype(np.float64)
            parties[f"site-{number}"] = {"x": x, "y": y}
        return parties

    return make


@pytest.fixture(scope="session")
def pool() -> Callable[[Parties], dict[str, np.ndarray]]:
    """All records in one place."""

    def pooled(parties: Parties) -> dict[str, np.ndarray]:
        first = next(iter(parties.values()))
        return {name: np.concatenate([p[name] for p in parties.values()]) for name in first}

    return pooled


@pytest.fixture
def tacit(monkeypatch, capsys, tmp_path):
    """Call the command in this process: (exit code, standard output, standard error)."""
    from tacit.cli.main import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tacit", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capsys.readouterr()
        return stopped.value.code, printed.out, printed.err

    return call

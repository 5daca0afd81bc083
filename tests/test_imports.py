"""What importing a part of the package loads, each in a fresh interpreter."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
COMPILERS = ("jax", "numpyro", "optax")


def loaded_after(code: str, *arguments: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded at the end."""
    script = f"import sys\n{code}\nprint('loaded', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("loaded ")[2].split())


def test_there_are_at_most_ten_layers():
    project = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (order,) = [one for one in contracts if one["type"] == "layers"]
    assert order["exhaustive"]
    assert len(order["layers"]) <= 10
    assert order["exhaustive_ignores"] == ["__main__"]


NO_COMPILER = (
    "tacit",
    "tacit.server",
    "tacit.server.step",
    "tacit.server.checkpoint",
    "tacit.server.combine",
    "tacit.pvi",
    "tacit.run.config",
    "tacit.live.config",
    "tacit.live.settings",
    "tacit.privacy.ledger.ledger",
    "tacit.run.directory",
    "tacit.cli.main",
    "tacit.plan.plan",
    "tacit.plan.explain",
    "tacit.methods.exact",
    "tacit.methods.natural",
    "tacit.methods.gradient",
    "tacit.methods.dpsgd.method",
    "tacit.methods.hybrid",
    "tacit.methods.scoring.method",
    "tacit.methods.statistics.method",
    "tacit.methods.update.method",
    "tacit.methods.whitening",
    "tacit.party.agent",
    "tacit.results.posterior",
    "tacit.engines.driver",
    "tacit.live.server.coordinator",
    "tacit.live.serve",
    "tacit.live.join",
    "tacit.fitting",
)


def test_the_parts_that_need_no_compiler_load_none():
    """In one interpreter: what one of them loads stays loaded, and the first to do so is named."""
    code = f"""
import importlib
for name in {NO_COMPILER!r}:
    importlib.import_module(name)
    heavy = sys.modules.keys() & set({COMPILERS!r})
    assert not heavy, f"{{name}} loads {{sorted(heavy)}}"
"""
    assert loaded_after(code).isdisjoint(COMPILERS)


def test_a_declared_method_loads_the_compiler_when_it_computes():
    code = (
        "from tacit.methods import METHODS, DPSGD\n"
        "assert 'jax' not in sys.modules\n"
        "from tacit.support.compiler import jnp\n"
        "assert float(jnp.ones(2).sum()) == 2.0"
    )
    assert "jax" in loaded_after(code)


def test_a_used_directory_is_refused_before_anything_heavy_is_loaded(tmp_path):
    (tmp_path / "file").touch()
    code = (
        "sys.argv = ['tacit', 'run', sys.argv[1], '--out', sys.argv[2]]\n"
        "from tacit.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stopped:\n    assert stopped.code == 2"
    )
    loaded = loaded_after(code, str(EXAMPLES / "hospitals.toml"), str(tmp_path))
    assert loaded.isdisjoint({*COMPILERS, "numpy", "polars", "scipy"})


def test_a_valid_check_does_not_load_scipy_stats_or_numpyro():
    code = (
        "sys.argv = ['tacit', 'check', sys.argv[1]]\n"
        "from tacit.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stopped:\n    assert stopped.code == 0"
    )
    loaded = loaded_after(code, str(EXAMPLES / "hospitals.toml"))
    assert loaded.isdisjoint({"scipy.stats", "numpyro", "matplotlib", "sklearn", "dp_accounting"})


def test_a_run_of_a_regression_without_privacy_loads_neither_compiler_nor_scipy(tmp_path):
    code = (
        "sys.argv = ['tacit', 'run', sys.argv[1], '--out', sys.argv[2]]\n"
        "from tacit.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stopped:\n    assert not stopped.code"
    )
    loaded = loaded_after(code, str(EXAMPLES / "hospitals.toml"), str(tmp_path / "out"))
    assert loaded.isdisjoint({*COMPILERS, "scipy", "matplotlib", "sklearn", "dp_accounting"})
    assert (tmp_path / "out" / "public" / "result.json").exists()


@pytest.mark.parametrize(
    "package", ["tacit", "tacit.data", "tacit.methods", "tacit.models", "tacit.sklearn"]
)
def test_no_public_name_is_hidden_by_a_module(package):
    """Importing a module sets it in its package: a name that is looked up later must differ."""
    found = importlib.import_module(package)
    modules = {one.name for one in pkgutil.iter_modules(found.__path__)}
    assert modules.isdisjoint(found.__all__)


def test_the_top_level_has_twelve_names_and_seven_packages():
    names = ["Federation", "Fit", "Ledger", "Privacy", "Schema", "TacitError"]
    names += ["check", "connect", "fit", "from_numpyro", "load", "serve"]
    packages = ["datasets", "families", "methods", "models", "schedules", "sklearn", "testing"]
    tacit = importlib.import_module("tacit")
    assert sorted(tacit.__all__) == sorted(names)
    assert dir(tacit) == sorted([*names, *packages])
    for name in dir(tacit):
        assert getattr(tacit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'LogisticRegression'"):
        _ = tacit.LogisticRegression

"""Small clients complete a regression: JavaScript from docs/protocol.md, and NumPy alone."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Federation, run_async

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"
NODE = shutil.which("node")
NAMES = ("north", "south", "west")
NOISE_SD = 0.8

needs_node = pytest.mark.skipif(
    NODE is None or not CLIENTS.exists(), reason="Node.js or examples/clients is not here"
)


def table(seed: int) -> tuple[str, np.ndarray, np.ndarray]:
    """A CSV file, its prepared design and its outcomes; one value lies outside of its bounds."""
    rng = np.random.default_rng(seed)
    age, dose = rng.uniform(20.0, 80.0, 30), rng.uniform(0.0, 4.0, 30)
    age[0] = 99.0
    y = 1.0 + 0.02 * age - 0.3 * dose + NOISE_SD * rng.normal(size=30)
    rows = zip(age.tolist(), dose.tolist(), y.tolist(), strict=True)
    text = "age,dose,y\n" + "".join(f"{a!r},{b!r},{c!r}\n" for a, b, c in rows)
    x = np.column_stack([np.ones(30), (np.clip(age, 20, 80) - 50) / 30, (dose - 2) / 2])
    return text, x, y


def start(
    federation: Federation, name: str, port: int, program: str = "party.mjs", **more: Any
) -> subprocess.Popen[str]:
    place, files = federation.base / name, federation.pki.of(name)
    settings = {
        "host": "127.0.0.1", "port": port, "data": "records.csv", "outcome": "y",
        "columns": {"age": [20, 80], "dose": [0, 4]}, "noise_sd": NOISE_SD,
    }  # fmt: skip
    for key in ("certificate", "key", "authority"):
        shutil.copy(getattr(files, key), place / f"{key}.pem")
        settings[key] = f"{key}.pem"
    (place / "party.json").write_text(json.dumps(settings | more))
    runs = sys.executable if program.endswith(".py") else str(NODE)
    command = [runs, str(CLIENTS / program), str(place / "party.json")]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip


@pytest.fixture
def made(tmp_path, pki):
    tables = {name: table(seed) for seed, name in enumerate(NAMES)}
    federation = Federation.make(
        tmp_path, pki, parties=NAMES, rows={name: one[0] for name, one in tables.items()},
        columns={"age": {"low": 20.0, "high": 80.0}, "dose": {"low": 0.0, "high": 4.0}},
        model={"kind": "linear", "noise_sd": NOISE_SD, "prior_sd": 2.0}, posterior="full",
        schedule={"kind": "synchronous", "rounds": 3, "damping": 0.5},
    )  # fmt: skip
    return federation, tables


def is_the_damped_posterior(out: str, tables: dict[str, Any]) -> dict[str, Any]:
    """Three rounds of damping ½ leave an eighth of every exact factor out."""
    share = 1.0 - 0.5**3
    precision = np.eye(3) / 4.0 + share * sum(x.T @ x for _, x, _ in tables.values()) / NOISE_SD**2
    linear = share * sum(x.T @ y for _, x, y in tables.values()) / NOISE_SD**2
    covariance = np.linalg.inv(precision)
    found = json.loads(out.splitlines()[-1])
    assert found["names"] == ["intercept", "age", "dose"]
    np.testing.assert_allclose(found["mean"], covariance @ linear, rtol=1e-8)
    np.testing.assert_allclose(found["sd"], np.sqrt(np.diagonal(covariance)), rtol=1e-8)
    return found


@needs_node
def test_two_parties_in_javascript_and_one_in_numpy_complete_a_regression(made):
    federation, tables = made
    programs = {"north": "party.mjs", "south": "party.py", "west": "party.mjs"}

    async def scene() -> Any:
        async with federation.serving() as running:
            processes = [
                start(federation, name, running.port, program) for name, program in programs.items()
            ]
            try:
                ends = await asyncio.gather(
                    *(asyncio.to_thread(one.communicate, timeout=50) for one in processes)
                )
            finally:
                for one in processes:
                    one.kill()
            assert await running.over() == "finished"
            return running, ends

    running, ends = run_async(scene())
    assert not running.server.journal.refusals
    joined = {line["party"]: line["encoding"] for line in running.events("joined")}
    assert joined == {"north": "json", "south": "msgpack", "west": "json"}
    found = []
    for out, errors in ends:
        assert not errors
        found.append(is_the_damped_posterior(out, tables))
    assert found[1]["jax"] is False
    assert all(one.get("megabytes", 0) < 100 for one in found), "no compiler, no data frames"


@needs_node
def test_a_party_of_other_columns_ends_with_a_reason(made):
    federation, _ = made
    north = start(federation, "north", 1, columns={"bmi": [10, 60]})
    out, errors = north.communicate(timeout=50)
    assert north.returncode == 4
    assert 'column "bmi" is not in records.csv' in errors
    assert not out

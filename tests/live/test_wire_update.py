"""Records that arrive later: a live run that continues an earlier one."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import tomlkit
from wire_harness import Fed, run_all

from tacit.cli.ledger import budget_command
from tacit.cli.main import main
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, DataError
from tacit.live.join import join, prepare_party, required_budget, spent_by
from tacit.privacy.ledger.rules import LineageWarning

pytestmark = pytest.mark.usefixtures("shared_models")
NAMES = ("a", "b")
LINEAR = {
    "privacy": "none",
    "outcome": "pressure",
    "columns": {"age": {"low": 18.0, "high": 90.0}, "pressure": {"low": 50.0, "high": 250.0}},
    "model": {"kind": "linear", "noise_sd": 10.0, "prior_sd": 5.0},
    "schedule": {"rounds": 2, "damping": 1.0},
}
PRIVATE = LINEAR | {
    "privacy": {"epsilon": 20.0, "delta": 1e-5},
    "records": 100,
    "method": {"kind": "dp-statistics", "one_shot": True, "clip": 10.0},
    "schedule": {"rounds": 5},
}


def csv(seed, rows):
    rng = np.random.default_rng(seed)
    age = rng.uniform(18, 90, rows)
    pressure = 100 + 0.5 * age + rng.normal(0, 10, rows)
    lines = (f"{a:.3f},{p:.3f}" for a, p in zip(age, pressure, strict=True))
    return "\n".join(["age,pressure", *lines]) + "\n"


def spring(tmp_path, agreed, **options):
    """The earlier run; its files stay in one directory with those of the later one."""
    fed = Fed(tmp_path / "fed", NAMES, agreed, **options)
    for number, name in enumerate(NAMES):
        (fed.base / f"{name}.csv").write_text(csv(number, 30 + 10 * number))
    return fed


def autumn(fed, monkeypatch):
    """The same parties with new records, new state directories and the agreed file of an update."""
    study = fed.base / "autumn.toml"
    monkeypatch.setattr(
        "sys.argv", ["tacit", "update", str(fed.base / "server.toml"), "--study", str(study)]
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    for path in [fed.base / "server.toml", *(fed.base / f"{name}.toml" for name in NAMES)]:
        body = tomlkit.parse(path.read_text()).unwrap()
        own = body["serve" if "serve" in body else "join"]
        own |= {"earlier": own["state"], "state": own["state"] + "-autumn"}
        path.write_text(tomlkit.dumps(body | {"federation": "autumn.toml"}))
    for number, name in enumerate(NAMES):
        old = fed.base / f"{name}.csv"
        old.rename(fed.base / f"{name}-spring.csv")
        old.write_text(csv(10 + number, 20 + 5 * number))


def with_both(fed):
    """The exact posterior of all records in one run that knows nothing of batches."""
    for name in NAMES:
        old = (fed.base / f"{name}-spring.csv").read_text()
        new = (fed.base / f"{name}.csv").read_text().split("\n", 1)[1]
        (fed.base / f"{name}.csv").write_text(old + new)
    return carry_out(fed.alone()).state.result


def test_two_batches_give_the_posterior_of_one(tmp_path, monkeypatch):
    fed = spring(tmp_path, LINEAR)
    fed.approve()
    asyncio.run(run_all(fed))
    autumn(fed, monkeypatch)
    fed.approve()
    result, *ends = asyncio.run(run_all(fed))
    assert result.model.prior == "the posterior of an earlier run on other records"
    found = fed.natural("server-autumn")
    for name in NAMES:
        for key, value in fed.natural(f"state-{name}-autumn").items():
            assert value.tobytes() == found[key].tobytes()
    expected = with_both(fed)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-11 * np.abs(value).max())
    assert len(ends) == 2


def test_a_party_refuses_records_that_it_has_used(tmp_path, monkeypatch):
    fed = spring(tmp_path, LINEAR)
    fed.approve()
    asyncio.run(run_all(fed))
    autumn(fed, monkeypatch)
    fed.approve()
    new = (fed.base / "a.csv").read_text()
    (fed.base / "a.csv").write_text(new + (fed.base / "a-spring.csv").read_text().split("\n")[1])
    with pytest.raises(DataError, match="1 of the 21 rows are equal to rows"):
        asyncio.run(join(fed.party("a")))
    (fed.base / "a.csv").write_text(new)
    posterior = Path(fed.base / "state-a" / "public" / "posterior.npz")
    (fed.base / "state-b" / "public" / "posterior.npz").replace(posterior)
    prepare_party(fed.party("a"))  # the same posterior, from another party
    with np.load(posterior) as stored:
        changed = {key: stored[key] for key in stored.files}
    changed["natural/linear"] = 1.001 * changed["natural/linear"]
    np.savez(posterior, **changed)
    with pytest.raises(DataError, match="to the state directory of the run"):
        prepare_party(fed.party("a"))


def test_files_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    fed = spring(tmp_path, LINEAR)
    fed.approve()
    asyncio.run(run_all(fed))
    with pytest.raises(ConfigError, match="continues no run; leave it out"):
        fed.write_party("a", earlier="state-b")
    fed.write_party("a")
    autumn(fed, monkeypatch)
    body = tomlkit.parse((fed.base / "a.toml").read_text()).unwrap()
    del body["join"]["earlier"]
    (fed.base / "a.toml").write_text(tomlkit.dumps(body))
    with pytest.raises(ConfigError, match=r"earlier is missing in a\.toml"):
        fed.party("a")


def test_only_the_new_records_are_charged(tmp_path, monkeypatch):
    fed = spring(tmp_path, PRIVATE, ledgers=True)

    def allow():
        for name in NAMES:
            needed = required_budget(prepare_party(fed.party(name)))
            path = str(fed.base / f"{name}.toml")
            budget_command(None, path, needed, 1e-5, None, None, reason="t", raising=False)
        fed.approve()

    allow()
    asyncio.run(run_all(fed))
    first = {name: spent_by(prepare_party(fed.party(name))) for name in NAMES}
    autumn(fed, monkeypatch)
    with pytest.warns(LineageWarning, match="separate budget"):
        allow()
    asyncio.run(run_all(fed))
    for name in NAMES:
        new = spent_by(prepare_party(fed.party(name)))
        assert new.epsilon == pytest.approx(first[name].epsilon) == pytest.approx(20.0, rel=0.01)
        (fed.base / f"{name}.csv").write_text((fed.base / f"{name}-spring.csv").read_text())
        again = spent_by(prepare_party(fed.party(name)))
        assert again.epsilon == first[name].epsilon, "the first records were not charged again"

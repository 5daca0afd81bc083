"""The Ray engine: the posterior of the in-process engine, on one node and two, whatever is lost."""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.datasets import document_records
from tacit.engines.execute import carry_out
from tacit.engines.ray.engine import deal
from tacit.errors import ConfigError, DataError
from tacit.methods import DPSGD, PrivateScores, PrivateScoring, PrivateStatistics, PrivateUpdate
from tacit.methods.scores.method import LEAST_ROUNDS
from tacit.models import LinearRegression, SoftmaxRegression, TopicModel
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy
from tacit.server.schedule import Asynchronous, Sequential, Synchronous
from tacit.testing import check_engine

pytestmark = pytest.mark.full_optimisation

LINEAR = LinearRegression(("a", "b", "c"), prior_sd=1.0)
TOKEN = "0123456789abcdef" * 2
WORDS = """
name = "on actors"
privacy = "none"
seed = 4

[data]
source = "normal-mean"
records = 60

[partition]
parties = 3

[schedule]
rounds = 2
"""


def needs_ray():
    """Not by importing it: tacit has something to tell it first."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'tacit[ray]'")


@pytest.fixture(scope="module")
def cluster():
    """A cluster of this process's own."""
    needs_ray()
    from tacit.engines.ray import connected

    with connected() as found:
        yield found


@pytest.fixture(scope="module")
def parties(make_parties):
    return make_parties((5, 33, 12, 46, 44))


def test_a_cluster_of_ones_own_listens_on_loopback_and_reports_nothing(cluster):
    import ray

    assert cluster.own
    assert ray.util.get_node_ip_address() == "127.0.0.1"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    listening = subprocess.run(
        ["ss", "-ltnp"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    ours = [line.split()[3] for line in listening if "raylet" in line or "gcs_server" in line]
    assert all("127.0.0.1" in address or "[::1]" in address for address in ours), ours


def test_the_engine_passes_its_suite(cluster):
    """A dozen runs, each with an actor of its own: what they cost is starting processes."""
    from tacit.engines.ray import RayEngine

    check_engine(partial(RayEngine, actors=1))


def test_the_posterior_is_that_of_one_process(cluster, parties):
    from tacit.engines.ray import RayEngine

    plan = make_plan(LINEAR, parties, schedule=Synchronous(rounds=3), seed=2)
    here = carry_out(plan)
    actors = 2
    there = carry_out(plan, engine=partial(RayEngine, actors=actors))
    for name in here.state.q:
        np.testing.assert_allclose(there.state.q[name], here.state.q[name], rtol=1e-10)
    assert there.state.exchanges == here.state.exchanges
    assert [f.version for f in there.state.factors.values()] == [
        f.version for f in here.state.factors.values()
    ]
    assert max(there.report["compilations"]) <= 4
    assert there.report["actors"] == actors
    assert min(there.report["memory_mb"]) > 0


@pytest.mark.parametrize(
    "method",
    [PrivateUpdate(shards=1, form="log-precision", clip=0.3), PrivateStatistics(one_shot=True)],
    ids=["memory", "stages"],
)
def test_what_a_party_keeps_goes_with_it(cluster, parties, method):
    """A factor of its own, and statistics that are released once and said again."""
    from tacit.engines.ray import RayEngine

    unit = "party" if method.kind == "dp-updates" else "record"
    asked = Privacy(
        noise_multiplier=2.0, delta=1e-3, unit=unit, insecure_noise_seed=1, accountant="rdp",
        adjacency="add-or-remove-one",
    )  # fmt: skip
    schedule = Synchronous(rounds=4, damping=0.5)
    plan = make_plan(LINEAR, parties, method=method, schedule=schedule, privacy=asked)
    here = carry_out(plan)
    there = carry_out(plan, engine=partial(RayEngine, actors=2))
    for name in here.state.q:
        np.testing.assert_allclose(there.state.q[name], here.state.q[name], rtol=1e-10)


def test_private_scoring_is_that_of_one_process(cluster, parties):
    from tacit.engines.ray import RayEngine

    model = SoftmaxRegression(LINEAR.names, levels=("a", "b", "c"), prior_sd=1.0)
    dealt = {name: one | {"y": (one["y"] > 0) * 2.0} for name, one in parties.items()}
    asked = Privacy(noise_multiplier=2.0, delta=1e-3, insecure_noise_seed=1)
    plan = make_plan(
        model, dealt, method=PrivateScoring(), schedule=Synchronous(rounds=5), privacy=asked
    )
    here = carry_out(plan)
    there = carry_out(plan, engine=partial(RayEngine, actors=1))
    for name in here.state.q:
        np.testing.assert_allclose(there.state.q[name], here.state.q[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("method", "aggregation"), [
    (PrivateScores(), "plain"), (PrivateScores(), "secure"), (DPSGD(), "secure"),
])  # fmt: skip
def test_private_scores_and_secure_steps_are_those_of_one_process(
    cluster, parties, method, aggregation
):
    from tacit.engines.ray import RayEngine

    asked = Privacy(epsilon=8.0, delta=1e-3, aggregation=aggregation, insecure_noise_seed=1)
    schedule = Synchronous(rounds=LEAST_ROUNDS)
    plan = make_plan(LINEAR, parties, method=method, schedule=schedule, privacy=asked)
    here = carry_out(plan)
    there = carry_out(plan, engine=partial(RayEngine, actors=1))
    for name in here.state.q:
        np.testing.assert_allclose(there.state.q[name], here.state.q[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("private", [False, True], ids=["plain", "private"])
def test_documents_give_the_topics_of_one_process(cluster, private):
    from tacit.engines.ray import RayEngine

    counts = np.random.default_rng(0).poisson(0.6, (60, 12)) + np.eye(60, 12, dtype=int)
    parties = {f"p{i}": document_records(counts[i::3], width=12) for i in range(3)}
    options = {}
    if private:
        asked = Privacy(noise_multiplier=2.0, delta=1e-3, insecure_noise_seed=1)
        options = {"privacy": asked, "method": PrivateStatistics(sampling_rate=0.5)}
    model = TopicModel(3, words=12, document_words=20)
    plan = make_plan(model, parties, schedule=Synchronous(rounds=2), **options)
    here = carry_out(plan)
    there = carry_out(plan, engine=partial(RayEngine, actors=1))
    np.testing.assert_allclose(there.state.q["log"], here.state.q["log"], rtol=1e-10)


def test_answers_in_the_order_of_the_wall_clock_come_to_the_same_posterior(cluster, parties):
    """The order changes the way, not where a conjugate model ends; every party is heard."""
    from tacit.engines.ray import RayEngine

    plan = make_plan(LINEAR, parties, schedule=Asynchronous(rounds=3), seed=2)
    there = carry_out(plan, engine=partial(RayEngine, actors=1, wall_clock=True))
    exact = carry_out(make_plan(LINEAR, parties, schedule=Sequential(rounds=1)))
    assert there.state.exchanges == 15
    for name in exact.state.q:
        np.testing.assert_allclose(there.state.q[name], exact.state.q[name], rtol=1e-8)


def test_what_is_wrong_with_a_party_is_said_in_its_own_words(cluster, parties):
    from tacit.engines.ray import RayEngine

    extreme = {"x": np.full((4, 3), 1e200), "y": np.full(4, 1e200)}
    plan = make_plan(LINEAR, {**parties, "extreme": extreme}, seed=2)
    with pytest.raises(DataError, match=r"party 'extreme'.*is not finite"):
        carry_out(plan, engine=partial(RayEngine, actors=1))


def test_the_command_runs_and_resumes_on_ray(cluster, tacit, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(WORDS)
    assert tacit("run", str(file), "--out", "here")[0] == 0
    code, _, errors = tacit("run", str(file), "--engine", "ray", "--out", "there")
    assert (code, errors) == (0, "")
    here, there = (
        json.loads(Path(out, "public", "result.json").read_text()) for out in ("here", "there")
    )
    assert there["engine"] == "ray"
    assert there["cluster"]["lost"] == 0
    np.testing.assert_allclose(there["posterior"]["mean"], here["posterior"]["mean"], rtol=1e-10)
    code, _, _ = tacit("run", str(file), "--out", "there", "--resume")
    assert code == 0, "a run goes on under another engine"


def test_a_sweep_is_spread_over_actors_and_survives_a_deadly_run(cluster, tacit, tmp_path):
    (tmp_path / "deadly.py").write_text("import os\nos._exit(9)\n")
    file, base = tmp_path / "sweep.toml", tmp_path / "base.toml"
    base.write_text(WORDS)
    file.write_text(
        'base = "base.toml"\nseeds = 1\n[[runs]]\nschedule.rounds = 1\n[[runs]]\n'
        f'model.kind = "numpyro"\nmodel.function = "{tmp_path}/deadly.py:model"\n'
    )
    code, _, errors = tacit("sweep", str(file), "--engine", "ray", "--workers", "1", "--out", "out")
    assert code == 5
    assert "1 of 2 runs failed" in errors
    table = polars.read_csv("out/table.csv")
    assert table["status"].to_list() == ["done", "failed"]
    assert "processes were lost during one call" in table["error"][1]


def test_a_folder_that_a_node_does_not_reach_is_refused(cluster, tmp_path, monkeypatch):
    from tacit.engines.ray import check_folder

    check_folder(tmp_path, one_machine=True)
    opened = os.open(tmp_path, os.O_RDONLY)  # a path that means something in this process only
    try:
        with pytest.raises(ConfigError, match="cannot read"):
            check_folder(Path(f"/proc/self/fd/{opened}"), one_machine=False)
    finally:
        os.close(opened)
    monkeypatch.setattr("tacit.engines.ray.nodes.this_machine", lambda: "elsewhere")
    with pytest.raises(ConfigError, match="is not the machine of the ledger"):
        check_folder(tmp_path, one_machine=True)
    assert list(tmp_path.iterdir()) == []


def test_two_nodes_and_what_is_lost_on_them(two_nodes, tmp_path):
    """Check: equal in all schedules; an actor and then a node killed in the middle of a round."""
    address, raylet, environment = two_nodes
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ray_worker.py")), address, str(raylet),
         str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=600, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["nodes"] == 2
    for kind in ("sequential", "synchronous", "asynchronous"):
        assert found[kind] < 1e-10, kind
    losses = found["losses"]
    assert losses["left"] == {}
    assert losses["lost"] >= 2, "an actor, and that of the second node"
    assert losses["apart"] < 1e-6
    assert (losses["versions"], losses["exchanges"]) == ([4], 16)
    assert (losses["charges"], losses["attempts"], losses["replies"]) == (16, 1, 16)


@pytest.fixture
def two_nodes(tmp_path):
    """Two `ray start` on loopback addresses of this machine: (address, second node's raylet)."""
    needs_ray()
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        address = f"127.0.0.2:{free.getsockname()[1]}"
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token",
                   "RAY_AUTH_TOKEN": TOKEN}  # fmt: skip
    environment.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)
    common = ["--num-cpus=1", "--object-store-memory=100000000", "--block"]
    ray = [str(Path(sys.executable).with_name("ray")), "start"]
    port = address.rpartition(":")[2]
    # Ray's sockets have long names: a short folder of its own for each node.
    first = [*ray, "--head", "--node-ip-address=127.0.0.2", f"--port={port}",
             "--include-dashboard=false", *common]  # fmt: skip
    second = [*ray, f"--address={address}", "--node-ip-address=127.0.0.3", *common]
    nodes = []
    try:
        for number, command in enumerate((first, second)):
            log = (tmp_path / f"node-{number}.log").open("wb")
            nodes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
            log.close()
            raylet = _raylet(nodes[-1].pid)
        yield address, raylet, environment
    finally:
        for node in reversed(nodes):
            node.send_signal(signal.SIGTERM)
        for node in nodes:
            node.wait(timeout=60)


def _raylet(process: int) -> int:
    """The raylet among what a `ray start` has started, once it is there."""
    limit = time.monotonic() + 120
    while time.monotonic() < limit:
        files = list(Path(f"/proc/{process}/task").glob("*/children"))
        started = [word for file in files for word in file.read_text().split()]
        for child in started:
            with contextlib.suppress(OSError):  # it may have ended meanwhile
                if Path(f"/proc/{child}/comm").read_text().strip() == "raylet":
                    return int(child)
        time.sleep(0.2)
    raise AssertionError("ray start did not come up")


def test_without_ray_it_says_what_to_install(monkeypatch, tacit, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    file = tmp_path / "config.toml"
    file.write_text(WORDS)
    code, _, errors = tacit("run", str(file), "--engine", "ray", "--out", "there")
    assert code == 2
    assert "pip install 'tacit[ray]'" in errors
    assert not Path("there").exists()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["engine.actors=2"], 'is not a key of kind = "in-process" (ray has it)'),
        (["engine.kind=ray", "engine.actors=0"], "must be a whole number of at least 1"),
        (["engine.kind=ray", "engine.address=nowhere"], "write HOST:PORT"),
    ],
)
def test_a_bad_engine_table_is_refused(tacit, tmp_path, overrides, words):
    if "nowhere" in overrides[-1]:
        needs_ray()
    file = tmp_path / "config.toml"
    file.write_text(WORDS)
    options = [word for one in overrides for word in ("--set", one)]
    code, _, errors = tacit("run", str(file), "--out", "there", *options)
    assert code == 2
    assert words in errors


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 5))
def test_parties_are_dealt_out_evenly_and_once(sizes, count):
    parties = {f"p{i}": {"y": np.zeros(size)} for i, size in enumerate(sizes)}
    groups = deal(parties, min(count, len(parties)))
    assert sorted(name for group in groups for name in group) == sorted(parties)
    loads = [sum(len(parties[name]["y"]) for name in group) for group in groups]
    assert max(loads) - min(loads) <= max(sizes)
    assert all(groups)


def test_memories_and_noise_keys_travel_with_requests():
    """A mix of parties that keep something and of those that do not is told apart."""
    from tacit.engines.ray.pack import pack_requests, pack_updates, unpack_requests, unpack_updates
    from tacit.party.compute import Update
    from tacit.server.messages import Request

    q = {"linear": np.array([1.0])}
    requests = [
        Request(f"r{i}", f"p{i}", i, i + 1, q, {"linear": np.array([float(i)])}, 0.5, False)
        for i in range(3)
    ]
    kept = {"p1": {"sum": np.array([7.0, 8.0])}}
    secret = {"r0": b"a" * 32, "r2": b"c" * 32}
    again, memories, keys = unpack_requests(
        q, {"map": np.ones(2)}, pack_requests(requests, kept, secret)
    )
    assert keys == secret
    assert [one.id for one in again] == ["r0", "r1", "r2"]
    assert all(one.q is q and one.public["map"].tolist() == [1.0, 1.0] for one in again)
    assert [float(one.factor["linear"][0]) for one in again] == [0.0, 1.0, 2.0]
    assert memories["p0"] is None
    np.testing.assert_equal(memories["p1"], kept["p1"])
    found = {r.id: Update(r.factor, None, True, ("cost", r.id), memories[r.party]) for r in again}
    back = unpack_updates(pack_updates(found))
    assert back.keys() == found.keys()
    for key, update in back.items():
        assert update.cost == ("cost", key)
        np.testing.assert_equal(update.released, found[key].released)
        np.testing.assert_equal(update.memory, found[key].memory)


def test_an_address_of_another_cluster_is_refused(cluster):
    from tacit.engines.ray import connected

    with pytest.raises(ConfigError, match="is connected to"), connected("127.0.0.1:1"):
        pass

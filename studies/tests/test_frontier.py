"""The frontier on a tiny setting: what is run, what is kept, what is told."""

import csv
import dataclasses
import sys

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.cli.main import main
from tacit.data import DataConfig, PartitionConfig, load_federation
from tacit.errors import ConfigError
from tacit.methods.scoring.party import score_sum
from tacit.models import LogisticRegression
from tacit.results.posterior import posterior_of
from tacit.run.config import parse_config
from tacit.run.run import prepare, simulate
from tacit.server.combine import RoundSum, Shared
from tacit_studies import STUDIES, frontier
from tacit_studies.frontier_ablation import VARIANTS, PlainClip, UniformBudget, run_job
from tacit_studies.frontier_settings import (
    REFERENCE,
    ablation_cells,
    figure_cells,
    read_settings,
    refused,
    unique_jobs,
)

COHORT = {"source": "synthetic-cohort", "records": 300, "held_out": 0.5}


@pytest.fixture
def tiny():
    """The study's own settings on 300 generated records at three parties, three rounds."""
    whole = read_settings()
    figures = {
        name: msgspec.structs.replace(what, parties=3) for name, what in whole.figures.items()
    }
    methods = {
        name: msgspec.structs.replace(
            what, set={k: 3 if k == "schedule.rounds" else v for k, v in what.set.items()}
        )
        for name, what in whole.methods.items()
    }
    quick = msgspec.structs.replace(
        whole.quick, seeds=1, epsilons=(1.0, 4.0),
        methods=("non-private", "scoring", "dp-optimisation"),
    )  # fmt: skip
    return msgspec.structs.replace(
        whole,
        base=whole.base | {"data": COHORT, "schedule": {"rounds": 4}},
        figures=figures,
        methods=methods,
        ablation=msgspec.structs.replace(whole.ablation, parties=3),
        quick=quick,
    )


def test_the_grid_has_every_method_epsilon_split_and_trust():
    whole = read_settings()
    absent = refused(whole)
    assert set(absent) <= {"statistics", "statistics-trusted", "dp-hybrid"}
    for figure, parties, seeds in ((1, 10, 3), (2, 200, 1)):
        cells = figure_cells(whole, figure, absent, first=0, quick=False)
        methods = set(whole.methods) - set(absent)
        assert len(cells) == 3 * seeds * (1 + 5 * (len(methods) - 1))
        assert {cell.epsilon for cell in cells} == {None, 0.25, 0.5, 1.0, 2.0, 4.0}
        for cell in cells:
            privacy = cell.job.config["privacy"]
            if cell.method == REFERENCE:
                assert privacy == "none"
                continue
            assert (privacy["epsilon"], privacy["delta"]) == (cell.epsilon, 1e-5)
            assert (privacy["unit"], privacy["adjacency"]) == ("record", "replace-one")
            assert privacy["insecure_noise_seed"] == cell.job.seed
            if cell.method != "central":
                assert cell.job.config["partition"]["parties"] == parties
        # Records in one place have no split: those cells share their runs.
        central = [cell for cell in cells if cell.method == "central"]
        assert len(unique_jobs(central)) == len(central) / 3
    trusted = {name: method.trusted for name, method in whole.methods.items()}
    assert trusted["scoring"] == "none"
    assert trusted["scoring-trusted"] == "the aggregator"
    assert trusted["central"] == "central holder"


def test_it_runs_on_the_sweep_goes_on_and_writes_everything(tiny, tmp_path, monkeypatch):
    for name in set(VARIANTS) - {"whole", "last-round"}:
        monkeypatch.delitem(VARIANTS, name)  # each is compiled anew
    seen = []

    def do():
        seen.clear()
        return frontier.reproduce(
            tmp_path, quick=True, figure=(1, "ablation"), settings=tiny, workers=1,
            progress=lambda *step: seen.append(step),
        )  # fmt: skip

    result = do()
    total = 1 + 2 * 2 + len(VARIANTS) - 1  # the ablation's reference and whole recipe are shared
    assert seen[0][:2] == (0, total)
    assert seen[-1][:2] == (total, total)
    names = {path.rpartition("/")[2] for path in result["files"]}
    assert {"frontier.csv", "figure-1.svg", "ablation.png", "tables.md", "index.html"} <= names
    table = {one["name"]: one for one in result["tables"]}
    assert "substituting one record, δ = 1e−5" in table["figure-1-balanced"]["note"]
    rows = {row[0]: row for row in table["ablation"]["rows"]}
    assert rows["the whole recipe"][-2:] == [None, None]
    assert len({row[1] for row in rows.values()}) == len(VARIANTS), "every part makes a difference"
    with (tmp_path / "frontier.csv").open() as file:
        lines = list(csv.DictReader(file))
    private = [line for line in lines if line["epsilon"]]
    assert all(line["delta"] and line["unit"] and line["adjacency"] for line in private)
    published = [line for line in lines if line["published_log_likelihood"]]
    assert [line["method"] for line in published] == ["dp-optimisation"]
    assert published[0]["published_epsilon_understated"] == "True"
    next((tmp_path / "sweep" / "rows").glob("*.json")).unlink()
    again = do()
    assert seen[0][:2] == (total - 1, total), "only what is missing is run again"
    assert again["tables"] == result["tables"]


def test_every_variant_is_accounted_for_like_the_whole(tiny):
    cells = ablation_cells(tiny, first=0, quick=True)
    spent = {}
    for cell in cells[1:]:
        config = parse_config(cell.job.config)
        plan = prepare(config, VARIANTS[cell.method][1]()).plan
        assert plan.guarantee is not None
        spent[cell.method] = plan.guarantee.epsilon
        shares = [plan.method.budget_share(visit, 7) for visit in range(7)]  # pyright: ignore
        assert sum(shares) == pytest.approx(1.0)
    assert set(spent) == set(VARIANTS)
    assert max(spent.values()) <= 1.0
    assert min(spent.values()) > 0.99
    shares = [UniformBudget().budget_share(visit, 7) for visit in range(2, 7)]
    assert shares == pytest.approx([shares[0]] * 5)


@settings(max_examples=40, deadline=None)
@given(
    x=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2),
    y=st.sampled_from([0.0, 1.0, 50.0]),
    point=st.lists(st.floats(-20, 20), min_size=2, max_size=2),
)
def test_a_plain_clip_bounds_a_record_too(x, y, point):
    model = LogisticRegression(("a", "b"), prior_sd=1.0)
    with jax.enable_x64(True):
        bounded = score_sum(
            PlainClip().party_likelihood(model),
            {"x": jnp.array([x]), "y": jnp.array([y])},
            jnp.ones(1),
            jnp.array(1.0),
            centre=jnp.array([0.1, 0.2]),
            scale=jnp.array([1.0, 3.0]),
            bend=jnp.array([[0.3, 0.4]]),
            point=jnp.array(point),
            reach=jnp.array(1.0),
        )
        assert np.linalg.norm(np.asarray(bounded.value)) <= 1.0 + 1e-9


def test_a_simulation_writes_nothing_and_equals_a_run(tiny, tmp_path, monkeypatch):
    from tacit.run.run import run

    monkeypatch.chdir(tmp_path)
    open_, private = figure_cells(tiny, 1, {}, first=0, quick=True)[:2]
    found = run_job(open_.job)
    assert not list(tmp_path.iterdir())
    kept = run(parse_config(open_.job.config), tmp_path / "run")
    for name, value in kept.metrics["held_out"].items():
        assert found[f"held_out.{name}"] == value
    secret = parse_config(private.job.config)
    privacy = msgspec.structs.replace(secret.private, insecure_noise_seed=None)
    with pytest.raises(ConfigError, match="insecure_noise_seed"):
        simulate(msgspec.structs.replace(secret, privacy=privacy))


def test_figures_are_chosen_by_name(tmp_path, capsys, monkeypatch):
    study = STUDIES["frontier"]
    with pytest.raises(ConfigError, match="choose one of 1, 2, ablation"):
        study(tmp_path / "no", figure=["1", "3"])
    with pytest.raises(ConfigError, match="makes one figure or all"):
        STUDIES["tmlr"](tmp_path / "no", figure=["1", "2"])
    assert not (tmp_path / "no").exists()
    monkeypatch.setattr(sys, "argv", ["tacit", "reproduce", "frontier", "--figure", "9"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "ablation" in capsys.readouterr().err


def test_servers_without_a_part_differ(tiny):
    """On the same releases; the parties' half of these variants is that of the whole recipe."""
    cell = ablation_cells(tiny, first=0, quick=True)[1]
    config = parse_config(cell.job.config)
    loud = msgspec.structs.replace(config.private, epsilon=1e4)  # or a moment drowns in its noise
    config = msgspec.structs.replace(config, privacy=loud)
    means = {}
    for name in ("whole", "last-round", "uniform-marginals", "plain-map", "no-moment"):
        plan = prepare(config, VARIANTS[name][1]()).plan
        rules, draws = plan.rules, np.random.default_rng(5)
        shared = Shared(rules.prior, rules.first_public)
        assert rules.combine is not None
        assert rules.released is not None
        for number in range(1, 5):
            shapes = rules.released(rules.stage_at(number - 1).name)
            total = {key: 60.0 * draws.random(shape) for key, shape in shapes.items()}
            shared = rules.combine(shared, RoundSum(total, 3, number))
        means[name] = posterior_of(plan, shared.q, shared.public).mean
    for name, mean in means.items():
        assert np.all(np.isfinite(mean))
        assert name == "whole" or not np.allclose(mean, means["whole"], rtol=1e-3)


def test_variants_are_methods_of_their_own():
    """An engine keeps what it compiled by the method's value: no variant may pass for another."""
    made = [kind() for _, kind in VARIANTS.values()]
    assert all(a != b for i, a in enumerate(made) for b in made[:i])
    assert all(dataclasses.is_dataclass(one) for one in made)


def test_the_data_are_looked_for_first(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "nothing"))
    assert load_federation(DataConfig(**COHORT), PartitionConfig(), 0).parties
    adult = msgspec.structs.replace(tiny, base=tiny.base | {"data": {"source": "adult"}})
    with pytest.raises(Exception, match="tacit data fetch adult"):
        frontier.reproduce(tmp_path / "out", settings=adult)
    assert not (tmp_path / "out" / "sweep").exists()

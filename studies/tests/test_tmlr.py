"""The TMLR study on a tiny setting: what is run, what is kept, what is told."""

import importlib.util
import json
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tacit.cli.main import main
from tacit.data import DataConfig
from tacit.data.readers.download import locate
from tacit.engines.execute import carry_out, first_factors
from tacit.errors import ConfigError, DataError
from tacit.models import LinearRegression, NeuralNetwork
from tacit.server.state import initial_state
from tacit.testing import check_private_method
from tacit_studies import STUDIES, tmlr, tmlr_figures, tmlr_runs
from tacit_studies.tmlr_factors import OwnFactors
from tacit_studies.tmlr_parameters import ClippedParameters
from tacit_studies.tmlr_published import PUBLISHED, UNDERSTATED
from tacit_studies.tmlr_runs import Point, Run, Store, carried_out, job_plan, run_job
from tacit_studies.tmlr_settings import (
    FIGURES,
    REFERENCE,
    data_directory,
    figure_cells,
    only,
    read_settings,
    shard_cells,
)
from tacit_studies.tmlr_splits import split_tables
from tacit_studies.tmlr_tables import mean_of, series_of

COHORT = DataConfig(source="synthetic-cohort", records=400, held_out=0.5)


@pytest.fixture
def mimic3_folder():
    """The writer of made-up stays that the tests of the reader use."""
    path = Path(__file__).parents[2] / "tests" / "data" / "conftest.py"
    spec = importlib.util.spec_from_file_location("tacit_stays", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.write_benchmark


@pytest.fixture
def no_mimic(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "nothing"))
    tmlr_runs._loaded.cache_clear()
    yield
    tmlr_runs._loaded.cache_clear()


@pytest.fixture
def tiny(no_mimic):
    """The study's own settings on 400 generated records: three parties, three rounds."""
    settings = read_settings()
    few = {
        name: msgspec.structs.replace(what, parties=3, hidden=what.hidden and 2)
        for name, what in settings.figures.items()
    }
    methods = {
        name: {**what, "rounds": min(3, what["rounds"])} for name, what in settings.methods.items()
    }
    mild = {"kind": "skew", "size_skew": 0.3, "label_skew": -0.2}
    splits = dict.fromkeys(settings.splits["adult"], mild) | {"balanced": {"kind": "balanced"}}
    small = msgspec.structs.replace(
        settings.quick, seeds=1, counts=(1, 10), sample=msgspec.structs.replace(
            settings.quick.sample, rounds=3
        )
    )  # fmt: skip
    return msgspec.structs.replace(
        settings,
        seeds=2,
        data={**settings.data, "adult": COHORT},
        splits={**settings.splits, "adult": splits},
        methods=methods,
        figures=few,
        shards=msgspec.structs.replace(settings.shards, parties=3, rounds=2),
        quick=small,
    )


def test_the_papers_figures_are_all_there():
    settings = read_settings()
    splits = ("balanced", "unbalanced-1", "unbalanced-2")
    assert set(PUBLISHED) == {(figure, split) for figure in (1, 2, 3, 4) for split in splits}
    for (figure, _), curves in PUBLISHED.items():
        assert set(curves) <= set(settings.methods)
        assert {"dp-optimisation", "central", "committee-same", "committee-split"} <= set(curves)
        if figure <= 2:
            assert len(curves) == 8
    assert PUBLISHED[1, "balanced"]["dp-optimisation"] == (0.8385, -0.349)
    assert PUBLISHED[3, "unbalanced-2"]["virtual-trusted"] == (0.838, -0.348)
    assert PUBLISHED[4, "unbalanced-1"]["committee-same"].log_likelihood is None
    assert set(UNDERSTATED) <= set(settings.methods)


def test_the_settings_are_those_of_the_paper():
    settings = read_settings()
    assert tuple(settings.figures) == ("1", "2", "3", "4")
    wanted = {"1": (10, 1.0), "2": (10, 1.0), "3": (200, 0.5), "4": (10, 2.0)}
    assert {k: (f.parties, f.epsilon) for k, f in settings.figures.items()} == wanted
    assert settings.splits["adult"]["unbalanced-2"]["label_skew"] == -3
    assert settings.splits["mimic3"]["unbalanced-2"]["label_skew"] == -0.5
    cells = figure_cells(settings, 1, first=0, quick=False)
    assert len(cells) == 3 * 5 * 13
    assert {cell.job.seed for cell in cells} == set(range(5))
    by_method = {}
    for cell in cells:
        by_method.setdefault(cell.method, set()).add(
            json.dumps(msgspec.to_builtins(cell.job.recipe))
        )
    assert all(len(recipes) == 1 for recipes in by_method.values())  # one set for all splits
    central = {cell.job.digest for cell in cells if cell.method == "central"}
    assert len(central) == 5  # the split makes no difference to records in one place


def test_a_digest_names_what_the_numbers_depend_on():
    settings = read_settings()
    job = figure_cells(settings, 1, first=0, quick=False)[1].job
    words = msgspec.structs.replace(job.recipe, label="other words")
    assert msgspec.structs.replace(job, recipe=words).digest == job.digest
    longer = msgspec.structs.replace(job.recipe, rounds=job.recipe.rounds + 1)
    assert msgspec.structs.replace(job, recipe=longer).digest != job.digest
    for change in ({"seed": 9}, {"epsilon": 2.0}, {"hidden": 3}):
        assert msgspec.structs.replace(job, **change).digest != job.digest


def test_a_private_run_has_the_guarantee_and_a_curve(tiny):
    cells = figure_cells(tiny, 1, first=0, quick=False)
    by_method = {cell.method: cell for cell in cells if cell.split == "balanced"}
    for method in ("virtual-trusted", "central"):
        job = by_method[method].job
        run = run_job(job)
        assert run_job(job).curve == run.curve  # it can be repeated
        assert run.epsilon == pytest.approx(1.0, abs=2e-3)
        assert run.epsilon <= 1.0
        assert run.parties == 3
        exchanges = [point.exchanges for point in run.curve]
        assert exchanges[-1] == 3 * job_plan(job, tmlr_runs.federation_of(job)).schedule.rounds
        assert exchanges == sorted(set(exchanges))
        assert 0 <= run.end.accuracy <= 1
        assert run.end.log_likelihood < 0
    assert run_job(by_method[REFERENCE].job).epsilon is None


def test_quick_writes_everything_and_says_so(tiny, tmp_path):
    seen = []
    out = tmp_path / "out"
    result = tmlr.reproduce(
        out, quick=True, settings=tiny, workers=1, progress=lambda *step: seen.append(step)
    )
    names = [table["name"] for table in result["tables"]]
    assert names == [
        "figure-1-balanced", "figure-1-unbalanced-2", "figure-2", "figure-3-balanced",
        "figure-4-balanced", "figure-5", "table-2", "table-3", "table-4",
    ]  # fmt: skip
    assert seen[-1][0] == seen[-1][1]
    assert all(Path(file).exists() for file in result["files"])
    drawn = {"figure-1.png", "figure-1.svg", "figure-5.png", "figure-5-curves.png"}
    assert drawn <= {p.name for p in out.iterdir()}
    page = (out / "index.html").read_text()
    assert "quick version" in page
    for table in result["tables"][:5]:
        if table["name"] != "figure-2":  # no files
            rows = [row[0].removesuffix("*") for row in table["rows"]]
            assert "DP optimisation, 20 steps" in rows
            assert any(row.startswith("local averaging") for row in rows)
    assert "understated" in page
    assert "thesis" not in page
    table = result["tables"][0]
    assert "substituting one record" in table["note"]
    row = dict(zip(table["columns"], table["rows"][1], strict=True))
    assert row["method"] == "DP optimisation, one step*"
    assert row["paper: accuracy"] == 0.8385
    assert row["ours − paper"] == pytest.approx(row["accuracy"] - 0.8385, abs=1e-6)
    assert row["trusted"] == "none"
    assert row["regret"] is not None
    assert "physionet.org/content/mimiciii" in result["tables"][2]["shown"][0][1]
    assert "$TACIT_DATA/gusto/gusto.csv.gz" in result["tables"][2]["shown"][0][1]
    assert "this is Adult" in result["tables"][5]["note"]
    assert "4,475 labels" in result["tables"][-1]["note"]


def table_of(settings, number, figures=FIGURES):
    tables = split_tables(settings, figures, 0)
    table = next(one for one in tables if one.name == f"table-{number}")
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


@pytest.mark.skipif(locate("adult") is None, reason="adult is not here: set TACIT_DATA")
@pytest.mark.parametrize(("number", "figure"), [(2, 1), (3, 3)])
def test_tables_2_and_3_are_those_of_the_paper(number, figure):
    rows = table_of(read_settings(), number, [figure])
    assert list(rows) == ["balanced", "unbalanced 1", "unbalanced 2"]
    for row in rows.values():
        assert [row[name] for name in ("ρ", "κ", "n_small")] == [
            row[f"paper: {name}"] for name in ("ρ", "κ", "n_small")
        ]
        assert row["λ_small"] == pytest.approx(row["paper: λ_small"], abs=0.0125)
        near = 0.01 if number == 2 else 0.06  # the paper's Table 3 is not a mean over parties
        assert row["λ_large"] == pytest.approx(row["paper: λ_large"], abs=near)


def test_table_4_needs_no_files(no_mimic):
    rows = table_of(read_settings(), 4, [2])
    for row in rows.values():
        assert row["n_small"] == row["paper: n_small"]
        assert row["λ_small"] == pytest.approx(row["paper: λ_small"], abs=0.005)
        assert row["λ_large"] == pytest.approx(row["paper: λ_large"], abs=0.03)
    assert (rows["unbalanced 2"]["κ"], rows["unbalanced 2"]["paper: κ"]) == (-0.5, 5)


def test_a_figure_has_the_table_of_its_split(no_mimic, tiny):
    found = {n: [t.name for t in split_tables(tiny, [n], 0)] for n in FIGURES}
    assert found == {1: ["table-2"], 2: ["table-4"], 3: ["table-3"], 4: ["table-2"], 5: ["table-2"]}


@pytest.mark.parametrize(
    ("figure", "method", "rounds"),
    [
        (1, "dp-optimisation", 20),
        (1, "dp-optimisation-sequential", 20),
        (1, "dp-optimisation-few", 20),
        (1, "dp-optimisation-adam", 20),
        (1, "averaged", 15),
        (1, "averaged-steps", 15),
        (1, "averaged-trusted", 15),
        (1, "virtual-steps", 15),
        (1, "virtual-factors", 15),
        (1, "virtual-factors-trusted", 15),
        (1, "central", 4000),
        (1, "committee-same", 1),
        (4, "averaged", 40),
        (4, "dp-optimisation-sequential", 20),
        (4, "dp-optimisation-learned", 20),
    ],
)
def test_the_papers_end_is_drawn_at_the_papers_exchanges(figure, method, rounds):
    cells = figure_cells(only(read_settings(), [method]), figure, first=0, quick=False)
    cell = next(cell for cell in cells if cell.method == method)
    run = Run(curve=(Point(exchanges=1, accuracy=0.5, log_likelihood=-1.0),), parties=10,
              epsilon=None, trust="", seconds=0.0)  # fmt: skip
    (one,) = series_of([cell], [run])
    assert tmlr_figures._published_at(one) == 10 * rounds


def test_a_stopped_study_goes_on_where_it_was(tiny, tmp_path, monkeypatch):
    ran = []

    def counting(job):
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(job.digest)
        return run_job(job)

    monkeypatch.setattr(tmlr_runs, "run_job", counting)
    with pytest.raises(KeyboardInterrupt):
        tmlr.reproduce(tmp_path, quick=True, figure=1, settings=tiny, workers=1)
    first, ran[:] = list(ran), []
    broken = tmp_path / "runs" / f"{first[0]}.json"
    broken.write_text(broken.read_text()[:40])
    (tmp_path / "runs" / f"{first[1]}.json.part").write_text("{")
    monkeypatch.setattr(tmlr_runs, "run_job", lambda job: ran.append(job.digest) or run_job(job))
    once = tmlr.reproduce(tmp_path, quick=True, figure=1, settings=tiny, workers=1)
    assert first[0] in ran  # its file was broken
    assert not set(first[1:]) & set(ran)
    ran.clear()
    assert tmlr.reproduce(tmp_path, quick=True, figure=1, settings=tiny, workers=1) == once
    assert not ran


def test_workers_of_a_sweep_find_the_same(tiny, tmp_path):
    jobs = [cell.job for cell in figure_cells(tiny, 1, first=0, quick=True)[:3]]
    found = {job.digest: run for job, run in carried_out(jobs, Store(tmp_path / "runs"), 2)}
    for job in jobs:
        alone, run = run_job(job), found[job.digest]
        assert run.end.exchanges == alone.end.exchanges
        assert run.end.log_likelihood == pytest.approx(alone.end.log_likelihood, rel=1e-5)
    kept = {job.digest: run for job, run in carried_out(jobs, Store(tmp_path / "runs"), 2)}
    assert kept == found


def test_a_file_of_other_settings_is_no_result(tiny, tmp_path):
    one, other = (cell.job for cell in figure_cells(tiny, 1, first=0, quick=True)[:2])
    store = Store(tmp_path / "runs")
    run = run_job(one)
    store.put(one, run)
    assert store.get(one) == run
    kept = tmp_path / "runs" / f"{one.digest}.json"
    kept.rename(tmp_path / "runs" / f"{other.digest}.json")
    assert store.get(other) is None
    assert store.get(one) is None


def test_mimic3_absent_is_an_error_only_where_nothing_else_is_asked_for(tiny, tmp_path):
    with pytest.raises(DataError, match=r"physionet\.org") as caught:
        tmlr.reproduce(tmp_path, quick=True, figure=2, settings=tiny, workers=1)
    text = str(caught.value)
    assert text.startswith("figure 2 needs MIMIC-III or, in its place, GUSTO-I")
    assert "$TACIT_DATA/gusto/gusto.csv.gz" in text


def test_mimic3_is_read_where_it_is(tiny, tmp_path, monkeypatch, mimic3_folder):
    folder = tmp_path / "data" / "mimic3"
    mimic3_folder(folder)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "data"))
    tmlr_runs._loaded.cache_clear()
    same = {split: {"kind": "balanced"} for split in tiny.splits["mimic3"]}
    few = msgspec.structs.replace(
        tiny,
        splits={**tiny.splits, "mimic3": same},
        quick=msgspec.structs.replace(tiny.quick, splits=("balanced",), seeds=1),
    )
    result = tmlr.reproduce(tmp_path / "out", quick=True, figure=2, settings=few, workers=1)
    assert [table["name"] for table in result["tables"]] == ["figure-2-balanced", "table-4"]
    assert "labels with classes" not in result["tables"][1]["note"]
    assert result["tables"][0]["rows"][1][7] == 0.713
    cells = shard_cells(few, "mimic3", first=0, quick=True)
    assert {cell.job.data.source for cell in cells} == {"mimic3"}


def test_means_say_how_many_runs_were_lost(tiny):
    assert mean_of([None, None]).value is None
    assert mean_of([0.5]).error is None
    assert mean_of([1.0, np.nan, 3.0]).lost == 1
    cells = figure_cells(tiny, 1, first=0, quick=True)
    runs = [run_job(cells[0].job)] * len(cells)
    found = series_of(cells, runs)
    assert [len(one.runs) for one in found] == [1] * len(found)


@pytest.mark.parametrize("value", ["0", "6", "one"])
def test_a_figure_that_is_not_there(value, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tacit", "reproduce", "tmlr", "--figure", value])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not list(tmp_path.iterdir())


def test_the_registry_knows_the_figures(tmp_path):
    assert STUDIES["tmlr"].figures == FIGURES
    with pytest.raises(ConfigError, match="no separate figures"):
        STUDIES["fedvi"](tmp_path, figure=1)
    with pytest.raises(ConfigError, match="1 to 5"):
        tmlr.reproduce(tmp_path, figure=7)


@pytest.mark.skipif(locate("adult") is None, reason="adult is not here: set TACIT_DATA")
def test_the_study_reads_the_adult_data():
    job = figure_cells(read_settings(), 1, first=0, quick=True)[0].job
    federation = tmlr_runs.federation_of(job)
    sizes = [len(records["y"]) for records in federation.parties.values()]
    assert set(sizes) <= {2442, 2443}  # as in the paper's Table 2


@pytest.mark.skipif(not (data_directory() / "gusto").is_dir(), reason="needs the files of GUSTO-I")
def test_another_data_set_takes_the_place_of_mimic3_and_is_named():
    settings = read_settings()
    planned, absent, used = tmlr._plan(settings, [2], 0, True)
    assert not absent
    assert used.figures["2"].title.startswith("GUSTO in the place of MIMIC-III")
    job = planned[2][0].job
    federation = tmlr_runs.federation_of(job)
    sizes = [len(own["y"]) for own in federation.parties.values()]
    assert sum(sizes) + len(federation.test["y"]) == 2 * 2851
    assert 450 <= min(sizes) <= max(sizes) <= 460
    runs = [Run(curve=(Point(exchanges=1, accuracy=0.5, log_likelihood=-1.0),), parties=10,
                epsilon=None, trust="", seconds=0.0)] * len(planned[2])  # fmt: skip
    assert all(one.published is None for one in series_of(planned[2], runs))


def test_only_some_methods_can_be_run():
    few = only(read_settings(), ["non-private", "dp-optimisation-few"])
    assert few.figures["1"].methods == ("non-private", "dp-optimisation-few")
    (recipe,) = {cell.job.recipe.rounds for cell in figure_cells(few, 1, first=0, quick=False)
                 if cell.method == "dp-optimisation-few"}  # fmt: skip
    assert recipe == 5
    with pytest.raises(ConfigError, match="choose from"):
        only(read_settings(), ["adam"])


def without_noise(tiny, method, **options):
    """A method of Figure 1 with next to no noise, and what its run came to."""
    cells = figure_cells(only(tiny, [method]), 1, first=0, quick=False)
    job = next(c.job for c in cells if (c.method, c.split) == (method, "balanced"))
    recipe = msgspec.structs.replace(job.recipe, rounds=6, options=job.recipe.options | options)
    return run_job(msgspec.structs.replace(job, recipe=recipe, epsilon=1e8)).end.log_likelihood


def test_averaging_and_virtual_parties_differ_with_several_steps_only(tiny):
    shards = {"shards": 20, "clip": 1000.0}
    single = [without_noise(tiny, name, **shards) for name in ("averaged", "virtual")]
    several = [without_noise(tiny, name, **shards) for name in ("averaged-steps", "virtual-steps")]
    assert single[0] == pytest.approx(single[1], abs=1e-6)
    assert abs(several[0] - several[1]) > 1e-4


def test_clipped_parameters_make_the_same_change_where_nothing_is_clipped(tiny):
    wide = {"shards": 20, "clip": 200.0}
    found = [without_noise(tiny, name, **wide) for name in ("averaged-parameters", "averaged")]
    assert found[0] == pytest.approx(found[1], abs=1e-3)
    tight = without_noise(tiny, "averaged-parameters", shards=20, clip=0.5)
    assert abs(tight - found[0]) > 5e-3, "this ball does not hold the parameters"


def test_clipped_parameters_have_the_charged_sensitivity():
    model = LinearRegression(("a",), prior_sd=1.0, noise_sd=1.0)
    method = ClippedParameters(shards=2, objective="averaged", clip=2.0)
    assert 0.5 < check_private_method(method, model, rounds=1) <= 1.0


def test_own_factors_agree_with_public_ones_without_noise_and_clipping(tiny):
    wide = {"shards": 20, "clip": 20.0}  # the noise grows with the clip
    public, own = (without_noise(tiny, name, **wide) for name in ("virtual", "virtual-factors"))
    assert own == pytest.approx(public, abs=1e-5)
    tight = {"shards": 20, "clip": 0.5}
    apart = [without_noise(tiny, name, **tight) for name in ("virtual", "virtual-factors")]
    assert abs(apart[0] - apart[1]) > 1e-4, "a shard's own factor makes its changes smaller"


@pytest.mark.parametrize("aggregation", ["plain", "trusted"])
def test_own_factors_have_the_charged_sensitivity_at_every_visit(aggregation):
    model = LinearRegression(("a",), prior_sd=1.0, noise_sd=1.0)
    method = OwnFactors(shards=2, clip=2.0, most_shards=64)
    reached = check_private_method(method, model, rounds=3, aggregation=aggregation)
    assert 0.9 < reached <= 1.0


class SharedFactors(OwnFactors):
    """Wrong: the factor of a shard is an equal part of the party's exact factor."""

    def _kept(self, model, family, key, task):
        kept = super()._kept(model, family, key, task)
        return {name: value.at[:2].set(value[:2].mean(axis=0)) for name, value in kept.items()}


def test_factors_with_the_records_of_other_shards_are_found():
    model = LinearRegression(("a",), prior_sd=1.0, noise_sd=1.0)
    with pytest.raises(AssertionError, match="sensitivity"):
        check_private_method(SharedFactors(shards=2, clip=2.0, most_shards=64), model, rounds=3)


def test_own_factors_need_rows_for_all_shards(tiny):
    with pytest.raises(ConfigError, match="most_shards = 8"):
        without_noise(tiny, "virtual-factors", shards=20, most_shards=8)
    with pytest.raises(ConfigError, match="virtual shards"):
        without_noise(tiny, "virtual-factors", objective="averaged")


def test_the_learned_variance_starts_at_a_small_one_and_changes(tiny):
    cells = figure_cells(only(tiny, ["dp-optimisation-learned"]), 4, first=0, quick=False)
    plan = job_plan(cells[0].job, tmlr_runs.federation_of(cells[0].job))
    assert isinstance(plan.model, NeuralNetwork)
    start = initial_state(plan.rules, first_factors(plan)).q
    np.testing.assert_allclose(-0.5 / start["quadratic"], 1e-3)
    end = carry_out(plan).state.q
    assert np.std(np.log(-end["quadratic"])) > 1e-3

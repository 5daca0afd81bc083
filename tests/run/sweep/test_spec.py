"""What a sweep file stands for, and how a bad one is refused."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import ConfigError
from tacit.run.config import parse_config, read_toml
from tacit.run.sweep import Sweep, expand, read_sweep

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "sweeps").glob("*.toml"))


def test_a_list_is_combined_with_the_grid_and_the_seeds(base):
    asked = Sweep(
        base=base,
        seeds=[3, 5],
        grid={"model.prior_sd": [1.0, 2.0]},
        runs=[{"schedule.kind": "sequential"}, {"schedule": {"rounds": 4}}],
    )
    jobs = expand(asked)
    assert len(jobs) == len({job.id for job in jobs}) == 8
    seen = [(parse_config(job.config).schedule.kind, parse_config(job.config).schedule.rounds,
             job.config["model"]["prior_sd"], job.config["seed"]) for job in jobs]  # fmt: skip
    assert seen[0] == ("sequential", 2, 1.0, 3)
    assert seen[-1] == ("synchronous", 4, 2.0, 5)
    assert jobs[0].case == {
        "schedule.kind": "sequential",
        "schedule.rounds": None,
        "model.prior_sd": 1.0,
    }


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True), st.integers(1, 3))
def test_the_runs_are_the_product_and_keep_their_names(rounds, seeds):
    base = {"privacy": "none", "data": {"source": "synthetic-cohort"}}
    jobs = expand(Sweep(base=base, grid={"schedule.rounds": rounds}, seeds=seeds))
    assert [(job.case["schedule.rounds"], job.seed) for job in jobs] == [
        (number, seed) for number in rounds for seed in range(seeds)
    ]
    nested = expand(Sweep(base=base, grid={"schedule": {"rounds": rounds}}, seeds=seeds, name="x"))
    assert [job.id for job in nested] == [job.id for job in jobs]


def test_simulated_noise_goes_with_the_seed_unless_it_is_swept(base):
    base["privacy"] = {"epsilon": 1.0, "delta": 1e-5, "insecure_noise_seed": 7}
    jobs = expand(Sweep(base=base, seeds=3))
    assert [job.config["privacy"]["insecure_noise_seed"] for job in jobs] == [0, 1, 2]
    jobs = expand(Sweep(base=base, seeds=2, set={"privacy": {"insecure_noise_seed": 9}}))
    assert [job.config["privacy"]["insecure_noise_seed"] for job in jobs] == [9, 9]
    base["privacy"].pop("insecure_noise_seed")
    assert expand(Sweep(base=base, seeds=2))[1].config["privacy"].get("insecure_noise_seed") is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grid": {"schedule.rounds": 3}}, "schedule.rounds = 3; give a list of values"),
        ({"grid": {"schedule.rounds": [3, 0]}}, "schedule.rounds = 0: schedule.rounds = 0"),
        ({"grid": {"schedule.round": [3]}}, "did you mean rounds?"),
        ({"grid": {"schedule.rounds": [3, 3]}}, "two runs of the sweep are the same"),
        ({"grid": {"seed": [3]}}, "set seeds or name at the top"),
        (
            {"runs": [{"posterior": "full"}], "grid": {"posterior": ["full"]}},
            "keep it in one of them",
        ),
        ({"seeds": []}, "at least one seed"),
        ({"set": {"engine.kind": "ray"}}, "tacit sweep --engine ray"),
    ],
)
def test_a_bad_sweep_is_refused_before_anything_runs(base, changes, words):
    with pytest.raises(ConfigError, match=r".") as refused:
        expand(Sweep(base=base, **changes))
    assert words in str(refused.value)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_sweeps(path):
    asked = read_sweep(path)
    assert len(expand(asked)) > 1
    assert tomllib.loads(path.read_text(encoding="utf-8"))["base"] != asked.base
    assert read_toml(path)["name"] == asked.name

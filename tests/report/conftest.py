import copy
import json

import pytest

RESULT = {
    "schema": "tacit/result/2",
    "name": "Ten <b>hospitals</b>",
    "seed": 7,
    "engine": "in-process",
    "model": {"kind": "logistic", "dimension": 3, "output": "bernoulli"},
    "method": "quadrature",
    "schedule": "synchronous",
    "rounds": 2,
    "exchanges": 4,
    "refused": 1,
    "finished": "rounds",
    "converged": None,
    "why": "",
    "learned": None,
    "cautions": [],
    "intervals": {"level": 0.95, "warning": None},
    "posterior": {
        "family": "mean-field",
        "names": ["intercept", "<script>alert(1)</script>", "price $a$ & $b"],
        "mean": [0.5, -1.25, 0.01],
        "sd": [0.1, 0.2, 0.3],
    },
    "metrics": {
        "training": {
            "accuracy": 0.875,
            "log_predictive_density": -0.3,
            "brier": 0.1,
            "calibration_error": None,
        },
        "held_out": {
            "accuracy": 0.8125,
            "log_predictive_density": -0.4,
            "brier": 0.12,
            "calibration_error": 0.02,
        },
    },
    "calibration": {
        "held_out": [
            {"low": 0.0, "high": 0.5, "predicted": 0.2, "observed": 0.25, "count": 40},
            {"low": 0.5, "high": 1.0, "predicted": 0.8, "observed": 0.75, "count": 60},
        ]
    },
    "kl_to_reference": 0.0125,
    "reference": {"kind": "nuts"},
    "timing": {"wall_s": 1.5, "compile_s": 0.5},
    "compilations": 2,
    "parties": [
        {"name": "north & south", "records": 1200, "positive_fraction": 0.25},
        {"name": "東京 $x$", "records": 34, "positive_fraction": None},
    ],
    "data": {
        "source": "a <source>",
        "scaling": "standardised",
        "outcome": "y",
        "notes": ["two rows <dropped>"],
    },
    "privacy": {"private": False, "statement": "This run was not private: no noise was added."},
    "true_values": {"intercept": 0.4},
}


def _round(number, elbo, change, refused):
    row = {"event": "round", "round": number, "negative_elbo": elbo, "last_change": change}
    return row | {"refused": refused, "wall_s": 0.2}


EVENTS = [
    {"event": "start", "name": "x", "parties": 2, "dimension": 3},
    {
        "event": "round",
        "round": 1,
        "negative_elbo": 12.5,
        "last_change": 0.5,
        "refused": 0,
        "wall_s": 0.2,
    },
    {
        "event": "round",
        "round": 2,
        "negative_elbo": None,
        "last_change": 0.9,
        "refused": 1,
        "wall_s": 0.2,
    },
    {"event": "refused", "round": 2, "party": None, "reason": "precision <= 0"},
    {
        "event": "round",
        "round": 2,
        "negative_elbo": 11.0,
        "last_change": 0.05,
        "refused": 1,
        "wall_s": 0.2,
    },
    {"event": "end", "reason": "rounds", "wall_s": 1.5},
]


@pytest.fixture
def result():
    return copy.deepcopy(RESULT)


@pytest.fixture
def make_run(tmp_path):
    def make(result, events=EVENTS):
        folder = tmp_path / "my run"
        public = folder / "public"
        public.mkdir(parents=True, exist_ok=True)
        (public / "result.json").write_text(json.dumps(result), encoding="utf-8")
        (public / "events.jsonl").write_text("\n".join(json.dumps(e) for e in events) + "\n")
        (public / "config.toml").write_text('name = "<i>x</i>"\nseed = 7\n', encoding="utf-8")
        return folder

    return make

"""Diagnostics in words."""

from tacit.results.explained import explained

FOUND = {
    "elbo": [None, -5.0, None, -3.25],
    "last_step": 3e-5,
    "pareto_k": 0.31,
    "effective_share": 0.98,
    "skewness": {"a": 0.1, "tau": -1.2},
    "corrected_by_weights": True,
    "split_along": None,
}


def test_every_number_is_shown_with_its_meaning():
    rows = {row.name: row for row in explained(FOUND)}
    assert rows["lower bound"].value == "-5 → -3.25"
    assert rows["last step"].value == "3e-05 nats"
    assert rows["effective draws"].value == "98.0%"
    assert rows["Pareto k̂"].value == "0.31"
    assert rows["skewness"].value == "tau -1.20, a 0.10"
    assert "quantiles" in rows["skewness"].meaning
    assert rows["correction"].value == "importance weights"


def test_a_split_is_named_and_symmetric_parameters_need_no_advice():
    rows = {row.name: row for row in explained(FOUND | {"split_along": "tau", "skewness": {}})}
    assert rows["split along"].value == "tau"
    assert "correction" not in rows
    assert "quantiles" not in rows["skewness"].meaning


def test_nothing_is_said_where_nothing_was_weighed():
    assert explained({"elbo": [None, -3.0]}) == []
    assert explained({}) == []

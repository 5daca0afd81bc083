"""Formulas: what is supported is read, and everything else is refused by name."""

import tomllib

import pytest

from tacit.data.formula import Term, parse_formula
from tacit.errors import ConfigError
from tacit.run.config import parse_config, plain_config


def test_terms_references_and_backticks():
    found = parse_formula("died ~ age + C(sex, 'f') + `body mass` + C(ward, Treatment('b'))")
    assert found.outcome == "died"
    assert found.terms == (
        Term("age"),
        Term("sex", True, "f"),
        Term("body mass"),
        Term("ward", True, "b"),
    )
    assert parse_formula('died["yes"] ~ 1 + age').positive == "yes"
    assert parse_formula("größe ~ 年齢").terms == (Term("年齢"),)


def test_interactions_and_transformations():
    found = parse_formula("y ~ a*C(b) + np.log(c) + I((d - 60)/10)*a")
    assert [term.column for term in found.terms] == [
        "a", "b", "a:b", "log(c)", "I((d-60)/10)", "I((d-60)/10):a",
    ]  # fmt: skip
    assert found.terms[2].factors == (Term("a"), Term("b", True))
    assert found.terms[5].sources == ("d", "a")
    three = parse_formula("y ~ a*b*c").terms
    assert [term.column for term in three] == ["a", "b", "c", "a:b", "a:c", "b:c", "a:b:c"]
    assert [term.column for term in parse_formula("y ~ a:b + a*b").terms] == ["a:b", "a", "b"]
    assert [term.column for term in parse_formula("y ~ b:a + .").terms] == ["b:a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("y ~ a:C(b)", r"the interaction a:b needs a as a term too: write a\*C\(b\)"),
        ("y ~ a + a:C(b)", "the interaction a:b needs b as a term too"),
        ("y ~ a + b + c + a:b:c", "the interaction a:b:c needs a:b as a term too"),
        ("y ~ log(a):b + .", r"needs log\(a\) as a term too"),
    ],
)
def test_an_interaction_without_what_it_contains_is_refused(text, words):
    """With columns centred and compared with a reference level it would be another model."""
    with pytest.raises(ConfigError, match=words):
        parse_formula(text)


def test_a_dot_is_every_other_declared_column():
    found = parse_formula("y ~ a + .")
    assert [term.column for term in found.columns(["y", "b", "a", "c"])] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("y ~ x + (1 | hospital)", "not supported yet: use a NumPyro model"),
        ("y ~ (1 + x || g)", "random effects of groups"),
        ("y ~ 1 | g", "random effects of groups"),
        ("y ~ a*.", "cannot be part of an interaction"),
        ("y ~ a:a", "interacts with itself"),
        ("y ~ a*b*c*d*e", "5 factors are joined by"),
        ("y ~ a:y", "is the outcome and a term"),
        ("y ~ poly(a, 2)", "depends on the records of all parties"),
        ("y ~ center(a)", r"use public constants, e.g. I\(x - 60\)"),
        ("y ~ foo(a)", r"foo\(…\) is not supported; choose from log"),
        ("y ~ log(a, 2)", "takes one argument"),
        ("y ~ I(a ** b)", "whole number from 2 to 9"),
        ("y ~ I(a if b else c)", "only columns, numbers"),
        ("y ~ I(__import__('os'))", "is not supported; choose from"),
        ("y ~ log(a", "is not closed"),
        ("y ~ log(3)", "names no column"),
        ("log(y) ~ a", "transform the outcome before the fit"),
        ("y ~ 0 + a", "without an intercept"),
        ("y ~ a - 1", "leaving the intercept out"),
        ("y ~ a - b", "leaving 'b' out"),
        ("y ~ a + a", "a occurs twice"),
        ("y ~ y", "is the outcome and a term"),
        ("y ~ a +", "a column is missing at the end"),
        ("y ~", "a column is missing"),
        ("~ a ~ b", "~ occurs twice"),
        ("age + sex", '"~" is missing'),
        ("y ~ a ~ b", "~ occurs twice"),
        ("y ~ a b", "join columns with"),
        ("died ~ age years", r"name with spaces in backticks \(`age years`\)"),
        ("y ~ a.b", "backticks"),
        ("y ~ a & b", "'&' is not part of a formula"),
        ("y ~ (a + b)", "brackets are not supported"),
        ("y ~ C(a, Sum)", "name a level"),
        ("y ~ C(a", "is not closed"),
        ("y ~ 3", "3 is a number"),
        ("y ~ a^2", "powers of terms"),
        ("y[yes] ~ a", "must name a level in quotes"),
        (5, "give text such as"),
    ],
)
def test_what_is_not_supported_is_named(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_formula(text)


STUDY = """
formula = "died ~ age + C(smoking)"
privacy = "none"
[data]
path = "patients.csv"
party = "hospital"
[columns]
smoking = { levels = ["never", "current"] }
age = { low = 18, high = 105, unit = "year" }
weight = { low = 30, high = 250 }
died = { levels = ["no", "yes"] }
"""


def test_a_formula_in_a_study_file_is_outcome_and_columns():
    config = parse_config(tomllib.loads(STUDY))
    data = config.data
    assert (data.outcome, data.positive) == ("died", "yes")
    used = [column.name for column in data.columns if column.feature and column.name != "died"]
    assert used == ["age", "smoking"]
    assert {c.name: c.reference for c in data.columns}["smoking"] == "never"
    assert parse_config(plain_config(config)) == config


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("+ C(smoking)", "+ smokin", 'formula names "smokin", .* did you mean "smoking"'),
        ("~ age", "~ C(age)", "columns.age has no levels"),
        ("~ age", "~ bs(age)", "depends on the records of all parties"),
        ("privacy", 'outcome = "died"\nprivacy', "leave outcome out"),
        ("C(smoking)", "C(smoking, 'x')", "columns.smoking.reference"),
    ],
)
def test_faults_of_a_formula_in_a_file(old, new, words):
    with pytest.raises(ConfigError, match=words):
        parse_config(tomllib.loads(STUDY.replace(old, new, 1)))

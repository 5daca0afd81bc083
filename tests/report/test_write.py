"""A report of a made-up run: what it says, what it escapes, what it refuses."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tacit.errors import DataError
from tacit.report import write_report
from tacit.report.load import load_run
from tacit.report.write import render
from tacit.results.published import local_result
from tacit.results.summary import read_result

VOID = {"meta", "br", "img", "wbr"}


class Checker(HTMLParser):
    """Fails on tags that do not nest; keeps what the page refers to and its text."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.sources, self.text = [], set(), [], ""
        self.ids = []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def parse(html):
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    return checker


def read(page):
    return parse(page.read_text(encoding="utf-8"))


def without_figures(folder):
    return parse(render(load_run(folder)))


def test_the_page_says_what_was_learnt_from_whom_and_how_good_it_is(make_run, result):
    folder = make_run(result)
    page = write_report(folder)
    assert page == folder / "public" / "report.html"
    text = read(page).text
    assert (
        "A logistic model with 3 parameters was fitted to 1,234 records held by 2 parties" in text
    )
    assert "On the held-out records it has an accuracy of 81.2 %" in text
    assert "0.01250 nats (KL) from the reference posterior" in text
    assert text.count("This run was not private") == 1
    assert "no noise was added" in text
    assert "Brier score" in text
    assert "2 of 3 intervals exclude 0" in text
    assert "−1.642" in text, "the lower end of the second 95 % interval"
    assert "public/config.toml' --out" in text
    assert "precision <= 0" in text
    assert "two rows <dropped>" in text


def test_figures_are_in_the_page_and_nothing_comes_from_elsewhere(make_run, result):
    page = write_report(make_run(result))
    html = page.read_text(encoding="utf-8")
    checker = read(page)
    assert sorted(path.name for path in page.parent.iterdir()) == [
        "config.toml", "events.jsonl", "report.html", "result.json",
    ]  # fmt: skip
    assert html.count("<figure>") == 3
    assert all(source.startswith("#") for source in checker.sources), "links within the page"
    assert len(checker.ids) == len(set(checker.ids))
    assert {source[1:] for source in checker.sources} <= set(checker.ids)
    assert not re.search(r"https?://|@import|url\((?!#)", html)
    assert "default-src 'none'" in html, "a browser would refuse any request"


def test_figures_follow_the_colour_scheme(make_run, result):
    html = write_report(make_run(result)).read_text(encoding="utf-8")
    figures = re.findall(r"<figure>.*?</figure>", html, flags=re.DOTALL)
    assert len(figures) == 3
    for figure in figures:
        assert not re.search(r"#[0-9a-fA-F]{6}", figure), "a fixed colour is wrong in the dark"
        assert "var(--ink)" in figure
        assert 'role="img" aria-label=' in figure


def test_everything_is_escaped(make_run, result):
    checker = without_figures(make_run(result))
    assert not checker.tags & {"b", "i", "script", "source", "dropped"}
    assert "<script>alert(1)</script>" in checker.text
    assert "Ten <b>hospitals</b>" in checker.text
    assert 'name = "<i>x</i>"' in checker.text


def test_every_field_that_a_run_can_hold_is_escaped(make_run, result):
    hostile = '"><script>x</script>'

    def poison(value):
        if isinstance(value, dict):
            return {key: poison(item) for key, item in value.items()}
        if isinstance(value, list):
            return [poison(item) for item in value]
        return hostile if isinstance(value, str) else value

    poisoned = poison(result) | {"schema": result["schema"]}
    poisoned["metrics"] = {hostile: {hostile: 1.0}, "held_out": {hostile: 2.0}}
    poisoned["true_values"] = {hostile: 1.0}
    events = [{"event": "refused", "round": 1, "party": hostile, "reason": hostile}]
    assert "script" not in without_figures(make_run(poisoned, events)).tags


def test_a_run_without_metrics_parties_or_rounds_has_a_report(make_run, result):
    optional = ("calibration", "kl_to_reference", "reference", "timing", "compilations")
    bare = {key: value for key, value in result.items() if key not in (*optional, "true_values")}
    empty = {"metrics": {"training": None, "held_out": None}, "parties": [], "data": {}}
    page = write_report(make_run(bare | empty, events=[]))
    text = read(page).text
    assert "A logistic model with 3 parameters was fitted in 2 rounds and 4 exchanges." in text
    assert "<figure>" not in page.read_text(encoding="utf-8")
    for heading in ("Held-out performance", "Parties", "Reason", "The data"):
        assert heading not in text


@pytest.mark.parametrize("key", ["privacy", "converged", "cautions", "intervals"])
def test_a_result_that_does_not_say_how_far_to_trust_it_is_refused(make_run, result, key):
    del result[key]
    with pytest.raises(DataError, match=f"missing required field `{key}`"):
        write_report(make_run(result))


PRIVACY = {
    "private": True,
    "statement": "Differential privacy: ε = 1, δ = 1e-05 per record (replace-one).",
    "guarantee": {
        "epsilon": 1.0,
        "delta": 1e-5,
        "unit": "record",
        "adjacency": "add-or-remove-one",
        "trust": "nobody",
        "caveat": None,
    },
    "accountant": "pld",
    "parties": [{"name": "north", "epsilon": 1.0, "delta": 1e-5, "releases": 12}],
    "attackers": [{"attacker": "eavesdrops", "sees": "every <message>", "epsilon": 1.0}],
    "not_covered": ["what is in <private>/", "choices"],
}


def private(result):
    """A private run as it is written: nothing measured, no counts."""
    parties = [{"name": "north", "records": None}, {"name": "south", "records": None}]
    left_out = ("calibration", "kl_to_reference", "reference", "timing", "compilations")
    kept = {key: value for key, value in result.items() if key not in left_out}
    return kept | {
        "privacy": PRIVACY,
        "parties": parties,
        "metrics": {"training": None, "held_out": None},
    }


def test_a_private_run_says_so_and_what_is_not_covered(make_run, result):
    page = write_report(make_run(private(result)))
    checker = read(page)
    text = checker.text
    assert "This run was private: Differential privacy" in text
    assert "not private" not in text
    assert '<li class="good">Private: ε = 1, δ = 1e-05 per record</li>' in page.read_text()
    for words in ("ε", "one record", "add or remove one record", "nobody", "Budget spent",
                  "Not covered by this guarantee", "what is in <private>/", "choices"):  # fmt: skip
        assert words in text
    assert "fitted to 2 parties" in text, "no number of records"
    assert "With y = 1" not in text
    assert "the odds that a reader gives to any statement about it change" in text
    assert "2.72" in text, "e to the power 1"
    assert "eavesdrops" in text
    assert "Who sees what" in text
    drawn = page.read_text().split('class="barriers"')[1].split("</svg>")[0]
    style = drawn.split("<style>")[1].split("</style>")[0]
    selectors = re.findall(r"([^{}]+)\{", re.sub(r"@media[^{]+\{", "", style))
    assert all(one.strip().startswith(".barriers") for one in selectors), "styles of the page"
    assert "whole party" not in drawn, "it depends on the number of records"


def test_metrics_of_a_private_run_take_the_colour_from_its_badge(make_run, result):
    shared = private(result) | {"metrics": result["metrics"]}
    page = render(load_run(make_run(shared)))
    assert "This run was private, except for what this page lists as not covered" in page
    assert '<li class="good">Private' not in page


def test_intervals_that_are_too_narrow_are_marked_and_not_coloured(make_run, result):
    assert 'class="clear"' in render(load_run(make_run(result)))
    result["intervals"] = {"level": 0.95, "warning": "Intervals lack the <noise>."}
    page = render(load_run(make_run(result)))
    assert 'class="clear"' not in page
    text = parse(page).text
    assert "Too narrow. Intervals lack the <noise>." in text
    assert "intervals exclude 0" not in text


def test_nothing_is_coloured_in_a_fit_that_did_not_converge(make_run, result):
    result |= {"converged": False, "why": "one round was too few"}
    run = load_run(make_run(result))
    page = render(run)
    assert 'class="clear"' not in page
    text = parse(page).text
    assert "Not converged: do not use these numbers" in text
    assert "no row is coloured" in text
    assert "intervals exclude 0" not in text


def test_warnings_come_before_convergence(make_run, result):
    little = {"kind": "little-learned", "text": "Little was learned."}
    result |= {"converged": True, "why": "it stood still", "cautions": [little]}
    text = parse(render(load_run(make_run(result)))).text
    assert text.index("Little was learned.") < text.index("Converged:")


def test_small_coefficients_have_the_digits_of_their_sd(make_run, result):
    result["posterior"] = {"family": "full", "names": ["income"], "mean": [6.9e-6], "sd": [3.6e-6]}
    text = parse(render(load_run(make_run(result)))).text
    assert "6.90e−06" in text
    assert "3.60e−06" in text
    assert "1.396e−05" in text


def test_sites_are_shown_in_their_own_space(make_run, result):
    result["sites"] = {
        "slope": {"mean": 1.5, "sd": 0.1, "low": 1.3, "high": 1.7, "real": True},
        "spread": {"mean": 0.1255, "sd": 0.02, "low": 0.09, "high": 0.17, "real": False},
    }
    result["posterior"] |= {"names": ["slope", "spread"], "mean": [1.5, -2.149], "sd": [0.1, 0.1]}
    page = render(load_run(make_run(result)))
    text = parse(page).text
    assert "0.1255" in text
    assert "2.149" not in text, "the logarithm of a scale is not the scale"
    assert page.count('class="clear"') == 1, "a scale is positive anyway"
    assert "1 of 1 intervals exclude 0" in text


def test_the_command_works_from_where_the_report_was_written(make_run, result, monkeypatch):
    folder = make_run(result)
    monkeypatch.chdir(folder.parent.parent)
    place = folder.parent.name
    for given in (folder, Path(place) / "my run"):
        text = parse(render(load_run(given))).text
        assert f"tacit run '{place}/my run/public/config.toml' --out '{place}/my run-again'" in text


def test_where_a_run_can_be_repeated_and_what_is_charged(make_run, result):
    folder = make_run(result)
    config = folder / "public" / "config.toml"
    config.write_text('[data]\npath = "records.csv"\n')
    text = parse(render(load_run(folder))).text
    assert 'directory in which the run was started: data.path = "records.csv" is a relative' in text
    config.write_text('[data]\npath = "/records.csv"\n')
    assert "directory in which" not in parse(render(load_run(folder))).text
    result["privacy"] = {"private": True, "statement": "Differential privacy."}
    folder = make_run(result)
    for ledger, words in (
        ("", "it is charged to the ledger again."),
        ('ledger = "run-directory"', "it is charged to a new ledger in its own run directory."),
    ):
        config.write_text(f"[privacy]\nepsilon = 1.0\n{ledger}\n")
        text = parse(render(load_run(folder))).text
        assert words in text
        assert "directory in which" not in text


def test_a_live_federation_is_not_repeated_by_one_process(make_run, result):
    text = without_figures(make_run(result | {"engine": "live"})).text
    assert "tacit serve and tacit join" in text
    assert "--out" not in text


def test_what_could_not_be_computed_is_listed(make_run, result):
    result["not_evaluated"] = {"metrics": "no <mean>"}
    assert "metrics: no <mean>" in without_figures(make_run(result)).text


def test_missing_metrics_of_an_empty_test_set(make_run, result):
    result["metrics"]["held_out"] = None
    del result["calibration"]
    text = without_figures(make_run(result)).text
    assert "On the training records it has" in text
    assert "–" in text


COEFFICIENTS = [
    {"term": "intercept", "name": "intercept", "mean": -3.0, "sd": 0.1, "low": -3.2, "high": -2.8},
    {
        "term": "age", "name": "age", "unit": "10 years", "mean": 0.4, "sd": 0.1, "low": 0.2,
        "high": 0.6, "true_value": 0.35,
    },
]  # fmt: skip


def natural(result):
    result["posterior"] |= {"names": ["intercept", "age"], "mean": [0.1, 1.2], "sd": [0.1, 0.3]}
    return result | {"coefficients": COEFFICIENTS}


def test_coefficients_are_in_natural_units_with_odds_ratios(make_run, result):
    html = write_report(make_run(natural(result))).read_text(encoding="utf-8")
    text = parse(html).text
    assert "per 10 years" in text
    assert "0.400" in text
    assert "0.350" in text, "the true value in the unit of the column"
    assert "Odds ratios" in text
    assert "1.49" in text, "exp(0.4)"
    assert "0.0498" not in text, "no odds ratio of the intercept: exp(-3)"
    assert html.count('class="interval"') == 1, "the intercept has another scale than the slopes"
    assert "Bars are on one axis" in text


def test_metrics_stand_beside_those_of_the_base_rate(make_run, result):
    text = without_figures(make_run(result)).text
    share = (40 * 0.25 + 60 * 0.75) / 100
    assert "Base rate only" in text
    assert f"{100 * share:.1f} %" in text


def test_performance_of_each_party_is_shown_where_it_is_public(make_run, result):
    shared = result | {"party_metrics": {"north & south": {"accuracy": 0.75, "brier": 0.2}}}
    text = without_figures(make_run(shared)).text
    assert "Performance by party" in text
    assert "75.0 %" in text


PARTY = {
    "schema": "tacit/party-result/2",
    "name": "study",
    "party": "north <1>",
    "run": "r1",
    "configuration": "abc",
    "privacy": "Differential privacy: ε = 1, δ = 1e-05 per record (replace-one).",
    "intervals": {"level": 0.95},
    "converged": None,
    "why": "only the server's result has the verdict",
    "learned": None,
    "cautions": [{"kind": "x", "text": "Little was <learned>."}],
}


def test_a_party_of_a_live_federation_has_a_report(make_run, result):
    party = {**PARTY, "posterior": result["posterior"]}
    page = write_report(make_run(party))
    text = read(page).text
    for words in ("north <1>", "Differential privacy: ε = 1", "tacit ledger show",
                  "only the server's result has the verdict", "Little was <learned>."):  # fmt: skip
        assert words in text
    assert "−1.642" in text
    assert "ε by attacker" not in text
    guarantee = {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "adjacency": "replace-one",
                 "trust": "no trusted server"}  # fmt: skip
    attackers = [{"attacker": "the server", "sees": "every reply", "epsilon": 1.0}]
    facts = {"private": True, "statement": "s", "guarantee": guarantee, "attackers": attackers,
             "not_covered": ["the duration of a run"]}  # fmt: skip
    text = read(write_report(make_run({**party, "guarantee": facts}))).text
    for words in ("ε by attacker", "every reply", "the duration of a run"):
        assert words in text


def test_version_and_date_of_the_run_are_shown(make_run, result):
    made = result | {"version": "0.0.9", "date": "2026-01-31"}
    assert "run on 2026-01-31 with version 0.0.9" in without_figures(make_run(made)).text


def test_long_tables_start_closed(make_run, result):
    count = 60
    result["posterior"] |= {
        "names": [f"x{i}" for i in range(count)],
        "mean": [0.1 * i for i in range(count)],
        "sd": [1.0] * count,
    }
    result["parties"] = [{"name": f"p{i}", "records": i} for i in range(count)]
    checker = without_figures(make_run(result))
    assert "All 60 coefficients" in checker.text
    assert "All 60 parties" in checker.text


def test_a_round_told_twice_counts_once_and_the_last_time_holds(make_run, result):
    run = load_run(make_run(result))
    assert [(row.round, row.negative_elbo) for row in run.rounds] == [(1, 12.5), (2, 11.0)]


@pytest.mark.parametrize("name", ["result.json", "events.jsonl", "config.toml"])
def test_a_missing_file_is_named(make_run, result, name):
    folder = make_run(result)
    (folder / "public" / name).unlink()
    with pytest.raises(DataError, match=rf"{name} is missing; .*tacit run"):
        write_report(folder)
    assert not (folder / "public" / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("result.json", "{", r"result\.json: .*truncated"),
        ("result.json", "[]", r"result\.json: Expected `object`"),
        ("result.json", '{"name": "x"}', r"schema None, but this version of tacit reads"),
        ("result.json", '{"schema": "tacit/result/2"}', r"missing required field `converged`"),
        ("events.jsonl", '{"event": "start"}\nnot json', r"events\.jsonl, line 2: "),
        ("events.jsonl", '{"event": "round", "round": "1"}', r"line 1: Expected `int`.*round"),
        ("events.jsonl", "3", r"line 1: Expected `object`"),
    ],
)
def test_a_malformed_file_is_named_with_the_place(make_run, result, name, text, message):
    folder = make_run(result)
    (folder / "public" / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        write_report(folder)


def test_a_posterior_that_is_none_is_refused(make_run, result):
    result["posterior"]["sd"] = [0.1, 0.2]
    with pytest.raises(DataError, match="3 names, 3 means and 2 sds"):
        write_report(make_run(result))
    result["posterior"]["sd"] = [0.1, 0.2, 0.0]
    with pytest.raises(DataError, match="must be > 0"):
        write_report(make_run(result))


def test_another_schema_and_unreadable_bytes_are_refused(make_run, result):
    folder = make_run(result | {"schema": "tacit/result/9"})
    with pytest.raises(DataError, match="tacit/result/9"):
        write_report(folder)
    (folder / "public" / "result.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot be read"):
        write_report(folder)


LEDGER = {"path": "ledger.sqlite", "run": "r", "epsilon_spent": 1.25, "before": 0.5, "budget": 4.0}


def write_evaluation(folder, content):
    (folder / "private").mkdir()
    (folder / "private" / "evaluation.json").write_text(json.dumps(content))


def test_a_private_report_adds_measurements_and_is_kept_in_the_private_part(make_run, result):
    folder = make_run(result | {"privacy": PRIVACY})
    with pytest.raises(DataError, match="nothing private to report"):
        write_report(folder, private=True)
    local = local_result(read_result(folder / "public"))
    write_evaluation(folder, local | {"privacy": {"ledger": LEDGER}})
    shared = json.dumps(private(result))
    (folder / "public" / "result.json").write_text(shared)
    to_share, kept = read(write_report(folder)), write_report(folder, private=True)
    assert kept == folder / "private" / "report.html"
    text = read(kept).text
    for words in ("accuracy of 81.2 %", "Calibration on the held-out", "Spent on these records"):
        assert words in text
        assert words not in to_share.text
    assert "ε = 2.75, less what unfinished runs have reserved" in text
    assert "Do not share this page" in text
    assert "Do not share" not in to_share.text
    assert (folder / "public" / "result.json").read_text() == shared


def test_a_private_report_of_a_party_shows_its_budget_and_metrics(make_run, result):
    folder = make_run({**PARTY, "posterior": result["posterior"]})
    assert "tacit report STATE --private" in read(write_report(folder)).text
    evaluation = {"answers": 3, "stopped": None, "sent_bytes": 1, "received_bytes": 1}
    metrics = {"training": None, "held_out": {"accuracy": 0.625}}
    write_evaluation(folder, evaluation | {"metrics": metrics, "ledger": LEDGER})
    text = read(write_report(folder, private=True)).text
    for words in ("ε = 1.25, this run included", "ε = 4", "62.5 %", "Do not share this page"):
        assert words in text
    assert "62.5 %" not in read(write_report(folder)).text

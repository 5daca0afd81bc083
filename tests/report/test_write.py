"""A report of a made-up run: what it says, what it escapes, what it refuses."""

import re
from html.parser import HTMLParser

import pytest

from tacit.errors import DataError
from tacit.report import write_report
from tacit.report.load import load_run
from tacit.report.page import render

VOID = {"meta", "br", "img"}


class Checker(HTMLParser):
    """Fails on tags that do not nest; keeps what the page refers to and its text."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.sources, self.text = [], set(), [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

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
    return parse(render(load_run(folder), []))


def test_the_page_says_what_was_learnt_from_whom_and_how_good_it_is(make_run, result):
    folder = make_run(result)
    page = write_report(folder)
    assert page == folder / "report" / "index.html"
    text = read(page).text
    assert (
        "A logistic model with 3 parameters was learnt from 1,234 records held by 2 parties" in text
    )
    assert "On the test records it has an accuracy of 81.2 %" in text
    assert "0.01250 nats (KL) from the reference posterior" in text
    assert text.count("This run was not private") == 1
    assert "no noise was added" in text
    assert "Brier score" in text
    assert "2 of 3 intervals exclude 0" in text
    assert "−1.642" in text, "the lower end of the second 95 % interval"
    assert "tacit run 'my run/config.toml'" in text
    assert "precision <= 0" in text
    assert "two rows <dropped>" in text


def test_figures_are_beside_the_page_and_nothing_comes_from_elsewhere(make_run, result):
    page = write_report(make_run(result))
    sources = read(page).sources
    assert sorted(sources) == sorted(path.name for path in page.parent.glob("*.png"))
    assert len(sources) == 5
    for name in sources:
        assert (page.parent / name).read_bytes().startswith(b"\x89PNG")
    assert not re.search(r"https?://|@import|url\(", page.read_text(encoding="utf-8"))


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
    poisoned["metrics"] = {hostile: {hostile: 1.0}, "test": {hostile: 2.0}}
    poisoned["truth"] = {hostile: 1.0}
    events = [{"event": "refused", "round": 1, "party": hostile, "reason": hostile}]
    assert "script" not in without_figures(make_run(poisoned, events)).tags


def test_a_bare_run_still_has_a_report_that_owns_up_to_its_silence(make_run, result):
    bare = {key: result[key] for key in ("schema", "name", "model", "posterior")}
    page = write_report(make_run(bare, events=[]))
    text = read(page).text
    assert "treat this run as not private" in text
    assert "A logistic model with 3 parameters was learnt." in text
    assert [path.name for path in page.parent.glob("*.png")] == ["coefficients.png"]
    for heading in ("How good it is", "Parties", "Refused updates", "The data"):
        assert heading not in text


def test_a_private_run_says_so(make_run, result):
    result["privacy"] = {"private": True, "statement": "ε = 1 a record."}
    text = without_figures(make_run(result)).text
    assert "This run was private: ε = 1 a record." in text
    assert "not private" not in text


def test_missing_metrics_of_an_empty_test_set(make_run, result):
    result["metrics"]["test"] = None
    result["reliability"] = {"test": None}
    text = without_figures(make_run(result)).text
    assert "On the train records it has" in text
    assert "–" in text


def test_long_tables_start_closed(make_run, result):
    count = 60
    result["posterior"] = {
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
    assert [(row["round"], row["loss"]) for row in run.rounds] == [(1, 12.5), (2, 11.0)]


@pytest.mark.parametrize("name", ["result.json", "events.jsonl", "config.toml"])
def test_a_missing_file_is_named(make_run, result, name):
    folder = make_run(result)
    (folder / name).unlink()
    with pytest.raises(DataError, match=rf"{name} is missing; .*tacit run"):
        write_report(folder)
    assert not (folder / "report").exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("result.json", "{", r"result\.json: .*truncated"),
        ("result.json", "[]", r"result\.json: Expected `object`"),
        ("result.json", '{"name": "x"}', r"missing required field `schema`"),
        ("events.jsonl", '{"event": "start"}\nnot json', r"events\.jsonl, line 2: "),
        ("events.jsonl", '{"event": "round", "round": "1"}', r"line 1: Expected `int`.*round"),
        ("events.jsonl", "3", r"line 1: Expected `object`"),
    ],
)
def test_a_malformed_file_is_named_with_the_place(make_run, result, name, text, message):
    folder = make_run(result)
    (folder / name).write_text(text, encoding="utf-8")
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
    (folder / "result.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot be read"):
        write_report(folder)

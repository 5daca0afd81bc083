"""docs/sources.md: what it names exists, and its summary counts its rows."""

import importlib
import re
import shlex
from collections import Counter

import pytest
import typer
from pages import ROOT

from tacit.cli.main import app

PAGE = (ROOT / "docs/sources.md").read_text(encoding="utf-8")
STATES = ("yes", "differs", "not possible here", "left out", "background")


def rows() -> list[list[str]]:
    """The rows of the documents' tables: place, item, state, where, reason."""
    documents = PAGE.split("\n## ")[1:]
    lines = [line for text in documents for line in text.splitlines() if line.startswith("| ")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [
        [cell.strip() for cell in row] for row in cells if row[0].strip() not in ("place", "---")
    ]


def names() -> list[str]:
    """Everything in the columns "where" that is set as code."""
    return sorted({name for row in rows() for name in re.findall(r"`([^`]+)`", row[3])})


def exists(name: str) -> bool:
    """True for a file of the repository, a command with its options, or a public name."""
    if name.startswith("tacit "):
        words = shlex.split(name)
        command = typer.main.get_command(app)
        while len(words) > 1 and words[1] in getattr(command, "commands", {}):
            command = command.commands[words.pop(1)]
        options = {option for parameter in command.params for option in parameter.opts}
        arguments = [word for word in words[1:] if not word.startswith("--")]
        takes = any(parameter.param_type_name == "argument" for parameter in command.params)
        known = {word for word in words if word.startswith("--")} <= options
        return command is not typer.main.get_command(app) and known and (takes or not arguments)
    if re.fullmatch(r"tacit(\.\w+)+", name):
        module, _, last = name.rpartition(".")
        return hasattr(importlib.import_module(module), last)
    return (ROOT / name).is_file()


def test_the_documents_were_read_as_a_whole():
    assert len(rows()) == 314
    assert all(len(row) == 5 for row in rows())


@pytest.mark.parametrize("name", names())
def test_what_the_page_names_exists(name):
    assert exists(name)


@pytest.mark.parametrize("name", ["src/tacit/nothing.py", "tacit nothing", "tacit.nothing"])
def test_a_wrong_name_would_be_found(name):
    assert not exists(name)


def test_a_state_says_whether_there_is_something_to_name():
    for place, item, state, where, reason in rows():
        assert state in STATES, (place, item)
        absent = state in ("left out", "background")
        assert (where == "–") == absent, (place, item)
        assert reason or state in ("yes", "background"), f"{place}, {item}: no reason"


def test_the_summary_counts_the_rows():
    said = dict(re.findall(r"^\| ([a-z ]+) \| [^|]+ \| (\d+) \|$", PAGE, re.MULTILINE))
    assert {state: int(said[state]) for state in STATES} == Counter(row[2] for row in rows())


@pytest.mark.parametrize(
    "topic",
    ["peer-to-peer", "auto-encoders", "meta-analysis", "expectation", "shuffling", "forward KL"],
)
def test_what_is_left_out_on_purpose_is_named(topic):
    listed = PAGE.split("**Left out on purpose**")[1].split("\n\n")[0]
    assert topic in listed
    assert any(row[2] == "left out" and topic in " ".join(row) for row in rows())

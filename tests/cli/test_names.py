"""Names of columns, levels, parties and runs are printed as they are, whatever they contain."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tacit.cli.show.results import RunProgress, _Bar, plain_column, show_table
from tacit.models.lda.table import TopicTable

FILE = """
name = "a [red]run[/red] :smile:"
privacy = "none"

outcome = "y"

[data]
path = "records.csv"
held_out = 0.0

[columns."w[age,0]"]
low = 0
high = 10

[columns."$level$"]
levels = ["[/c]z", "[bold]", "plain"]

[columns.y]
low = -5
high = 5

[partition]
kind = "balanced"
parties = 2

[schedule]
rounds = 2
"""


@pytest.fixture
def hostile(tacit) -> Path:
    rows = [
        f"{i % 10},{level},{(i % 3) - 1}"
        for i in range(30)
        for level in ("[/c]z", "[bold]", "plain")
    ]
    Path("records.csv").write_text("\n".join(['"w[age,0]",$level$,y', *rows]))
    path = Path("hostile.toml")
    path.write_text(FILE)
    return path


def test_a_run_with_markup_in_its_names_prints_them(tacit, hostile):
    code, out, err = tacit("run", str(hostile), "--out", "out [/b]", "--report")
    assert code == 0, err
    for words in ("w[age,0]", "[/c]z", "[bold]", "a [red]run[/red] :smile:", "out [/b]"):
        assert words in out
    assert "MarkupError" not in err


def test_check_prints_names_with_markup(tacit, hostile):
    code, out, err = tacit("check", str(hostile), "--set", "outcome=w[age,0]")
    assert code == 0, err
    assert "w[age,0]" in out


def test_tables_take_titles_columns_and_cells_literally(capsys):
    show_table("of [/x] [b]one[/b]", ["W1[age,0]", "[i]"], [["[/c]z", ":heart: \x1b[31mred"]])
    out = capsys.readouterr().out
    for words in ("of [/x] [b]one[/b]", "W1[age,0]", "[i]", "[/c]z", ":heart:"):
        assert words in out
    assert "\x1b[31m" not in out


def test_a_progress_bar_takes_its_label_literally():
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120, markup=False)
    with _Bar(plain_column("{task.fields[label]}"), on=terminal) as bar:
        bar._at(1, 2, "run [/c]z", label="[age,0]")
    shown = terminal.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "run [/c]z" in shown
    assert "[age,0]" in shown


def test_every_progress_column_of_a_run_is_plain():
    columns = RunProgress()._progress.columns
    assert all(not getattr(column, "markup", False) for column in columns)


def test_a_word_with_dollar_signs_is_drawn_as_it_is():
    table = TopicTable(
        numbers=(0,), shares=(1.0,), words=(("$\\frac$", "b"),), chances=((0.6, 0.4),)
    )
    figure = table.plot(title="$\\bad$")
    figure.savefig(io.BytesIO(), format="png")
    assert "$\\frac$" in figure.axes[0].texts[0].get_text()

"""The example of docs/ledger.md runs as it stands."""

import re
from pathlib import Path

import pytest

pytest.importorskip("tacit.privacy.accounting")
PAGE = Path(__file__).parents[3] / "docs" / "ledger.md"


def test_the_example_runs(place, monkeypatch):
    (source,) = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    monkeypatch.chdir(place)
    names = {}
    exec(compile(source, str(PAGE), "exec"), names)
    assert names["body"] == b"clipped sum + noise"
    assert (place / "state" / "ledger.sqlite").exists()

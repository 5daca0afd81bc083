"""The model of docs/extending.md as its reader would add it: one file and one line.

The file, the line and the configuration are those of the page, to the letter.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from pages import blocks

from tacit.models.registry import model_kinds

PAGE = "docs/extending.md"
METADATA = "Metadata-Version: 2.1\nName: probit\nVersion: 1.0\n"


def block(language: str, words: str) -> str:
    """The block of the page that has these words."""
    (found,) = [one for one in blocks(PAGE, language) if words in one]
    return found


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package of the page, as `pip install` leaves it: a module and its entry points."""
    packages = tmp_path / "packages"
    information = packages / "probit-1.0.dist-info"
    information.mkdir(parents=True)
    (packages / "probit.py").write_text(block("python", "class ProbitRegression"))
    (information / "METADATA").write_text(METADATA)
    _, line = block("toml", "entry-points").strip().splitlines()
    name, place = (part.strip(' "') for part in line.split("="))
    (information / "entry_points.txt").write_text(f"[tacit.models]\n{name} = {place}\n")
    monkeypatch.syspath_prepend(packages)
    monkeypatch.delitem(sys.modules, "probit", raising=False)
    path = tmp_path / "study.toml"
    path.write_text(block("toml", 'kind = "probit"'))
    yield path
    sys.modules.pop("probit", None)


def test_the_kind_is_checked_and_run_from_the_command_line(tacit, installed):
    assert "probit" in model_kinds()
    code, out, err = tacit("check", str(installed))
    assert code == 0, err
    assert "probit" in out
    assert "dp-scoring" in out
    code, out, err = tacit("run", str(installed), "--out", "out")
    assert code == 0, err
    result = json.loads(Path("out/public/result.json").read_text())
    assert result["model"]["kind"] == "probit"
    assert result["privacy"]["private"]
    assert np.all(np.isfinite(result["posterior"]["mean"]))
    assert np.mean(np.array(result["posterior"]["sd"]) < 0.7) > 0.5  # something was learnt


def test_a_key_that_its_table_has_not_is_refused(tacit, installed):
    installed.write_text(installed.read_text().replace("prior_sd", "prior_ds"))
    code, _, err = tacit("check", str(installed))
    assert code == 2
    assert "prior_ds" in err
    assert "prior_sd" in err


def test_a_kind_that_is_not_installed_is_refused(tacit, tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(block("toml", 'kind = "probit"'))
    code, _, err = tacit("check", str(path))
    assert code == 2
    assert "probit" in err
    assert "logistic" in err

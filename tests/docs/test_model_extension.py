"""Model and engine of docs/extending.md as a reader would add them: one file and one line each.

The files, the lines and the configurations are those of the page, to the letter.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from pages import blocks

from tacit.models.registry import model_kinds

PAGE = "docs/extending.md"
METADATA = "Metadata-Version: 2.1\nName: {}\nVersion: 1.0\n"


def block(language: str, words: str) -> str:
    """The block of the page that has these words."""
    (found,) = [one for one in blocks(PAGE, language) if words in one]
    return found


def install(folder: Path, module: str, source: str, group: str) -> None:
    """A package of the page, as `pip install` leaves it: a module and its entry points."""
    information = folder / f"{module}-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / f"{module}.py").write_text(source)
    (information / "METADATA").write_text(METADATA.format(module))
    _, line = block("toml", f'entry-points."{group}"').strip().splitlines()
    name, place = (part.strip(' "') for part in line.split("="))
    (information / "entry_points.txt").write_text(f"[{group}]\n{name} = {place}\n")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    source = block("python", "class ProbitRegression")
    install(tmp_path / "packages", "probit", source, "tacit.models")
    monkeypatch.syspath_prepend(tmp_path / "packages")
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


def test_an_engine_of_another_package_is_named_in_a_study(tacit, tmp_path, monkeypatch):
    path = tmp_path / "study.toml"
    path.write_text(block("toml", 'kind = "threads"'))
    code, _, err = tacit("check", str(path))
    assert code == 2
    assert 'engine.kind = "threads"' in err
    install(tmp_path / "packages", "threads", block("python", "class Threads"), "tacit.engines")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.delitem(sys.modules, "threads", raising=False)
    assert tacit("check", str(path))[0] == 0
    code, _, err = tacit("run", str(path), "--out", "out")
    assert code == 0, err
    code, _, err = tacit("run", str(path), "--out", "same", "--engine", "in-process",
                         "--set", "engine.workers=2")  # fmt: skip
    assert code == 2, "a key of another engine"
    alone = path.read_text().replace('kind = "threads"\nworkers = 2', "batch_parties = false")
    path.write_text(alone)
    assert tacit("run", str(path), "--out", "same")[0] == 0
    found, expected = (
        json.loads(Path(out, "public/result.json").read_text()) for out in ("out", "same")
    )
    assert (found["engine"], expected["engine"]) == ("threads", "in-process")
    assert found["posterior"] == expected["posterior"]
    path.write_text(block("toml", 'kind = "threads"').replace("workers = 2", "workers = 0"))
    code, _, err = tacit("check", str(path))
    assert (code, "engine.workers = 0" in err) == (2, True)

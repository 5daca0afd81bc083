"""Runs on neighbouring data sets with the same releases: what may differ between them?

The first run keeps what its parties released; the second, on a data set that differs in one unit,
is given the same releases. Whatever then differs between the two run directories was computed from
records and was not paid for.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from unittest.mock import patch

from json_results import run

from tacit.cli.ledger import budget_command
from tacit.engines.in_process import InProcess
from tacit.party.compute import Update
from tacit.report import write_report
from tacit.run.config import parse_config, resolved_toml

SECRET = (20260101,)
"""Stands for the server's own noise, which is the same in both runs, too."""


class Releases(dict):
    """(party, visit) -> the update that was made: what was released, its cost, what was kept."""

    def keep(self, requests, updates):
        for request in requests:
            self[request.party, request.visit] = updates[request.id]

    def give(self, requests) -> dict[str, Update]:
        return {request.id: self[request.party, request.visit] for request in requests}


def keeping(releases: Releases):
    class Keeping(InProcess):
        def compute(self, requests, keys):
            answers = super().compute(requests, keys)
            releases.keep(requests, answers)
            return answers

    return Keeping


def replaying(releases: Releases):
    class Replaying(InProcess):
        def compute(self, requests, keys):
            del keys
            return releases.give(requests)

    return Replaying


def run_pair(
    base: Path, raw: dict[str, Any], tables: tuple[str, str]
) -> tuple[tuple[Path, dict[str, Any]], tuple[Path, dict[str, Any]]]:
    """Two private runs of one configuration on two tables, the second with the first's releases."""
    releases = Releases()
    made = []
    for name, table, engine in zip(
        ("first", "second"), tables, (keeping(releases), replaying(releases)), strict=True
    ):
        folder = base / name
        folder.mkdir()
        (folder / "records.csv").write_text(table, encoding="utf-8")
        with contextlib.chdir(folder):
            made.append((folder / "run", _run(raw, engine)))
    return made[0], made[1]


def _run(raw: dict[str, Any], engine: Any) -> dict[str, Any]:
    config, ledger, out = parse_config(raw), Path("ledger.sqlite"), Path("run")
    Path("config.toml").write_text(resolved_toml(config), encoding="utf-8")
    budget_command(ledger, "config.toml", 1e3, 1e-5, None, None, reason="test", raising=False)
    with (
        patch("tacit.run.run.make_engine", lambda _: engine),
        patch("tacit.server.checkpoint.Checkpoint.secret", lambda _: SECRET),
    ):
        result = run(config, out, ledger=ledger)
    write_report(out)
    return result


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def differing(first: Path, second: Path) -> list[str]:
    """The files that are not the same, byte for byte."""
    one, other = files(first), files(second)
    return [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]


def contains(folder: Path, *needles: bytes) -> list[str]:
    """The files below a folder that contain one of these."""
    found = files(folder)
    return [name for name, body in found.items() if any(needle in body for needle in needles)]


__all__ = ["contains", "differing", "files", "run_pair"]

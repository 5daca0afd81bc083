"""Several levels: python benchmarks/scoring_levels.py [--splits 1,2,3] [--data marital].

Held-out mean log-likelihood of softmax regression without privacy, with private scoring and with
noisy gradients, and of the levels' frequencies, on the same splits: ten parties that trust nobody,
substitution of a record. Reads `diabetes130` and `adult` in $TACIT_DATA.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import polars

from tacit.data import load_federation
from tacit.data.readers.adult import read as read_adult
from tacit.run.config import parse_config
from tacit.run.run import simulate

ROOT = Path(__file__).parents[1]
NUMBERS = {"age": (17, 90), "education-num": (1, 16), "hours-per-week": (1, 99)}
CATEGORIES = ("workclass", "race", "sex", "income")


def readmission(folder: Path) -> dict[str, Any]:
    del folder
    raw = tomllib.loads((ROOT / "examples/readmission.toml").read_text(encoding="utf-8"))
    raw["data"]["path"] = str(Path(os.environ["TACIT_DATA"]) / "diabetes130/diabetic_data.csv.gz")
    return raw


def marital(folder: Path) -> dict[str, Any]:
    """Marital status, 7 levels, of the people of Adult."""
    table = read_adult()
    path = folder / "adult.csv"
    table.frame.write_csv(path)
    columns: dict[str, dict[str, Any]] = {
        name: {"low": low, "high": high} for name, (low, high) in NUMBERS.items()
    }
    for name in ("marital-status", *CATEGORIES):
        found = table.frame[name].cast(polars.String).str.strip_chars().unique().sort().to_list()
        missing = {"missing": "level", "missing_values": ["?"]} if "?" in found else {}
        levels = [level for level in found if level and level != "?"]
        columns[name] = {"levels": levels} | missing
    study = {"outcome": "marital-status", "columns": columns, "data": {"path": str(path)}}
    return study | {"partition": {"parties": 10}, "privacy": {"delta": 1e-5}}


def report(raw: dict[str, Any], seed: int) -> None:
    raw = copy.deepcopy(raw) | {"seed": seed}
    private = raw["privacy"] | {"insecure_noise_seed": seed}
    plain = parse_config(raw | {"privacy": "none"})
    federation = load_federation(plain.data, plain.partition, seed)
    y = np.concatenate([records["y"] for records in federation.parties.values()]).astype(int)
    share = np.bincount(y, minlength=len(federation.levels)) / len(y)
    assert federation.test is not None
    rates = np.log(share[federation.test["y"].astype(int)])
    print(f"split {seed}: constant {np.mean(rates):.4f}", flush=True)
    print(f"  no privacy {fitted(plain):.4f}", flush=True)
    for epsilon in (1.0, 4.0):
        budget = {"privacy": private | {"epsilon": epsilon}}
        scoring = fitted(parse_config(raw | budget))
        noisy = raw | budget | {"method": {"kind": "dp-sgd"}, "schedule": {"rounds": 40}}
        gradients = fitted(parse_config(noisy))
        print(f"  ε = {epsilon:g}: dp-scoring {scoring:.4f}, dpsgd {gradients:.4f}", flush=True)


def fitted(config: Any) -> float:
    return (simulate(config).metrics["held_out"] or {})["log_predictive_density"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", default="1,2,3")
    parser.add_argument("--data", choices=("readmission", "marital"), default="readmission")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        raw = {"readmission": readmission, "marital": marital}[asked.data](Path(folder))
        for seed in asked.splits.split(","):
            report(raw, int(seed))


if __name__ == "__main__":
    main()

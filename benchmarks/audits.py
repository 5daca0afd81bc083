"""`tacit audit` on nine configurations: python -m benchmarks.audits [NAME …].

    python -m benchmarks.audits [--minutes 0.2] [NAME …]

Methods, units, adjacencies and aggregations, each as a TOML file that the command reads: lower
bounds on ε beside the claims of every release and of the run. Exit code 1 if a bound is above its
claim, if one of a release without sampling is below 0.8 of it, or if half of the noise would not
have been found. (No pair of neighbours attains the bound of batches without replacement.)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

LEAST_SHARE = 0.8
COHORT = """
[data]
source = "synthetic-cohort"
[partition]
kind = "balanced"
parties = 2
"""
VISITS = """
outcome = "readmitted"
positive = "yes"
[data]
path = "visits.csv"
person = "patient"
[partition]
parties = 2
[columns]
patient = { feature = false }
age = { low = 18, high = 100 }
smoker = { levels = ["no", "yes"] }
readmitted = { levels = ["no", "yes"] }
"""
TERMS = "[privacy]\nepsilon = 1.0\ndelta = 1e-5\n"
ADDED = 'adjacency = "add-or-remove-one"\n'
CONFIGURATIONS = {
    "statistics": COHORT + '[model]\nkind = "logistic"\n[method]\nkind = "dp-statistics"\n'
    "[schedule]\nrounds = 2\n" + TERMS + ADDED,
    "statistics-subsets": COHORT + '[model]\nkind = "logistic"\n[method]\nkind = "dp-statistics"\n'
    'sampling_rate = 0.4\nsampling = "without-replacement"\n[schedule]\nrounds = 2\n' + TERMS,
    "sgd-persons": VISITS + '[model]\nkind = "logistic"\n[method]\nkind = "dp-sgd"\n'
    "[schedule]\nrounds = 2\n" + TERMS + 'unit = "person"\n' + ADDED,
    "sgd-whitened-persons": VISITS + '[model]\nkind = "logistic"\n[method]\nkind = "dp-sgd"\n'
    "whiten = 0.1\nwhiten_bound = 3.0\n[schedule]\nrounds = 3\n" + TERMS + 'unit = "person"\n',
    "updates-shared-noise": COHORT + '[model]\nkind = "logistic"\n[method]\nkind = "dp-updates"\n'
    "shards = 1\n[schedule]\nrounds = 2\n" + TERMS + 'aggregation = "trusted"\n',
    "updates-party-server": COHORT + '[model]\nkind = "logistic"\n[method]\nkind = "dp-updates"\n'
    'shards = 1\n[schedule]\nrounds = 2\n' + TERMS + 'unit = "party"\naggregation = "server"\n',
    "scoring": COHORT + '[model]\nkind = "logistic"\n[method]\nkind = "dp-scoring"\n' + TERMS,
    "scores": COHORT + '[model]\nkind = "logistic"\n[method]\nkind = "dp-scores"\n' + TERMS,
    "topics": '[data]\nsource = "synthetic-topics"\n[partition]\nparties = 2\n[model]\n'
    'kind = "topics"\ntopics = 5\ndocument_words = 40\n[method]\nkind = "dp-statistics"\n'
    "[schedule]\nrounds = 2\n" + TERMS,
}  # fmt: skip


def audited(name: str, folder: Path, minutes: float) -> dict:
    """The command's report on one configuration."""
    path = folder / f"{name}.toml"
    path.write_text(f'name = "{name}"\n{CONFIGURATIONS[name]}', encoding="utf-8")
    start = "from tacit.cli.main import entry; entry()"
    call = [sys.executable, "-c", start, "audit", str(path), "--minutes", str(minutes), "--json"]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{name}: {done.stderr.strip()}")
    return json.loads(done.stdout[done.stdout.index("{") :])


def problems(name: str, found: dict) -> list[str]:
    """What is wrong with a report."""
    least = 0.0 if "sampling_rate" in CONFIGURATIONS[name] else LEAST_SHARE
    wrong = [f"{one['kind']} {one['what']}: ABOVE" for one in found["findings"] if not one["holds"]]
    for one in found["findings"]:
        if one["kind"] == "release":
            if one["bound"] is None or one["bound"] < least * one["claim"]:
                wrong.append(f"{one['what']}: below {least} of the claim")
            if one["wrong_noise"] is None or not one["wrong_noise"] > one["claim"]:
                wrong.append(f"{one['what']}: no power")
    return wrong


def main() -> int:
    """Print one line per release and run."""
    parser = argparse.ArgumentParser(description="lower bounds on ε of nine configurations")
    parser.add_argument("names", nargs="*", choices=[[], *CONFIGURATIONS], default=[])
    parser.add_argument("--minutes", type=float, default=0.2)
    options = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "visits.csv").write_text("patient,age,smoker,readmitted\n1,40,no,no\n")
        for name in options.names or CONFIGURATIONS:
            found = audited(name, folder, options.minutes)
            print(f"{name}: {found['method']}, {found['unit']}, {found['adjacency']}")
            for one in found["findings"]:
                if one["kind"] in ("release", "run", "canaries") and one["bound"] is not None:
                    half = "" if one["wrong_noise"] is None else f"{one['wrong_noise']:8.3f}"
                    share = one["bound"] / one["claim"]
                    print(
                        f"  {one['kind']:<9} {one['what']:<28} {one['claim']:8.4f} "
                        f"{one['bound']:8.4f} {share:6.2f} {half}"
                    )
            wrong = problems(name, found)
            missed |= bool(wrong)
            print(*(f"  {line}" for line in wrong), sep="\n", end="\n" if wrong else "", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

"""Coverage of private scores: python -m benchmarks.scores_coverage RESULTS [REPEATS] [options].

By default 24,000 records in ten parties; δ = 1e-5, the unit a record, the adjacency replace-one.
Every replication has its own θ, records and noise, found by its number alone: a run that was ended
goes on where it stopped, and several processes may share the work. RESULTS is a file of JSON lines,
one per fit; `--table` prints what it holds:

    coverage   share of true coordinates in their 95 % intervals, beside that of the posterior
               without privacy (Newton's method on the same records), with standard errors over
               replications
    width      median ratio of private and non-private standard deviations
    nats       expected log-likelihood of 24,000 fresh records, per record, that is lost against
               the non-private mean
    scales     error of each scale parameter in private standard deviations, minus that of the
               non-private fit of the same records
    rms        root mean square of standardised errors, which should be 1
    misfit     share of fits whose rank histogram has p < 0.01

`--method dp-sgd` measures DP-SGD in the same way, with its defaults or, for instance, with
`--option clip=5 --option rounds=100`. Several values, as in `--option clip=2,5,10`, measure all
combinations; `--best` prints only the options with the least loss of each case. Choose on some
replications and report others (`--first`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import time
import zlib

import numpy as np

from benchmarks.scores_models import (
    CASES,
    GROUPED,
    GROUPS,
    MISFITS,
    RECORDS,
    Reference,
    draw,
    unconstrained,
)
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError
from tacit.methods import DPSGD, PrivateScores
from tacit.methods.scores.server import fit_of, trouble
from tacit.models import from_numpyro
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy
from tacit.schedules import Synchronous

PARTIES, DELTA = 10, 1e-5
METHODS = {"dp-scores": PrivateScores, "dp-sgd": DPSGD}
SCALES = ("scale", "freedom", "spread")


class Replications:
    """All fits of one case; the model is compiled once."""

    def __init__(self, name, given):
        self.name, self.given = name, given
        example, _ = draw(name, np.random.default_rng(0), given.width, 0.0)
        columns = {"group": GROUPS} if name in GROUPED else {}
        example = {key: column[:4] for key, column in example.items()}
        self.model = from_numpyro(CASES[name], example, columns=columns)
        self.reference = Reference(self.model)

    def replicate(self, repeat, wanted):
        """One line for each (method, aggregation, ε) that is wanted."""
        given = self.given
        seed = [given.seed, zlib.crc32(self.name.encode()), given.width, repeat]
        rng = np.random.default_rng(seed)
        law = (self.name, rng, given.width, given.correlation)
        records, sites = draw(*law, count=given.records)
        fresh, _ = draw(*law, sites)
        start = unconstrained(self.model, sites)
        truth = start if self.name not in MISFITS else None
        mean, sd = self.reference.fit(records, start)
        best = float(self.reference.value(mean, fresh)) / RECORDS
        parties = {
            str(i): {key: column[i :: given.parties] for key, column in records.items()}
            for i in range(given.parties)
        }
        for method, aggregation, epsilon in wanted:
            noise_seed = zlib.crc32(repr((seed, method, aggregation, epsilon)).encode())
            privacy = Privacy(
                epsilon=epsilon,
                delta=DELTA,
                aggregation=aggregation,
                insecure_noise_seed=noise_seed,
            )
            began = time.process_time()
            options = dict(given.options)
            rounds = options.pop("rounds", None)
            plan = make_plan(
                self.model,
                parties,
                method=METHODS[method](**options),
                privacy=privacy,
                schedule=None if rounds is None else Synchronous(rounds=rounds),
            )
            outcome = carry_out(plan)
            found_mean, found_sd = outcome.posterior.mean, outcome.posterior.sd
            memory = outcome.state.memory or {}
            fit = fit_of(memory) if method == "dp-scores" else None
            lost = best - float(self.reference.value(np.asarray(found_mean), fresh)) / RECORDS
            yield {
                "width": float(np.median(found_sd / sd)),
                "lost": lost,
                "cpu": time.process_time() - began,
                "p_value": None if fit is None else fit.p_value,
                "words": None if fit is None else fit.words,
                "trouble": trouble(plan.rules.combine, memory) if fit else None,
                "errors": None if truth is None else ((found_mean - truth) / found_sd).tolist(),
                "non_private": None if truth is None else ((mean - truth) / sd).tolist(),
                "sds": (found_sd / sd).tolist(),
                "names": list(self.model.names),
            }


def key_of(line):
    """What the fits of one row of the table have in common."""
    names = ("case", "columns", "correlation", "records", "parties", "options")
    usual = {"records": RECORDS, "parties": PARTIES, "options": ""}
    line = usual | line
    return tuple(line[name] for name in (*names, "method", "aggregation", "epsilon"))


def measured(path):
    """The lines of a results file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def measure(given):
    for one in itertools.product(*(values for _, values in given.option)):
        names = (name for name, _ in given.option)
        given.options = list(zip(names, one, strict=True))
        measure_one(given)


def measure_one(given):
    done = {(*key_of(line), line["repeat"]) for line in measured(given.results)}
    for name in given.case or CASES:
        cases = Replications(name, given)
        place = {
            "case": name,
            "columns": given.width,
            "correlation": given.correlation,
            "records": given.records,
            "parties": given.parties,
            "options": " ".join(f"{name}={value}" for name, value in given.options),
        }
        for repeat in range(given.first, given.first + given.repeats):
            wanted = [
                setting
                for setting in (
                    (given.method, aggregation, epsilon)
                    for epsilon in given.epsilon
                    for aggregation in given.aggregation
                )
                if (*place.values(), *setting, repeat) not in done
            ]
            names = ("method", "aggregation", "epsilon")
            settings = [dict(zip(names, one, strict=True)) for one in wanted]
            try:
                for setting, line in zip(settings, cases.replicate(repeat, wanted), strict=True):
                    whole = place | setting | {"repeat": repeat} | line
                    with given.results.open("a") as file:
                        file.write(json.dumps(whole) + "\n")
            except ConfigError as refused:
                print(f"{name}: refused: {refused}")
                break


def mean_and_error(values):
    return float(np.mean(values)), float(np.std(values) / np.sqrt(max(len(values), 1)))


def row_of(key, lines):
    """One row of the table."""
    case, _, correlation, records, parties, options, method, aggregation, epsilon = key
    label = f"{case}, d = {len(lines[0]['names'])}"
    label += f", ρ = {correlation:g}" if correlation else ""
    label += "" if records == RECORDS else f", {records} records, {parties} parties"
    cells = [label, f"{method} {options}".strip(), f"{epsilon:g}", aggregation, str(len(lines))]
    if lines[0]["errors"] is None:
        cells += ["", "", ""]
    else:
        errors = np.array([line["errors"] for line in lines])
        own = np.array([line["non_private"] for line in lines])
        inside, without = (np.mean(np.abs(one) < 1.959964, axis=1) for one in (errors, own))
        names = lines[0]["names"]
        apart = errors - own / np.array([line["sds"] for line in lines])
        scales = (
            "{} {:+.2f} ± {:.2f}".format(names[i], *mean_and_error(apart[:, i]))
            for i in range(len(names))
            if names[i] in SCALES
        )
        cells += [
            "{:.3f} ± {:.3f} ({:.3f})".format(*mean_and_error(inside), np.mean(without)),
            f"{np.sqrt(np.mean(errors**2)):.2f}",
            ", ".join(scales),
        ]
    alarms = [line["p_value"] < 0.01 for line in lines if line["p_value"] is not None]
    cells += [
        f"{np.median([line['width'] for line in lines]):.2f}",
        "{:.5f} ± {:.5f}".format(*mean_and_error([line["lost"] for line in lines])),
        f"{np.mean(alarms):.2f}" if alarms else "",
        f"{np.median([line['cpu'] for line in lines]):.1f}",
    ]
    return cells


def with_least_loss(rows):
    """Of rows that differ by their options only, the one with the least mean loss."""
    best = {}
    for key, lines in rows.items():
        loss = np.mean([line["lost"] for line in lines])
        same = (*key[:5], *key[6:])
        if same not in best or loss < best[same][0]:
            best[same] = (loss, key)
    return {key: rows[key] for _, key in best.values()}


def table(lines, best=False):
    """Markdown."""
    rows = {}
    for line in lines:
        rows.setdefault(key_of(line), []).append(line)
    if best:
        rows = with_least_loss(rows)
    names = (
        "case|method|ε|aggregation|fits|coverage (non-private)|rms|scales|width|nats|misfit|CPU-s"
    )
    head = names.split("|")
    print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    order = {name: place for place, name in enumerate(CASES)}
    for key in sorted(rows, key=lambda key: (order[key[0]], *key[1:7], key[8], key[7])):
        print("| " + " | ".join(row_of(key, rows[key])) + " |")


def option(text):
    """NAME=VALUE,VALUE… of a method; values are numbers where they can be."""
    name, _, values = text.partition("=")
    return name, [number_or_text(value) for value in values.split(",")]


def number_or_text(value):
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("repeats", nargs="?", type=int, default=100)
    parser.add_argument("--table", action="store_true", help="print what was measured and stop")
    parser.add_argument("--best", action="store_true", help="print the best options of each case")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--method", choices=METHODS, default="dp-scores")
    parser.add_argument("--option", type=option, action="append", default=[], metavar="NAME=VALUES")
    parser.add_argument("--width", type=int, default=10, help="columns of x")
    parser.add_argument("--correlation", type=float, default=0.0)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--parties", type=int, default=PARTIES)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--aggregation", nargs="+", default=["plain", "trusted"])
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--first", type=int, default=0, help="number of the first replication")
    given = parser.parse_args()
    if not given.table:
        measure(given)
    table(measured(given.results), given.best)


if __name__ == "__main__":
    main()

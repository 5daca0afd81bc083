"""Tables of the posteriordb study: numbers of right posteriors, every run, comparison with SVI.

A posterior is right if its means and sds are close to the reference (`is_right`).
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit_studies.posteriordb_runs import MEAN_ERROR, SD_HIGH, SD_LOW, is_right
from tacit_studies.tables import Cell, Table

TACIT, SAMPLED = "tacit", "tacit with sampling"
GUIDES = ("AutoNormal", "AutoMultivariateNormal")
TIGHT = (0.05, 0.95, 1.05)
COMPARED_PARTIES = 5
WORDS = {"right": "right", "flagged": "flagged", "silent": "WRONG", "refused": "refused"}
SETS = {True: "posteriordb's draws", False: "own NUTS"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the study."""

    posterior: str
    published: bool
    """True if its reference is from posteriordb."""
    method: str
    parties: int | None
    """The requested number; a posterior with fewer records has one party per record."""
    result: Mapping[str, Any]

    @property
    def right(self) -> bool:
        """True if the posterior is right (`is_right`)."""
        return is_right(dict(self.result))

    @property
    def tight(self) -> bool:
        """True if the errors are also within the narrower limits `TIGHT`."""
        return is_right(dict(self.result), *TIGHT)

    @property
    def flagged(self) -> bool:
        """True if the fit warns that its numbers may be unreliable."""
        return not self.result.get("converged", True) or bool(self.result.get("cautions"))

    @property
    def outcome(self) -> str:
        """Right, flagged (wrong, with a warning), silent (wrong, without a warning) or refused."""
        if "refused" in self.result:
            return "refused"
        if self.right:
            return "right"
        return "flagged" if self.flagged else "silent"


def summary_table(runs: Sequence[Run]) -> Table:
    """Number of posteriors by outcome, for each number of parties and kind of reference."""
    rows = []
    for published, words in SETS.items():
        for parties in dict.fromkeys(run.parties for run in runs if run.method == TACIT):
            chosen = [r for r in runs if (r.method, r.parties) == (TACIT, parties)]
            chosen = [run for run in chosen if run.published == published]
            if not chosen:
                continue
            outcomes = [run.outcome for run in chosen]
            rows.append(
                [words, parties, len(chosen), outcomes.count("right"),
                 sum(run.tight for run in chosen), outcomes.count("flagged"),
                 outcomes.count("refused"), outcomes.count("silent"),
                 sum(run.right and run.flagged for run in chosen),
                 _median(chosen, "exchanges"), _largest(chosen, "exchanges"),
                 _median(chosen, "cpu_s"), _median(chosen, "cpu_with_compilation_s")]
            )  # fmt: skip
    note = (
        f"Right: every mean within {MEAN_ERROR} reference sd and every sd ratio in {SD_LOW}–"
        f"{SD_HIGH}; tight: within {TIGHT[0]} and {TIGHT[1]}–{TIGHT[2]}. Flagged: not right, and "
        "the fit has not converged or has a caution. Wrong without warning: not right, although "
        "the fit has converged and has no caution. Exchanges are answered requests per party."
    )
    columns = (
        "reference", "parties", "posteriors", "right", "tight", "flagged", "refused",
        "wrong without warning", "right but flagged", "median exchanges", "most exchanges",
        "median CPU (s)", "… with compilation (s)",
    )  # fmt: skip
    digits = {columns[-2]: 3, columns[-1]: 3, "median exchanges": 3}
    return Table(
        name="summary", title="How many posteriors are right", columns=columns, rows=rows,
        note=note, digits=digits,
    )  # fmt: skip


def posterior_table(runs: Sequence[Run], method: str = TACIT) -> Table:
    """Every run of tacit with this method."""
    rows = []
    for run in sorted((r for r in runs if r.method == method), key=lambda r: r.parties or 0):
        result = run.result
        rows.append(
            [run.posterior, result["parties"], result["records"], WORDS[run.outcome],
             result.get("mean_error"), result.get("worst"), result.get("sd_low"),
             result.get("sd_high"), result.get("exchanges"), result.get("cpu_s"),
             result.get("cpu_with_compilation_s"), _verdict(run)]
        )  # fmt: skip
    columns = (
        "posterior", "parties", "records", "result", "error of the mean (sd)", "of",
        "sd ratio, min", "max", "exchanges per party", "CPU (s)", "… with compilation (s)",
        "verdict",
    )  # fmt: skip
    sampled = method == SAMPLED
    settings = ", method=NaturalVI(sampling=True)" if sampled else ""
    which = ", for fits that do not converge without it" if sampled else " with defaults"
    return Table(
        name="sampled" if sampled else "posteriors",
        title="Sampled posteriors" if sampled else "Each posterior",
        columns=columns,
        rows=rows,
        digits=dict.fromkeys(columns[4:11], 3),
        note=f"`tacit.fit(model, parties, privacy=\"none\"{settings})`{which}. Error of the mean: "
        "the worst coordinate, in reference sds. CPU: time of a second fit of the same "
        "model; with compilation: time of the first fit, including `from_numpyro`, without a "
        "compilation cache.",
    )  # fmt: skip


def _verdict(run: Run) -> str:
    result = run.result
    if "refused" in result:
        return _one_line(f"refused: {result['refused']}")
    words = "converged" if result["converged"] else "not converged"
    return _one_line(f"{words}: {result['why']}")


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def comparison_table(runs: Sequence[Run]) -> Table:
    """Compare tacit with five parties and SVI with all records in one place."""
    by_key = {(run.posterior, run.method, run.parties): run for run in runs}
    rows: list[list[Cell]] = []
    for name in dict.fromkeys(run.posterior for run in runs):
        tacit = by_key.get((name, TACIT, COMPARED_PARTIES))
        if tacit is None:
            continue
        row: list[Cell] = [name, tacit.result.get("mean_error"), *_cpu(tacit.result)]
        for guide in GUIDES:
            result = by_key[name, guide, None].result
            row += [result["mean_error"], *_range(result), *_cpu(result), result["cpu_to_right_s"]]
        theirs = by_key[name, GUIDES[1], None].result["cpu_to_right_s"]
        ours = tacit.result.get("cpu_s") if tacit.right else None
        rows.append([*row, ours / theirs if ours is not None and theirs else None])
    columns = ["posterior", "tacit: error", "CPU (s)", "… compiled"]
    for guide in GUIDES:
        columns += [f"{guide}: error", "sd min", "sd max", "CPU (s)", "… compiled", "CPU to right"]
    columns.append("tacit / AutoMultivariateNormal")
    return Table(
        name="comparison",
        title="Comparison with NumPyro's SVI",
        columns=tuple(columns),
        rows=rows,
        digits=dict.fromkeys(columns[1:], 3),
        note=f"tacit with {COMPARED_PARTIES} parties; SVI with all records in one place, Adam with "
        "step 0.01, one draw per step, float64, errors after 10,000 steps. CPU to right: CPU "
        "time until the posterior is first right, without compilation; a dash: not within "
        "20,000 steps. … compiled: with compilation. Last column: CPU of tacit over CPU to right "
        "of AutoMultivariateNormal, where both are right.",
    )


def _cpu(result: Mapping[str, Any]) -> list[Cell]:
    return [result.get("cpu_s"), result.get("cpu_with_compilation_s")]


def _range(result: Mapping[str, Any]) -> list[Cell]:
    return [result["sd_low"], result["sd_high"]]


def reference_table(references: Mapping[str, Mapping[str, Any]]) -> Table:
    """Our own NUTS runs."""
    return Table(
        name="references",
        title="Own NUTS references",
        columns=("posterior", "coordinates", "draws", "largest R-hat", "least ESS", "CPU (s)",
                 "trusted"),
        rows=[
            [name, len(one["names"]), one["draws"], one["rhat"], one["ess"], one["cpu_s"],
             "yes" if one["trusted"] else "NO"]
            for name, one in references.items()
        ],
        digits={"largest R-hat": 5, "least ESS": 4, "CPU (s)": 3},
        note="Four chains, random effects non-centred. A reference is trusted if every compared "
        "coordinate has R-hat < 1.01 and at least 400 effective draws.",
    )  # fmt: skip


def as_csv(runs: Sequence[Run]) -> str:
    """One row per run."""
    columns: dict[str, Callable[[Run], Any]] = {
        "posterior": lambda run: run.posterior,
        "reference": lambda run: "posteriordb" if run.published else "own-nuts",
        "method": lambda run: run.method,
        "parties": lambda run: run.result.get("parties", 1),
        "outcome": lambda run: run.outcome if run.method in (TACIT, SAMPLED) else
        ("right" if run.right else "wrong"),
    }  # fmt: skip
    keys = (
        "mean_error", "worst", "sd_low", "sd_high", "exchanges", "cpu_s", "cpu_with_compilation_s",
        "cpu_to_right_s", "steps_to_right", "converged", "why", "refused",
    )  # fmt: skip
    body = io.StringIO()
    writer = csv.writer(body, lineterminator="\n")
    writer.writerow([*columns, *keys, "cautions"])
    for run in runs:
        cautions = " ".join(run.result.get("cautions", ()))
        values = [run.result.get(key) for key in keys]
        writer.writerow([*(read(run) for read in columns.values()), *values, cautions])
    return body.getvalue()


def _numbers(runs: Sequence[Run], key: str) -> list[float]:
    return [run.result[key] for run in runs if run.result.get(key) is not None]


def _median(runs: Sequence[Run], key: str) -> float | None:
    found = _numbers(runs, key)
    return float(statistics.median(found)) if found else None


def _largest(runs: Sequence[Run], key: str) -> float | None:
    return max(_numbers(runs, key), default=None)

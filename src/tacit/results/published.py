"""The shareable part of a result, and a list of what no guarantee covers.

The ε of a run covers what leaves the parties. A shared file must therefore be a function of the
charged releases and of public facts. Everything else computed from records (metrics, counts, notes
on rows, timings) stays in the private part of the run directory. `public_result` copies only keys
that are known to be safe.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tacit.plan.plan import Plan
from tacit.results.summary import DataFacts, PartyRow, Result, builtins_of, decode

SAFE = (
    "name",
    "seed",
    "engine",
    "version",
    "date",
    "run",
    "configuration",
    "model",
    "method",
    "schedule",
    "rounds",
    "finished",
    "exchanges",
    "refused",
    "last_change",
    "left_out",
    "converged",
    "why",
    "learned",
    "cautions",
    "posterior",
    "intervals",
    "coefficients",
    "sites",
    "topics",
    "tables",
    "true_values",
)
"""Fields that depend only on the releases or on the configuration, such as q, its intervals and the
rounds.
"""
MEASURED = ("metrics", "party_metrics", "calibration", "not_evaluated")
"""Fields that are computed from held-out records without noise. They are shared only if
evaluate.publish = true.
"""
NOTHING_MEASURED = {"training": None, "held_out": None}

PRIVATE_PART = (
    "the files in private/ (checkpoint, ledger, evaluation.json, timings), which depend on exact "
    "records"
)
CHOICES = (
    "choices made after looking at the records (columns, bounds, model, ε), and the duration of a "
    "run"
)
PUBLISHED = (
    "metrics and calibration on the held-out records, which are exact and are shared here because "
    "the configuration sets evaluate.publish = true"
)
COUNTS = (
    "the number of records of each party after preparation, which the guarantee treats as public: "
    "it covers replacing a record by another complete one, not by one that is dropped because of "
    "missing values"
)


def covered(plan: Plan) -> bool:
    """True if a run has a guarantee, i.e. privacy without a known noise seed."""
    return plan.guarantee is not None and plan.guarantee.caveat is None


def counts_are_public(plan: Plan) -> bool:
    """True if neighbouring data sets have the same number of records.

    This is the case if one record is replaced. It is not the case if a record is added or removed,
    or if a person or party is replaced, because the new one may have any number of records.
    """
    privacy = plan.privacy
    return privacy is None or (privacy.unit, privacy.adjacency) == ("record", "replace-one")


def not_covered(plan: Plan, *, publish: bool = False) -> list[str]:
    """List what the guarantee of a run does not cover."""
    exceptions = []
    if publish:
        exceptions.append(PUBLISHED)
    if counts_are_public(plan):
        exceptions.append(COUNTS)
    return [*exceptions, PRIVATE_PART, CHOICES]


def public_result(result: Result, plan: Plan, *, publish: bool) -> Result:
    """Return the shareable part of a result; the complete result if the run has no guarantee."""
    if not covered(plan):
        return result
    measured: dict[str, Any] = {"metrics": NOTHING_MEASURED}
    if publish:
        measured = {key: getattr(result, key) for key in MEASURED}
    if result.clipped is not None and result.clipped.noise_sd is not None:
        measured["clipped"] = result.clipped  # a charged count; an exact share is not shared
    known = counts_are_public(plan)
    return Result(
        **{key: getattr(result, key) for key in SAFE},
        **measured,
        parties=[
            PartyRow(name=row.name, records=row.records if known else None)
            for row in result.parties
        ],
        data=DataFacts(
            source=result.data.source,
            outcome=result.data.outcome,
            scaling=result.data.scaling,
            columns=result.data.columns,
            positive=result.data.positive,
            levels=result.data.levels,
            keep=result.data.keep,
            frames=result.data.frames,
        ),
        privacy=msgspec.structs.replace(result.privacy, ledger=None),
    )


def local_result(result: Result) -> dict[str, Any]:
    """Return the values measured on records or on this machine, for evaluation.json in the private
    part.
    """
    every = builtins_of(result)
    privacy = every["privacy"]
    local = {key: value for key, value in every.items() if key not in ("schema", *SAFE)}
    local["privacy"] = {key: privacy[key] for key in ("ledger",) if key in privacy}
    return {"schema": "tacit/evaluation/2", "name": result.name, **local}


def whole_result(shared: Result, path: Path, text: str) -> Result:
    """Return the result with the private values that `local_result` wrote to evaluation.json.

    Parameters
    ----------
    shared : Result
        The public part.
    path, text : Path, str
        evaluation.json and its content. A file that cannot be read raises a `DataError`.
    """
    local = decode(text, dict[str, Any], path)
    private = local.pop("privacy", {})
    known = builtins_of(shared)
    merged = known | {key: value for key, value in local.items() if key in Result.__struct_fields__}
    merged["privacy"] = known["privacy"] | private
    return decode(json.dumps(merged), Result, path)

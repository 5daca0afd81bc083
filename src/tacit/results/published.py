"""What of a result may be shared, and what no guarantee covers.

A run with a guarantee claims ε for what leaves the parties. A file that anybody may have must then
be a function of the charged releases and of what is public anyway; whatever else was computed from
records (metrics, counts, notes on rows, timings) stays in the private part of the run directory.
`public_result` keeps a list of what is known to be safe: a key that is not on it is not shared.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tacit.plan.plan import Plan
from tacit.results.summary import DataFacts, PartyRow, Result, builtins_of

SAFE = (
    "name",
    "seed",
    "engine",
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
    "sites",
    "topics",
    "true_values",
)
"""Functions of the releases (q, its intervals, how the rounds went) or of the configuration."""
MEASURED = ("metrics", "calibration", "not_evaluated")
"""Exact functions of held-out records; shared only with evaluate.publish = true."""
NOTHING_MEASURED = {"training": None, "held_out": None}

PRIVATE_PART = (
    "what is in private/ (checkpoint, ledger, evaluation.json, timings): it is exact, for those "
    "who may see the records"
)
CHOICES = (
    "choices that were made after looking at the records (columns, bounds, model, ε), and how long "
    "a run takes"
)
PUBLISHED = (
    "metrics and calibration on the held-out records, which are exact and are shared here because "
    "the configuration says evaluate.publish = true"
)
COUNTS = (
    "the number of records of each party after preparation (some may have been dropped for a "
    "missing value), which this adjacency takes to be public"
)


def covered(plan: Plan) -> bool:
    """Whether a run claims a guarantee: with a known seed for the noise it does not."""
    return plan.guarantee is not None and plan.guarantee.caveat is None


def counts_are_public(plan: Plan) -> bool:
    """Under substitution of one record the number of records is the same for neighbours.

    It is not where one is added or removed, and not where a person or a whole party, of any number
    of records, takes the place of another.
    """
    privacy = plan.privacy
    return privacy is None or (privacy.unit, privacy.adjacency) == ("record", "replace-one")


def not_covered(plan: Plan, *, publish: bool = False) -> list[str]:
    """What the guarantee of a run does not say anything about."""
    exceptions = []
    if publish:
        exceptions.append(PUBLISHED)
    if counts_are_public(plan):
        exceptions.append(COUNTS)
    return [*exceptions, PRIVATE_PART, CHOICES]


def public_result(result: Result, plan: Plan, *, publish: bool) -> Result:
    """The part of a result that may be shared; all of it where no guarantee is claimed."""
    if not covered(plan):
        return result
    measured: dict[str, Any] = {"metrics": NOTHING_MEASURED}
    if publish:
        measured = {key: getattr(result, key) for key in MEASURED}
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
        ),
        privacy=msgspec.structs.replace(result.privacy, ledger=None),
    )


def local_result(result: Result) -> dict[str, Any]:
    """What was measured on records or on this machine: for evaluation.json in the private part."""
    every = builtins_of(result)
    privacy = every["privacy"]
    local = {key: value for key, value in every.items() if key not in ("schema", *SAFE)}
    local["privacy"] = {key: privacy[key] for key in ("ledger",) if key in privacy}
    return {"schema": "tacit/evaluation/2", "name": result.name, **local}

"""The blocks of result.json that a run, a server and a fit write in the same way."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tacit.data.federation import Federation
from tacit.data.records import len_records
from tacit.data.schema.layout import Layout, indicated_columns
from tacit.methods import Clipped
from tacit.models import Model
from tacit.models.prior import PRIOR_PARTY
from tacit.plan.plan import Plan
from tacit.results.diagnostics import cautions_of, learned_share
from tacit.results.posterior import Posterior
from tacit.results.published import not_covered
from tacit.results.saved import model_settings
from tacit.results.statements import clipped_block, intervals_block, statement
from tacit.results.verdict import Verdict, missing_caution
from tacit.server.state import ServerState


def result_block(
    plan: Plan,
    posterior: Posterior,
    state: ServerState,
    verdict: Verdict,
    layout: Layout | None,
    clipped: Clipped | None = None,
) -> dict[str, Any]:
    """Posterior, verdict and what was run. The parameters are those of `verdict_block`, and the
    server's last state.
    """
    return {
        "model": model_block(plan.model),
        "family": posterior.family.kind,
        "method": plan.method.kind,
        "schedule": plan.schedule.kind,
        "rounds": state.round,
        "finished": state.finished,
        "exchanges": state.exchanges - _visits_of_the_prior(state),
        "refused": state.refused,
        **verdict_block(plan, posterior, verdict, layout, clipped),
        "posterior": posterior.table(),
        "intervals": intervals_block(plan),
    }


def data_block(federation: Federation | None, source: str | None = None) -> dict[str, Any]:
    """Where the records came from and how they were prepared; `notes` are for those who see them.

    Parameters
    ----------
    federation
        The prepared records; None for plain arrays.
    source
        The data set's name in a configuration.
    """
    if federation is None:
        return {"source": source, "preparation": None, "target": None, "notes": []}
    return {
        "source": source,
        "preparation": federation.preparation,
        "target": federation.target,
        "schema": msgspec.json.decode(msgspec.json.encode(federation.schema)),
        "notes": list(federation.notes),
    }


def model_block(model: Model) -> dict[str, Any]:
    """The model, with the arguments that make it again where they have a JSON form."""
    return {
        "kind": model.kind,
        "dimension": model.dimension,
        "output": model.output,
        "settings": model_settings(model),
    }


def verdict_block(
    plan: Plan,
    posterior: Posterior,
    verdict: Verdict | None,
    layout: Layout | None,
    clipped: Clipped | None = None,
) -> dict[str, Any]:
    """Whether a run converged, and every reason not to believe its numbers.

    Parameters
    ----------
    plan
        The plan of the run.
    posterior
        Its result.
    verdict
        None at a party, which has not seen the rounds: `converged` is then None.
    layout
        The columns of x by the public schema, if they are declared.
    clipped
        The share of clipped contributions, measured in simulations only.
    """
    cautions = [
        *cautions_of(plan, posterior, verdict, clipped),
        *missing_caution(indicated_columns(layout)),
    ]
    learned = learned_share(plan, posterior)
    return {
        "converged": None if verdict is None else verdict.converged,
        "why": "only the server's result says it" if verdict is None else verdict.why,
        "learned": None if learned is None else learned.tolist(),
        "cautions": [{"kind": one.kind, "text": one.text} for one in cautions],
        **({} if clipped is None else {"clipped": clipped_block(clipped)}),
    }


def _visits_of_the_prior(state: ServerState) -> int:
    """A prior kept as a factor is visited like a party, but that is no exchange with one."""
    return state.factors[PRIOR_PARTY].visits if PRIOR_PARTY in state.factors else 0


def party_row(plan: Plan, name: str) -> dict[str, Any]:
    """Size and share of positive outcomes of one party; the latter only without privacy."""
    records = plan.parties[name]
    # An exact fraction would be a release that nobody has paid for.
    told = plan.model.output == "bernoulli" and plan.privacy is None
    positive = float(np.mean(records["y"])) if told else None
    return {"name": name, "records": len_records(records), "positive_fraction": positive}


def privacy_block(plan: Plan, *, publish: bool = False) -> dict[str, Any]:
    """What result.json says about privacy; `publish`: with exact metrics of held-out records."""
    guarantee = plan.guarantee
    if guarantee is None or plan.privacy is None:
        return {"private": False, "statement": statement(plan)}
    return {
        "private": guarantee.caveat is None,
        "statement": statement(plan),
        "guarantee": {
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "unit": guarantee.unit,
            "adjacency": guarantee.adjacency,
            "trust": guarantee.trust,
            "caveat": guarantee.caveat,
        },
        "accountant": plan.privacy.accountant,
        "aggregation": plan.privacy.aggregation,
        "parties": [
            {
                "name": name,
                "epsilon": one.guarantee.epsilon,
                "delta": one.guarantee.delta,
                "clip": one.clip,
                "noise_sd": one.noise_sd,
                "noise_multiplier": one.noise_multiplier,
                "answers": one.visits,
                "releases": one.releases,
            }
            for name, one in plan.settled.items()
        ],
        "not_covered": not_covered(plan, publish=publish),
    }

"""Compose results from plans, in the same form for runs, servers and fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

import tacit
from tacit.arrays import Arrays
from tacit.data.config import CORPORA, DataConfig
from tacit.data.federation import Federation
from tacit.data.readers.catalogue import declared
from tacit.data.records import len_records
from tacit.data.schema.layout import Layout, indicated_columns
from tacit.data.schema.outcome import outcome_levels
from tacit.data.schema.table import SourceSchema
from tacit.methods import Clipped
from tacit.models import Model
from tacit.models.prior import PRIOR_PARTY
from tacit.plan.calibrate import large_delta
from tacit.plan.explain import explain
from tacit.plan.plan import Plan
from tacit.privacy.guarantee import TRUST
from tacit.results.cautions import missing_caution, outside_cautions
from tacit.results.coefficients import coefficients, unit_map
from tacit.results.diagnostics import (
    cautions_of,
    constant_caution,
    counted_clipping,
    diagnostics_block,
    learned_share,
)
from tacit.results.posterior import Posterior
from tacit.results.published import not_covered
from tacit.results.saved import model_settings
from tacit.results.statements import (
    clipping_statement,
    interval_note,
    prior_statement,
    statement,
)
from tacit.results.summary import (
    Attacker,
    CautionNote,
    ClippedShare,
    Coefficient,
    DataFacts,
    GuaranteeFacts,
    Intervals,
    ModelFacts,
    ModelTable,
    PartyRow,
    PartyTerms,
    PosteriorTable,
    PrivacyFacts,
    Result,
    declared_columns,
)
from tacit.results.verdict import Verdict
from tacit.server.state import ServerState


def compose_result(
    plan: Plan,
    posterior: Posterior,
    state: ServerState,
    history: Iterable[Mapping[str, Any]],
    verdict: Verdict,
    layout: Layout | None,
    clipped: Clipped | None = None,
    **more: Any,
) -> Result:
    """Make the result of a run: posterior, verdict and facts about the run.

    Parameters
    ----------
    plan, posterior, verdict, layout, clipped
        As for `verdict_facts`.
    state, history
        The server's last state, and the log of all rounds.
    **more
        The other fields of `Result`, including `data`.
    """
    history = list(history)
    verdicts = verdict_facts(plan, posterior, verdict, layout, clipped, state.memory)
    where = "cautions" if plan.privacy is None else "local_cautions"
    verdicts[where] = [
        *verdicts.get(where, []), *outside_notes(more["data"]), *_delta_notes(plan),
    ]  # fmt: skip
    rounds = [line for line in history if line["event"] == "round"]
    changes = [line["last_change"] for line in rounds if line["last_change"] is not None]
    return Result(
        seed=plan.seed,
        version=tacit.__version__,
        date=datetime.now(UTC).date().isoformat(),
        model=model_facts(plan.model, prior_statement(plan)),
        method=plan.method.kind,
        schedule=plan.schedule.kind,
        rounds=state.round,
        finished=state.finished,
        exchanges=state.exchanges - _visits_of_the_prior(state),
        refused=state.refused,
        last_change=changes[-1] if changes else None,
        diagnostics={}
        if plan.privacy is not None
        else diagnostics_block(plan, state, rounds, verdict.dispersion),
        posterior=posterior_table(posterior),
        intervals=Intervals(warning=interval_note(plan)),
        coefficients=stored_coefficients(
            posterior, more["data"], verdicts["learned"], more.get("true_values")
        ),
        tables=model_tables(posterior, more["data"]),
        **verdicts,
        **more,
    )


def posterior_table(posterior: Posterior) -> PosteriorTable:
    """Make the table of mean and sd of every coordinate of θ for result.json."""
    return PosteriorTable(family=posterior.family.kind, **posterior.table())


def model_tables(posterior: Posterior, data: DataFacts) -> list[ModelTable]:
    """Make the tables that the model defines, such as its clusters, in the original units of the
    columns.
    """
    columns = declared_columns(data) or ()
    units = {one.name: one.affine for one in columns if one.affine is not None}
    return [
        ModelTable(title=one.title, columns=list(one.columns), rows=[list(row) for row in one.rows])
        for one in posterior.model.described(posterior.natural, units)
    ]


def data_facts(federation: Federation | None, source: str | None = None) -> DataFacts:
    """Describe source and preparation of the records.

    Parameters
    ----------
    federation
        The prepared records; None for plain arrays.
    source
        The data set's name in a configuration.
    """
    if federation is None:
        return DataFacts(source=source)
    first = next(iter(federation.parties.values()), {})
    facts = DataFacts(source=source, outcome=federation.outcome, scaling=federation.scaling)
    if federation.schema is not None:
        facts = schema_facts(federation.schema, source, federation.scaling)
    return msgspec.structs.replace(
        facts,
        keep=[name for name in first if name not in ("x", "y", "person")],
        frames=federation.frames,
        notes=list(federation.notes),
        outside=federation.shares_outside,
    )


def schema_facts(schema: SourceSchema, source: str | None, scaling: str = "public") -> DataFacts:
    """Describe the columns of a public schema for a result.

    Parameters
    ----------
    schema
        The schema.
    source
        The data set's name in a configuration.
    scaling
        "public", or "pooled" if the schema contains statistics of the records.
    """
    return DataFacts(
        source=source,
        outcome=schema.outcome,
        scaling=scaling,
        columns=_as_json(schema.columns),
        positive=schema.positive,
        levels=list(outcome_levels(schema)),
    )


def public_facts(data: DataConfig, sites: int) -> DataFacts:
    """Describe the records of a live federation by the agreed schema.

    Parameters
    ----------
    data
        The data table of the agreed file.
    sites
        Number of parties.
    """
    if data.source in CORPORA:
        return DataFacts(source=data.source, outcome=data.outcome, scaling="public")
    facts = schema_facts(declared(data, sites=sites), data.source)
    return msgspec.structs.replace(facts, keep=list(data.keep))


def stored_coefficients(
    posterior: Posterior,
    data: DataFacts,
    learned: Sequence[float] | None,
    true_values: Mapping[str, float] | None = None,
) -> list[Coefficient]:
    """Return the coefficients in the original units of the columns; empty if there are too many to
    list.
    """
    columns = declared_columns(data)
    found = unit_map(posterior.model, columns, data.outcome)
    if found is None or not posterior.model.listed:
        return []
    rows = coefficients(posterior, columns, data.outcome, learned=learned)
    if not true_values:
        return rows
    values = found.values(np.array([true_values.get(name, np.nan) for name in posterior.names]))
    known = [
        msgspec.structs.replace(row, true_value=float(value))
        for row, value in zip(rows, values, strict=False)
    ]
    return [*known, *rows[len(known) :]]


def _as_json(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def model_facts(model: Model, prior: str | None = None) -> ModelFacts:
    """Describe the model, with its constructor arguments if they have a JSON form."""
    return ModelFacts(
        kind=model.kind,
        dimension=model.dimension,
        output=model.output,
        settings=model_settings(model),
        prior=prior,
    )


def verdict_facts(
    plan: Plan,
    posterior: Posterior,
    verdict: Verdict | None,
    layout: Layout | None,
    clipped: Clipped | None = None,
    memory: Arrays | None = None,
) -> dict[str, Any]:
    """Return the fields of `VerdictFacts`.

    Parameters
    ----------
    plan
        The plan of the run.
    posterior
        The posterior of the run.
    verdict
        The verdict on the run; None at a party, which has not seen the rounds. `converged` is then
        None.
    layout
        The columns of x according to the public schema; None if no schema is declared.
    clipped
        The share of clipped contributions that was measured in a simulation. If None, it is
        computed from the count that the parties released, if they released one.
    memory
        Arrays that the server keeps between rounds (`ServerState.memory`); None at a party.
    """
    clipped = counted_clipping(plan, memory) if clipped is None else clipped
    cautions = [
        *cautions_of(plan, posterior, verdict, clipped, memory),
        *missing_caution(indicated_columns(layout)),
        *([] if verdict is None else constant_caution(plan, layout)),  # a party sees its own only
    ]
    learned = learned_share(plan, posterior, memory)
    return {
        "converged": None if verdict is None else verdict.converged,
        "why": "the server sent no verdict" if verdict is None else verdict.why,
        "learned": None if learned is None else learned.tolist(),
        "cautions": [CautionNote(kind=one.kind, text=one.text) for one in cautions],
        "clipped": None
        if clipped is None
        else ClippedShare(**clipped._asdict(), statement=clipping_statement(clipped)),
    }


def _delta_notes(plan: Plan) -> list[CautionNote]:
    """Return a caution if δ is too large for a party's number of units, which it contains."""
    if plan.privacy is None or not plan.settled:
        return []
    text = large_delta(plan.privacy, {name: one.units for name, one in plan.settled.items()})
    return [] if text is None else [CautionNote(kind="large-delta", text=f"{text}.")]


def outside_notes(data: DataFacts) -> list[CautionNote]:
    """Return a caution for each column of which many values were clipped to the bounds.

    Its exact numbers must not be shared if the run is private.
    """
    bounds = {one.name: (one.low, one.high) for one in declared_columns(data) or ()}
    known = {name: (share, bounds[name]) for name, share in data.outside.items()}
    return [CautionNote(kind=one.kind, text=one.text) for one in outside_cautions(known)]


def _visits_of_the_prior(state: ServerState) -> int:
    """Return the number of updates of the prior's factor; 0 if the prior is not a separate factor.

    These updates are computed by the server and are not exchanges with a party.
    """
    return state.factors[PRIOR_PARTY].visits if PRIOR_PARTY in state.factors else 0


def party_row(plan: Plan, name: str) -> PartyRow:
    """Return one party's number of records and, without privacy, its share of positive outcomes."""
    records = plan.parties[name]
    # An exact fraction would be a release that was not charged.
    told = plan.model.output == "bernoulli" and plan.privacy is None and "y" in records
    positive = float(np.mean(records["y"])) if told else None
    return PartyRow(name=name, records=len_records(records), positive_fraction=positive)


def privacy_facts(plan: Plan, *, publish: bool = False) -> PrivacyFacts:
    """Describe privacy for a result.

    With `publish`, exact held-out metrics are listed among the facts that the guarantee does not
    cover.
    """
    guarantee = plan.guarantee
    if guarantee is None or plan.privacy is None:
        return PrivacyFacts(private=False, statement=statement(plan))
    return PrivacyFacts(
        private=guarantee.caveat is None,
        statement=statement(plan),
        guarantee=GuaranteeFacts(
            epsilon=guarantee.epsilon,
            delta=guarantee.delta,
            unit=guarantee.unit,
            adjacency=guarantee.adjacency,
            trust=guarantee.trust,
            caveat=guarantee.caveat,
        ),
        accountant=plan.privacy.accountant,
        aggregation=plan.privacy.aggregation,
        parties=[
            PartyTerms(
                name=name,
                epsilon=one.guarantee.epsilon,
                delta=one.guarantee.delta,
                clip=one.clip,
                noise_sd=one.noise_sd,
                noise_multiplier=one.noise_multiplier,
                answers=one.visits,
                releases=one.releases,
            )
            for name, one in plan.settled.items()
        ],
        attackers=attackers(plan),
        not_covered=not_covered(plan, publish=publish),
    )


def attackers(plan: Plan) -> list[Attacker]:
    """Compute ε for one unit against each kind of attacker.

    ε for a whole party is left out, because it depends on the party's number of records, which may
    be private.
    """
    central = plan.guarantee is not None and plan.guarantee.trust == TRUST["central"]
    return [
        Attacker(attacker=row.attacker, sees=row.sees, epsilon=row.unit_epsilon, remark=row.remark)
        for row in explain(plan, central=central).rows
    ]

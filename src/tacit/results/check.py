"""Description of a plan before it runs: the content of `tacit check` and of `tacit.check`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from tacit.data.federation import Federation
from tacit.data.records import len_records
from tacit.data.schema.layout import indicated_columns
from tacit.methods import LocalMethod
from tacit.methods.summed import SCALE_SETTINGS, SummedMethod
from tacit.models import Records
from tacit.plan.calibrate import Settled
from tacit.plan.plan import Plan
from tacit.plan.signal import POOR, signal
from tacit.results.cautions import missing_caution
from tacit.results.diagnostics import constant_caution, known_before
from tacit.results.evaluation import cannot_evaluate
from tacit.results.statements import prior_statement, statement
from tacit.server.schedule import Damping, PowerDamping, StalenessDamping

MOST_ROWS = 12
TERMS = (
    "parties", "units", "ε", "δ", "clip", "noise sd", "noise / clip", "releases", "signal to noise",
)  # fmt: skip
NOTHING_SPENT = "This check spends no budget."


@dataclass(frozen=True)
class Check:
    """A valid plan with its description. `print` shows it like `tacit check`."""

    plan: Plan = field(repr=False)
    """The plan, without records."""
    rows: list[tuple[str, str]]
    """Description of the plan: pairs of a label and its value."""
    terms: list[list[Any]]
    """Table of noise, ε and signal with the columns `TERMS`: one row per group of parties with
    equal privacy terms; empty without privacy.
    """
    warnings: list[str]
    notes: list[str]

    def __str__(self) -> str:
        width = max(len(label) for label, _ in self.rows)
        lines = ["Configuration is valid"]
        lines += [f"  {label:<{width}}  {value}" for label, value in self.rows]
        for row in self.terms:
            named = zip(TERMS[1:], row[1:], strict=True)
            lines.append(f"  {row[0]}: " + ", ".join(f"{key} {_text(v)}" for key, v in named))
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join([*lines, *(f"note: {text}" for text in self.notes)])

    def as_dict(self) -> dict[str, Any]:
        """Return the description of the plan, its privacy terms, the warnings and the notes as a
        dict of JSON values.
        """
        return {
            "valid": True,
            "plan": dict(self.rows),
            "parties": [dict(zip(TERMS, row, strict=True)) for row in self.terms],
            "warnings": self.warnings,
            "notes": self.notes,
        }


def describe(
    plan: Plan, federation: Federation | None, test: Records | None, *, source: str = ""
) -> Check:
    """Describe a plan and its records.

    Parameters
    ----------
    plan
        A plan with its records.
    federation
        The federation from which the records come; None for plain arrays.
    test
        The held-out records, if there are any.
    source
        The data set's name in a configuration.
    """
    sizes = [len_records(records) for records in plan.parties.values()]
    held_out = 0 if test is None else len_records(test)
    rows = [
        (
            "parties",
            f"{len(sizes)} with {min(sizes):,} to {max(sizes):,} records, {sum(sizes):,} in all",
        ),
        ("held out", f"{held_out:,} records"),
    ]
    warnings, notes = [], []
    if federation is not None:
        name = f"{source}, " if source else ""
        rows.insert(0, ("data", f"{name}prepared by {federation.scaling} schema"))
        if federation.outcome:
            rows.append(("outcome", f"{federation.outcome} ({federation.output})"))
        warnings += [one.text for one in missing_caution(indicated_columns(federation.layout))]
        warnings += [one.text for one in constant_caution(plan, federation.layout)]
        notes += federation.notes
    rows += [*plan_rows(plan), ("privacy", statement(plan))]
    terms = []
    if plan.settled:
        terms, poor = _terms(plan)
        warnings += [*poor, *(one.text for one in known_before(plan))]
        notes.append(
            "numbers of records are exact here; show them only to people who may see the records"
        )
        if plan.model.user_program:
            notes.append(
                "the model was not evaluated on the records, because no guarantee would cover "
                "this: only the run detects a value outside the model's support"
            )
    why = cannot_evaluate(plan, test)
    if why is not None:
        notes.append(f"there will be no metrics of the held-out records: {why}")
    return Check(plan.without_records(), rows, terms, warnings, notes)


def plan_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return rows with a label and a value for model, posterior family, method and schedule."""
    schedule, sizes = plan.schedule, reply_sizes(plan)
    parameters = sum(value.size for value in plan.family.zero().values())
    damping = schedule.damping
    if isinstance(damping, Damping):
        damping = f"{damping.start} to {damping.end} over {damping.rounds} rounds"
    elif isinstance(damping, PowerDamping):
        damping = f"({damping.offset:g} + t)^−{damping.decay:g}"
    elif isinstance(damping, StalenessDamping):
        damping = f"decreasing with staleness, at least {damping.least:g}"
    visited = schedule.parties_per_round or len(plan.parties)
    return [
        ("model", f"{plan.model.kind}, {plan.model.dimension} parameters"),
        *([("prior", prior)] if (prior := prior_statement(plan)) else []),
        ("posterior", f"{plan.family.kind}, {parameters:,} natural parameters"),
        (
            "numbers per reply, by stage",
            ", ".join(f"{name} {size:,}" for name, size in sizes.items()),
        ),
        ("method", _method(plan.method)),
        *([("method chosen by auto", plan.why)] if plan.why else []),
        (
            "schedule",
            f"{schedule.kind}, {schedule.rounds} round{'s' * (schedule.rounds != 1)} with "
            f"{visited} {'party' if visited == 1 else 'parties'}, damping {damping}",
        ),
        *(("secure sums", line) for line in (plan.thresholds.words() if plan.thresholds else ())),
    ]


def reply_sizes(plan: Plan) -> dict[str, int]:
    """Return the number of values in a reply for each stage of the method."""
    method, model, family = plan.method, plan.model, plan.family
    sizes = {}
    for stage in method.stage_table(plan.schedule.rounds):
        shapes = method.integer_shapes(model, family, stage)
        if plan.privacy is None or shapes is None:
            shapes = method.released_shapes(model, family, stage)
        sizes[stage] = sum(math.prod(shape) for shape in shapes.values())
    return sizes


def _method(method: LocalMethod) -> str:
    """Describe a method by name and settings; settings that are unset or unused are omitted."""
    own = fields(method) if is_dataclass(method) else ()
    unused = SCALE_SETTINGS if isinstance(method, SummedMethod) else ()
    names = [one.name for one in own if not one.name.startswith("_") and one.name not in unused]
    settings = {name: getattr(method, name) for name in names}
    shown = ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)
    return f"{method.kind} ({shown})" if shown else method.kind


def _terms(plan: Plan) -> tuple[list[list[Any]], list[str]]:
    """Return a table of noise, ε and signal, and a list of warnings about weak signals. The table
    has one row per group of parties with equal privacy terms.
    """
    kinds: dict[tuple[Any, ...], list[str]] = {}
    for name, one in plan.settled.items():
        key = (one.clip, one.noise_sd, one.visits, one.guarantee.epsilon, one.units)
        kinds.setdefault(key, []).append(name)
    rows, poor = [], []
    for names in list(kinds.values())[:MOST_ROWS]:
        settled = plan.settled[names[0]]
        ratio = signal(plan, settled)
        rows.append(_term_row(names, settled, ratio))
        if ratio < POOR and len(poor) < 3:
            poor.append(
                f"party {names[0]}: even if all its records agree, a whole run's signal is "
                f"{ratio:.2g} times its noise (per coordinate, root mean square); use more "
                "records, a larger ε, fewer parameters or aggregation = 'secure' or 'trusted'"
            )
    if len(kinds) > MOST_ROWS:
        rows.append([f"… and {len(kinds) - MOST_ROWS} more kinds", *[None] * (len(TERMS) - 1)])
    return rows, poor


def _term_row(names: list[str], settled: Settled, ratio: float) -> list[Any]:
    shown = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})"
    share = f" (a party adds 1/√{settled.shares} of it)" if settled.shares > 1 else ""
    return [
        shown,
        settled.units,
        settled.guarantee.epsilon,
        f"{settled.guarantee.delta:g}",
        settled.clip,
        f"{as_range(*settled.noise_range)}{share}",
        as_range(*settled.multiplier_range),
        settled.releases,
        f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:,.0f}",
    ]


def as_range(low: float, high: float) -> str:
    """Return two numbers as text: one number if they differ by less than 1 %.

    >>> as_range(1.0, 1.001), as_range(5.4, 10.9)
    ('1', '5.4 to 10.9')
    """
    return f"{low:.4g}" if high <= 1.01 * low else f"{low:.4g} to {high:.4g}"


def _text(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else "–" if cell is None else str(cell)

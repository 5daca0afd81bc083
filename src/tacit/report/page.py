"""Contents of a report, in reading order."""

from __future__ import annotations

import json
import math
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tacit
from tacit.privacy.settings import RUN_DIRECTORY
from tacit.report.coefficients import coefficient_parts
from tacit.report.figures import as_svg
from tacit.report.load import PartyRun, Run
from tacit.report.parts import (
    Badge,
    Code,
    Drawing,
    Heading,
    Items,
    Page,
    Paragraph,
    Section,
    Statement,
    Table,
    TableRow,
    count,
    facts,
    joined,
    number,
    percent,
    several,
)
from tacit.report.privacy import (
    balance_parts,
    guarantee_parts,
    privacy_badge,
    privacy_parts,
    privacy_statement,
)
from tacit.results.explained import explained
from tacit.results.figures import plot_calibration, plot_convergence, plot_negative_elbo
from tacit.results.summary import CalibrationBin, Metrics, PartyResult, Result

METRICS = {
    "accuracy": ("an accuracy of", "share of records with a correct most probable outcome"),
    "log_predictive_density": ("a log predictive density of", "per record; higher is better"),
    "brier": (
        "a Brier score of",
        "mean of (p − y)²; for several levels, half the sum over levels; lower is better",
    ),
    "calibration_error": ("an expected calibration error of", "15 bins; lower is better"),
    "auroc": ("an area under the ROC curve of", "0.5 is chance, 1 perfect order"),
    "c_index": ("a C-index of", "0.5 is chance, 1 perfect order"),
    "rmse": ("a root mean squared error of", "in units of y; lower is better"),
    "coverage_90": ("a coverage of the 90 % interval of", "best at 90 %"),
    "completion_perplexity": (
        "a completion perplexity of",
        "per word of each document's second half given its first; lower is better",
    ),
    "bound_perplexity": ("a bound perplexity of", "upper bound per word; lower is better"),
}
"""For each metric: its text in a sentence, and its meaning."""
PATHS = {"data.path", "data.vocabulary", "model.function", "privacy.ledger"}
"""Configuration keys whose value is a file."""
PERCENT = {"accuracy", "coverage_90"}
MOST_REFUSALS = 50
FOOTER = "Made only from the shareable part of this run."
PRIVATE_FOOTER = "Made from the shareable and the private part of this run. Do not share this page."
NOT_TO_SHARE = Statement(
    "Do not share this page:",
    "it contains numbers computed from records without noise, and totals of a ledger. The report "
    "to share is public/report.html.",
    "bad",
)


def page_of(run: Run) -> Page:
    """Return the report of a run or of a live federation's server."""
    result = run.result
    sections = [
        ("privacy", "Privacy", privacy_parts(result)),
        ("coefficients", "Coefficients", coefficient_parts(result)),
        ("topics", "Topics", topic_parts(result)),
        ("tables", "Results", model_table_parts(result)),
        ("performance", "Held-out performance", performance_parts(result)),
        ("parties", "Parties", party_parts(result)),
        ("convergence", "Convergence", convergence_parts(run)),
        ("data", "The data", data_parts(result)),
        ("run", "The run", [facts_table(result)]),
        ("again", "Repeat this run", reproduction_parts(run)),
    ]
    return Page(
        title=result.name,
        kicker=_kicker(result.version, result.date),
        finding=summary(result),
        badges=[privacy_badge(result), convergence_badge(result)],
        statements=[
            *([NOT_TO_SHARE] * run.private),
            *verdict_statements(result),
            privacy_statement(result),
        ],
        sections=_kept(sections),
        footer=PRIVATE_FOOTER if run.private else FOOTER,
    )


def party_page(run: PartyRun) -> Page:
    """Return the report for one party of a live federation."""
    result = run.result
    private = result.privacy.startswith("Differential privacy")
    rows = [
        ("Party", result.party),
        ("Run", result.run or "–"),
        ("Agreed configuration", result.configuration),
    ]
    evaluation = run.evaluation
    ledger = (
        "Every charge is in this party's own ledger: tacit ledger show. The total spending on its "
        "records and metrics on its held-out records are in the private report: "
        "tacit report STATE --private."
    )
    sections = [
        (
            "privacy",
            "Privacy",
            [
                Paragraph(result.privacy),
                *guarantee_parts(result.guarantee),
                *([Paragraph(ledger)] * (private and evaluation is None)),
                *(balance_parts(evaluation.ledger) if evaluation else []),
            ],
        ),
        ("coefficients", "Coefficients", coefficient_parts(result)),
        (
            "performance",
            "Held-out performance",
            metric_parts(evaluation.metrics, evaluation.not_evaluated) if evaluation else [],
        ),
        ("run", "The run", [facts("The run", rows)]),
    ]
    exact = [Statement("Warning:", one.text, "bad") for one in getattr(evaluation, "cautions", ())]
    finding = (
        f"The posterior that the federation {result.name!r} ended with, as party {result.party!r} "
        "received it."
    )
    return Page(
        title=result.name,
        kicker=_kicker(None, None),
        finding=finding,
        badges=[Badge("Private" if private else "Not private", "good" if private else "bad"),
                convergence_badge(result)],
        statements=[*([NOT_TO_SHARE] if evaluation else []), *verdict_statements(result), *exact],
        sections=_kept(sections),
        footer=PRIVATE_FOOTER if evaluation else FOOTER,
    )  # fmt: skip


def _kept(sections: Sequence[tuple[str, str, Sequence[Any]]]) -> list[Section]:
    return [Section(*section) for section in sections if section[2]]


def _kicker(version: str | None, date: str | None) -> str:
    made = f" · run on {date} with version {version}" if version and date else ""
    return f"tacit {tacit.__version__} · federated Bayesian inference{made}"


def summary(result: Result) -> str:
    """Return one paragraph of plain text about model, data and performance."""
    size = result.model.dimension
    text = f"A {result.model.kind} model with {count(size, 'parameter')} was fitted"
    if result.parties:
        sizes = [party.records for party in result.parties]
        held = [size for size in sizes if size is not None]
        known = f"{count(sum(held), 'record')} held by " if len(held) == len(sizes) else ""
        text += f" to {known}{several(len(result.parties))}"
    text += f" in {count(result.rounds, 'round')} and {count(result.exchanges, 'exchange')}."
    for part in ("held_out", "training"):
        found = result.metrics.get(part) or {}
        said = [
            _phrase(name, value)
            for name, value in found.items()
            if name in METRICS and value is not None
        ]
        if said:
            text += f" On the {part.replace('_', '-')} records it has {joined(said)}."
            break
    if result.kl_to_exact is not None:
        text += f" It is {number(result.kl_to_exact)} nats (KL) from the exact posterior."
    elif result.kl_to_reference is not None:
        text += f" It is {number(result.kl_to_reference)} nats (KL) from the reference posterior."
    return text


def convergence_badge(result: Result | PartyResult) -> Badge:
    """Return a badge that says whether the fit converged."""
    if result.converged is None:
        return Badge("Convergence not stated", "neutral")
    return Badge("Converged", "good") if result.converged else Badge("Not converged", "bad")


def verdict_statements(result: Result | PartyResult) -> list[Statement]:
    """Return the convergence verdict and all warnings.

    The verdict comes last if the fit converged, and first otherwise.
    """
    if result.converged is None:
        why = result.why or "result.json does not say whether this run converged"
        lead = [Statement("Convergence is not stated:", f"{why}.", "neutral")]
    elif result.converged:
        lead = [Statement("Converged:", f"{result.why}.", "good")]
    else:
        lead = [Statement("Not converged:", f"do not use these numbers; {result.why}.", "bad")]
    if result.clipped is not None:
        lead.append(Statement("Clipping:", result.clipped.statement))
    others = [one.text for one in result.every_caution if one.kind != "not-converged"]
    warnings = [Statement("Warning:", text, "bad") for text in others]
    return [*warnings, *lead] if result.converged else [*lead, *warnings]


def performance_parts(result: Result) -> list[Any]:
    """Return the calibration, and the metrics beside those of the best constant prediction."""
    bins = result.calibration.get("held_out")
    constant = _constant(bins) if bins else {}
    content = metric_parts(result.metrics, {}, constant)
    if constant:
        content.append(
            Paragraph(
                "Base rate only: every held-out record is given the share of positive outcomes "
                "among the held-out records."
            )
        )
    if bins:
        caption = (
            "Calibration on the held-out records: observed frequency against predicted "
            "probability, with 95 % intervals, and the number of records in each bin."
        )
        content.append(Drawing(as_svg(plot_calibration(bins), "calibration", caption), caption))
    return content + _failures(result.not_evaluated)


def metric_parts(
    metrics: Mapping[str, Metrics | None],
    not_evaluated: Mapping[str, str],
    constant: Mapping[str, float] | None = None,
) -> list[Any]:
    """Return a table of metrics, one column per set of records, and a list of failed computations.

    `constant` contains the metrics of predicting the base rate for every record, which are shown in
    a further column.
    """
    parts = [part for part, found in metrics.items() if found]
    names = dict.fromkeys(name for part in parts for name in metrics[part] or {})
    rows = []
    for name in names:
        values = [(metrics[part] or {}).get(name) for part in parts]
        values += [constant.get(name)] if constant else []
        cells = [percent(v) if name in PERCENT else number(v) for v in values]
        rows.append(TableRow(_label(name), cells, note=METRICS.get(name, ("", ""))[1]))
    if not rows:
        return _failures(not_evaluated)
    head = ["Metric", *(part.replace("_", "-").capitalize() for part in parts)]
    head += ["Base rate only"] if constant else []
    return [Table("Metrics", head, rows), *_failures(not_evaluated)]


def _failures(not_evaluated: Mapping[str, str]) -> list[Any]:
    if not not_evaluated:
        return []
    return [
        Heading("Not evaluated"),
        Items([f"{what}: {reason}" for what, reason in not_evaluated.items()]),
    ]


def _constant(bins: Sequence[CalibrationBin]) -> dict[str, float]:
    """Return the accuracy, mean log predictive density and Brier score of a constant prediction.

    The prediction for every record is the base rate: the share of positive outcomes among all
    records, computed from the calibration bins. The result is empty if there are no records, or if
    all outcomes are equal.
    """
    total = sum(one.count for one in bins)
    if not total:
        return {}
    share = sum(one.count * one.observed for one in bins) / total
    if not 0 < share < 1:
        return {}
    return {
        "accuracy": max(share, 1 - share),
        "log_predictive_density": share * math.log(share) + (1 - share) * math.log1p(-share),
        "brier": share * (1 - share),
    }


def topic_parts(result: Result) -> list[Any]:
    """Return a table of every topic's top words, the largest topic first; a long table starts
    collapsed.
    """
    rows = [
        TableRow(str(topic.number), (percent(topic.share), " ".join(topic.words)))
        for topic in result.topics
    ]
    if not rows:
        return []
    head = ["Topic", "Share of all words", "Top words"]
    return [Table(f"All {len(rows)} topics", head, rows, numbers=False)]


def model_table_parts(result: Result) -> list[Any]:
    """Return tables of the clusters of a mixture or the components of a factor model."""
    warning = result.intervals.warning
    parts: list[Any] = [Paragraph(warning)] if result.tables and warning else []
    for one in result.tables:
        rows = [TableRow(row[0], tuple(row[1:])) for row in one.rows]
        parts.append(Table(one.title, one.columns, rows, numbers=False))
    return parts


def party_parts(result: Result) -> list[Any]:
    """Return a table of the parties, without columns that have no values."""
    columns: list[tuple[str, list[str | None]]] = [
        ("Records", [None if p.records is None else f"{p.records:,}" for p in result.parties]),
        (
            "With y = 1",
            [
                None if p.positive_fraction is None else percent(p.positive_fraction)
                for p in result.parties
            ],
        ),
    ]
    known = [(title, values) for title, values in columns if any(values)]
    rows = [
        TableRow(party.name, [values[place] or "–" for _, values in known])
        for place, party in enumerate(result.parties)
    ]
    if not rows:
        return []
    left = [
        TableRow(name, (json.dumps(why, ensure_ascii=False),))
        for name, why in result.left_out.items()
    ]
    parts: list[Any] = [
        Table(f"All {len(rows)} parties", ["Party", *(title for title, _ in known)], rows)
    ]
    names = dict.fromkeys(name for found in result.party_metrics.values() for name in found)
    if names:
        measured = [
            TableRow(
                party,
                [percent(found.get(n)) if n in PERCENT else number(found.get(n)) for n in names],
            )
            for party, found in result.party_metrics.items()
        ]
        head, rest = ["Party", *(_label(name) for name in names)], range(4, len(names) + 1)
        title = "Performance by party"
        parts += [Heading(title), Table(title, head, measured, minor=tuple(rest))]
    if left:
        parts += [Heading("Left out"), Table("Parties left out", ["Party", "Why"], left,
                                             numbers=False)]  # fmt: skip
    return parts


def convergence_parts(run: Run) -> list[Any]:
    """Return the reason for the verdict, the change of q in each round, and refused updates."""
    result, parts = run.result, []
    if result.why:
        parts.append(Paragraph(f"{result.why[0].upper()}{result.why[1:]}."))
    if any((row.last_change or 0.0) > 0 for row in run.rounds):
        caption = "Change of q in each round: KL divergence on a log scale."
        parts.append(Drawing(as_svg(plot_convergence(run.rounds), "change", caption), caption))
    if any(row.negative_elbo is not None for row in run.rounds):
        caption = "Negative evidence lower bound (ELBO) at the start of each round."
        parts.append(Drawing(as_svg(plot_negative_elbo(run.rounds), "elbo", caption), caption))
    numbers = [
        TableRow(one.name, (one.value, one.meaning))
        for one in explained(result.diagnostics, result.clipped)
    ]
    if numbers:
        head = ["Diagnostic", "Value", "Meaning"]
        parts.append(Table("Diagnostics", head, numbers, numbers=False))
    rows = [
        TableRow(str(r.round or "–"), (r.party or "–", r.reason))
        for r in run.refused[:MOST_REFUSALS]
    ]
    if rows:
        head = ["Round", "Party", "Reason"]
        parts += [Heading("Refused updates"), Table("Refused updates", head, rows, numbers=False)]
        more = len(run.refused) - len(rows)
        parts += [Paragraph(f"And {more} more in events.jsonl.")] if more else []
    return parts


def data_parts(result: Result) -> list[Any]:
    """Return source, preparation and public schema of the records."""
    found = (
        ("Source", result.data.source),
        ("Outcome", result.data.outcome),
        ("Scaling", result.data.scaling),
    )
    rows = [(label, value) for label, value in found if value]
    parts: list[Any] = [facts("The data", rows)] if rows else []
    columns = [
        TableRow(str(one.get("name")), (_range(one), str(one.get("missing", "refuse"))))
        for one in result.data.columns or []
    ]
    if columns:
        head = ["Column", "Public range or levels", "Missing values"]
        parts.append(Table(f"Schema of {len(columns)} columns", head, columns, numbers=False))
    return [*parts, *([Items(result.data.notes)] if result.data.notes else [])]


def _range(column: dict[str, Any]) -> str:
    if column.get("levels"):
        return ", ".join(map(str, column["levels"]))
    low, high, unit = column.get("low"), column.get("high"), column.get("unit")
    if low is None or high is None:
        return "not declared"
    return f"{low:g} to {high:g}{f' {unit}' if unit else ''}"


def facts_table(result: Result) -> Table:
    """Return a table of facts about the run."""
    found: list[tuple[str, Any]] = [
        ("Model", f"{result.model.kind}, {result.model.output} output"),
        ("Prior", result.model.prior),
        ("Posterior", result.posterior.family),
        ("Local method", result.method),
        ("Schedule", result.schedule),
        ("Engine", result.engine),
        ("Seed", result.seed),
        ("Rounds", result.rounds),
        ("Exchanges", result.exchanges),
        ("Refused updates", result.refused),
        ("Date", result.date),
        ("Version of tacit", result.version),
        ("Reference", result.reference),
        ("KL(q ‖ exact posterior), nats", result.kl_to_exact),
        ("KL(q ‖ reference), nats", result.kl_to_reference),
        ("Wall time, s", result.timing.get("wall_s")),
        ("of which compiling, s", result.timing.get("compile_s")),
        ("Compilations", result.compilations),
    ]
    return facts("The run", [(label, _word(value)) for label, value in found if value is not None])


def reproduction_parts(run: Run) -> list[Any]:
    """Return the command that repeats the run, and the study file (collapsed)."""
    if not run.config:
        return []
    file = Code(run.config, label="config.toml")
    if run.result.engine == "live":
        text = (
            "The parties of this federation hold their own records. To repeat the run, approve the "
            "same agreed file again, then use tacit serve and tacit join."
        )
        return [Paragraph(text), file]
    place = run.directory
    if place.is_absolute() and place.is_relative_to(Path.cwd()):
        place = place.relative_to(Path.cwd())
    source, out = place / "public" / "config.toml", place.with_name(f"{place.resolve().name}-again")
    command = f"tacit run {shlex.quote(str(source))} --out {shlex.quote(str(out))}"
    return [Paragraph(_again(run)), Code(command), file]


def _again(run: Run) -> str:
    settings = _settings(run.config)
    what = "The configuration below has every setting and the seed."
    if run.result.privacy.private:
        own = settings.get("privacy.ledger") == RUN_DIRECTORY
        charged = (
            "it is charged to a new ledger in its own run directory"
            if own
            else "it is charged to the ledger again"
        )
        what = (
            "The configuration below has every setting. A private run draws new noise, so its "
            f"numbers differ, and {charged}."
        )
    relative = [
        f"{key} = {json.dumps(path, ensure_ascii=False)}"
        for key, path in settings.items()
        if key in PATHS and path != RUN_DIRECTORY and not Path(path).expanduser().is_absolute()
        if key != "model.function" or ".py:" in path
    ]
    if relative:
        several_paths = "are relative paths" if len(relative) > 1 else "is a relative path"
        what += (
            f" Use the directory in which the run was started: {joined(relative)} {several_paths}."
        )
    return what


def _settings(config: str) -> dict[str, str]:
    """Return a dict from `table.key` to value, for the settings whose values are text."""
    tables = tomllib.loads(config).items()
    return {
        f"{name}.{key}": value
        for name, table in tables
        if isinstance(table, dict)
        for key, value in table.items()
        if isinstance(value, str)
    }


def _phrase(name: str, value: float) -> str:
    shown = percent(value) if name in PERCENT else number(value)
    unit = " nats per record" if name == "log_predictive_density" else ""
    return f"{METRICS[name][0]} {shown}{unit}"


def _label(name: str) -> str:
    if name not in METRICS:
        return name.replace("_", " ")
    words = METRICS[name][0].removesuffix(" of").split(" ", 1)[1]
    return words[0].upper() + words[1:]


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return number(value)
    return json.dumps(value, ensure_ascii=False)

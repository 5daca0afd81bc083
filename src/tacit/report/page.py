"""The report as HTML. Every value passes through `escape`."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from tacit.privacy.settings import RUN_DIRECTORY
from tacit.report.load import Run
from tacit.report.privacy import privacy_section, privacy_statement
from tacit.report.style import CSS
from tacit.report.table import breakable, details, html_table, number, percent
from tacit.results.explained import explained
from tacit.results.shown import to_precision
from tacit.results.summary import Result

METRICS = {
    "accuracy": ("an accuracy of", "share of records with a correct most probable outcome"),
    "log_predictive_density": ("a log predictive density of", "per record; higher is better"),
    "brier": (
        "a Brier score of",
        "mean of (p − y)², with several levels of half its sum over them; lower is better",
    ),
    "calibration_error": ("an expected calibration error of", "15 bins; lower is better"),
    "rmse": ("a root mean squared error of", "in units of y; lower is better"),
    "coverage_90": ("a coverage of the 90 % interval of", "best at 90 %"),
    "completion_perplexity": (
        "a completion perplexity of",
        "per word of each document's second half given its first; lower is better",
    ),
    "bound_perplexity": ("a bound perplexity of", "upper bound per word; lower is better"),
}
"""Text of a metric in a sentence, and its meaning."""

PATHS = {"data.path", "data.vocabulary", "model.function", "privacy.ledger"}
"""Keys that name a file."""
PERCENT = {"accuracy", "coverage_90"}
MOST_REFUSALS = 50
LONG_TABLE = 40


class Picture(NamedTuple):
    """A figure file of the page."""

    file: str
    caption: str
    narrow: bool = False


def render(run: Run, pictures: Sequence[Picture]) -> str:
    """The whole page."""
    result = run.result
    sections = [
        ("Privacy", privacy_section(result)),
        ("Coefficients", coefficient_table(run)),
        ("Diagnostics", diagnostics_table(result)),
        ("Topics", topic_table(result)),
        ("Held-out performance", metrics_table(result)),
        ("Not evaluated", failure_list(result)),
        ("Figures", "".join(html_figure(picture) for picture in pictures)),
        ("Parties", party_table(result)),
        ("Refused updates", refusal_table(run)),
        ("The data", data_notes(result)),
        ("The run", facts_table(result)),
        ("Configuration", configuration(run)),
        ("Do it again", reproduction(run)),
    ]
    body = "".join(
        f"<section><h2>{title}</h2>{text}</section>\n" for title, text in sections if text
    )
    return (
        '<!doctype html>\n<html lang="en-GB">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(result.name)} · tacit</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f'<p class="kicker">tacit · federated Bayesian inference</p>\n'
        f"<h1>{escape(result.name)}</h1>\n<p>{escape(summary(result))}</p>\n"
        f"{verdict_statement(result)}\n{privacy_statement(result)}\n{body}"
        "<footer>Made from what may be shared of this run alone.</footer>\n</body>\n</html>\n"
    )


def summary(result: Result) -> str:
    """One paragraph of plain text about model, data and performance."""
    size = result.model.dimension
    text = f"A {result.model.kind} model with {_count(size, 'parameter')} was fitted"
    if result.parties:
        sizes = [party.records for party in result.parties]
        held = [size for size in sizes if size is not None]
        known = f"{_count(sum(held), 'record')} held by " if len(held) == len(sizes) else ""
        text += f" to {known}{_several(len(result.parties))}"
    text += f" in {_count(result.rounds, 'round')} and {_count(result.exchanges, 'exchange')}."
    for part in ("held_out", "training"):
        found = result.metrics.get(part) or {}
        said = [
            _phrase(name, value)
            for name, value in found.items()
            if name in METRICS and value is not None
        ]
        if said:
            text += f" On the {part.replace('_', '-')} records it has {_joined(said)}."
            break
    if result.kl_to_exact is not None:
        text += f" It is {number(result.kl_to_exact)} nats (KL) from the exact posterior."
    elif result.kl_to_reference is not None:
        text += f" It is {number(result.kl_to_reference)} nats (KL) from the reference posterior."
    return text


def verdict_statement(result: Result) -> str:
    """Warnings, then the convergence verdict.

    If the fit did not converge, that is the first warning.
    """
    if result.converged is None:
        lead = (
            '<p class="verdict doubtful"><strong>Convergence is not stated:</strong> result.json '
            "does not say whether this run converged.</p>"
        )
    elif result.converged:
        lead = f'<p class="verdict"><strong>Converged:</strong> {escape(result.why)}.</p>'
    else:
        lead = (
            '<p class="verdict doubtful"><strong>Not converged:</strong> do not use these numbers; '
            f"{escape(result.why)}.</p>"
        )
    if result.clipped is not None:
        said = escape(result.clipped.statement)
        lead += f'<p class="verdict"><strong>Clipping:</strong> {said}</p>'
    others = [one.text for one in result.cautions if one.kind != "not-converged"]
    warnings = "".join(
        f'<p class="verdict doubtful"><strong>Warning:</strong> {escape(text)}</p>'
        for text in others
    )
    return warnings + lead if result.converged else lead + warnings


def diagnostics_table(result: Result) -> str:
    """Numbers behind the verdict, with what they mean."""
    rows = [tuple(escape(text) for text in row) for row in explained(result.diagnostics)]
    return html_table(("", "value", "meaning"), rows, numbers=False) if rows else ""


def metrics_table(result: Result) -> str:
    """One row per metric, one column per set of records."""
    parts = [part for part, found in result.metrics.items() if found]
    names = dict.fromkeys(name for part in parts for name in result.metrics[part] or {})
    rows = []
    for name in names:
        _, meaning = METRICS.get(name, ("", ""))
        values = [(result.metrics[part] or {}).get(name) for part in parts]
        shown = [percent(v) if name in PERCENT else number(v) for v in values]
        rows.append((f"{escape(_label(name))}<br><small>{escape(meaning)}</small>", *shown))
    return html_table(["Metric", *(part.capitalize() for part in parts)], rows) if rows else ""


def coefficient_table(run: Run) -> str:
    """Every coefficient with its central 95 % interval; a long table starts closed.

    Rows whose interval excludes 0 are coloured, if the quantity can have either sign, the fit
    converged, and the intervals are not known to be too narrow.
    """
    truth, warning = run.result.true_values, run.result.intervals.warning
    rows = []
    for shown in run.rows:
        texts = [*shown.texts]
        if truth:
            texts.append(to_precision(truth.get(shown.name), shown.sd))
        rows.append([breakable(shown.name), *(text.replace("-", "−") for text in texts)])
    if not rows:
        return ""
    failed = run.result.converged is False
    clear = [shown.clear and warning is None and not failed for shown in run.rows]
    head = ["Name", "Mean", "Sd", "2.5 %", "97.5 %", *(["True value"] if truth else [])]
    table = html_table(head, rows, clear=clear, minor=(2,))
    note = ""
    if failed:
        note += (
            '<p class="warning"><strong>Not converged.</strong> Whether an interval excludes 0 '
            "is not reliable, so no row is coloured.</p>"
        )
    if warning is not None:
        note += f'<p class="warning"><strong>Too narrow.</strong> {escape(warning)}</p>'
    elif not failed:
        signed = sum(shown.real for shown in run.rows)
        note = (
            f"<p>{sum(clear)} of {signed} intervals exclude 0; those rows are coloured.</p>"
            if signed
            else ""
        )
    if len(rows) > LONG_TABLE:
        return note + details(f"All {len(rows)} coefficients", table)
    return note + table


def failure_list(result: Result) -> str:
    """Evaluations that failed, and why."""
    items = "".join(
        f"<li>{escape(what)}: {escape(why)}</li>" for what, why in result.not_evaluated.items()
    )
    return f"<ul>{items}</ul>" if items else ""


def topic_table(result: Result) -> str:
    """Every topic's top words, the largest topic first; a long table starts closed."""
    rows = [
        (str(topic.number), percent(topic.share), escape(" ".join(topic.words)))
        for topic in result.topics
    ]
    if not rows:
        return ""
    table = html_table(["Topic", "Share of all words", "Top words"], rows, numbers=False)
    return details(f"All {len(rows)} topics", table) if len(rows) > LONG_TABLE else table


def party_table(result: Result) -> str:
    """The parties; columns without values are left out."""
    columns: list[tuple[str, list[str | None]]] = [
        ("Records", [_grouped(p.records) for p in result.parties]),
        ("With y = 1", [_share(p.positive_fraction) for p in result.parties]),
    ]
    known = [(title, values) for title, values in columns if any(values)]
    rows = [
        (escape(party.name), *(values[place] or "–" for _, values in known))
        for place, party in enumerate(result.parties)
    ]
    if not rows:
        return ""
    table = html_table(["Party", *(title for title, _ in known)], rows)
    return details(f"All {len(rows)} parties", table) if len(rows) > LONG_TABLE else table


def _grouped(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _share(value: float | None) -> str | None:
    return None if value is None else percent(value)


def refusal_table(run: Run) -> str:
    """Refused updates, and why."""
    rows = [
        (str(r.round or "–"), escape(r.party or "–"), escape(r.reason))
        for r in run.refused[:MOST_REFUSALS]
    ]
    if not rows:
        return ""
    more = len(run.refused) - len(rows)
    tail = f"<p>And {more} more in events.jsonl.</p>" if more else ""
    return html_table(["Round", "Party", "Reason"], rows, numbers=False) + tail


def data_notes(result: Result) -> str:
    """Source and preparation of the records."""
    facts = (
        ("Source", result.data.source),
        ("Outcome", result.data.outcome),
        ("Scaling", result.data.scaling),
    )
    rows = [(label, escape(value)) for label, value in facts if value]
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.data.notes)
    table = html_table(None, rows, numbers=False) if rows else ""
    return table + (f"<ul>{notes}</ul>" if notes else "")


def facts_table(result: Result) -> str:
    """Facts about the run."""
    facts: list[tuple[str, Any]] = [
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
        ("Reference", result.reference),
        ("KL(q ‖ exact posterior), nats", result.kl_to_exact),
        ("KL(q ‖ reference), nats", result.kl_to_reference),
        ("Wall time, s", result.timing.get("wall_s")),
        ("of which compiling, s", result.timing.get("compile_s")),
        ("Compilations", result.compilations),
    ]
    rows = [(label, escape(_word(value))) for label, value in facts if value is not None]
    return html_table(None, rows, numbers=False)


def configuration(run: Run) -> str:
    """The study file, folded; a fit of `tacit.fit` has none."""
    return details("config.toml", f"<pre>{escape(run.config)}</pre>") if run.config else ""


def reproduction(run: Run) -> str:
    """The command that repeats the run, and where it works."""
    if not run.config:
        return ""
    if run.result.engine == "live":
        return (
            "<p>The parties of this federation hold their own records: the run is repeated by "
            "approving the same agreed file again and by tacit serve and tacit join.</p>"
        )
    place = run.directory
    if place.is_absolute() and place.is_relative_to(Path.cwd()):
        place = place.relative_to(Path.cwd())
    source, out = place / "public" / "config.toml", place.with_name(f"{place.resolve().name}-again")
    command = f"tacit run {shlex.quote(str(source))} --out {shlex.quote(str(out))}"
    settings = _settings(run.config)
    what = "The configuration above has every setting and the seed."
    if run.result.privacy.private:
        own = settings.get("privacy.ledger") == RUN_DIRECTORY
        charged = (
            "it is charged to a new ledger in its own run directory"
            if own
            else "it is charged to the ledger again"
        )
        what = (
            "The configuration above has every setting. A private run draws new noise, so its "
            f"numbers differ, and {charged}."
        )
    relative = [
        f"{key} = {json.dumps(path, ensure_ascii=False)}"
        for key, path in settings.items()
        if key in PATHS and path != RUN_DIRECTORY and not Path(path).expanduser().is_absolute()
        if key != "model.function" or ".py:" in path
    ]
    if relative:
        several = "are relative paths" if len(relative) > 1 else "is a relative path"
        what += f" Use the directory in which the run was started: {_joined(relative)} {several}."
    return f"<p>{escape(what)}</p><pre>{escape(command)}</pre>"


def _settings(config: str) -> dict[str, str]:
    """Text settings of a configuration, as `table.key`."""
    tables = tomllib.loads(config).items()
    return {
        f"{name}.{key}": value
        for name, table in tables
        if isinstance(table, dict)
        for key, value in table.items()
        if isinstance(value, str)
    }


def html_figure(picture: Picture) -> str:
    """A figure with its caption."""
    narrow = ' class="narrow"' if picture.narrow else ""
    caption = escape(picture.caption)
    return (
        f'<figure{narrow}><img src="{escape(picture.file)}" alt="{caption}">'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def _phrase(name: str, value: float) -> str:
    shown = percent(value) if name in PERCENT else number(value)
    unit = " nats per record" if name == "log_predictive_density" else ""
    return f"{METRICS[name][0]} {shown}{unit}"


def _label(name: str) -> str:
    """Metric text without article and preposition."""
    if name not in METRICS:
        return name.replace("_", " ")
    words = METRICS[name][0].removesuffix(" of").split(" ", 1)[1]
    return words[0].upper() + words[1:]


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _several(parties: int) -> str:
    return "1 party" if parties == 1 else f"{parties:,} parties"


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return number(value)
    return json.dumps(value, ensure_ascii=False)

"""The report as HTML: pure functions from a run to text. Every value passes through `escape`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from tacit.report.figures import NORMAL_95
from tacit.report.load import Result, Run
from tacit.report.style import CSS

METRICS = {
    "accuracy": ("an accuracy of", "share of records whose likeliest outcome came true"),
    "log_likelihood": ("a log predictive density of", "nats a record; higher is better"),
    "brier": ("a Brier score of", "mean squared error of the probability; lower is better"),
    "ece": ("an expected calibration error of", "15 bins; lower is better"),
    "rmse": ("a root mean squared error of", "in units of y; lower is better"),
    "coverage_90": ("a coverage of the 90 % interval of", "best at 90 %"),
    "completion_perplexity": (
        "a completion perplexity of",
        "of each document's second half given its first, a word; lower is better",
    ),
    "bound_perplexity": ("a bound perplexity of", "an upper bound, a word; lower is better"),
}
"""How a metric reads in a sentence, and what it means."""

PERCENT = {"accuracy", "coverage_90"}
MOST_REFUSALS = 50
LONG_TABLE = 40


class Picture(NamedTuple):
    """A figure beside the page."""

    file: str
    caption: str
    narrow: bool = False


def render(run: Run, pictures: Sequence[Picture]) -> str:
    """The whole page."""
    result = run.result
    sections = [
        ("How good it is", metrics_table(result)),
        ("Figures", "".join(html_figure(picture) for picture in pictures)),
        ("Topics", topic_table(result)),
        ("Coefficients", coefficient_table(result)),
        ("Parties", party_table(result)),
        ("Refused updates", refusal_table(run)),
        ("The data", data_notes(result)),
        ("The run", facts_table(result)),
        ("Configuration", _details("config.toml", f"<pre>{escape(run.config)}</pre>")),
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
        f"{privacy_statement(result)}\n{body}"
        "<footer>Made from config.toml, events.jsonl and result.json of the run directory alone."
        "</footer>\n</body>\n</html>\n"
    )


def summary(result: Result) -> str:
    """What was learnt, from whom and how good it is, in one paragraph of plain text."""
    size = result.model.dimension
    text = f"A {result.model.kind} model with {_count(size, 'parameter')} was learnt"
    if result.parties:
        held = sum(party["records"] for party in result.parties)
        text += f" from {_count(held, 'record')} held by {_several(len(result.parties))}"
    if result.rounds is not None:
        text += f" in {_count(result.rounds, 'round')}"
    if result.exchanges is not None:
        text += f" and {_count(result.exchanges, 'exchange')}"
    text += "."
    for part in ("test", "train"):
        found = result.metrics.get(part) or {}
        said = [
            _phrase(name, value)
            for name, value in found.items()
            if name in METRICS and value is not None
        ]
        if said:
            text += f" On the {part} records it has {_joined(said)}."
            break
    if result.kl_to_exact is not None:
        text += f" It is {_number(result.kl_to_exact)} nats (KL) from the exact posterior."
    elif result.kl_to_reference is not None:
        text += f" It is {_number(result.kl_to_reference)} nats (KL) from the reference posterior."
    return text


def privacy_statement(result: Result) -> str:
    """The first thing to know about a run: silence is told as "not private"."""
    if result.privacy is None:
        return (
            '<p class="privacy"><strong>Privacy is not stated:</strong> result.json says nothing '
            "of it; treat this run as not private.</p>"
        )
    lead = "This run was private" if result.privacy.private else "This run was not private"
    rest = result.privacy.statement.strip().removeprefix(lead).removeprefix("Not private")
    rest = rest.lstrip(":.;, ")
    kept = " kept" if result.privacy.private else ""
    end = f":</strong> {escape(rest)}" if rest else ".</strong>"
    return f'<p class="privacy{kept}"><strong>{lead}{end}</p>'


def metrics_table(result: Result) -> str:
    """One row a metric, one column a set of records."""
    parts = [part for part, found in result.metrics.items() if found]
    names = dict.fromkeys(name for part in parts for name in result.metrics[part] or {})
    rows = []
    for name in names:
        _, meaning = METRICS.get(name, ("", ""))
        values = [(result.metrics[part] or {}).get(name) for part in parts]
        shown = [_percent(v) if name in PERCENT else _number(v) for v in values]
        rows.append((f"{escape(_label(name))}<br><small>{escape(meaning)}</small>", *shown))
    return html_table(["Metric", *(part.capitalize() for part in parts)], rows) if rows else ""


def coefficient_table(result: Result) -> str:
    """Every coefficient with its central 95 % interval; a long table starts closed."""
    posterior, truth = result.posterior, result.truth or {}
    if not posterior.names:
        return ""
    rows, clear = [], []
    for name, mean, sd in zip(posterior.names, posterior.mean, posterior.sd, strict=True):
        low, high = mean - NORMAL_95 * sd, mean + NORMAL_95 * sd
        row = [escape(name), *(_number(value) for value in (mean, sd, low, high))]
        rows.append([*row, _number(truth.get(name))] if truth else row)
        clear.append(low > 0 or high < 0)
    head = ["Name", "Mean", "Sd", "2.5 %", "97.5 %", *(["Truth"] if truth else [])]
    table = html_table(head, rows, clear=clear)
    note = f"<p>{sum(clear)} of {len(rows)} intervals exclude 0; those rows are coloured.</p>"
    if len(rows) > LONG_TABLE:
        return note + _details(f"All {len(rows)} coefficients", table)
    return note + table


def topic_table(result: Result) -> str:
    """Every topic's top words, the largest topic first; a long table starts closed."""
    rows = [
        (str(topic["number"]), _percent(topic["share"]), escape(" ".join(topic["words"])))
        for topic in result.topics
    ]
    if not rows:
        return ""
    table = html_table(["Topic", "Share of all words", "Top words"], rows, numbers=False)
    return _details(f"All {len(rows)} topics", table) if len(rows) > LONG_TABLE else table


def party_table(result: Result) -> str:
    """Who took part."""
    rows = [
        (escape(p["name"]), f"{p['records']:,}", _percent(p.get("positive_fraction")))
        for p in result.parties
    ]
    if not rows:
        return ""
    table = html_table(["Party", "Records", "With y = 1"], rows)
    return _details(f"All {len(rows)} parties", table) if len(rows) > LONG_TABLE else table


def refusal_table(run: Run) -> str:
    """Which updates were refused and why."""
    rows = [
        (str(r.get("round") or "–"), escape(r.get("party") or "–"), escape(r["reason"]))
        for r in run.refused[:MOST_REFUSALS]
    ]
    if not rows:
        return ""
    more = len(run.refused) - len(rows)
    tail = f"<p>And {more} more in events.jsonl.</p>" if more else ""
    return html_table(["Round", "Party", "Reason"], rows, numbers=False) + tail


def data_notes(result: Result) -> str:
    """Where the records came from and what was done to them before any party saw them."""
    facts = (
        ("Source", result.data.source),
        ("Target", result.data.target),
        ("Preparation", result.data.preparation),
    )
    rows = [(label, escape(value)) for label, value in facts if value]
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.data.notes)
    table = html_table(None, rows, numbers=False) if rows else ""
    return table + (f"<ul>{notes}</ul>" if notes else "")


def facts_table(result: Result) -> str:
    """How the run was done and what it cost."""
    facts: list[tuple[str, Any]] = [
        ("Model", f"{result.model.kind}, {result.model.output} output"),
        ("Family", result.family),
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


def reproduction(run: Run) -> str:
    """The command that gives the same answer."""
    command = f"tacit run {shlex.quote(f'{run.directory.resolve().name}/config.toml')}"
    return (
        "<p>The configuration above holds every setting and the seed:</p>"
        f"<pre>{escape(command)}</pre>"
    )


def html_figure(picture: Picture) -> str:
    """A figure with its caption."""
    narrow = ' class="narrow"' if picture.narrow else ""
    caption = escape(picture.caption)
    return (
        f'<figure{narrow}><img src="{escape(picture.file)}" alt="{caption}">'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def html_table(
    head: Sequence[str] | None,
    rows: Iterable[Sequence[str]],
    *,
    numbers: bool = True,
    clear: Sequence[bool] = (),
) -> str:
    """A table of cells that are HTML already; the first cell of a row is its header."""
    kind = ' class="number"' if numbers else ""
    lines = []
    for index, (first, *rest) in enumerate(rows):
        mark = ' class="clear"' if index < len(clear) and clear[index] else ""
        cells = "".join(f"<td{kind}>{cell}</td>" for cell in rest)
        lines.append(f'<tr{mark}><th scope="row">{first}</th>{cells}</tr>')
    top = ""
    if head is not None:
        first, *rest = (escape(title) for title in head)
        top = f'<thead><tr><th scope="col">{first}</th>'
        top += "".join(f'<th scope="col"{kind}>{title}</th>' for title in rest) + "</tr></thead>"
    return f'<div class="wide"><table>{top}<tbody>{"".join(lines)}</tbody></table></div>'


def _details(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _phrase(name: str, value: float) -> str:
    shown = _percent(value) if name in PERCENT else _number(value)
    unit = " nats a record" if name == "log_likelihood" else ""
    return f"{METRICS[name][0]} {shown}{unit}"


def _label(name: str) -> str:
    """The words of the sentence without article and preposition."""
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
        return _number(value)
    return json.dumps(value, ensure_ascii=False)


def _number(value: float | None) -> str:
    """Four significant digits and a true minus sign."""
    return "–" if value is None else f"{value:#.4g}".rstrip(".").replace("-", "−")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"

"""Topics of Wikipedia against ε: Figure 2 and Table 1 of VIPS, and the cost of the sensitivity.

One pass over the articles in batches without replacement, N = 500 words per document, as
published. Each fit is accounted for by every accountant, with the sensitivity √2·C of replacing a
document, and compared with the recipe of this library at the same ε.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from tacit.datasets import Corpus, load_corpus
from tacit.privacy.accounting import epsilon
from tacit.privacy.events import GaussianEvent, WithoutReplacement
from tacit.privacy.settings import AccountantName, Privacy
from tacit.results.figures import BLUE, GREY, INK, VERMILION, canvas, plain
from tacit.results.figures import title_and_subtitle as title
from tacit.sklearn import LDA, TopicTable
from tacit_studies.kept import Result, kept
from tacit_studies.page import Picture
from tacit_studies.tables import Cell, Table

DELTA = 1e-6
"""Below 1 over the number of articles; the 1e-4 of VIPS is above it."""
PUBLISHED = {"denoise": "zero", "learning_decay": 0.5, "sampling": "without-replacement"}
CLIPPED, UNCLIPPED = {"clip_share": 0.1}, {"clip_share": 1.0}
COMMON_EPSILON = 2.38
COMMON_FITS: tuple[tuple[AccountantName, dict[str, float]], ...] = (
    ("pld", CLIPPED),
    ("rdp", CLIPPED),
    ("strong", CLIPPED),
    ("rdp", UNCLIPPED),
)
"""Accountant and clip of each private fit of Table 1; VIPS has all but the first."""
ACCOUNTANT_WORDS = {"pld": "PLD", "rdp": "RDP (VIPS's moments)", "strong": "strong composition"}
VIPS_WORDS = {
    "non-private": "station line railway opened services located closed owned stations platform",
    "RDP (VIPS's moments)": "station line railway opened services closed code country located "
    "stations",
    "strong composition": "station line railway opened services stations closed section platform "
    "republic",
    "RDP (VIPS's moments), no clipping": "station line french railway opened services republic "
    "closed stations country",
}
"""The columns of VIPS's Table 1, by our names of the rows."""
GREEN, ORANGE = "#009E73", "#E69F00"
LOOKS = (
    ("this library", "pld", VERMILION, "D", "this library (PLD)"),
    ("published", "pld", BLUE, "o", "published recipe (PLD)"),
    ("published", "rdp", GREEN, "s", "published recipe (RDP)"),
    ("published", "strong", ORANGE, "^", "published recipe (strong composition)"),
    ("no clipping", "pld", INK, "x", "no clipping (PLD)"),
    ("no clipping", "rdp", INK, "+", "no clipping (RDP)"),
)
FORMS = {"completion": "Completion of documents", "bound": "Hoffman's bound, as in VIPS"}
Tell = Callable[[str], None]
Made = tuple[list[Table], list[tuple[Picture, Figure]]]


class Scale(NamedTuple):
    """Size of the study: articles, topics, batch sizes S, noises σ, ε of our own recipe."""

    articles: int | None
    topics: int
    batches: tuple[int, ...]
    noises: tuple[float, ...]
    epsilons: tuple[float, ...]
    passes: int


WHOLE = Scale(None, 50, (5_000, 10_000, 20_000), (1.0, 1.24, 2.0), (1.0, 2.0, 3.0), 3)
QUICK = Scale(20_000, 10, (2_000, 4_000), (1.0, 2.0), (3.0,), 2)


class Fit(NamedTuple):
    """One fit of the study: a name, arguments of LDA, and its noise or ε."""

    recipe: str
    settings: dict[str, Any]
    noise: float | None = None
    epsilon: float | None = None
    accountant: AccountantName = "pld"
    """The accountant that determines the noise for ε."""


def fits(scale: Scale) -> Iterator[Fit]:
    """Yield all fits; the first, without privacy, is the baseline of the others."""
    yield Fit("non-private", {"batch_size": min(4096, scale.batches[0])})
    for batch in scale.batches:
        for noise in scale.noises:
            yield Fit("published", {**PUBLISHED, **CLIPPED, "batch_size": batch}, noise=noise)
    for noise in scale.noises:
        largest = scale.batches[-1]
        yield Fit("no clipping", {**PUBLISHED, **UNCLIPPED, "batch_size": largest}, noise=noise)
    counted = {**PUBLISHED, **CLIPPED, "batch_size": scale.batches[-1], "count_clipped": True}
    yield Fit("counted", counted, noise=scale.noises[-1])
    for name, clip in COMMON_FITS:
        published = {**PUBLISHED, **clip, "batch_size": scale.batches[-1]}
        yield Fit("Table 1", published, epsilon=COMMON_EPSILON, accountant=name)
    for one in scale.epsilons:
        ours = {"batch_size": scale.batches[-1], "max_iter": scale.passes}
        yield Fit("this library", ours, epsilon=one)


def topics(out: Path, *, seed: int, quick: bool, tell: Tell) -> Made:
    """Tables and figures; every finished fit is stored in OUT/runs."""
    scale = QUICK if quick else WHOLE
    corpus = load_corpus(seed=seed)
    if scale.articles is not None:
        corpus = Corpus(
            train=corpus.train[: scale.articles], test=corpus.test, vocabulary=corpus.vocabulary
        )
    rows: list[tuple[Fit, Result]] = []
    for one in fits(scale):
        tell(f"topics: {_words(one)}")
        asked = {"study": "vips-topics", "seed": seed, **scale._asdict(), **one._asdict()}
        rows.append(
            (one, kept(out / "runs", asked, lambda fit=one: _fit(fit, scale, corpus, seed)))
        )
    base = rows[0][1]
    tables = [
        _perplexity_table(rows, base, unigram(corpus), scale, corpus),
        claims_table(),
        _words_table(rows, base),
        common_table(rows, base),
        clipped_table(rows),
    ]
    picture = Picture("topics.png", f"Figure 2 of VIPS. {_CAPTION}")
    return tables, [(picture, plot(rows, unigram(corpus)))]


def _fit(fit: Fit, scale: Scale, corpus: Corpus, seed: int) -> Result:
    privacy: Any = "none"
    if fit.recipe != "non-private":
        privacy = Privacy(
            epsilon=fit.epsilon, noise_multiplier=fit.noise, delta=DELTA, insecure_noise_seed=seed,
            accountant=fit.accountant,
        )  # fmt: skip
    model = LDA(scale.topics, privacy=privacy, n_jobs=2, random_state=seed, **fit.settings)
    model.fit(corpus.train)
    table = model.topics(corpus.vocabulary)
    found: Result = {
        "completion": model.perplexity(corpus.test),
        "bound": model.perplexity(corpus.test, form="bound"),
        "words": [list(words) for words in table.words],
        "shares": list(table.shares),
    }
    if model.clipped_ is not None:
        found |= {"clipped": model.clipped_.share, "clipped_sd": model.clipped_.noise_sd}
    if model.guarantee_ is not None:
        guarantee, settled = model.guarantee_, model.settled_
        assert settled is not None
        found |= {
            "epsilons": model.epsilons(),
            "noise": settled.noise_multiplier,
            "steps": settled.releases,
            "delta": guarantee.delta,
            "adjacency": guarantee.adjacency,
            "trust": guarantee.trust,
        }
    return found


def unigram(corpus: Corpus) -> float:
    """Perplexity of the word frequencies of the training articles, with 1 added to every count."""
    counts = np.asarray(corpus.train.sum(axis=0)).ravel() + 1.0
    test = np.asarray(corpus.test.sum(axis=0)).ravel()
    return float(np.exp(-(test @ np.log(counts / counts.sum())) / test.sum()))


def claimed(articles: int, batch: int, noise: float, delta: float, accountant: Any) -> float:
    """ε of one pass if the sensitivity were C, as VIPS states.

    `_pass` assumes the sensitivity √2·C, so the noise is multiplied by √2.
    """
    return _pass(articles, batch, noise * np.sqrt(2.0), delta, accountant)


def actual(articles: int, batch: int, noise: float, delta: float, accountant: Any) -> float:
    """ε of one pass with the sensitivity √2·C."""
    return _pass(articles, batch, noise, delta, accountant)


def _pass(articles: int, batch: int, noise: float, delta: float, accountant: Any) -> float:
    event = GaussianEvent(
        clip=1.0,
        noise_sd=noise,
        count=-(-articles // batch),
        sampling=WithoutReplacement(batch=batch, total=articles),
        nonnegative=True,
    )
    return epsilon([event], delta, "replace-one", accountant=accountant)


def claims_table() -> Table:
    """ε with sensitivity C and with √2·C, at the published setting and for this corpus."""
    rows = []
    for articles, batch, delta in ((400_000, 20_000, 1e-4), (143_647, 20_000, DELTA)):
        for noise in (1.0, 1.24, 2.0):
            at = (articles, batch, noise, delta)
            low, high = claimed(*at, "rdp"), actual(*at, "rdp")
            pld, strong = actual(*at, "pld"), actual(*at, "strong")
            rows.append((articles, batch, noise, delta, low, high, high / low, pld, strong))
    return Table(
        name="vips-sensitivity",
        title="Cost of the correct sensitivity",
        columns=("D", "S", "σ", "δ", "ε with sensitivity C (RDP)", "ε (RDP)", "ratio", "ε (PLD)",
                 "ε (strong composition)"),
        rows=rows,
        note="One pass without replacement; the noise in the sum of clipped statistics has sd σC. "
        "ε is for replacing one document; the holder of all documents is trusted. Statistics of "
        "two documents differ by up to √2·C, not C (VIPS, eq. 3). VIPS states ε = 2.38 for its "
        "setting, by an older conversion of the same moments.",
        digits={"ε with sensitivity C (RDP)": 3, "ε (RDP)": 3, "ratio": 3, "ε (PLD)": 3,
                "ε (strong composition)": 3},
    )  # fmt: skip


def _perplexity_table(
    rows: list[tuple[Fit, Result]], base: Result, alone: float, scale: Scale, corpus: Corpus
) -> Table:
    body: list[Sequence[Cell]] = [
        ("unigram", None, None, None, None, None, None, None, alone, None, None)
    ]
    reference = _table_of(base)
    for fit, found in rows:
        by = found.get("epsilons", {})
        common = None
        if fit.recipe != "non-private":
            common = statistics.mean(_table_of(found).shared(reference))
        body.append((
            fit.recipe, fit.settings["batch_size"], found.get("steps"), found.get("noise"),
            by.get("pld"), by.get("rdp"), by.get("strong"), found.get("delta"),
            found["completion"], found["bound"], common,
        ))  # fmt: skip
    return Table(
        name="vips-topics",
        title="ε against perplexity",
        columns=("recipe", "S", "steps", "σ", "ε (PLD)", "ε (RDP)", "ε (strong composition)", "δ",
                 "perplexity, completion", "perplexity, bound", "top words shared"),
        rows=body,
        note=f"{corpus.train.shape[0]:,} articles, {scale.topics} topics, {corpus.test.shape[0]:,} "
        "held out. ε is for replacing one document; the holder of all documents is trusted. σ is "
        "the sd of the noise divided by the clip. Top words shared: mean share of a topic's ten "
        "top words that are also top words of the most similar topic of the non-private fit. One "
        "simulated run each, with noise from a known seed.",
        digits={"σ": 3, "ε (PLD)": 3, "ε (RDP)": 3, "ε (strong composition)": 3, "δ": 1,
                "top words shared": 2},
    )  # fmt: skip


def _table_of(found: Result) -> TopicTable:
    count = len(found["words"])
    return TopicTable(
        numbers=tuple(range(count)),
        shares=tuple(found["shares"]),
        words=tuple(tuple(words) for words in found["words"]),
        chances=tuple((0.0,) * len(words) for words in found["words"]),
    )


def _railways(base: Result) -> list[str]:
    """The topic about railways, as in the paper, if there is one; otherwise the largest topic."""
    wanted = {"station", "line", "railway"}
    return max(base["words"], key=lambda words: len(wanted.intersection(words)))


def _words_table(rows: list[tuple[Fit, Result]], base: Result) -> Table:
    """One topic in every fit of the figure."""
    first = _railways(base)
    chosen = {"non-private": base}
    for fit, found in rows[1:]:
        if fit.recipe in ("Table 1", "counted"):
            continue
        chosen[f"{fit.recipe}, ε = {found['epsilons']['pld']:.2g}"] = found
    columns = {}
    for name, found in chosen.items():
        columns[name] = max(found["words"], key=lambda words: len(set(first) & set(words)))
    body = [(name, " ".join(words)) for name, words in columns.items()]
    return Table(
        name="vips-words",
        title="One topic in every fit",
        columns=("fit", "top words"),
        rows=body,
        note="The topic most similar to the railway topic of the fit without privacy (Table 1). ε "
        "is by PLD; δ and the other terms are as above.",
    )


def common_table(rows: list[tuple[Fit, Result]], base: Result) -> Table:
    """The same topic at one ε, with the noise by each accountant, beside VIPS's words (Table 1)."""
    first = _railways(base)
    body = [_common_row("non-private", None, base, first)]
    body += [_common_row(_common_name(fit), fit, found, first)
             for fit, found in rows if fit.recipe == "Table 1"]  # fmt: skip
    return Table(
        name="vips-table-1",
        title=f"One topic at ε = {COMMON_EPSILON}",
        columns=("noise by", "ε", "σ", "perplexity, completion", "perplexity, bound", "top words",
                 "shared", "VIPS: top words", "VIPS: shared"),
        rows=body,
        note="Table 1 of VIPS: the published recipe (one pass without replacement, a = 0.1, "
        f"δ = {DELTA:g}, replacing one document; the holder of all documents is trusted). "
        "Each accountant determines the noise for the same ε. Without clipping a is 1. Shared: how "
        "many of the ten words are in the topic of the fit without privacy, here and in VIPS. The "
        "moments accountant of Abadi et al. has no bound for batches without replacement; VIPS "
        "uses Rényi differential privacy. One simulated run each; VIPS has another corpus, "
        "δ = 1e-4 and a sensitivity that is too small.",
        digits={"σ": 3},
    )  # fmt: skip


def _common_name(fit: Fit) -> str:
    """Name of a row of Table 1."""
    name = ACCOUNTANT_WORDS[fit.accountant]
    unclipped = fit.settings["clip_share"] == UNCLIPPED["clip_share"]
    return f"{name}, no clipping" if unclipped else name


def _common_row(name: str, fit: Fit | None, found: Result, first: Sequence[str]) -> Sequence[Cell]:
    words = max(found["words"], key=lambda words: len(set(first) & set(words)))
    theirs = VIPS_WORDS[name].split() if name in VIPS_WORDS else None
    known = set(VIPS_WORDS["non-private"].split())
    return (
        name,
        None if fit is None else fit.epsilon,
        found.get("noise"),
        found["completion"],
        found["bound"],
        " ".join(words),
        len(set(first) & set(words)),
        None if theirs is None else " ".join(theirs),
        None if theirs is None else len(known & set(theirs)),
    )


def clipped_table(rows: list[tuple[Fit, Result]]) -> Table:
    """Share of clipped documents, from a noisy count that is charged together with the sums."""
    body = [
        (fit.settings["clip_share"], fit.settings["batch_size"], found["noise"],
         found["epsilons"]["pld"], found["clipped"], found["clipped_sd"])
        for fit, found in rows if fit.recipe == "counted"
    ]  # fmt: skip
    return Table(
        name="vips-clipped",
        title="Share of clipped documents",
        columns=("a", "S", "σ", "ε (PLD)", "clipped", "sd of its noise"),
        rows=body,
        note="VIPS §4 says that a = 0.1 clips about 3/4 of the documents. With "
        "`count_clipped`, the published recipe also releases a noisy count of the documents of "
        "the last batch within the clip, which is charged with the sums. ε is for replacing one "
        "document; the holder of all documents is trusted. One simulated run.",
        digits={"σ": 3, "ε (PLD)": 3, "clipped": 3, "sd of its noise": 2},
    )


def plot(rows: list[tuple[Fit, Result]], alone: float) -> Figure:
    """Held-out perplexity against ε: document completion, and Hoffman's bound as VIPS draws it."""
    figure = canvas(11.0, 5.2)
    panels = figure.subplots(1, 2, sharey=True)
    drawn = sum(fit.recipe in {look[0] for look in LOOKS} for fit, _ in rows)
    for axes, (form, words) in zip(panels, FORMS.items(), strict=True):
        _panel(axes, rows, form, alone)
        title(axes, words, f"{drawn} private fits; δ = {DELTA:g}")
    panels[0].set_ylabel("Held-out perplexity")
    handles, labels = panels[0].get_legend_handles_labels()
    place = "outside lower center"
    figure.legend(handles, labels, loc=place, ncols=3, frameon=False, fontsize=9)
    return figure


def _panel(axes: Axes, rows: list[tuple[Fit, Result]], form: str, alone: float) -> None:
    """One form of the perplexity; each recipe has one mark, once per accountant."""
    plain(axes)
    best = rows[0][1][form]
    axes.axhline(best, color=GREY, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.axhline(alone, color=GREY, linestyle=(0, (1, 2)), linewidth=1.2)
    for recipe, accountant, colour, marker, label in LOOKS:
        points = [
            (found["epsilons"][accountant], found[form])
            for fit, found in rows
            if fit.recipe == recipe and found["epsilons"].get(accountant) is not None
        ]
        if points:
            axes.scatter(*zip(*points, strict=True), color=colour, marker=marker, s=34, label=label)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    right = axes.get_xlim()[1]
    for level, words in ((best, "non-private"), (alone, "unigram")):
        axes.text(right, level, f"{words} ", ha="right", va="bottom", color=GREY, fontsize=9)
    axes.set_xlabel("ε, replacing one document")


_CAPTION = (
    f"Perplexity of held-out articles against ε at δ = {DELTA:g} for replacing one document; the "
    "holder of all documents is trusted. Left: completion of documents; right: Hoffman's bound, "
    "which VIPS draws (exact for the unigram). Points: the published recipe at several noises and "
    "batch sizes, by three accountants; the same recipe without clipping; and the recipe of this "
    "library."
)


def _words(fit: Fit) -> str:
    noise = "" if fit.noise is None else f", σ = {fit.noise:g}"
    asked = "" if fit.epsilon is None else f", ε = {fit.epsilon:g}"
    return f"{fit.recipe}, S = {fit.settings['batch_size']}{noise}{asked}"

"""Topics of 143,647 Wikipedia articles with and without privacy: `python wikipedia_topics.py OUT`.

Prints perplexities of 2,000 held-out articles and the share of top words that private topics have
in common with others, and leaves tables and figures of the topics in OUT. An hour on two busy
cores; `--quick` makes one private fit in a few minutes.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np

import tacit
from tacit.datasets import Corpus, load_corpus
from tacit.sklearn import LDA, TopicTable

TOPICS, BATCH, PASSES = 50, 20_000, 3
PLAIN = {"privacy": "none", "batch_size": 4096, "n_jobs": 2}
PRIVATE = {"batch_size": BATCH, "max_iter": PASSES, "n_jobs": 2}
# One is the published recipe: one pass, a clip of a tenth, negative entries to zero, and a
# δ that is above 1/n.
RUNS = {
    "ε = 2, δ = 1e-6": (2.0, 1e-6, {}),
    "ε = 3, δ = 1e-6": (3.0, 1e-6, {}),
    "ε = 1, δ = 1e-6": (1.0, 1e-6, {}),
    "ε = 2.4, δ = 1e-4, published recipe": (
        2.4,
        1e-4,
        {"denoise": "zero", "max_iter": 1, "clip_share": 0.1, "learning_decay": 0.5},
    ),
    "ε = 2.4, δ = 1e-4": (2.4, 1e-4, {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    corpus = load_corpus()
    print("| topics | perplexity, completion | bound | top words shared, mean | 8 of 10 or more |")
    print("| --- | --- | --- | --- | --- |")
    print(f"| none (unigram) | {unigram(corpus):.0f} | | | |", flush=True)
    plain = LDA(TOPICS, **PLAIN).fit(corpus.train)
    words = plain.topics(corpus.vocabulary)
    show(plain, corpus, "not private", None, asked.out)
    other = LDA(TOPICS, **PLAIN, random_state=1).fit(corpus.train)
    show(other, corpus, "not private, another seed", words, asked.out)
    for name, (epsilon, delta, changes) in RUNS.items():
        if asked.quick and epsilon != 2.0:
            continue
        privacy = tacit.Privacy(epsilon=epsilon, delta=delta, ledger="none")
        model = LDA(TOPICS, **{**PRIVATE, "privacy": privacy, **changes}).fit(corpus.train)
        show(model, corpus, name, words, asked.out)
        print(f"{model.guarantee_}; noise sd / clip {model.settled_.noise_multiplier:.3f}")


def unigram(corpus: Corpus) -> float:
    """Perplexity of the training articles' shares of words, each word once more than counted."""
    counts = np.asarray(corpus.train.sum(axis=0)).ravel() + 1.0
    test = np.asarray(corpus.test.sum(axis=0)).ravel()
    return float(np.exp(-(test @ np.log(counts / counts.sum())) / test.sum()))


def show(model: LDA, corpus: Corpus, name: str, others: TopicTable | None, out: Path) -> None:
    """One line of the table, and the topics themselves."""
    table = model.topics(corpus.vocabulary)
    common = "| | |"
    if others is not None:
        shared = table.shared(others)
        many = sum(share >= 0.8 for share in shared)
        common = f"| {statistics.mean(shared):.2f} | {many} of {TOPICS} |"
    completion, bound = (
        model.perplexity(corpus.test, form=form) for form in ("completion", "bound")
    )
    print(f"| {name} | {completion:.0f} | {bound:.0f} {common}", flush=True)
    stem = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in name).strip("-")
    (out / f"{stem}.txt").write_text(f"{table}\n", encoding="utf-8")
    what = name if model.guarantee_ is None else f"{name} for substituting one document"
    table.plot(title=f"Topics of Wikipedia, {what}").savefig(out / f"{stem}.png", dpi=110)


if __name__ == "__main__":
    main()

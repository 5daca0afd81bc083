"""Topics of Wikipedia: speed and held-out perplexity against gensim and scikit-learn, and privacy.

TACIT_PEERS_PYTHON names an interpreter with requirements-peers.txt; gensim and scikit-learn run
there (`topics_peer.py`), pinned to the same core with one thread. All three make one pass over the
same documents with the same number of topics, priors, batch size, learning rate, tolerance and
limit of steps. Their topics come back, and one function judges everybody's.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import Row, Skipped, cpu_s, in_child
from benchmarks.private import PEERS, peers
from benchmarks.topics_peer import DECAY, OFFSET, STEPS, TOLERANCE

DOCUMENTS, TOPICS, BATCH, SEEDS = 20_480, 50, 2048, 2
PRIVATE_BATCH, EPSILON, DELTA = 20_000, 2.4, 1e-6
FASTER, PERPLEXITY, PRIVATE, GIGABYTES = 0.5, 1.01, 1 / 0.7, 4.0
"""Targets: of gensim's CPU time, of a peer's perplexity, of our own CPU time, of memory."""


def rows() -> list[Row]:
    mine = in_child("topics", "ours")
    if "skipped" in mine:
        raise Skipped(mine["skipped"])
    found = [
        Row(name="topics", what=f"LDA, {DOCUMENTS} articles, {TOPICS} topics, one pass: CPU",
            unit="s", value=mine["cpu_s"], note=f"{DOCUMENTS / mine['cpu_s']:.0f} documents a s"),
        Row(name="topics", what="... completion perplexity, mean of seeds", unit="",
            value=mine["perplexity"], note=f"{SEEDS} seeds, sd {mine['sd']:.1f}"),
    ]  # fmt: skip
    python = peers("gensim", "sklearn")
    if python is None:
        found.append(
            Row(name="topics", what="gensim, scikit-learn: skipped", value=0.0, unit="",
                note=f"set {PEERS} to a Python with benchmarks/requirements-peers.txt")
        )  # fmt: skip
    for peer in ("gensim", "scikit-learn") if python is not None else ():
        theirs = in_child("topics", "theirs", python, peer)
        named = f"{peer} {theirs['version']}"
        found += [
            Row(name="topics", what=f"... CPU / {named}", unit="ratio",
                value=mine["cpu_s"] / theirs["cpu_s"],
                at_most=FASTER if peer == "gensim" else None,
                note=f"{theirs['cpu_s'] / mine['cpu_s']:.1f} times as fast;"
                f" {DOCUMENTS / theirs['cpu_s']:.0f} documents a s"),
            Row(name="topics", what=f"... perplexity / {named}", unit="ratio",
                value=mine["perplexity"] / theirs["perplexity"], at_most=PERPLEXITY,
                note=f"{theirs['perplexity']:.1f}, sd {theirs['sd']:.1f}"),
        ]  # fmt: skip
    whole, private = in_child("topics", "whole"), in_child("topics", "private")
    return [
        *found,
        Row(name="topics", what="all 145,647 articles, one pass, two cores: peak memory", unit="GB",
            value=whole["gigabytes"], at_most=GIGABYTES,
            note=f"{whole['wall_s']:.0f} s, {whole['cpu_s']:.0f} s of CPU"),
        Row(name="topics", what=f"private, batches of {PRIVATE_BATCH}: CPU a document / without",
            unit="ratio", value=private["plain_rate"] / private["private_rate"], at_most=PRIVATE,
            note=f"{private['private_rate']:.0f} documents a s, with calibration and compiling;"
            f" ε = {EPSILON}, δ = {DELTA:g}, substituting one document"),
    ]  # fmt: skip


def child(which: str, *arguments: str) -> dict[str, Any]:
    todo = {"ours": _ours, "theirs": _theirs, "whole": _whole, "private": _private}
    return todo[which](*arguments)


def _corpus() -> Any:
    from tacit.datasets import load_corpus
    from tacit.errors import DataError

    try:
        return load_corpus()
    except DataError as error:
        raise Skipped(f"Wikipedia is not here: {error}") from error


def _judged(corpus: Any, topics: list[Any]) -> dict[str, float]:
    from tacit.data.documents import check_documents
    from tacit.models.lda.perplexity import completion

    test = check_documents(corpus.test)
    found = [completion(one, test, alpha=1 / TOPICS) for one in topics]
    return {"perplexity": statistics.mean(found), "sd": statistics.stdev(found)}


def _model(**settings: Any) -> Any:
    from tacit.sklearn import LDA

    common = {
        "privacy": "none", "batch_size": BATCH, "mean_change_tol": TOLERANCE,
        "max_doc_update_iter": STEPS, "learning_offset": OFFSET, "learning_decay": DECAY,
    }  # fmt: skip
    return LDA(TOPICS, **{**common, **settings})


def _ours() -> dict[str, Any]:
    corpus = _corpus()
    train = corpus.train[:DOCUMENTS]
    models = [_model(random_state=seed) for seed in range(SEEDS)]
    seconds = min(cpu_s(lambda model=model: model.fit(train)) for model in models)
    return {"cpu_s": seconds, **_judged(corpus, [model.components_ for model in models])}


def _theirs(python: str, peer: str) -> dict[str, Any]:
    import numpy as np
    from scipy import sparse

    corpus = _corpus()
    script = Path(__file__).with_name("topics_peer.py")
    with tempfile.TemporaryDirectory() as folder:
        sparse.save_npz(Path(folder) / "train.npz", sparse.csr_matrix(corpus.train[:DOCUMENTS]))
        call = [python, str(script), peer, folder, str(TOPICS), str(BATCH), str(SEEDS)]
        single = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(call, env=single, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{script.name} failed:\n{done.stderr[-2000:]}")
        topics = [np.load(Path(folder) / f"{seed}.npy") for seed in range(SEEDS)]
    return {**json.loads(done.stdout.splitlines()[-1]), **_judged(corpus, topics)}


def _whole() -> dict[str, Any]:
    from scipy import sparse

    corpus = _corpus()
    everything = sparse.csr_array(sparse.vstack([corpus.train, corpus.test]))
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    model = _model(batch_size=4096, n_jobs=2)
    started = time.perf_counter()
    seconds = cpu_s(lambda: model.fit(everything))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall = time.perf_counter() - started
    return {"gigabytes": peak / 1e6, "cpu_s": seconds, "wall_s": wall}


def _private() -> dict[str, Any]:
    import warnings

    import tacit

    warnings.simplefilter("ignore")
    corpus = _corpus()
    privacy = tacit.Privacy(epsilon=EPSILON, delta=DELTA, ledger="none")
    private = _model(privacy=privacy, batch_size=PRIVATE_BATCH)
    plain = _model(batch_size=PRIVATE_BATCH)
    plain_s = cpu_s(lambda: plain.fit(corpus.train))
    private_s = cpu_s(lambda: private.fit(corpus.train))
    # Poisson batches of a pass: a document may be in two of them, or in none.
    return {
        "plain_rate": corpus.train.shape[0] / plain_s,
        "private_rate": private.n_batch_iter_ * PRIVATE_BATCH / private_s,
    }

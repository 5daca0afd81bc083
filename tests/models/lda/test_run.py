"""Topics at the command line: run directory, report, resume, ledger, exit codes."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from json_results import run
from planted_documents import identified, planted
from scipy import sparse

from tacit.data import DataConfig, load_federation, load_party, public_schema
from tacit.data.config import PartitionConfig
from tacit.datasets import list as sources
from tacit.engines.execute import Observer
from tacit.errors import ConfigError, DataError
from tacit.party.datasets import identify_parties
from tacit.plan.calibrate import LargeDeltaWarning
from tacit.privacy.ledger.ledger import Budget, Ledger
from tacit.report import write_report
from tacit.run.config import parse_config
from tacit.run.run import Prepared, prepare

RAW = {
    "name": "themes",
    "privacy": {"epsilon": 6.0, "delta": 1e-4, "insecure_noise_seed": 0},
    "data": {"source": "synthetic-topics", "records": 600},
    "partition": {"parties": 3},
    "model": {"kind": "topics", "topics": 5, "document_words": 40},
    "method": {"kind": "dp-statistics", "sampling_rate": 0.5},
    "schedule": {"rounds": 4, "damping": {"offset": 1.0, "decay": 0.7}},
}


@pytest.fixture
def own(tmp_path):
    """A folder with documents and their vocabulary."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    sparse.save_npz(folder / "counts.npz", sparse.csr_matrix(planted(200)))
    (folder / "vocabulary.txt").write_text("\n".join(f"w{number}" for number in range(30)))
    return folder


class InterruptedRunError(Exception):
    """The lights went out."""


def after(rounds: int):
    """An observer that stops a run in the middle."""

    def watch(prepared: Prepared) -> Observer:
        del prepared

        def observe(state, log):
            del log
            if state.round >= rounds:
                raise InterruptedRunError

        return observe

    return watch


def test_a_run_leaves_topics_perplexities_and_a_report(tmp_path):
    result = run(parse_config(RAW), tmp_path / "run")
    assert len(result["topics"]) == 5
    assert sum(row["share"] for row in result["topics"]) == pytest.approx(1.0)
    assert result["posterior"] == {"family": "dirichlets", "names": [], "mean": [], "sd": []}
    assert result["metrics"]["training"] is None
    test = result["metrics"]["held_out"]
    assert 1 < test["completion_perplexity"] < test["bound_perplexity"] < 70
    with np.load(tmp_path / "run" / "public" / "posterior.npz") as archive:
        assert archive["natural/log"].shape == (5, 70)
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "completion perplexity" in page
    assert all(word in page for word in result["topics"][0]["words"])
    assert " ".join(result["topics"][0]["words"]) in page
    assert "Coefficients" not in page


def test_a_run_that_was_cut_off_goes_on_to_the_same_topics(tmp_path):
    config = parse_config(RAW)
    whole = run(config, tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        run(config, tmp_path / "cut", observe=after(2))
    again = run(config, tmp_path / "cut", resume=True)
    assert again["topics"] == whole["topics"]
    assert json.loads((tmp_path / "cut" / "public" / "result.json").read_text())["rounds"] == 4


def test_documents_of_ones_own_are_charged_as_what_the_estimator_calls_them(own, tmp_path):
    """One party's documents are one data set, whichever way they are learnt from."""
    data = {"source": "documents", "path": str(own), "held_out": 0.0}
    raw = {
        **RAW, "data": data, "partition": {"parties": 1},
        "privacy": {"epsilon": 2.0, "delta": 1e-4},
    }  # fmt: skip
    config = parse_config(raw)
    book = tmp_path / "ledger.sqlite"
    prepared = prepare(config)
    with Ledger(book, create=True) as ledger:
        (dataset,) = identify_parties(ledger, prepared.federation, prepared.plan.parties).values()
        assert dataset == identified(ledger, planted(200))
        budget = Budget(epsilon=3.0, delta=1e-4, adjacency="replace-one", unit="record")
        ledger.set_budget(dataset, budget, reason="test")
    run(config, tmp_path / "run", ledger=book)
    with Ledger(book) as ledger:
        spent = ledger.spent(dataset)
    assert spent.charges == 4
    assert 1.9 < spent.epsilon <= 2.0
    spoilt = planted(200).toarray().astype(float)
    for value in (-1.0, 0.5, 0.0):
        spoilt[7] = value
        sparse.save_npz(own / "counts.npz", sparse.csr_matrix(spoilt))
        with pytest.raises(DataError, match="document 7") as caught:
            run(config, tmp_path / "bad", ledger=book)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "bad").exists()
    with Ledger(book) as ledger:
        assert ledger.spent(dataset).charges == 4


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda own: (own / "vocabulary.txt").write_text("a b"),
            "of 30 words, but the vocabulary has 2;",
        ),
        (lambda own: (own / "vocabulary.txt").write_text("a " * 30), "the word 'a' more than once"),
        (lambda own: (own / "vocabulary.txt").unlink(), "cannot be read"),
        (lambda own: (own / "counts.npz").write_bytes(b"no"), "is not a sparse matrix"),
        (lambda own: (own / "counts.npz").unlink(), "there is no file"),
    ],
)
def test_broken_files_are_refused_in_one_line(own, spoil, said):
    spoil(own)
    data = DataConfig(source="documents", path=str(own))
    with pytest.raises(DataError, match=said) as caught:
        load_federation(data, PartitionConfig(parties=2), seed=0)
    assert "\n" not in str(caught.value)


def test_the_command_answers_with_an_exit_code(own, tmp_path, tacit):
    spoilt = planted(200).toarray()
    spoilt[3] = 0
    sparse.save_npz(own / "counts.npz", sparse.csr_matrix(spoilt))
    file = tmp_path / "topics.toml"
    lines = ['privacy = "none"', "[data]", 'source = "documents"', f'path = "{own}"']
    file.write_text("\n".join(lines))
    code, out, error = tacit("run", str(file))
    assert (code, out, error.count("\n")) == (4, "", 1)
    assert "document 3 has no word of the vocabulary" in error
    for extra in ("model.topics=0", "posterior=full", "method.kind=natural"):
        code, out, error = tacit("check", str(file), "--set", "data={source=\"synthetic-topics\"}",
                                 "--set", extra)  # fmt: skip
        assert (code, out, error.count("\n")) == (2, "", 1)
    assert not (tmp_path / "runs").exists()


def test_one_party_and_a_server_know_the_same_vocabulary(own):
    data = DataConfig(source="documents", path=str(own), held_out=0.25)
    schema, party = public_schema(data), load_party(data, "here")
    assert schema.names == party.names == tuple(f"w{number}" for number in range(30))
    assert schema.raw == {}
    assert len(party.parties["here"]["words"]) == 150
    assert party.test is not None
    assert {"wikipedia", "documents", "synthetic-topics"} <= {one.name for one in sources()}


def test_the_same_seed_deals_the_same_documents_and_holds_none_twice():
    data, parties = DataConfig(source="synthetic-topics", records=120), PartitionConfig(parties=3)
    first, second = (load_federation(data, parties, seed=4) for _ in "ab")
    for name, records in first.parties.items():
        assert np.array_equal(records["counts"], second.parties[name]["counts"])
    assert [len(one["words"]) for one in first.parties.values()] == [32, 32, 32]
    assert first.test is not None
    assert len(first.test["words"]) == 24
    assert first.raw.keys() == first.parties.keys()


def test_a_simulation_of_one_pass_warns_of_a_large_delta():
    raw = {**RAW, "privacy": {"epsilon": 1.0, "delta": 0.1, "insecure_noise_seed": 0}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LargeDeltaWarning):
            prepare(parse_config(raw))


def test_tune_has_no_documents_to_make_up():
    from tacit.run.tune.trials import TrialRunner

    with pytest.raises(ConfigError, match="tune cannot simulate records"):
        TrialRunner(parse_config(RAW), None, 0)

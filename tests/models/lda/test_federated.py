"""Topics of documents that several parties hold: the central answer, schedules, engines, errors."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted_documents import planted
from scipy import sparse

import tacit
from tacit import Privacy
from tacit.data import DataConfig, PartitionConfig, load_federation
from tacit.data.bags import DOCUMENTS_COLUMN
from tacit.data.documents import check_documents
from tacit.datasets import document_records, load_corpus
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, DataError
from tacit.methods import ExpectedStatistics, PrivateStatistics
from tacit.models import TopicModel
from tacit.models.lda.perplexity import bound, completion, document_bounds
from tacit.plan.plan import make_plan
from tacit.run.config import parse_config
from tacit.run.run import prepare
from tacit.server.schedule import Asynchronous, PowerDamping, Sequential, Synchronous
from tacit.sklearn import LDA

MODEL = TopicModel(3, words=30, document_words=30)
SEEDED = Privacy(epsilon=8.0, delta=1e-4, insecure_noise_seed=0)
FALLING = PowerDamping(offset=1.0, decay=0.7)


def dealt(counts, parties=3):
    """Documents of a corpus, one after the other to the next party."""
    width = int(np.diff(sparse.csr_array(counts).indptr).max())
    return {f"p{i}": document_records(counts[i::parties], width=width) for i in range(parties)}


def learnt(parties, schedule, *, model=MODEL, **options):
    outcome = carry_out(make_plan(model, parties, schedule=schedule, **options))
    assert outcome.state.refused == 0
    return outcome.state.q["log"] + 1.0


def judged(concentration, test):
    return completion(concentration, check_documents(test), alpha=1 / len(concentration))


def test_a_round_of_everybody_is_a_step_over_the_union():
    train = planted(300)
    central = LDA(3, privacy="none", batch_size=300).fit(train)
    plan = make_plan(MODEL, dealt(train), schedule=Synchronous(rounds=1))
    assert isinstance(plan.method, ExpectedStatistics)
    assert (plan.family.kind, plan.schedule.damping) == ("dirichlets", 1.0)
    found = carry_out(plan).state.q["log"] + 1.0
    np.testing.assert_allclose(found, central.components_, rtol=1e-9)


def test_as_many_passes_predict_as_well_as_the_central_estimator():
    """On Wikipedia where it is, on planted topics elsewhere; ρ falls alike."""
    if os.environ.get("TACIT_DATA") and (Path(os.environ["TACIT_DATA"]) / "wiki").is_dir():
        corpus = load_corpus(held_out=300)
        train, test, topics = corpus.train[:1500], corpus.test, 10
    else:
        train, test, topics = planted(600), planted(200, seed=1), 3
    central = LDA(topics, privacy="none", batch_size=train.shape[0], max_iter=6).fit(train)
    model = TopicModel(topics, words=train.shape[1])
    found = learnt(dealt(train), Synchronous(rounds=6, damping=FALLING), model=model)
    assert judged(found, test) == pytest.approx(central.perplexity(test), rel=0.01)


def test_sparse_records_are_the_same_records():
    """Parties of unequal size, one of them padded: empty rows of weight 0 are no documents."""
    train = planted(150)
    dense = {
        "a": document_records(train[:100], width=30),
        "b": document_records(train[100:], width=30),
    }
    whole = {
        "a": {DOCUMENTS_COLUMN: check_documents(train[:100])},
        "b": {DOCUMENTS_COLUMN: check_documents(train[100:])},
    }
    for options in ({}, {"privacy": SEEDED, "method": PrivateStatistics(sampling_rate=0.3)}):
        asked = Synchronous(rounds=3, damping=FALLING)
        found, wanted = (learnt(parties, asked, **options) for parties in (whole, dense))
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_a_run_that_does_not_report_its_steps_learns_the_same():
    plan = make_plan(MODEL, dealt(planted(90)), schedule=Synchronous(rounds=3, tolerance=0.0))
    loud, quiet = carry_out(plan), carry_out(replace(plan, report_steps=False))
    assert np.array_equal(loud.state.q["log"], quiet.state.q["log"])
    assert all(line["last_change"] > 0 for line in loud.log)
    assert [line["last_change"] for line in quiet.log] == [None] * 3


@pytest.mark.parametrize("schedule", [Synchronous, Sequential, Asynchronous])
def test_every_schedule_finds_planted_topics(schedule):
    train, test = planted(300), planted(100, seed=1)
    central = LDA(3, privacy="none", batch_size=300, max_iter=8).fit(train).perplexity(test)
    assert judged(learnt(dealt(train), schedule(rounds=8)), test) < 1.05 * central


@pytest.mark.parametrize(
    ("schedule", "aggregation", "sampling"),
    [
        (Synchronous, "plain", "poisson"),
        (Synchronous, "trusted", "without-replacement"),
        (Synchronous, "server", "poisson"),
        (Sequential, "plain", "without-replacement"),
        (Asynchronous, "plain", "poisson"),
    ],
)
def test_private_topics_are_better_than_none(schedule, aggregation, sampling):
    train, test = planted(900), planted(100, seed=1)
    shares = (train.sum(axis=0) + 1.0) / (train.sum() + 30)
    unigram = float(np.exp(-(test.sum(axis=0) @ np.log(shares)) / test.sum()))
    privacy = Privacy(epsilon=8.0, delta=1e-4, insecure_noise_seed=0, aggregation=aggregation)
    found = learnt(
        dealt(train), schedule(rounds=12, damping=FALLING), privacy=privacy,
        method=PrivateStatistics(sampling_rate=0.5, sampling=sampling),
    )  # fmt: skip
    assert judged(found, test) < 0.85 * unigram


def test_one_noise_of_the_servers_own_has_the_size_that_was_settled():
    """3,600 numbers: their sd is 1.2 % off at most, but for once in 10⁵ trials."""
    model = TopicModel(3, words=1200, document_words=30, clip_share=1.0)
    counts = np.zeros((60, 1200))
    counts[:, :10] = 1.0
    parties, seen = dealt(counts), {}
    for seed in (0, 1):
        privacy = Privacy(epsilon=1.0, delta=1e-4, insecure_noise_seed=seed, aggregation="server")
        plan = make_plan(model, parties, schedule=Synchronous(rounds=1), privacy=privacy)
        memory = carry_out(plan).state.memory
        assert memory is not None
        seen[seed] = memory["log"]
    sd = plan.settled["p0"].noise_sd * model.statistics_unit
    rest = (seen[0] - seen[1])[:, 10:] / np.sqrt(2.0)  # words of no document: noise alone
    assert np.std(rest) == pytest.approx(sd, rel=0.055)


def test_what_is_private_by_itself_is_chosen_and_says_so():
    plan = make_plan(MODEL, dealt(planted(60)), privacy=SEEDED)
    assert isinstance(plan.method, PrivateStatistics)
    assert plan.method._nonnegative
    guarantee = plan.guarantee
    assert guarantee is not None
    assert (guarantee.unit, guarantee.adjacency) == ("record", "replace-one")
    event = plan.settled["p0"].all_events[0]
    assert event.nonnegative
    assert event.count == plan.schedule.rounds


def test_the_noise_in_the_sums_is_counted_by_who_answered():
    """One after the other, M parties leave as much noise as M at once: not √M times it."""
    left = {}
    for schedule in (Synchronous, Sequential):
        method = PrivateStatistics(noise_aware=False)
        asked = schedule(rounds=1, damping=0.1)
        plan = make_plan(MODEL, dealt(planted(90)), schedule=asked, privacy=SEEDED, method=method)
        memory = carry_out(plan).state.memory
        assert memory is not None
        left[schedule.kind] = float(memory["noise_variance"])
    assert left["sequential"] == pytest.approx(left["synchronous"], rel=0.1)


def test_a_notebook_fits_topics_and_measures_them():
    federation = load_federation(
        DataConfig(source="synthetic-topics", records=300), PartitionConfig(parties=3), seed=0
    )
    model = TopicModel(5, words=len(federation.names))
    fitted = tacit.fit(model, federation, privacy="none", schedule=Synchronous(rounds=10))
    measured = fitted.metrics["held_out"]
    assert measured is not None
    assert measured["completion_perplexity"] < 40 < len(federation.names)
    assert measured["completion_perplexity"] < measured["bound_perplexity"]
    assert len(fitted.topics(federation.names).words) == 5
    assert "Not private" in str(fitted)
    assert fitted.posterior.table()["names"] == []
    with pytest.raises(ConfigError, match="no coefficients"):
        fitted.plot()
    with pytest.raises(ConfigError, match=r"TopicModel\(10, words="):
        tacit.fit(TopicModel, federation, privacy="none")


def test_the_bound_of_a_corpus_is_that_of_its_documents():
    counts = check_documents(planted(40))
    beta = np.random.default_rng(0).dirichlet(np.ones(30), 3)
    each = MODEL.log_likelihood(beta.ravel(), document_records(planted(40)))
    np.testing.assert_allclose(each, document_bounds(np.log(beta), counts, alpha=1 / 3), rtol=1e-6)
    alone = [document_bounds(np.log(beta), counts[[row]], alpha=1 / 3)[0] for row in (0, 7)]
    np.testing.assert_allclose(each[[0, 7]], alone, rtol=1e-6)
    sure = 1e8 * beta
    assert bound(sure, counts, alpha=1 / 3) == pytest.approx(
        np.exp(-each.sum() / counts.sum()), rel=1e-4
    )


def test_the_names_of_half_a_million_coordinates_are_not_made():
    model = TopicModel(50, words=8000)
    assert model.dimension == 400_000
    assert "names" not in model.__dict__
    make_plan(model, {"a": document_records(np.eye(4, 8000, dtype=int))})
    assert "names" not in model.__dict__


def test_records_keep_the_words_that_a_document_says_most():
    counts = np.array([[3, 1, 0, 2, 1], [0, 0, 1, 0, 0]])
    found = document_records(counts, width=2)
    assert found["words"].tolist() == [[0, 3], [2, 0]]
    assert found["counts"].tolist() == [[3, 2], [1, 0]]
    wide = document_records(counts, width=9)
    assert wide["counts"].sum(axis=1).tolist() == [7, 1]
    assert np.array_equal(
        MODEL.documents(document_records(planted(9))).toarray(), planted(9).toarray()
    )


def spoilt(what):
    parties = dealt(planted(30))
    one = {name: value.copy() for name, value in parties["p1"].items()}
    if what == "empty":
        one["counts"][4] = 0
    elif what == "negative":
        one["counts"][4, 0] = -2
    elif what == "fraction":
        one["counts"] = one["counts"] + np.where(one["counts"] > 0, 0.5, 0.0)
    elif what == "vocabulary":
        one["words"][4, 0] = 30
    elif what == "twice":
        one["words"][4, 1] = one["words"][4, 0]
    elif what == "nan":
        one["counts"] = np.where(one["counts"] > 0, np.nan, 0.0)
    elif what == "column":
        one = {"x": np.ones((10, 3)), "y": np.ones(10)}
        parties = dict.fromkeys(parties, one)
    parties["p1"] = one
    return parties


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("empty", "document 4 has no word"),
        ("negative", "document 4, word .* is negative"),
        ("fraction", "is not a whole number"),
        ("vocabulary", "word number 30 is not in the vocabulary"),
        ("twice", "document 4 lists a word twice"),
        ("nan", "not finite"),
        ("column", "no column 'words'"),
    ],
)
@pytest.mark.parametrize("privacy", [None, SEEDED], ids=["plain", "private"])
def test_bad_documents_are_refused_in_one_line(what, said, privacy):
    with pytest.raises(DataError, match=said) as caught:
        make_plan(MODEL, spoilt(what), privacy=privacy)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"kind": "topics", "topics": 0}}, "topics = 0"),
        ({"model": {"kind": "topics", "clip_share": 2.0}}, "clip_share = 2.0"),
        ({"model": {"kind": "topics", "topic_word_prior": 0.0}}, "topic_word_prior = 0.0"),
        ({"model": {"kind": "logistic"}}, "the records are documents"),
        ({"model": {"kind": "topics"}, "data": {"source": "normal-mean"}}, "no documents"),
        ({"posterior": "full"}, "posterior = 'full'"),
        ({"method": {"kind": "dp-sgd"}}, "needs gradients"),
        ({"partition": {"kind": "skew"}}, "partition.kind"),
        ({"data": {"source": "synthetic-topics", "keep": ["a"]}}, "data.keep"),
        ({"data": {"source": "documents"}}, "data.path is missing"),
        ({"data": {"source": "adult", "vocabulary": "w.txt"}}, "data.vocabulary"),
        ({"privacy": {"epsilon": 1.0, "unit": "party"}}, "unit"),
        ({"schedule": {"damping": {"offset": 1.0}}}, "decay is missing"),
        ({"schedule": {"damping": {"offset": 1.0, "decay": 2.0}}}, "decay = 2.0"),
        ({"schedule": {"damping": {"offset": 1.0, "rounds": 2}}}, "offset and decay"),
    ],
)
def test_a_bad_configuration_is_refused_in_one_line(changes, said):
    raw = {
        "privacy": {"epsilon": 1.0, "delta": 1e-4, "insecure_noise_seed": 0},
        "data": {"source": "synthetic-topics", "records": 60},
        "partition": {"parties": 2},
        **changes,
    }
    with pytest.raises(ConfigError, match=said) as caught:
        prepare(parse_config(raw))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_model_that_differs_in_its_vocabulary_is_refused():
    parties = dealt(planted(30))
    with pytest.raises(DataError, match="numbers 0 to 19"):
        make_plan(TopicModel(3, words=20), parties)
    other = {**parties, "p2": document_records(planted(10), width=40)}
    with pytest.raises(DataError, match="give every party the same columns"):
        make_plan(MODEL, other)


def test_a_plan_can_be_told_another_family_by_name():
    plan = make_plan(MODEL, dealt(planted(30)), family="dirichlets")
    assert plan.family == MODEL.own_family

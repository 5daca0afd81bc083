"""The estimator: learning, scikit-learn's rules, privacy, the ledger, what is refused."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from planted_documents import identified, planted

from tacit import Privacy
from tacit.datasets import document_records
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, DataError, PrivacyBudgetError
from tacit.fitting.charged import RunningTotalWarning
from tacit.methods import PrivateStatistics
from tacit.models import TopicModel
from tacit.models.lda.estep import expect
from tacit.plan.plan import make_plan
from tacit.privacy.accounting import epsilon
from tacit.privacy.events import GaussianEvent, Poisson, WithoutReplacement
from tacit.privacy.ledger.ledger import Budget, Ledger
from tacit.privacy.ledger.paths import own_ledger
from tacit.server.schedule import PowerDamping, Synchronous
from tacit.sklearn import LDA

PRIVATE = {"batch_size": 100, "document_words": 30, "n_components": 3}


def unigram(train, test) -> float:
    shares = (train.sum(axis=0) + 1.0) / (train.sum() + train.shape[1])
    return float(np.exp(-(test.sum(axis=0) @ np.log(shares)) / test.sum()))


def test_planted_topics_are_found():
    train, test = planted(600), planted(200, seed=1)
    model = LDA(3, privacy="none", batch_size=100, max_iter=5).fit(train)
    table = model.topics([f"w{j // 10}" for j in range(30)], top=10)
    assert sorted(words[0] for words in table.words) == ["w0", "w1", "w2"]
    assert all(len(set(words)) == 1 for words in table.words)
    assert model.perplexity(test) < 0.6 * unigram(train, test)
    theta = model.transform(test)
    assert theta.shape == (200, 3)
    np.testing.assert_allclose(theta.sum(axis=1), 1.0, rtol=1e-5)
    assert model.guarantee_ is None


def test_the_bound_is_the_negative_elbo_written_out():
    """E[log p] − E[log q] of one document, term by term, at the document's own γ and φ."""
    from scipy.special import digamma, gammaln

    model = LDA(3, privacy="none", batch_size=100, max_iter=2).fit(planted(300))
    document = planted(1, seed=5).toarray()[0]
    lam, alpha, k = model.components_, 1 / 3, 3
    logs = digamma(lam) - digamma(lam.sum(axis=1, keepdims=True))
    gamma = np.full(k, alpha + document.sum() / k)
    for _ in range(3000):
        phi = np.exp(digamma(gamma)[:, None] + logs)
        phi /= phi.sum(axis=0)
        gamma = alpha + phi @ document
    theta = digamma(gamma) - digamma(gamma.sum())
    words = np.sum(document * phi * (theta[:, None] + logs - np.log(phi)))
    prior = gammaln(k * alpha) - k * gammaln(alpha) + np.sum((alpha - 1) * theta)
    own = gammaln(gamma.sum()) - np.sum(gammaln(gamma)) + np.sum((gamma - 1) * theta)
    elbo = words + prior - own
    found = model.perplexity(document[None, :], form="bound")
    assert found == pytest.approx(np.exp(-elbo / document.sum()), rel=1e-4)


def test_completion_is_above_the_entropy_and_a_seed_gives_one_number():
    train, test = planted(400), planted(150, seed=1)
    model = LDA(3, privacy="none", batch_size=100, max_iter=3).fit(train)
    assert model.perplexity(test) == model.perplexity(test) == np.exp(-model.score(test))
    assert model.perplexity(test, seed=1) != model.perplexity(test)
    assert model.perplexity(test) < model.perplexity(test, form="bound")
    uniform = LDA(3, privacy="none").fit(train)
    uniform.components_ = np.ones((3, 30))
    assert uniform.perplexity(test) == pytest.approx(30.0, rel=1e-4)
    with pytest.raises(DataError, match="both random halves"):
        model.perplexity(np.eye(1, 30))
    with pytest.raises(ConfigError, match="form = 'train'"):
        model.perplexity(test, form="train")  # type: ignore[arg-type]


def test_a_seed_gives_one_answer_whatever_the_threads():
    train = planted(300)
    settings = {"privacy": "none", "batch_size": 64, "max_iter": 2}
    first = LDA(3, **settings).fit(train).components_
    assert np.array_equal(first, LDA(3, **settings, n_jobs=2).fit(train).components_)
    assert not np.array_equal(first, LDA(3, **settings, random_state=1).fit(train).components_)


def test_partial_fit_is_fit_in_pieces():
    train = planted(300)
    whole = LDA(3, privacy="none", batch_size=300).fit(train)
    piece = LDA(3, privacy="none", total_samples=300).partial_fit(train)
    np.testing.assert_allclose(piece.components_, whole.components_, rtol=1e-12)
    piece.partial_fit(train[:100])
    assert piece.n_batch_iter_ == 2
    with pytest.raises(DataError, match="of 29 words, but the vocabulary has 30"):
        piece.partial_fit(train[:, :29])
    with pytest.raises(ConfigError, match="total_samples"):
        LDA(3, privacy="none").partial_fit(train)


def test_scikit_learn_takes_it_for_one_of_its_own():
    from sklearn.base import clone
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    texts = ["cat dog cat bird", "dog bird cat", "sun moon star", "moon star sun moon"] * 5
    model = LDA(2, privacy="none", max_iter=3, batch_size=5)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "components_")
    pipeline = make_pipeline(CountVectorizer(), model)
    assert pipeline.fit_transform(texts).shape == (20, 2)
    search = GridSearchCV(pipeline, {"lda__n_components": [1, 2]}, cv=2).fit(texts)
    assert search.best_params_ == {"lda__n_components": 2}
    assert model.set_params(n_components=4).n_components == 4
    with pytest.raises(ConfigError, match="no setting 'topics'"):
        model.set_params(topics=3)


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement"])
def test_a_private_fit_says_what_it_promises(sampling):
    train, test = planted(2000), planted(200, seed=1)
    privacy = Privacy(epsilon=8.0, delta=1e-4, insecure_noise_seed=0)
    model = LDA(**PRIVATE, privacy=privacy, sampling=sampling, max_iter=1).fit(train)
    guarantee, settled = model.guarantee_, model.settled_
    assert guarantee is not None
    assert settled is not None
    assert 7.9 < guarantee.epsilon <= 8.0
    assert (guarantee.delta, guarantee.unit, guarantee.adjacency) == (1e-4, "record", "replace-one")
    assert "known seed" in str(guarantee.caveat)
    assert settled.clip == 1.0  # in units of 0.05 · 30
    assert settled.all_events[0].count == model.n_batch_iter_ == 20
    assert settled.all_events[0].nonnegative
    batches = {"poisson": Poisson(rate=0.05)}
    batches["without-replacement"] = WithoutReplacement(batch=100, total=2000)
    assert settled.all_events[0].sampling == batches[sampling]
    assert "one place" in guarantee.trust
    assert (model.components_ > 0).all()
    assert model.perplexity(test) < 0.9 * unigram(train, test)
    again = LDA(**PRIVATE, privacy=privacy, sampling=sampling).fit(train)
    assert np.array_equal(again.components_, model.components_)


def test_noise_from_the_operating_system_differs_and_has_no_caveat():
    train = planted(500)
    models = [LDA(**PRIVATE, privacy=Privacy(epsilon=3.0, delta=1e-4)).fit(train) for _ in "ab"]
    assert not np.array_equal(models[0].components_, models[1].components_)
    assert models[0].guarantee_ is not None
    assert models[0].guarantee_.caveat is None


def test_the_four_accountants_side_by_side():
    privacy = Privacy(
        noise_multiplier=1.0, delta=1e-4, adjacency="add-or-remove-one", insecure_noise_seed=0
    )
    model = LDA(**PRIVATE, privacy=privacy, total_samples=1000).fit(planted(950))
    found = model.epsilons()
    assert found["pld"] == pytest.approx(model.guarantee_.epsilon)
    assert found["pld"] < found["rdp"] <= found["moments"] < found["strong"]
    substitute = Privacy(noise_multiplier=1.0, delta=1e-4, insecure_noise_seed=0)
    assert LDA(**PRIVATE, privacy=substitute).fit(planted(500)).epsilons()["moments"] is None


def test_under_add_or_remove_the_number_of_documents_is_declared():
    privacy = Privacy(epsilon=3.0, delta=1e-4, adjacency="add-or-remove-one", insecure_noise_seed=0)
    with pytest.raises(ConfigError, match="total_samples"):
        LDA(**PRIVATE, privacy=privacy).fit(planted(200))
    first = LDA(**PRIVATE, privacy=privacy, total_samples=300).fit(planted(280))
    second = LDA(**PRIVATE, privacy=privacy, total_samples=300).fit(planted(320))
    assert first.settled_ == second.settled_
    with pytest.raises(ConfigError, match="reveals the number of records"):
        LDA(**PRIVATE, privacy=privacy, total_samples=300, sampling="without-replacement").fit(
            planted(300)
        )


def test_every_private_partial_fit_is_counted():
    privacy = Privacy(noise_multiplier=4.0, delta=1e-4, insecure_noise_seed=0)
    model = LDA(**PRIVATE, privacy=privacy, total_samples=300)
    for calls in (1, 2, 3):
        model.partial_fit(planted(100, seed=calls))
        event = GaussianEvent(clip=1.5, noise_sd=6.0, count=calls, nonnegative=True)
        assert model.guarantee_.epsilon == pytest.approx(epsilon([event], 1e-4, "replace-one"))
    model.set_params(privacy=Privacy(noise_multiplier=40.0, delta=1e-4, insecure_noise_seed=0))
    model.partial_fit(planted(100))
    quieter = GaussianEvent(clip=1.5, noise_sd=60.0, nonnegative=True)
    assert model.guarantee_.epsilon == pytest.approx(epsilon([event, quieter], 1e-4, "replace-one"))
    assert model.epsilons()["pld"] == pytest.approx(model.guarantee_.epsilon)
    with pytest.raises(ConfigError, match="set noise_multiplier"):
        LDA(**PRIVATE, privacy=Privacy(epsilon=1.0), total_samples=9).partial_fit(planted(9))


@pytest.fixture
def book(tmp_path):
    """A ledger with a budget of ε = 3 for `planted(400)`."""
    path = tmp_path / "ledger.sqlite"
    with Ledger(path, create=True) as ledger:
        dataset = identified(ledger, planted(400))
        budget = Budget(epsilon=3.0, delta=1e-4, adjacency="replace-one", unit="record")
        ledger.set_budget(dataset, budget, reason="test")
    return path, dataset


def private(path, epsilon):
    return LDA(**PRIVATE, privacy=Privacy(epsilon=epsilon, delta=1e-4, ledger=str(path)))


def test_steps_are_charged_and_the_budget_holds(book):
    path, dataset = book
    shuffled = planted(400)[np.random.default_rng(0).permutation(400)]
    private(path, 2.0).fit(shuffled)
    with Ledger(path) as ledger:
        spent = ledger.spent(dataset)
    assert spent.charges == 4
    assert 1.9 < spent.epsilon <= 2.0
    with pytest.raises(PrivacyBudgetError, match="> budget 3"):
        private(path, 2.8).fit(planted(400))
    with pytest.raises(PrivacyBudgetError):
        private(path, 1.0).fit(planted(401))  # nobody has allowed anything for these
    with Ledger(path) as ledger:
        assert ledger.spent(dataset).charges == 4


def test_a_step_that_fails_is_paid_for(book, monkeypatch):
    path, dataset = book

    original, charges = PrivateStatistics.answer, []

    def fail(*given):
        with Ledger(path) as ledger:
            charges.append(ledger.spent(dataset).charges)
        if charges[-1]:
            raise RuntimeError("the lights went out")
        return original(*given)

    monkeypatch.setattr(PrivateStatistics, "answer", fail)
    with pytest.raises(RuntimeError, match="lights"):
        private(path, 2.0).fit(planted(400))
    assert charges == [0, 1], "rehearsed, then charged, then computed"
    with Ledger(path) as ledger:
        assert ledger.spent(dataset).charges == 1


def test_a_fit_that_stops_keeps_what_was_paid_for(book, monkeypatch):
    """Two steps are learnt from, the third is charged only; the guarantee is that of all four."""
    path, dataset = book
    model, asked = private(path, 2.0), []

    def third_fails(*parts, **settings):
        asked.append(1)
        if len(asked) == 4:  # the first is the rehearsal's
            raise RuntimeError("the lights went out")
        return expect(*parts, **settings)

    monkeypatch.setattr("tacit.models.lda.model.expect", third_fails)
    with pytest.raises(RuntimeError):
        model.fit(planted(400))
    with Ledger(path) as ledger:
        assert ledger.spent(dataset).charges == 3
    assert model.n_batch_iter_ == 2
    assert model.guarantee_ is not None
    assert 1.9 < model.guarantee_.epsilon <= 2.0


def test_a_fit_that_is_refused_leaves_what_was_learnt(book):
    path, _ = book
    model = private(path, 2.0).fit(planted(400))
    before, promised = model.components_, model.guarantee_
    model.set_params(privacy=private(path, 2.8).privacy)
    with pytest.raises(PrivacyBudgetError, match="> budget 3"):
        model.fit(planted(400))
    assert np.array_equal(model.components_, before)
    assert (model.guarantee_, model.n_batch_iter_) == (promised, 4)


@pytest.mark.parametrize("denoise", ["shrink", "zero"])
def test_a_private_fit_is_a_plan_with_one_party(denoise):
    privacy = Privacy(epsilon=8.0, delta=1e-4, insecure_noise_seed=0)
    counts = planted(600)
    found = LDA(**PRIVATE, privacy=privacy, denoise=denoise, max_iter=2).fit(counts)
    repair = "none" if denoise == "shrink" else "truncate"
    plan = make_plan(
        TopicModel(3, words=30, document_words=30),
        {"corpus": document_records(counts)},
        method=PrivateStatistics(
            sampling_rate=100 / 600, noise_aware=denoise == "shrink", repair=repair
        ),
        schedule=Synchronous(rounds=12, damping=PowerDamping(offset=1.0, decay=0.7)),
        privacy=privacy,
    )
    wanted = carry_out(plan).state.q["log"] + 1.0
    np.testing.assert_allclose(found.components_, wanted, rtol=1e-9)
    assert found.settled_ is not None
    assert found.settled_.all_events == plan.settled["corpus"].all_events


def test_zero_sets_negative_counts_of_every_release_to_zero():
    """After one step half of the entries, those of mere noise, are the prior's 1/3."""
    privacy = Privacy(noise_multiplier=50.0, delta=1e-4, insecure_noise_seed=0)
    model = LDA(**PRIVATE, privacy=privacy, denoise="zero", total_samples=100)
    first = model.partial_fit(planted(100)).components_
    assert 0.3 < np.mean(np.isclose(first, 1 / 3, rtol=1e-9)) < 0.7
    second = model.partial_fit(planted(100)).components_
    rho = 2.0**-0.7
    assert (second >= (1 - rho) * first + rho / 3 - 1e-9).all()
    # Noise of a known seed differs from call to call: what is added is not what was there.
    added = (second - (1 - rho) * first) / rho
    assert abs(np.corrcoef(first.ravel(), added.ravel())[0, 1]) < 0.5


@pytest.mark.parametrize(
    ("changes", "spoil", "error"),
    [
        ({"n_components": 0}, None, ConfigError),
        ({"batch_size": 2.5}, None, ConfigError),
        ({"clip_share": 0.0}, None, ConfigError),
        ({"clip_share": 1.5}, None, ConfigError),
        ({"document_words": 0}, None, ConfigError),
        ({"learning_decay": 0.3}, None, ConfigError),
        ({"learning_offset": 0.0}, None, ConfigError),
        ({"doc_topic_prior": float("nan")}, None, ConfigError),
        ({"sampling": "shuffle"}, None, ConfigError),
        ({"denoise": "no"}, None, ConfigError),
        ({"privacy": None}, None, ConfigError),
        ({"sampling": "without-replacement", "total_samples": 500}, None, ConfigError),
        ({}, -1.0, DataError),
        ({}, 0.5, DataError),
        ({}, 0.0, DataError),
    ],
)
def test_bad_input_is_refused_and_nothing_is_charged(book, changes, spoil, error):
    path, dataset = book
    counts = planted(400).toarray().astype(float)
    if spoil is not None:
        counts[7] = spoil
    with pytest.raises(error) as caught:
        private(path, 1.0).set_params(**changes).fit(counts)
    assert "\n" not in str(caught.value)
    with Ledger(path) as ledger:
        assert ledger.spent(dataset).charges == 0


def test_what_fails_before_a_document_is_read_costs_nothing(book, monkeypatch):
    path, dataset = book

    def fail(_self, _model, _family, _key, task):
        (documents,) = task.records.values()
        assert documents.sum() == documents.shape[0], "documents of one word each"
        raise MemoryError("while compiling")

    monkeypatch.setattr("tacit.methods.statistics.method.PrivateStatistics.answer", fail)
    with pytest.raises(MemoryError, match="while compiling"):
        private(path, 2.0).fit(planted(400))
    with Ledger(path) as ledger:
        assert ledger.spent(dataset).charges == 0


def test_a_known_seed_is_charged_to_no_ledger(book):
    path, _ = book
    privacy = Privacy(epsilon=1.0, delta=1e-4, insecure_noise_seed=1, ledger=str(path))
    with pytest.raises(ConfigError, match="known noise seed"):
        LDA(**PRIVATE, privacy=privacy).fit(planted(400))


def test_nothing_is_asked_of_a_model_that_has_not_learnt():
    with pytest.raises(ConfigError, match="call fit first"):
        LDA(2, privacy="none").transform([[1, 2]])
    model = LDA(2, privacy="none").fit([[1, 2], [3, 1]])
    with pytest.raises(DataError, match="of 3 words, but the vocabulary has 2"):
        model.transform([[1, 2, 3]])
    with pytest.raises(ConfigError, match="3 words, but the documents have 2 columns"):
        model.topics(["a", "b", "c"])
    with pytest.raises(ConfigError, match="top = 3"):
        model.topics(["a", "b"], top=3)


def test_one_guarantee_does_not_speak_for_steps_of_several_kinds():
    """What was learnt without noise or with known noise has no ε, nor has what follows it."""
    kinds = [
        "none",
        Privacy(noise_multiplier=9.0),
        Privacy(noise_multiplier=9.0, insecure_noise_seed=1),
    ]
    for before, after in itertools.permutations(kinds, 2):
        for learn in (LDA.fit, LDA.partial_fit):
            model = LDA(2, privacy=before, total_samples=20)
            learn(model, planted(20))
            model.set_params(privacy=after)
            with pytest.raises(ConfigError, match="no guarantee covers both"):
                model.partial_fit(planted(20))
            assert model.n_batch_iter_ == 1
        model.fit(planted(20))  # begins anew


def test_without_a_ledger_the_users_own_is_charged():
    """As in `tacit.fit`: no budget is needed, and a second fit warns with the running total."""
    privacy = Privacy(epsilon=2.0, delta=1e-4)
    model = LDA(**PRIVATE, privacy=privacy).fit(planted(400))
    with Ledger(own_ledger()) as ledger:
        (dataset,) = ledger.datasets()
        assert ledger.spent(dataset).charges == model.n_batch_iter_ == 4
    with pytest.warns(RunningTotalWarning, match="ε = 2 so far"):
        LDA(**PRIVATE, privacy=privacy).fit(planted(400))
    LDA(**PRIVATE, privacy=msgspec.structs.replace(privacy, ledger="none")).fit(planted(400))
    with Ledger(own_ledger()) as ledger:
        assert ledger.spent(dataset).charges == 8

"""Pure ε: discrete Laplace noise, its sensitivity in the L1 norm, and its accounting."""

import itertools
import math
import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import tacit
from tacit.cli.main import main
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, PrivacyBudgetError
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.methods.base import Task
from tacit.models import LinearRegression, LogisticRegression, TopicModel
from tacit.models.statistics import Quadratic, Working
from tacit.plan.plan import make_plan
from tacit.privacy.accounting import Composition, delta, epsilon
from tacit.privacy.accounting.filters import filtered_epsilon
from tacit.privacy.bounded import clip_units
from tacit.privacy.events import GaussianEvent, LaplaceEvent
from tacit.privacy.lattice import DiscreteLaplace, Keystream, candidates, draw_each, refined
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.ledger import Budget, Ledger
from tacit.privacy.mechanisms import Drawn, Laplace, LatticeTerms
from tacit.privacy.settings import Privacy
from tacit.results.diagnostics import counted_clipping
from tacit.server.schedule import Synchronous

FALSE_ALARM = 1e-6
RELATIONS = ("add-or-remove-one", "replace-one")


def law(scale, reach):
    """P(x) ∝ exp(−|x|/scale) for |x| ≤ reach; what lies beyond is left out."""
    x = np.arange(-reach, reach + 1)
    mass = np.exp(-np.abs(x) / scale)
    return x, mass / mass.sum()


def chi_square(sample, scale):
    reach = math.ceil(8 * scale)
    _, mass = law(scale, reach)
    inside = sample[np.abs(sample) <= reach]
    counts = np.bincount(inside + reach, minlength=len(mass))
    return stats.chisquare(counts, mass * len(inside)).pvalue


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_small_scales_have_exactly_their_law(bits):
    sample = DiscreteLaplace(os.urandom(32), bits).draw(200_000)
    assert chi_square(sample, 2.0**bits) > FALSE_ALARM
    assert chi_square(sample, 1.05 * 2.0**bits) < FALSE_ALARM
    assert chi_square(sample + 1, 2.0**bits) < FALSE_ALARM


@pytest.mark.parametrize("bits", [20, 40])
def test_large_scales_have_their_law_in_high_and_low_bits(bits):
    sample = DiscreteLaplace(os.urandom(32), bits).draw(300_000)
    assert stats.kstest(sample / 2.0**bits, "laplace").pvalue > FALSE_ALARM
    assert stats.kstest(sample / (1.05 * 2.0**bits), "laplace").pvalue < FALSE_ALARM
    for modulus in (2, 7, 256):
        counts = np.bincount(sample % modulus, minlength=modulus)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_floats_and_integers_decide_alike():
    words = Keystream(os.urandom(32), b"noise\0\0\0").words(3 * 3000).reshape(-1, 3)
    for bits in (4, 20, 40):
        values, taken, unclear = candidates(words, bits, "laplace")
        digits = Keystream(bytes(32), b"digits\0\0")
        found = [refined([int(one) for one in row], bits, digits, "laplace") for row in words]
        assert not unclear.any()
        assert [one for one in found if one is not None] == values[taken].tolist()


def test_refinement_alone_has_the_law():
    digits = Keystream(os.urandom(32), b"digits\0\0")
    words = Keystream(os.urandom(32), b"noise\0\0\0").words(3 * 20_000).reshape(-1, 3)
    found = [refined([int(one) for one in row], 2, digits, "laplace") for row in words]
    sample = np.array([one for one in found if one is not None])
    assert chi_square(sample, 4.0) > FALSE_ALARM
    assert chi_square(sample, 4.6) < FALSE_ALARM


def test_one_key_has_one_sequence():
    keys = [bytes([one]) * 32 for one in range(5)]
    together = draw_each(keys, 50, 20, "laplace")
    for row, key in zip(together, keys, strict=True):
        assert row.tolist() == DiscreteLaplace(key, 20).draw(50).tolist()
    assert together.tolist() != draw_each(keys, 50, 20).tolist()


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("bits", [2, 5])
def test_the_charged_loss_is_that_of_the_integers(bits, adjacency):
    """The largest log-ratio of the laws for integer moves, against what is charged."""
    event = LaplaceEvent(clip=1.0, noise_sd=3.0).on_lattice(2, units=4)
    lattice = type(event.lattice)(numbers=2, bits=bits, units=4)
    event = LaplaceEvent(clip=1.0, noise_sd=3.0, lattice=lattice)
    moved = event.sensitivity(adjacency) / event.step
    worst = 0.0
    for first in np.linspace(0.0, moved, 9):  # the L1 ball's edge, rounded in both coordinates
        for start in (0.0, 0.49):
            ends = [np.rint(start + part) - np.rint(start) for part in (first, moved - first)]
            worst = max(worst, sum(map(abs, ends)) / 2.0**bits)
    assert worst <= event.loss(adjacency) * (1 + 1e-12)
    assert worst > 0.7 * event.loss(adjacency)


def test_losses_add_up():
    event = LaplaceEvent(clip=1.0, noise_sd=math.sqrt(2.0), count=3)
    for accountant in ("pld", "rdp", "moments", "strong"):
        assert epsilon([event], 0.0, "add-or-remove-one", accountant=accountant) == pytest.approx(3)
    assert epsilon([event], 0.0, "replace-one") == pytest.approx(6)
    gaussian = GaussianEvent(clip=1.0, noise_sd=5.0)
    assert epsilon([gaussian], 0.0, "replace-one") == math.inf
    alone = epsilon([gaussian], 1e-5, "replace-one")
    assert epsilon([event, gaussian], 1e-5, "replace-one") == pytest.approx(6 + alone)
    assert delta([event], 6.0001, "replace-one") == 0
    assert delta([event], 5.0, "replace-one") == 1.0
    both = Composition(adjacency="replace-one").add(event, gaussian)
    assert both == Composition(adjacency="replace-one").add(gaussian, event)


def test_a_claim_of_half_the_scale_is_exposed():
    """The privacy loss of neighbours reaches the claim, and not with noise twice as wide."""
    event = LaplaceEvent(clip=1.0, noise_sd=2.0)
    mass = law(event.scale * 64, 6000)[1]
    move = round(64 * event.sensitivity("replace-one"))
    shown = np.log(mass[:-move] / mass[move:]).max()
    assert shown == pytest.approx(event.loss("replace-one"), rel=1e-9)
    wider = LaplaceEvent(clip=1.0, noise_sd=4.0)
    assert shown > 1.9 * wider.loss("replace-one")


def test_filters_of_runs_that_were_chosen_later():
    pure = LaplaceEvent(clip=0.5, noise_sd=math.sqrt(2.0), count=2)
    gaussian = GaussianEvent(clip=1.0, noise_sd=20.0)
    common = {"adjacency": "replace-one", "epsilon": epsilon}
    assert filtered_epsilon([pure], 0.0, budget=3.0, **common) == pytest.approx(2)
    assert filtered_epsilon([gaussian], 0.0, budget=3.0, **common) == math.inf
    assert filtered_epsilon([pure, gaussian], 0.0, budget=3.0, **common) == math.inf
    mixed = filtered_epsilon([pure, gaussian], 1e-5, budget=3.0, **common)
    assert epsilon([gaussian], 1e-5, "replace-one") < mixed < math.inf


def test_the_ledger_holds_pure_budgets(tmp_path):
    dataset = DatasetId("0" * 32, "a" * 32)
    event = LaplaceEvent(clip=0.5, noise_sd=math.sqrt(2.0)).on_lattice(3, units=100)
    with Ledger(tmp_path / "ledger.sqlite", create=True) as ledger:
        budget = Budget(epsilon=2.1, delta=0.0, unit="record", adjacency="replace-one")
        ledger.set_budget(dataset, budget, reason="test")
        terms = {"unit": "record", "adjacency": "replace-one"}
        for number in range(2):
            ledger.charge(dataset, run="a", request=f"r{number}", events=[event], **terms)
        assert ledger.spent(dataset).epsilon == pytest.approx(2, rel=1e-5)
        with pytest.raises(PrivacyBudgetError, match="exceeded"):
            ledger.charge(dataset, run="a", request="r2", events=[event], **terms)
        gaussian = GaussianEvent(clip=1.0, noise_sd=1e6)
        with pytest.raises(PrivacyBudgetError, match="no finite bound"):
            ledger.charge(dataset, run="b", request="r0", events=[gaussian], **terms)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.spent(dataset).epsilon == pytest.approx(2, rel=1e-5)


@pytest.mark.parametrize("family", [FullGaussian(3), MeanFieldGaussian(3)])
def test_closed_form_norms_bound_what_is_released(family):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(50, 3)) * rng.choice([1e-200, 1e-3, 1.0, 1e5], (50, 1))
    parts = Working(jnp.asarray(x), jnp.asarray(rng.normal(size=50)), jnp.ones(50))
    q = {
        "linear": jnp.zeros(3),
        "quadratic": -0.5 * (jnp.eye(3) if family.kind == "full" else jnp.ones(3)),
    }
    found = Quadratic(family=family, q=q, parts=parts, balance=0.7, unit=1.3)
    norms = np.asarray(found.l1_norms())
    for row in range(50):
        released = found.total(jnp.asarray(np.eye(50)[row]))
        exact = sum(float(np.abs(part).sum()) for part in released.values())
        assert norms[row] == pytest.approx(exact, rel=1e-12, abs=1e-300)


def test_one_unit_moves_a_sum_by_the_clip_at_most():
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(40, 6)) * rng.choice([0.1, 1.0, 100.0], (40, 1))
    summed = jax.jit(lambda rows: clip_units({"a": rows}, 1.0, norm="l1").value["a"])
    whole = np.asarray(summed(rows))
    for row in range(40):
        assert np.abs(whole - summed(np.delete(rows, row, axis=0))).sum() <= 1.0
    bounded = clip_units({"a": jnp.asarray(rows)}, 1.0, norm="l1")
    assert bounded.sensitivity("replace-one") == 2.0
    alike = clip_units({"a": jnp.asarray(np.abs(rows))}, 1.0, norm="l1", nonnegative=True)
    assert alike.sensitivity("replace-one") == 2.0, "√2 holds in the L2 norm only"


def test_the_mechanism_wants_the_l1_norm_and_all_units():
    rows = {"a": jnp.ones((4, 3))}
    mechanism = Laplace(noise_sd=1.0, lattice=LatticeTerms(bits=20, units=4))
    noise = jnp.asarray(DiscreteLaplace(bytes(32)).draw(3))
    with pytest.raises(TypeError, match="L1"):
        mechanism.release(noise, clip_units(rows, 1.0))
    bounded = clip_units(rows, 1.0, norm="l1")
    with pytest.raises(TypeError, match="sampled batch"):
        mechanism.release(noise, bounded, Drawn(rate=jnp.asarray(0.5)))
    event = mechanism.release(noise, bounded).event
    assert isinstance(event, LaplaceEvent)
    assert event.loss("add-or-remove-one") == pytest.approx(math.sqrt(2), rel=1e-4)


def records(count, seed, columns=2):
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(count), rng.uniform(-1, 1, (count, columns - 1))])
    return {"x": x, "y": x @ np.arange(1, columns + 1) + 0.5 * rng.normal(size=count)}


LINEAR = LinearRegression(("one", "slope"), noise_sd=0.5, prior_sd=3.0)
PARTIES = {"north": records(400, 1), "south": records(500, 2)}


ONCE = tacit.methods.PrivateStatistics(one_shot=True, clip=40.0)


def private(**change):
    return Privacy(**{"epsilon": 2.0, "delta": 0.0} | change)


@pytest.mark.parametrize("adjacency", RELATIONS)
def test_a_fit_has_a_pure_guarantee(adjacency):
    plan = make_plan(LINEAR, PARTIES, privacy=private(adjacency=adjacency), method=ONCE)
    assert plan.guarantee.delta == 0
    assert plan.guarantee.epsilon == pytest.approx(2.0, rel=1e-3)
    assert all(isinstance(one, LaplaceEvent) for one in plan.settled["north"].all_events)
    seeded = private(adjacency=adjacency, insecure_noise_seed=1)
    fit = tacit.fit(LINEAR, PARTIES, privacy=seeded, method=ONCE)
    assert "δ = 0" in fit.privacy.statement
    off = np.abs(fit.posterior.mean - [1.0, 2.0]) / fit.posterior.sd
    assert np.all(off < 5)


@pytest.mark.parametrize("count", [False, True])
def test_neighbours_are_told_apart_as_far_as_charged_and_no_further(count):
    """What leaves the party for two extreme neighbours: the loss of the integers, exactly."""
    once = replace(ONCE, count_clipped=count)
    plan = make_plan(LINEAR, {"north": PARTIES["north"]}, privacy=private(), method=once)
    other = {key: value.copy() for key, value in PARTIES["north"].items()}
    base = {key: value.copy() for key, value in PARTIES["north"].items()}
    base["y"][0], other["y"][0] = 1e6, -1e6
    sums = []
    for own in (base, other):
        method, event = plan.method, plan.settled["north"].all_events[0]
        task = Task(own, jnp.ones(400), plan.prior, plan.family.zero(), None, jnp.bool_(False))
        terms = type("T", (), {"clips": [event.clip], "units": 400})
        bounded = method._clipped(
            plan.model, plan.family, None, task._replace(terms=terms), own, jnp.ones(400)
        )
        parts = [np.atleast_1d(part) for part in jax.tree.leaves(bounded.value)]
        assert len(parts) == 2 + count
        sums.append(np.concatenate([np.rint(part / event.step) for part in parts]))
    loss = np.abs(sums[0] - sums[1]).sum() / 2.0**event.lattice.bits
    assert 0.9 * event.loss("replace-one") < loss <= event.loss("replace-one")


@pytest.mark.parametrize("adjacency", RELATIONS)
def test_counts_of_clipped_records_can_be_pure(adjacency):
    """The share of records within the clip, with Laplace noise of the stated size."""
    method = tacit.methods.PrivateStatistics(clip=8.0, count_clipped=True, one_shot=True)
    how = private(epsilon=4.0, adjacency=adjacency, insecure_noise_seed=3)
    if adjacency != "replace-one":
        with pytest.raises(ConfigError, match="keeps the number of records secret"):
            make_plan(LINEAR, PARTIES, privacy=how, method=method)
        return
    plan = make_plan(LINEAR, PARTIES, privacy=how, method=method)
    assert plan.guarantee.delta == 0
    assert plan.guarantee.epsilon == pytest.approx(4.0, rel=1e-3)
    outcome = carry_out(plan)
    norms = np.concatenate([
        LINEAR.statistics(plan.family, plan.prior, own, np.ones(len(own["y"]))).l1_norms()
        for own in PARTIES.values()
    ])  # fmt: skip
    share = float(np.mean(norms <= 8.0))
    assert 0.1 < share < 0.9
    told = counted_clipping(plan, outcome.state.memory)
    assert told is not None
    assert told.noise_sd is not None
    assert abs(1.0 - told.share - share) < 5.0 * told.noise_sd < 0.25
    (event,), weight = plan.settled["north"].events_at(0), 0.1 * 8.0
    units = sum(one.units for one in plan.settled.values())
    assert told.noise_sd == pytest.approx(event.noise_sd * np.sqrt(2.0) / weight / units)


def test_an_adaptive_clip_can_be_pure():
    method = tacit.methods.PrivateStatistics(clip=1.0, adaptive=0.5)
    how = private(epsilon=500.0, insecure_noise_seed=3)
    schedule = Synchronous(rounds=20)
    plan = make_plan(LINEAR, PARTIES, privacy=how, method=method, schedule=schedule)
    outcome = carry_out(plan)
    norms = np.concatenate([
        LINEAR.statistics(plan.family, plan.prior, own, np.ones(len(own["y"]))).l1_norms()
        for own in PARTIES.values()
    ])  # fmt: skip
    log_scale = float(outcome.state.public["log_scale"])
    assert log_scale == pytest.approx(np.log(np.median(norms)), abs=0.3)


@pytest.mark.parametrize(
    ("model", "change", "method", "words"),
    [
        (LINEAR, {}, None, "method.kind = 'auto'"),
        (LINEAR, {"aggregation": "trusted"}, ONCE, "aggregation"),
        (LINEAR, {}, tacit.methods.DPSGD(), "noise is Gaussian"),
        (LINEAR, {}, tacit.methods.PrivateStatistics(sampling_rate=0.5), "sampling_rate"),
    ],
)
def test_what_cannot_be_pure_is_refused(model, change, method, words):
    with pytest.raises(ConfigError, match=words):
        make_plan(model, PARTIES, privacy=private(**change), method=method)


def test_a_network_cannot_be_pure():
    model = tacit.models.NeuralNetwork(("one", "slope"), hidden=2)
    labels = {name: {**own, "y": (own["y"] > 0) * 1.0} for name, own in PARTIES.items()}
    with pytest.raises(ConfigError, match="expected statistics"):
        make_plan(model, labels, privacy=private(), method=ONCE)


def test_other_models_with_statistics():
    labels = {name: {**own, "y": (own["y"] > 1) * 1.0} for name, own in PARTIES.items()}
    model = LogisticRegression(("one", "slope"), prior_sd=1.0)
    plan = make_plan(
        model, labels, privacy=private(), method=tacit.methods.PrivateStatistics(clip=3.0)
    )
    assert plan.guarantee.epsilon == pytest.approx(2.0, rel=1e-3)
    assert TopicModel(2, words=5).statistics_have_l1_norms
    with pytest.raises(ConfigError, match="set both to 0 or neither"):
        private(parties={"north": {"delta": 1e-5}})


def test_the_command_accounts_for_pure_noise(monkeypatch, capsys):
    def said(*words):
        monkeypatch.setattr("sys.argv", ["tacit", "account", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr()

    code, out = said("--delta", "0", "--epsilon", "1", "--json")
    assert code == 0
    assert '"epsilon": 1.0' in out.out or '"epsilon": 0.9999' in out.out
    code, out = said("--delta", "0", "--epsilon", "1", "--rate", "0.1")
    assert code == 2
    assert "sampled batches" in out.err
    for combination in itertools.product(("--delta",), ("-1", "1")):
        assert said(*combination, "--epsilon", "1")[0] == 2

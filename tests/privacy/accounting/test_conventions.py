"""Which noise multiplier each library means, and that a wrong one would not pass."""

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from tacit.privacy.accounting import Composition, epsilon
from tacit.privacy.accounting.steps import Step, to_step
from tacit.privacy.events import GaussianEvent, Poisson, WithoutReplacement
from tacit.testing.privacy_loss import compose_below

DELTA = 1e-5
RELATIONS = {
    "add-or-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "substitute": NeighboringRelation.REPLACE_ONE,
}
CLIP, NOISE = 3.0, 12.0


def library(accountant, event: dp_accounting.DpEvent, count: int) -> float:
    return accountant.compose(dp_accounting.SelfComposedDpEvent(event, count)).get_epsilon(DELTA)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("rate", "count"), [(None, 20), (0.1, 100), (0.01, 500)])
def test_pld_doubles_the_sensitivity_itself(relation, rate, count):
    """dp_accounting's PLD takes s/C under either relation; we agree with it."""
    event = dp_accounting.GaussianDpEvent(NOISE / CLIP)
    if rate is not None:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    theirs = library(PLDAccountant(RELATIONS[relation]), event, count)
    sampling = None if rate is None else Poisson(rate=rate)
    ours = GaussianEvent(clip=CLIP, noise_sd=NOISE, count=count, sampling=sampling)
    assert epsilon([ours], DELTA, relation) == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize(("relation", "halved"), [("add-or-remove", 1), ("substitute", 2)])
def test_rdp_does_not_double_the_sensitivity(relation, halved):
    """dp_accounting's RDP takes s over the distance of the sums: s/(2C) under substitution."""
    ours = epsilon(
        [GaussianEvent(clip=CLIP, noise_sd=NOISE, count=20)], DELTA, relation, accountant="rdp"
    )
    right = dp_accounting.GaussianDpEvent(NOISE / CLIP / halved)
    wrong = dp_accounting.GaussianDpEvent(NOISE / CLIP / (3 - halved))
    assert ours == pytest.approx(library(RdpAccountant(None, RELATIONS[relation]), right, 20))
    assert ours != pytest.approx(
        library(RdpAccountant(None, RELATIONS[relation]), wrong, 20), rel=0.3
    )


def test_rdp_without_replacement_takes_half_the_multiplier():
    sampling = WithoutReplacement(batch=5, total=100)
    ours = GaussianEvent(clip=CLIP, noise_sd=NOISE, count=100, sampling=sampling)
    theirs = dp_accounting.SampledWithoutReplacementDpEvent(
        100, 5, dp_accounting.GaussianDpEvent(NOISE / CLIP / 2)
    )
    found = epsilon([ours], DELTA, "substitute", accountant="rdp")
    assert found == pytest.approx(
        library(RdpAccountant(None, RELATIONS["substitute"]), theirs, 100)
    )


@pytest.mark.parametrize(
    ("event", "relation", "far", "near"),
    [
        (GaussianEvent(clip=2.0, noise_sd=4.0), "add-or-remove", 0.5, 0.5),
        (GaussianEvent(clip=2.0, noise_sd=4.0), "substitute", 1.0, 1.0),
        (GaussianEvent(clip=2.0, noise_sd=4.0, nonnegative=True), "substitute", 0.5**0.5, 0.5**0.5),
        (
            GaussianEvent(clip=2.0, noise_sd=4.0, sampling=Poisson(rate=0.1)),
            "add-or-remove",
            0.5,
            0.5,
        ),
        (
            GaussianEvent(clip=2.0, noise_sd=4.0, sampling=Poisson(rate=0.1), nonnegative=True),
            "substitute",
            0.5**0.5,
            0.5,
        ),
        (
            GaussianEvent(clip=2.0, noise_sd=4.0, sampling=WithoutReplacement(batch=1, total=2)),
            "substitute",
            1.0,
            1.0,
        ),
    ],
)
def test_distances(event, relation, far, near):
    step = to_step(event, relation)
    assert (step.far, step.near) == pytest.approx((far, near))


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments"])
def test_the_oracle_catches_a_forgotten_doubling(accountant):
    """With C/s in the place of 2C/s every accountant falls below what numbers prove."""
    pair = ([(1.0, 0.0)], [(1.0, 0.5)])  # s = 4C: two Gaussians 2C/s apart
    event = GaussianEvent(clip=1.0, noise_sd=4.0, count=30)
    right = Composition(relation="substitute", accountant=accountant).add(event)
    forgotten = Step("all", 1.0, 0.25, 0.25, False)
    wrong = Composition(relation="substitute", accountant=accountant, steps=((forgotten, 30),))
    assert compose_below([(pair, 30)]).delta(right.epsilon(DELTA)) <= DELTA
    assert compose_below([(pair, 30)]).delta(wrong.epsilon(DELTA)) > 100 * DELTA


def test_poisson_accounting_is_not_valid_without_replacement():
    """TMLR's slip: the same rate and noise, accounted for as Poisson, understates ε."""
    rate, noise, count = 0.05, 4.0, 1000
    pair = ([(1 - rate, 0.0), (rate, 2 / noise)], [(1.0, 0.0)])
    poisson = GaussianEvent(clip=1.0, noise_sd=noise, count=count, sampling=Poisson(rate=rate))
    fixed = GaussianEvent(
        clip=1.0, noise_sd=noise, count=count, sampling=WithoutReplacement(batch=5, total=100)
    )
    lost = compose_below([(pair, count)])
    assert lost.delta(epsilon([poisson], DELTA, "substitute")) > 2 * DELTA
    assert lost.delta(epsilon([fixed], DELTA, "substitute")) <= DELTA

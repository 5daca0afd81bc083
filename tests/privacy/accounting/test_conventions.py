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
ADJACENCIES = {
    "add-or-remove-one": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace-one": NeighboringRelation.REPLACE_ONE,
}
CLIP, NOISE = 3.0, 12.0


def library(accountant, event: dp_accounting.DpEvent, count: int) -> float:
    return accountant.compose(dp_accounting.SelfComposedDpEvent(event, count)).get_epsilon(DELTA)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(("rate", "count"), [(None, 20), (0.1, 100), (0.01, 500)])
def test_pld_doubles_the_sensitivity_itself(adjacency, rate, count):
    """dp_accounting's PLD takes s/C under either adjacency; we agree with it."""
    event = dp_accounting.GaussianDpEvent(NOISE / CLIP)
    if rate is not None:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    theirs = library(PLDAccountant(ADJACENCIES[adjacency]), event, count)
    sampling = None if rate is None else Poisson(rate=rate)
    ours = GaussianEvent(clip=CLIP, noise_sd=NOISE, count=count, sampling=sampling)
    assert epsilon([ours], DELTA, adjacency) == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize(("adjacency", "halved"), [("add-or-remove-one", 1), ("replace-one", 2)])
def test_rdp_does_not_double_the_sensitivity(adjacency, halved):
    """dp_accounting's RDP takes s over the distance of the sums: s/(2C) under substitution."""
    ours = epsilon(
        [GaussianEvent(clip=CLIP, noise_sd=NOISE, count=20)], DELTA, adjacency, accountant="rdp"
    )
    right = dp_accounting.GaussianDpEvent(NOISE / CLIP / halved)
    wrong = dp_accounting.GaussianDpEvent(NOISE / CLIP / (3 - halved))
    assert ours == pytest.approx(library(RdpAccountant(None, ADJACENCIES[adjacency]), right, 20))
    assert ours != pytest.approx(
        library(RdpAccountant(None, ADJACENCIES[adjacency]), wrong, 20), rel=0.3
    )


def test_rdp_without_replacement_takes_half_the_multiplier():
    sampling = WithoutReplacement(batch=5, total=100)
    ours = GaussianEvent(clip=CLIP, noise_sd=NOISE, count=100, sampling=sampling)
    theirs = dp_accounting.SampledWithoutReplacementDpEvent(
        100, 5, dp_accounting.GaussianDpEvent(NOISE / CLIP / 2)
    )
    found = epsilon([ours], DELTA, "replace-one", accountant="rdp")
    assert found == pytest.approx(
        library(RdpAccountant(None, ADJACENCIES["replace-one"]), theirs, 100)
    )


@pytest.mark.parametrize(
    ("event", "adjacency", "far", "near"),
    [
        (GaussianEvent(clip=2.0, noise_sd=4.0), "add-or-remove-one", 0.5, 0.5),
        (GaussianEvent(clip=2.0, noise_sd=4.0), "replace-one", 1.0, 1.0),
        (
            GaussianEvent(clip=2.0, noise_sd=4.0, nonnegative=True),
            "replace-one",
            0.5**0.5,
            0.5**0.5,
        ),
        (
            GaussianEvent(clip=2.0, noise_sd=4.0, sampling=Poisson(rate=0.1)),
            "add-or-remove-one",
            0.5,
            0.5,
        ),
        (
            GaussianEvent(clip=2.0, noise_sd=4.0, sampling=Poisson(rate=0.1), nonnegative=True),
            "replace-one",
            0.5**0.5,
            0.5,
        ),
        (
            GaussianEvent(clip=2.0, noise_sd=4.0, sampling=WithoutReplacement(batch=1, total=2)),
            "replace-one",
            1.0,
            1.0,
        ),
    ],
)
def test_distances(event, adjacency, far, near):
    step = to_step(event, adjacency)
    assert (step.far, step.near) == pytest.approx((far, near))


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments"])
def test_the_oracle_catches_a_forgotten_doubling(accountant):
    """With C/s in the place of 2C/s every accountant falls below what numbers prove."""
    pair = ([(1.0, 0.0)], [(1.0, 0.5)])  # s = 4C: two Gaussians 2C/s apart
    event = GaussianEvent(clip=1.0, noise_sd=4.0, count=30)
    right = Composition(adjacency="replace-one", accountant=accountant).add(event)
    forgotten = Step("all", 1.0, 0.25, 0.25, False)
    wrong = Composition(adjacency="replace-one", accountant=accountant, steps=((forgotten, 30),))
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
    assert lost.delta(epsilon([poisson], DELTA, "replace-one")) > 2 * DELTA
    assert lost.delta(epsilon([fixed], DELTA, "replace-one")) <= DELTA

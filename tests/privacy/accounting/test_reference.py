"""The published and recomputed values of methods §5, to their digits."""

import pytest

from tacit.privacy.accounting import calibrate, epsilon, epsilon_curve
from tacit.privacy.events import GaussianEvent, Poisson, WithoutReplacement

DELTA = 1e-5
BATCH = WithoutReplacement(batch=50, total=1000)


@pytest.mark.parametrize(
    ("rate", "noise", "count", "relation", "accountant", "expected"),
    [
        (0.05, 2.0, 1000, "add-or-remove", "pld", 3.700),
        (0.05, 2.0, 1000, "add-or-remove", "rdp", 4.02),
        (0.01, 1.0, 1000, "add-or-remove", "pld", 1.828),
        (0.01, 1.0, 1000, "add-or-remove", "rdp", 2.10),
        (None, 10.0, 10, "add-or-remove", "pld", 1.199),
        (None, 10.0, 10, "add-or-remove", "rdp", 1.31),
        (0.05, 4.0, 1000, "substitute", "pld", 3.337),
    ],
)
def test_epsilon(rate, noise, count, relation, accountant, expected):
    sampling = None if rate is None else Poisson(rate=rate)
    event = GaussianEvent(clip=1.0, noise_sd=noise, count=count, sampling=sampling)
    found = epsilon([event], DELTA, relation, accountant=accountant)
    digits = len(str(expected).split(".")[1])
    assert round(found, max(digits, 2)) == expected


def test_without_replacement_lies_between_its_bounds():
    event = GaussianEvent(clip=1.0, noise_sd=4.0, count=1000, sampling=BATCH)
    assert round(epsilon([event], DELTA, "substitute"), 2) == 4.26
    assert round(epsilon([event], DELTA, "substitute", accountant="rdp"), 2) == 9.02


@pytest.mark.parametrize(
    ("relation", "sampling", "least", "most"),
    [
        ("add-or-remove", Poisson(rate=0.05), 5.985, 5.995),
        ("substitute", Poisson(rate=0.05), 11.79, 11.80),
        ("substitute", BATCH, 11.98, 12.57),
    ],
)
def test_noise_for_epsilon_one(relation, sampling, least, most):
    def events(z: float) -> list[GaussianEvent]:
        return [GaussianEvent(clip=1.0, noise_sd=z, count=1000, sampling=sampling)]

    assert least <= calibrate(1.0, DELTA, relation, events) <= most


@pytest.mark.parametrize(
    ("relation", "accountant", "rounds"),
    [
        ("add-or-remove", "moments", 77),
        ("add-or-remove", "rdp", 89),
        ("add-or-remove", "pld", 100),
        ("substitute", "moments", 19),
        ("substitute", "pld", 25),
    ],
)
def test_rounds_within_epsilon_ten(relation, accountant, rounds):
    event = GaussianEvent(clip=1.0, noise_sd=5.0)
    last, next_one = epsilon_curve(
        [event], [rounds, rounds + 1], DELTA, relation, accountant=accountant
    )
    assert last <= 10 < next_one


def test_moments_of_the_meng_report():
    curve = epsilon_curve(
        [GaussianEvent(clip=1.0, noise_sd=5.0)],
        78,
        DELTA,
        "add-or-remove",
        accountant="moments",
    )
    assert [round(e, 3) for e in curve[-2:]] == [9.998, 10.078]


@pytest.mark.parametrize(("clip", "expected"), [(1.0, 3.48), (0.5**0.5, 1.90)])
def test_vips_without_replacement(clip, expected):
    """VIPS: D = 400,000, S = 20,000, σ = 1.24, one pass, δ = 1e-4; 1.90 lacks the √2."""
    event = GaussianEvent(
        clip=clip,
        noise_sd=1.24,
        count=20,
        sampling=WithoutReplacement(batch=20_000, total=400_000),
        nonnegative=True,
    )
    assert round(epsilon([event], 1e-4, "substitute", accountant="rdp"), 2) == expected

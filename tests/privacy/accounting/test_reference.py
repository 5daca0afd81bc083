"""The published and recomputed values of methods §5, to their digits."""

import pytest

from tacit.privacy.accounting import calibrate, epsilon, epsilon_curve
from tacit.privacy.events import GaussianEvent, Poisson, WithoutReplacement

DELTA = 1e-5
BATCH = WithoutReplacement(batch=50, total=1000)


@pytest.mark.parametrize(
    ("rate", "noise", "count", "adjacency", "accountant", "expected"),
    [
        (0.05, 2.0, 1000, "add-or-remove-one", "pld", 3.700),
        (0.05, 2.0, 1000, "add-or-remove-one", "rdp", 4.02),
        (0.01, 1.0, 1000, "add-or-remove-one", "pld", 1.828),
        (0.01, 1.0, 1000, "add-or-remove-one", "rdp", 2.10),
        (None, 10.0, 10, "add-or-remove-one", "pld", 1.199),
        (None, 10.0, 10, "add-or-remove-one", "rdp", 1.31),
        (0.05, 4.0, 1000, "replace-one", "pld", 3.337),
    ],
)
def test_epsilon(rate, noise, count, adjacency, accountant, expected):
    sampling = None if rate is None else Poisson(rate=rate)
    event = GaussianEvent(clip=1.0, noise_sd=noise, count=count, sampling=sampling)
    found = epsilon([event], DELTA, adjacency, accountant=accountant)
    digits = len(str(expected).split(".")[1])
    assert round(found, max(digits, 2)) == expected


def test_without_replacement_lies_between_its_bounds():
    event = GaussianEvent(clip=1.0, noise_sd=4.0, count=1000, sampling=BATCH)
    assert round(epsilon([event], DELTA, "replace-one"), 2) == 4.26
    assert round(epsilon([event], DELTA, "replace-one", accountant="rdp"), 2) == 9.02


@pytest.mark.parametrize(
    ("adjacency", "sampling", "least", "most"),
    [
        ("add-or-remove-one", Poisson(rate=0.05), 5.985, 5.995),
        ("replace-one", Poisson(rate=0.05), 11.79, 11.80),
        ("replace-one", BATCH, 11.98, 12.57),
    ],
)
def test_noise_for_epsilon_one(adjacency, sampling, least, most):
    def events(z: float) -> list[GaussianEvent]:
        return [GaussianEvent(clip=1.0, noise_sd=z, count=1000, sampling=sampling)]

    assert least <= calibrate(1.0, DELTA, adjacency, events) <= most


@pytest.mark.parametrize(
    ("adjacency", "accountant", "rounds"),
    [
        ("add-or-remove-one", "moments", 77),
        ("add-or-remove-one", "rdp", 89),
        ("add-or-remove-one", "pld", 100),
        ("replace-one", "moments", 19),
        ("replace-one", "pld", 25),
    ],
)
def test_rounds_within_epsilon_ten(adjacency, accountant, rounds):
    event = GaussianEvent(clip=1.0, noise_sd=5.0)
    last, next_one = epsilon_curve(
        [event], [rounds, rounds + 1], DELTA, adjacency, accountant=accountant
    )
    assert last <= 10 < next_one


def test_moments_of_the_meng_report():
    curve = epsilon_curve(
        [GaussianEvent(clip=1.0, noise_sd=5.0)],
        78,
        DELTA,
        "add-or-remove-one",
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
    assert round(epsilon([event], 1e-4, "replace-one", accountant="rdp"), 2) == expected

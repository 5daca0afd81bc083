"""Post-processing: nearer to the truth than zeroing, exact without noise, never negative."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.models.lda.denoise import Noisy, shrink
from tacit.models.lda.table import TopicTable


def truth(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.gamma(0.05, 1.0, (20, 400)) * rng.zipf(1.5, 400).clip(max=3000)


@pytest.mark.parametrize("sd", [1.0, 10.0, 100.0])
def test_shrinking_is_nearer_to_the_truth_than_zeroing(sd):
    exact = truth(0)
    noisy = exact + sd * np.random.default_rng(1).standard_normal(exact.shape)
    found = shrink(Noisy(average=noisy, noise_sd=sd))
    assert (found > 0).all()
    assert np.linalg.norm(found - exact) < np.linalg.norm(np.maximum(noisy, 0) - exact)


def test_without_noise_nothing_changes():
    exact = truth(2)
    np.testing.assert_allclose(shrink(Noisy(average=exact, noise_sd=0.0)), exact, atol=1e-9)


def test_noise_alone_becomes_topics_that_are_nearly_alike():
    noise = 5.0 * np.random.default_rng(3).standard_normal((20, 400))
    found = shrink(Noisy(average=noise, noise_sd=5.0))
    assert (found > 0).all()
    assert found.std(axis=0).mean() < 0.5 * noise.std(axis=0).mean()


def test_the_noise_of_an_average_is_known():
    """The sd of 4,000 entries of nothing but noise, within five standard errors."""
    rng = np.random.default_rng(4)
    noisy = Noisy(average=np.zeros((40, 100)), noise_sd=0.0)
    for rho in (1.0, 0.7, 0.5, 0.5):
        noisy = noisy.moved(3.0 * rng.standard_normal((40, 100)), 3.0, rho)
    assert noisy.average.std() == pytest.approx(noisy.noise_sd, rel=5 / np.sqrt(8000))
    assert noisy.noise_sd < 2.0


def test_a_table_of_topics():
    weights = np.array([[1.0, 5.0, 2.0], [10.0, 1.0, 9.0]])
    table = TopicTable.of(weights, ["a", "b", "c"], 2)
    assert table.numbers == (1, 0)
    assert table.words == (("a", "c"), ("b", "c"))
    assert table.shares == pytest.approx((20 / 28, 8 / 28))
    assert table.chances[0] == pytest.approx((0.5, 0.45))
    assert str(table).splitlines()[1] == "  1   71.4%  a c"
    other = TopicTable.of(weights[::-1] + np.diag([0.0, 0.0, 9.0])[1:], ["a", "b", "c"], 2)
    assert table.shared(other) == (1.0, 1.0)
    figure = table.plot(title="Two topics")
    figure.canvas.draw()
    shown = {text.get_text().strip() for axes in figure.axes for text in axes.texts}
    assert shown == {"a", "b", "c"}

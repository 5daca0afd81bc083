"""The posterior family of Gaussian mixtures passes `check_family` with SciPy's densities."""

import numpy as np
import pytest
from scipy import stats

from tacit.expfam.normal_wishart import NormalWisharts
from tacit.testing import check_family

FAMILY = NormalWisharts(2, 2)


def log_density(theta, *, concentration, mean, mean_precision, scale, degrees):
    weights, means, precisions = FAMILY.parts(theta)
    found = stats.dirichlet(concentration).logpdf((weights / weights.sum(-1, keepdims=True)).T)
    for k in range(2):
        wishart = stats.wishart(degrees[k], np.linalg.inv(scale[k]))
        found = found + wishart.logpdf(np.moveaxis(precisions[:, k], 0, -1))
        covariances = np.linalg.inv(mean_precision[k] * precisions[:, k])
        found += [
            stats.multivariate_normal(mean[k], covariance).logpdf(one)
            for one, covariance in zip(means[:, k], covariances, strict=True)
        ]
    return found


def member(shift):
    return FAMILY.natural(
        concentration=np.array([2.0, 3.5 + shift]),
        mean=np.array([[0.5, -1.0 - shift], [2.0, 0.3]]),
        mean_precision=np.array([3.0, 1.5]),
        scale=np.array([[[2.0, 0.4], [0.4, 1.0]], [[1.0, -0.2], [-0.2, 3.0 + shift]]]),
        degrees=np.array([9.0, 12.0 + shift]),
    )


def test_the_family_passes_the_suite():
    check_family(FAMILY, [member(0.0), member(0.7)], log_density=log_density, draws=2_000)


def test_a_wrong_partition_function_is_caught():
    class Wrong(NormalWisharts):
        def log_partition(self, natural):
            return super().log_partition(natural) + 0.01 * natural["degrees"].sum()

    with pytest.raises(AssertionError, match="gradient of log_partition"):
        check_family(Wrong(2, 2), [member(0.0), member(0.7)])


@pytest.mark.parametrize(
    ("name", "value"), [("count", 0.0), ("degrees", -1.0), ("log", -1.0), ("quadratic", -50.0)]
)
def test_improper_members_are_refused(name, value):
    natural = member(0.0)
    natural[name] = np.full_like(natural[name], value)
    assert not FAMILY.is_proper(natural)

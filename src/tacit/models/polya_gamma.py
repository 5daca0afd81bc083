"""Pólya–Gamma augmentation: a logistic likelihood that is Gaussian given a latent ω.

With ω ~ PG(1, 0), eʸᵑ/(1 + eᵑ) = ½ e^{(y − ½)η} E[e^{−½ωη²}] (Polson, Scott and Windle 2013,
theorem 1). Given q(η), the best q(ω) is PG(1, c) with c² = E[η²], and its mean is ω̄ =
tanh(c/2)/(2c). The resulting lower bound is that of Jaakkola and Jordan (2000):

    E[log p(y | η)] ≥ (y − ½)E[η] − ½ω̄(E[η²] − c²) + log σ(c) − ½c.

Here σ is the sigmoid. For this c, the term with ω̄ is 0.
"""

from __future__ import annotations

from tacit.arrays import Array, namespace

SMALL = 1e-3


def expected_weight(c: Array) -> Array:
    """Return tanh(c/2)/(2c), the mean ω̄ ≤ ¼ of a Pólya–Gamma variable PG(1, c). For small c it is
    computed as ¼ − c²/48.
    """
    xp = namespace(c)
    small = c < SMALL
    safe = xp.where(small, 1.0, c)
    return xp.where(small, 0.25 - xp.square(c) / 48.0, xp.tanh(0.5 * safe) / (2.0 * safe))


def log_scale(c: Array) -> Array:
    """Return log σ(c) − ½c = −log(2 cosh(c/2)) for c ≥ 0, where σ is the sigmoid, without
    overflow.
    """
    xp = namespace(c)
    return -0.5 * c - xp.log1p(xp.exp(-c))

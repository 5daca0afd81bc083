"""DP optimisation of the TMLR paper on the network: the variances of q are learned.

The library gives the weights of a network a public, constant variance (`precision = "fixed"`). In
the paper, mean and log-sd of every weight are learned by Adam, from a start with small means and a
variance of 1e−3 (App. B and its code). `DPSGD` with a learned precision would start at the prior,
where the weights are so wide that the gradients are of little use. This variant starts where the
paper does.

**Privacy** is that of `DPSGD`: the start is public, and every step is computed from a released sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tacit.methods import DPSGD
from tacit.models import Model


@dataclass(frozen=True, kw_only=True)
class LearnedVariance(DPSGD):
    """`DPSGD` that learns variances, from the model's starting point instead of the prior."""

    kind: ClassVar[str] = "dp-learned-variance"

    def starts_at_prior(self, model: Model) -> bool:
        del model
        return False

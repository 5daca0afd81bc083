"""Stages (kinds of request) of `NaturalSolver` and `WideSolver`, and the shapes of their arrays."""

from __future__ import annotations

from collections.abc import Callable

from tacit.expfam.quadrature import many_draws, weighing_draws

MODE, EVALUATE, CANDIDATES, WEIGH = "mode", "evaluate", "candidates", "weigh"
NODES, DRAWS = "nodes", "draws"
MORE = "more"
"""Like `DRAWS`, with more draws."""
SLOPES = "slopes"
"""The stage that evaluates one point of every Markov chain."""
MOST_CHAINS, FEWEST_CHAINS, MANY_PARAMETERS = 256, 64, 256
DERIVATIVES = "derivatives"
"""Name of the compiled program for the stages `MODE`, `EVALUATE`, `CANDIDATES` and `NODES`."""
CANDIDATE_COUNT = 5
NODE_COUNT = 12
SPLIT_UP_TO = 256
"""Largest number of parameters for which a posterior is split, because each node of a split costs
as much as a step.
"""
WIDE = "wide"
"""The stage for models with too many parameters for a full covariance."""
DIRECTION_COUNT = 64
"""Number of directions in a `WIDE` request."""
ROOT_COUNT = 64
"""Number of rows of the root in a `WIDE` request."""
DISPERSION, DISPERSION_COUNT = "dispersion", 4
"""Name and length of the `tacit.models.capabilities.DispersionSums` in a reply to `WEIGH`, for
models that have them.
"""
FAILED = -1e25
"""Finite placeholder for a log-likelihood that is not finite, so that sums over parties stay
finite.
"""

Shapes = dict[str, tuple[int, ...]]


def chain_count(dimension: int) -> int:
    """Return the number of Markov chains. With more chains fewer exchanges are needed, but a
    request for many parameters would be too large.
    """
    return MOST_CHAINS if dimension <= MANY_PARAMETERS else FEWEST_CHAINS


RELEASED: dict[str, Callable[[int], Shapes]] = {
    MODE: lambda d: {
        "precision": (d, d),
        "linear": (d,),
        "good_precision": (d, d),
        "good_linear": (d,),
        "modes": (d,),
    },
    EVALUATE: lambda d: {"value": (), "gradient": (d,), "hessian": (d, d)},
    CANDIDATES: lambda d: {
        "value": (CANDIDATE_COUNT,),
        "gradient": (CANDIDATE_COUNT, d),
        "hessian": (CANDIDATE_COUNT, d, d),
    },
    WEIGH: lambda d: {"log_likelihood": (len(weighing_draws(d)),)},
    NODES: lambda d: {
        "value": (NODE_COUNT,),
        "gradient": (NODE_COUNT, d),
        "hessian": (NODE_COUNT, d, d),
    },
    DRAWS: lambda d: {"log_likelihood": (len(weighing_draws(d)),)},
    MORE: lambda d: {"log_likelihood": (many_draws(d),)},
    SLOPES: lambda d: {"log_likelihood": (chain_count(d),), "gradient": (chain_count(d), d)},
    WIDE: lambda d: {
        "value": (),
        "gradient": (d,),
        "diagonal": (d,),
        "products": (DIRECTION_COUNT, d),
    },
}
"""One function per stage. It takes the dimension of θ and returns the names and shapes of the
arrays in a reply.
"""
PUBLISHED: dict[str, Callable[[int], Shapes]] = {
    MODE: lambda d: {"centre": (d,), "prior_share": ()},
    EVALUATE: lambda d: {"mean": (d,), "root": (d, d), "prior_share": ()},
    CANDIDATES: lambda d: {
        "mean": (CANDIDATE_COUNT, d),
        "root": (CANDIDATE_COUNT, d, d),
        "spread": (),
        "prior_share": (),
    },
    WEIGH: lambda d: {"mean": (d,), "root": (d, d), "prior_share": ()},
    NODES: lambda d: {
        "mean": (NODE_COUNT, d),
        "root": (NODE_COUNT, d, d),
        "spread": (),
        "prior_share": (),
    },
    DRAWS: lambda d: {"draws": (len(weighing_draws(d)), d), "prior_share": ()},
    MORE: lambda d: {"draws": (many_draws(d), d), "prior_share": ()},
    SLOPES: lambda d: {"draws": (chain_count(d), d), "prior_share": ()},
    WIDE: lambda d: {
        "mean": (d,),
        "scale": (d,),
        "centre": (d,),
        "root": (ROOT_COUNT, d),
        "directions": (DIRECTION_COUNT, d),
        "spread": (),
        "exact": (),
        "prior_share": (),
    },
}
"""One function per stage. It takes the dimension of θ and returns the names and shapes of the
public arrays in a request.
"""

"""One logistic regression written in several ways: CPU-seconds of a fit should not depend on it.

Printed for each way: CPU-seconds of the first fit, which compiles, and of a second one, and the
ratio of the second to that of `x @ w`.

    python -m benchmarks.writing [--columns 20] [--records 20000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import tacit

PARTIES = 5
WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "x @ w": lambda x, w: x @ w,
    "(x * w).sum(-1)": lambda x, w: (x * w).sum(-1),
    "jnp.sum(w[None, :] * x, axis=1)": lambda x, w: jnp.sum(w[None, :] * x, axis=1),
    "jnp.einsum('nd,d->n', x, w)": lambda x, w: jnp.einsum("nd,d->n", x, w),
    "sum(w[j] * x[:, j])": lambda x, w: sum(w[j] * x[:, j] for j in range(len(w))),
}


def make_model(way: Callable[[Any, Any], Any], columns: int) -> Callable[..., None]:
    def model(x: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([columns]))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=way(x, w)), obs=y)

    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--records", type=int, default=20_000)
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(chosen.records, chosen.columns))
    eta = 0.3 * x @ rng.normal(size=chosen.columns)
    y = (eta + rng.logistic(size=chosen.records) > 0).astype(np.float64)
    parties = {f"p{k}": {"x": x[k::PARTIES], "y": y[k::PARTIES]} for k in range(PARTIES)}
    base = None
    for name, way in WAYS.items():
        model = tacit.from_numpyro(make_model(way, chosen.columns), {"x": x[:8], "y": y[:8]})
        seconds = []
        for _ in range(2):
            started = time.process_time()
            fit = tacit.fit(model, parties, privacy="none")
            seconds.append(time.process_time() - started)
        base = base or seconds[1]
        print(
            f"{name:34s} first {seconds[0]:5.2f} s, again {seconds[1]:5.2f} s, "
            f"ratio {seconds[1] / base:4.2f}, converged {fit.converged}",
            flush=True,
        )


if __name__ == "__main__":
    main()

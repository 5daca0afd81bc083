"""A hierarchical regression in plain NumPyro: every site has its own bias, drawn from one law.

tacit run examples/numpyro_hierarchy.toml
"""

import numpyro
import numpyro.distributions as dist
from jax.numpy import newaxis


def readmission(x, site, y=None, sites=10):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("sites", sites):
        offset = numpyro.sample("offset", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        logit = (x * weights[newaxis]).sum(-1) + spread * offset[site]
        numpyro.sample("y", dist.Bernoulli(logits=logit), obs=y)

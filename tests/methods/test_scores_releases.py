"""The releases of private scores: what one record can move, and that the noise is there.

Attacks replace one record by others of all sizes, under hostile θ and W; the bound of
`tacit.methods.scores.party` must hold for each draw. `check_private_method` then holds the whole
method, with its mechanism, against what is charged.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist

from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.methods import PrivateScores
from tacit.methods.scores import party
from tacit.models import LogisticRegression, from_numpyro
from tacit.privacy import sampling
from tacit.privacy.mechanisms import Gaussian
from tacit.testing import check_private_method

LAYOUT = (INTERCEPT, Feature("numeric", "a", -1.0, 1.0), Feature("level", "b=u"))
NAMES = ("intercept", "a", "b=u")
TABLE = {
    "x": np.array([[1, 0.2, 1], [1, -0.4, 0], [1, 0.9, 1], [1, -0.1, 0], [1, 0.5, 1], [1, 0, 0.0]]),
    "y": np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0]),
}
SIZES = (0.0, 1e-3, 1.0, 30.0, 1e6)


def normal(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


def counts(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(x @ weights), scale), obs=y)


EXAMPLE = {"x": np.zeros((2, 2)), "y": np.zeros(2)}
MODELS = {
    "support": LogisticRegression(("a", "b", "c"), prior_sd=1.0),
    "quantiles": from_numpyro(normal, EXAMPLE),
    "proposal": from_numpyro(counts, EXAMPLE),
}


def attacking_records(columns, rng):
    """Single records of all sizes, signs and outcomes, and one that is not finite."""
    rows, outcomes = [], []
    for size in SIZES:
        for _ in range(4):
            rows.append(size * rng.choice([-1.0, 1.0], size=columns))
            outcomes.append(rng.choice([0.0, 1.0, -1.0, 7.0, 1e6, -1e6]))
    rows.append(np.full(columns, np.nan))
    outcomes.append(np.inf)
    return {"x": np.array(rows), "y": np.array(outcomes)}


def hostile_questions(rng):
    for size in (0.0, 1.0, 20.0, 1e6):
        for spread in (1e-6, 1.0, 1e4, 1e12):
            yield size * rng.normal(size=3), spread * rng.normal(size=(3, 3))


@pytest.fixture(scope="module", params=list(MODELS))
def attacked(request):
    """Contributions of single records by release, for many θ, W and keys, in units of the clip."""
    model, rng = MODELS[request.param], np.random.default_rng(11)
    law = model.outcome_law()
    records = attacking_records(3 if request.param == "support" else 2, rng)
    one, mask = jnp.ones(()), jnp.ones(1)

    @jax.jit
    def released(point, mapping, key):
        def single(record):
            rows = {name: value[None] for name, value in record.items()}
            how = {"point": point, "key": key}
            return (
                party.score_sum(law, rows, mask, one, mapping=mapping, **how).value,
                party.curvature_sum(law, rows, mask, one, mapping=mapping, **how).value,
                party.rank_sum(law, rows, mask, one, edges=point, **how).value,
            )

        return jax.vmap(single)(records)

    found = [
        released(point, mapping, jax.random.key(seed))
        for seed, (point, mapping) in enumerate(hostile_questions(rng))
    ]
    return [np.stack([np.asarray(each[i]) for each in found]) for i in range(3)]


@pytest.mark.parametrize(("release", "replaced"), [(0, 2.0), (1, np.sqrt(2.0)), (2, np.sqrt(2.0))])
def test_no_record_of_any_size_moves_a_release_beyond_its_bound(attacked, release, replaced):
    values = attacked[release]
    assert np.all(np.isfinite(values))
    assert np.max(np.linalg.norm(values, axis=-1)) <= 1.0
    apart = np.linalg.norm(values[:, :, None] - values[:, None], axis=-1)
    assert np.max(apart) <= replaced
    assert np.max(apart) >= 0.6 * replaced, "the attack must come near to the bound"


def test_the_proven_bounds_hold_before_anything_is_clipped_again(monkeypatch):
    """Without the clip of `Bounded`, which is there for rounding, the sums are as long as claimed.

    A centre that is not part of the weights, as in a mutant, breaks the bound.
    """
    monkeypatch.setattr(party, "clip_units", _plain)
    monkeypatch.setattr(sampling, "add_disjoint", lambda first, second: first + second)
    model, rng = MODELS["quantiles"], np.random.default_rng(3)
    law, records = model.outcome_law(), attacking_records(2, rng)

    def longest():
        @jax.jit
        def lengths(point, mapping, key):
            def single(record):
                rows = {name: value[None] for name, value in record.items()}
                how = {"point": point, "mapping": mapping, "key": key}
                return party.score_sum(law, rows, jnp.ones(1), jnp.ones(()), **how)

            return jnp.linalg.norm(jax.vmap(single)(records), axis=-1)

        questions = enumerate(hostile_questions(rng))
        return max(float(jnp.max(lengths(*one, jax.random.key(seed)))) for seed, one in questions)

    assert 0.5 <= longest() <= 1.0 - 5e-6
    uncapped = party.centred

    def mutant(scores, found):
        return uncapped(scores, found._replace(lengths=jnp.zeros_like(found.lengths)))

    monkeypatch.setattr(party, "centred", mutant)
    wrong = party.centring

    def no_gain(*arguments):
        found = wrong(*arguments)
        return found._replace(gains=jnp.ones_like(found.gains))

    monkeypatch.setattr(party, "centring", no_gain)
    assert longest() > 1.0


def _plain(rows, clip, mask):
    del clip
    return mask @ rows


def test_draws_depend_on_the_position_and_on_no_other_record():
    law, rng = MODELS["quantiles"].outcome_law(), np.random.default_rng(5)
    records = {"x": rng.normal(size=(7, 2)), "y": rng.normal(size=7)}
    how = {"point": np.zeros(3), "mapping": np.eye(3), "key": jax.random.key(1)}

    def summed(count, mask=None):
        rows = {name: value[:count] for name, value in records.items()}
        mask = jnp.ones(count) if mask is None else mask
        return np.asarray(party.score_sum(law, rows, mask, jnp.ones(()), **how).value)

    last = summed(7, jnp.zeros(7).at[6].set(1.0))
    np.testing.assert_allclose(summed(7), summed(6) + last, atol=1e-12)


def test_chunks_do_not_change_a_sum(monkeypatch):
    law, rng = MODELS["quantiles"].outcome_law(), np.random.default_rng(6)
    records = {"x": rng.normal(size=(9, 2)), "y": rng.normal(size=9)}
    how = {"point": np.zeros(3), "mapping": np.eye(3), "key": jax.random.key(1)}
    arguments = (law, records, jnp.ones(9), jnp.ones(()))
    whole = [np.asarray(f(*arguments, **how).value) for f in (party.score_sum, party.curvature_sum)]
    monkeypatch.setattr(party, "CHUNK", 4)
    parts = [np.asarray(f(*arguments, **how).value) for f in (party.score_sum, party.curvature_sum)]
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


class Scores(PrivateScores):
    """Without the refusal of runs whose noise hides everything: here six records are enough."""

    def check_settled(self, model, settled):
        del model, settled


@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("aggregation", ["plain", "trusted"])
def test_no_record_moves_a_release_further_than_is_charged(adjacency, aggregation):
    reached = check_private_method(
        Scores(),
        LogisticRegression(NAMES, layout=LAYOUT, prior_sd=1.0),
        records=TABLE,
        adjacency=adjacency,
        aggregation=aggregation,
        rounds=12,
        reach=0.9,
    )
    assert reached <= 1.0


class Quieter(Gaussian):
    def release(self, noise, bounded, drawn=None):
        del drawn
        quiet = Gaussian(noise_sd=self.noise_sd * 0.8, shares=self.shares, lattice=self.lattice)
        release = quiet.release(noise, bounded)
        return release._replace(
            cost=release.cost._replace(noise_sd=jnp.asarray(self.noise_sd, jnp.float64))
        )


def test_a_mechanism_with_less_noise_is_caught(monkeypatch):
    monkeypatch.setattr("tacit.methods.summed.Gaussian", Quieter)
    with pytest.raises(AssertionError, match="noise"):
        check_private_method(
            Scores(),
            LogisticRegression(NAMES, layout=LAYOUT, prior_sd=1.0),
            records=TABLE,
            rounds=12,
        )

"""Clipped gradients of E_q[log p(unit | θ)] in the free parameters of a mean-field Gaussian.

A unit's contribution is c = (α∘∂/∂location, κ∘∂/∂log-scale) with public weights α and κ per
coordinate, which divide the clip among them. If ‖c‖ has a closed form, no contribution is formed:

* generalised linear model, one record per unit: with g = E[ℓ'], h = −E[ℓ''] and v = s², the
  expectation exact to quadrature,  c = (g α∘x, −h κ∘v∘x²)  and
  ‖c‖² = g² Σ α²x² + h² Σ κ²v²x⁴; with several levels see `tacit.models.glm.softmax_gradients`;
* a network whose layers have gradients a_j δ_k (`Model.score_parts`) at a draw θ = m + sε shared by
  the batch:  ‖c‖² = Σ a_j² δ_k² (α_jk² + κ_jk² s_jk² ε_jk²).

With "information" a unit's contribution has an extra coordinate, ω·k: the mean diagonal of its
information, k = h‖x‖²/d for a generalised linear model and ‖∇ log p‖²/d (the empirical Fisher
information) otherwise; ω is public. It costs one noisy number instead of d.

Other models use one gradient per unit. `fast=False` forces this for all models, to compare the two
in tests.

**Label-agnostic clipping.** The weight min(1, C/‖c‖) of an ordinary clip is smallest for surprising
labels, which biases a classifier towards its current predictions. With the largest norm over all
labels instead, the weight depends only on x and θ, and the clipped score has expectation zero under
the model. The bound holds for any label, so the sensitivity is the same.
"""

from __future__ import annotations

import functools
from typing import Any

from tacit.arrays import kept_rows
from tacit.expfam import MeanFieldGaussian
from tacit.expfam.gaussian import Free
from tacit.methods.base import Array
from tacit.models import Model, Records
from tacit.models.capabilities import ClippingParts, GaussianExpectations, GradientNorms
from tacit.privacy.bounded import Bounded, Tally, clip_sum, clip_units, row_norms
from tacit.support.compiler import jax, jnp


def clipped_gradient(
    model: Model,
    family: MeanFieldGaussian,
    free: Free,
    noise: Array,
    records: Records,
    weights: Array,
    clip: Array,
    maps: Free,
    *,
    label_agnostic: bool = True,
    tally: Tally | None = None,
    fast: bool = True,
) -> Bounded:
    """Return the sum of the units' clipped gradients, whose parts are scaled by `maps`.

    `maps` has "location" and optionally "scale" (κ) and "information" (ω); missing parts are
    neither computed nor released. `weights` is (units,) or (units, records per unit); `noise` is
    the standard normal draw for models without quadrature. `tally` is as in
    `tacit.privacy.bounded.clip_units`.
    """
    agnostic = label_agnostic and model.output in ("bernoulli", "categorical")
    maps = {**maps, "location": _unfolded(maps["location"], free)}
    if fast:
        parts = _parts(model, family, free, noise, records, maps, agnostic, weights.ndim)
        if parts is not None:
            return _clipped(parts, weights, clip, agnostic, tally)
    return _one_by_one(model, family, free, noise, records, weights, clip, maps, agnostic, tally)


def _unfolded(value: Array, free: Free) -> Array:
    """Return `value` as an array of θ's shape that the compiler cannot treat as a constant.

    XLA (jaxlib 0.10.2 on CPU) computes Σₖ aₖ(x² @ A)ₖ wrongly if A is a constant matrix with equal
    entries and there are more than about a thousand rows: it reads uninitialised memory, and a norm
    comes out too small. Adding 0·θ avoids this: it is never folded, because θ need not be finite.
    """
    return value + 0.0 * free["location"]


def _parts(
    model: Model,
    family: MeanFieldGaussian,
    free: Free,
    noise: Array,
    records: Records,
    maps: Free,
    agnostic: bool,
    axes: int,
) -> ClippingParts | None:
    """Return norms and sums in closed form, or None if the model has none for these units."""
    if isinstance(model, GradientNorms):
        if axes == 2 and not model.sums_units:
            return None
        if axes == 2:
            records = {name: value.reshape(-1, *value.shape[2:]) for name, value in records.items()}
        return model.gradient_norms(family, free, records, maps, label_agnostic=agnostic)
    return _scores(model, free, noise, records, maps, agnostic) if axes == 1 else None


def _clipped(
    parts: ClippingParts, weights: Array, clip: Array, agnostic: bool, tally: Tally | None
) -> Bounded:
    """Return the sum of clipped gradients; weights with two axes are (units, records per unit).

    The gradient of a unit with several records is formed, because its norm has no closed form. If
    label-agnostic, it is clipped by the sum of its records' largest norms.
    """
    if weights.ndim == 1:
        return clip_sum(parts.norms, clip, weights, parts.weighted_sum, tally=tally)
    assert parts.unit_sums is not None
    units = parts.unit_sums(weights)
    there = jnp.where(weights > 0, parts.norms.reshape(weights.shape), 0.0)
    largest = jnp.sum(there, axis=1) if agnostic else None
    present = jnp.any(weights > 0, axis=1)
    return clip_units(units, clip, present, norm_bound=largest, tally=tally)


def _scores(
    model: Model, free: Free, noise: Array, records: Records, maps: Free, agnostic: bool
) -> ClippingParts | None:
    """Sum clipped gradients by the model's closed form at a given θ (`Model.score_parts`), if
    any.
    """
    deviation = jnp.exp(free["scale"]) * noise
    theta = free["location"] + deviation
    # Norms in float64, like the sums: a float32 square may underflow and drop out of the norm.
    reach = {name: jnp.asarray(value, jnp.float64) for name, value in maps.items()}
    squares = jnp.square(reach["location"])
    if "scale" in maps:
        squares = squares + jnp.square(reach["scale"] * deviation)
    parts = model.score_parts(theta, records, squares, label_agnostic=agnostic)
    if parts is None:
        return None
    norms, own, score_sum = parts
    information = jnp.square(own) / theta.shape[0]
    if "information" in maps:
        # The information uses the norm without α; so does its bound over the labels.
        most = information
        ones = _unfolded(jnp.ones_like(squares), free)
        plain = model.score_parts(theta, records, ones, label_agnostic=agnostic)
        if agnostic and plain is not None:
            most = jnp.maximum(most, jnp.square(plain[0]) / theta.shape[0])
        norms = jnp.sqrt(jnp.square(norms) + jnp.square(reach["information"] * most))

    def weighted_sum(weights: Array) -> Free:
        score = score_sum(weights)
        found = {"location": maps["location"] * score}
        if "scale" in maps:
            found["scale"] = maps["scale"] * score * deviation
        if "information" in maps:
            total = jnp.sum(kept_rows(weights, weights * information))
            found["information"] = maps["information"] * total
        return found

    return ClippingParts(norms, weighted_sum)


def _one_by_one(
    model: Model,
    family: MeanFieldGaussian,
    free: Free,
    noise: Array,
    records: Records,
    weights: Array,
    clip: Array,
    maps: Free,
    agnostic: bool,
    tally: Tally | None,
) -> Bounded:
    """Sum clipped gradients, computing the gradient of each unit by automatic differentiation."""
    if weights.ndim == 1:
        records = {name: value[:, None] for name, value in records.items()}
        weights = weights[:, None]

    def expected(free: Free, unit: Records, present: Array) -> Array:
        if isinstance(model, GaussianExpectations):
            value = model.expected_fit(family, free, unit)
        else:
            value = model.log_likelihood(family.free_draw(free, noise), unit)
        # Records without weight may be arbitrary; avoid NaN times zero.
        return jnp.sum(jnp.where(present > 0, present * value, 0.0))

    def information(found: Free, records: Records, weights: Array) -> Array:
        if isinstance(model, GaussianExpectations):
            told = functools.partial(model.expected_information, family, free)
            return jnp.sum(weights * jax.vmap(told)(records), axis=1)
        return jnp.mean(jnp.square(found["location"]), axis=1)

    def contributions(records: Records, weights: Array) -> Free:
        found: Any = jax.vmap(jax.grad(expected), in_axes=(None, 0, 0))(free, records, weights)
        kept = {name: maps[name] * found[name] for name in maps if name != "information"}
        if "information" in maps:
            kept["information"] = maps["information"] * information(found, records, weights)
        return kept

    own = contributions(records, weights)
    mask = jnp.any(weights > 0, axis=1)
    if not agnostic:
        return clip_units(own, clip, mask, tally=tally)
    largest = _largest(contributions, records, weights, own, model.labels)
    return clip_units(own, clip, mask, norm_bound=largest, tally=tally)


def _largest(contributions: Any, records: Records, weights: Array, own: Free, labels: int) -> Array:
    """Return a label-independent bound on each unit's norm: the sum of its records' largest
    norms.
    """
    alone = jnp.eye(weights.shape[1], dtype=weights.dtype)

    def worst(place: Array) -> Array:
        """Return, for each unit's record at one position, the largest norm over all labels."""
        norms = [
            _norms(contributions(_labelled(records, float(label)), weights * place))
            for label in range(labels)
        ]
        return jnp.max(jnp.stack(norms), axis=0)

    total = jnp.sum(jax.lax.map(worst, alone), axis=0)
    # At least the actual norm, in case the label is unknown or rounding makes `total` smaller.
    return jnp.maximum(total, _norms(own))


def _norms(contributions: Free) -> Array:
    return row_norms([value.reshape(value.shape[0], -1) for value in contributions.values()])


def _labelled(records: Records, label: float) -> Records:
    return records | {"y": jnp.full_like(records["y"], label)}

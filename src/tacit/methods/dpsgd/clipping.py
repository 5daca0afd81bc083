"""Clipped gradients of E_q[log p(unit | θ)] in the free parameters of a mean-field Gaussian.

A unit's contribution is c = (α∘∂/∂location, κ∘∂/∂log-scale) with public weights α and κ, a number
a coordinate, that say how much of the clip each may use. Where ‖c‖ has a closed form no
contribution is ever written down:

* generalised linear model, one record a unit: with g = E[ℓ'], h = −E[ℓ''] and v = s², the
  expectation exact to quadrature,  c = (g α∘x, −h κ∘v∘x²)  and
  ‖c‖² = g² Σ α²x² + h² Σ κ²v²x⁴; with several levels see `tacit.models.glm.softmax_gradients`;
* a network whose layers have gradients a_j δ_k (`Model.score_parts`) at a draw θ = m + sε shared by
  the batch:  ‖c‖² = Σ a_j² δ_k² (α_jk² + κ_jk² s_jk² ε_jk²).

With "information" a unit's contribution has one coordinate more, ω·k: the mean diagonal of the
information that it carries, k = h‖x‖²/d for a generalised linear model and ‖∇ log p‖²/d (the
empirical Fisher information) otherwise; ω is public. It costs one noisy number instead of d.

Everything else goes through one gradient a unit. `fast=False` sends a model with a closed form that
way too, for a test that compares them.

**Label-agnostic clipping.** The weight min(1, C/‖c‖) of an ordinary clip is small exactly where
the label is a surprise, which biases a classifier towards what it believes already. With
the largest norm over all labels in its place the weight depends on x and θ alone, and the clipped
score keeps expectation zero under the model. The bound holds for any label, so the sensitivity
is the same.
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
    """Σ over units of clipped contributions, weighted by `maps`: α, and κ or ω where given.

    `maps` has "location" and may have "scale" (κ) and "information" (ω); what it does not have is
    neither computed nor released. `weights` is (units,) or (units, records of a unit); `noise` is
    the standard normal draw that a model without quadrature uses. `tally` is that of
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
    """A constant of θ's shape that the compiler does not know.

    XLA (jaxlib 0.10.2 on CPU) computes Σₖ aₖ(x² @ A)ₖ wrongly if A is one number throughout and
    there are more than about a thousand rows: it reads memory that nobody wrote, and a norm comes
    out too small. A number that is known only when the program runs has no such matrix. 0·θ is
    never folded into a constant, because θ need not be finite.
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
    """Norms and sums in closed form, if the model has one for units of one or several records."""
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
    """Σ of clipped gradients; weights of two axes are those of units and their records.

    Where a unit has several records its gradient is written down, for its norm has no closed form;
    label-agnostic, it is clipped by the sum of its records' largest ones.
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
    """By the model's own closed form for a given θ (`Model.score_parts`), if it has one."""
    deviation = jnp.exp(free["scale"]) * noise
    theta = free["location"] + deviation
    # Norms in float64, as the sums are: a float32 square that vanishes takes its part out of them.
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
        # Information is of the plain norm, whatever α is; so is its bound over the labels.
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
    """A gradient a unit, by automatic differentiation."""
    if weights.ndim == 1:
        records = {name: value[:, None] for name, value in records.items()}
        weights = weights[:, None]

    def expected(free: Free, unit: Records, present: Array) -> Array:
        if isinstance(model, GaussianExpectations):
            value = model.expected_fit(family, free, unit)
        else:
            value = model.log_likelihood(family.free_draw(free, noise), unit)
        # What has no weight may be anything, but not NaN times zero.
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
    """A bound on a unit's norm that no label changes: records at their worst, added up."""
    alone = jnp.eye(weights.shape[1], dtype=weights.dtype)

    def worst(place: Array) -> Array:
        """Of every unit, the record at that place on its own."""
        norms = [
            _norms(contributions(_labelled(records, float(label)), weights * place))
            for label in range(labels)
        ]
        return jnp.max(jnp.stack(norms), axis=0)

    total = jnp.sum(jax.lax.map(worst, alone), axis=0)
    # With a label that is none of them, or rounding, the own norm is still bounded.
    return jnp.maximum(total, _norms(own))


def _norms(contributions: Free) -> Array:
    return row_norms([value.reshape(value.shape[0], -1) for value in contributions.values()])


def _labelled(records: Records, label: float) -> Records:
    return records | {"y": jnp.full_like(records["y"], label)}

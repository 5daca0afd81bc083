"""Clipped gradients of E_q[log p(unit | θ)] with respect to the parameters of q.

q is a mean-field Gaussian with mean m ("location") and standard deviations s, whose parameter is
log s ("scale"). The contribution of a unit is c = (α∘∂/∂m, κ∘∂/∂log s): both gradients, multiplied
coordinate by coordinate (∘) with public weights α and κ. The weights determine how the clip is
divided among the coordinates.

Clipping needs the norm of c. For two kinds of model the norm has a closed form, so single
contributions need not be computed:

* A generalised linear model with one record per unit. Let x be the features of the record, and ℓ
  its log-likelihood as a function of the linear predictor x·θ. With g = E[ℓ'], h = −E[ℓ''] and v =
  s², c = (g α∘x, −h κ∘v∘x²) and ‖c‖² = g² Σ α²x² + h² Σ κ²v²x⁴. Expectations are computed by
  quadrature. `tacit.models.glm.softmax_gradients` has the form for several levels.
* A network (`Model.score_parts`), at one draw θ = m + s∘ε for the whole batch. The weight from
  input j to output k of a layer has the gradient a_j δ_k, where a_j is the input and δ_k the
  derivative in the output. Then ‖c‖² = Σ a_j² δ_k² (α_jk² + κ_jk² s_jk² ε_jk²).

For other models, one gradient per unit is computed. `fast=False` does this for all models, so that
tests can compare the results.

**Information.** On request, a contribution has one more coordinate, ω·k with a public weight ω. The
value k is the mean diagonal entry of the unit's information matrix. With d parameters it is h‖x‖²/d
for a generalised linear model, and ‖∇ log p‖²/d (the empirical Fisher information) otherwise. It
adds one noisy value to the release instead of d.

**Label-agnostic clipping.** An ordinary clip C multiplies c by min(1, C/‖c‖). This weight is
smallest for surprising labels, which biases a classifier towards its current predictions.
Label-agnostic clipping replaces ‖c‖ by the largest norm over all labels. The weight then depends
only on x and θ, and the clipped score has expectation zero under the model. The bound C holds for
any label, so the sensitivity is the same.
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
from tacit.privacy.sampling import summed_by_row
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
    """Return the sum over units of the clipped gradients of E_q[log p(unit | θ)].

    `free` has the mean ("location") and the log-sd ("scale") of q. `maps` has the weights that
    multiply the parts of a unit's contribution before clipping. The part "location" is the gradient
    in the mean, "scale" is the gradient in the log-sd, and "information" is one number, the mean
    diagonal entry of the unit's information matrix. A part that is missing from `maps` is not
    computed. `weights` has shape (units,) or (units, records per unit). `noise` is a standard
    normal draw ε, from which models without quadrature compute θ = mean + sd·ε. `tally` is as in
    `tacit.privacy.bounded.clip_units`.
    """
    agnostic = label_agnostic and model.output in ("bernoulli", "categorical")
    maps = {**maps, "location": _unfolded(maps["location"], free)}
    if weights.ndim == 1 and fast:
        parts = _parts(model, family, free, noise, records, maps, agnostic, 1)
        if parts is not None:
            return clip_sum(parts.norms, clip, weights, parts.weighted_sum, tally=tally)

    def one_row(records: Records, weights: Array) -> tuple[Free, Array | None]:
        parts = None
        if fast:
            parts = _parts(model, family, free, noise, records, maps, agnostic, 2)
        if parts is not None:
            return _unit_sums(parts, weights, agnostic)
        return _one_by_one(model, family, free, noise, records, weights, maps, agnostic)

    if weights.ndim == 1:
        records = {name: value[:, None] for name, value in records.items()}
        weights = weights[:, None]
        units, largest = one_row(records, weights)
    else:
        units, largest = summed_by_row(one_row, records, weights)
    present = jnp.any(weights > 0, axis=1)
    return clip_units(units, clip, present, norm_bound=largest, tally=tally)


def _unfolded(value: Array, free: Free) -> Array:
    # XLA (jaxlib 0.10.2, CPU) computes Σₖ aₖ(x² @ A)ₖ wrongly if A is a constant matrix with equal
    # entries and there are more than about a thousand rows: it reads uninitialised memory, and a
    # norm comes out too small. Adding 0·θ avoids this: the compiler cannot treat the sum as a
    # constant, because θ need not be finite.
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
    """Return norms and sums of the units' gradients in closed form, or None if the model has no
    closed form for these units.

    `axes` is 1 if every unit is one record, and 2 if units have several records.
    """
    if isinstance(model, GradientNorms):
        if axes == 2 and not model.sums_units:
            return None
        if axes == 2:
            records = {name: value.reshape(-1, *value.shape[2:]) for name, value in records.items()}
        return model.gradient_norms(family, free, records, maps, label_agnostic=agnostic)
    return _scores(model, free, noise, records, maps, agnostic) if axes == 1 else None


def _unit_sums(parts: ClippingParts, weights: Array, agnostic: bool) -> tuple[Free, Array | None]:
    """Return the gradient of each unit, and None or a bound on its norm.

    `weights` has shape (units, records per unit). If `agnostic` is true, clipping must not depend
    on the labels of the records. `parts` then has the largest norm of each record over all labels,
    and the bound is the sum of these norms over the records of a unit.
    """
    assert parts.unit_sums is not None
    units = parts.unit_sums(weights)
    there = jnp.where(weights > 0, parts.norms.reshape(weights.shape), 0.0)
    return units, jnp.sum(there, axis=1) if agnostic else None


def _scores(
    model: Model, free: Free, noise: Array, records: Records, maps: Free, agnostic: bool
) -> ClippingParts | None:
    """Return norms and sums of the gradients at one draw of θ, computed by `Model.score_parts`.

    The result is None if the model has no closed form for them.
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
    maps: Free,
    agnostic: bool,
) -> tuple[Free, Array | None]:
    """Return the gradient of each unit, computed by automatic differentiation, and None or a bound
    on its norm for any labels.
    """

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
    if not agnostic:
        return own, None
    return own, _largest(contributions, records, weights, own, model.labels)


def _largest(contributions: Any, records: Records, weights: Array, own: Free, labels: int) -> Array:
    """Return, for each unit, a bound on the norm of its contribution that does not depend on the
    labels of its records.

    A label is the outcome of a record, one of `labels` classes. For each record, the norm of the
    contribution is computed with every possible label, and the largest norm is taken. The bound of
    a unit is the sum of these largest norms over its records. The bound is at least the norm of the
    unit's actual contribution, `own`.
    """
    alone = jnp.eye(weights.shape[1], dtype=weights.dtype)

    def worst(place: Array) -> Array:
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

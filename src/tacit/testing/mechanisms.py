"""Conformance suite of mechanisms: compare the noise with the declared event."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from tacit.privacy.bounded import Array, Bounded, Tree, clip_units
from tacit.privacy.events import GaussianEvent
from tacit.privacy.lattice import KEY_BYTES, LEAST_BITS, DiscreteGaussian
from tacit.privacy.mechanisms import Cost, Drawn, Mechanism, Release
from tacit.testing.laws import gaussian_faults

Oracle = Callable[[Bounded, Drawn], GaussianEvent]
SHAPES = {"nothing": (0,), "scalar": (), "table": (4, 8)}
UNITS = 5
DRAWS = 8_000
UNSAMPLED = Drawn()
_clip_units = jax.jit(clip_units, static_argnames="nonnegative")


@dataclass(frozen=True)
class Scaled(Mechanism):
    """A deliberately wrong mechanism, which scales the noise but declares the same cost.

    Parameters
    ----------
    inner
        The mechanism whose noise is scaled.
    factor
        Number by which its noise is multiplied.
    """

    inner: Mechanism
    factor: Array | float

    def release(self, noise: Array, bounded: Bounded, drawn: Drawn = UNSAMPLED) -> Release:
        found = self.inner.release(noise, bounded, drawn)

        def scaled(noised: Array, exact: Array) -> Array:
            return exact + jnp.asarray(self.factor, exact.dtype) * (noised - exact)

        return Release(jax.tree.map(scaled, found.value, bounded.value), found.cost)


def check_mechanism(
    mechanism: Mechanism,
    *,
    oracle: Oracle | None = None,
    scale: float = 1.0,
    shares: int = 1,
    seed: int = 0,
) -> None:
    """Assert that a mechanism adds exactly the noise that its event declares, on its lattice.

    Released integers must be the sum, rounded to the lattice, plus the integer noise. Released
    values must be exactly the lattice step times these integers. Let s be the noise sd that the
    event declares, and M be `shares`. The noise of a single release must be N(0, s²/M), and that of
    the sum of M releases N(0, s²).

    A correct mechanism fails a check with probability one in a million. To show that the tests of
    the distribution have power, they are also run on the mechanism with 0.9 and with 1.1 times its
    noise, and must reject both.

    Parameters
    ----------
    mechanism
        The mechanism to check.
    oracle
        A function of (bounded, drawn) that returns the expected event. By default, the noise sd is
        taken from the event that the mechanism declares, and everything else is computed from the
        inputs.
    scale
        Clip of the sums that the mechanism receives.
    shares
        Number of parties that share the noise.
    seed
        Seed of everything random.
    """
    event = _check_release(mechanism, scale, seed)
    assert event.lattice is not None
    sd, bits = event.noise_sd, event.lattice.bits
    _check_events(mechanism, oracle, scale, seed)
    keys = _drawn(seed, (DRAWS, shares), bits)

    def noise(bounded: Bounded, keys: Array, factor: Array | None = None) -> Array:
        chosen = mechanism if factor is None else Scaled(mechanism, factor)
        return _noise(chosen, bounded, keys)

    sample = jax.jit(noise)
    far, zero = (_bounded("float64", scale, seed, size=size) for size in (10.0, 0.0))
    single = _bounded("float32", scale, seed, size=10.0)
    _expect_law("one release, float32", sample(single, keys[:, :1]), sd / np.sqrt(shares))
    _expect_law("releases added up", sample(far, keys), sd)
    _expect_law("releases of a zero sum", sample(zero, keys), sd)
    _check_integers(mechanism, far, keys[0, 0])
    for factor in (0.9, 1.1):
        faults = gaussian_faults(np.asarray(sample(far, keys, jnp.asarray(factor))), sd)
        assert any(fault.startswith("variance") for fault in faults), (
            f"power: {factor} times the noise was not distinguished from the noise itself; found "
            f"{faults or 'no fault'}, expected a wrong variance"
        )


def _expect_law(what: str, noise: Array, sd: float) -> None:
    faults = gaussian_faults(np.asarray(noise), float(sd))
    assert not faults, f"{what}: {'; '.join(faults)}"


def _contributions(dtype: str, seed: int) -> dict[str, np.ndarray]:
    """Return contributions of a few units, as arrays of various shapes. The contribution of a unit
    has a norm of about 6.
    """
    rng = np.random.default_rng(seed)
    return {k: rng.normal(size=(UNITS, *shape)).astype(dtype) for k, shape in SHAPES.items()}


def _bounded(
    dtype: str, clip: float, seed: int, *, size: float = 1.0, nonnegative: bool = False
) -> Bounded:
    units = {k: (size * clip * v).astype(dtype) for k, v in _contributions(dtype, seed).items()}
    return _clip_units(units, clip, nonnegative=nonnegative)


def _drawn(seed: int, shape: tuple[int, ...], bits: int) -> np.ndarray:
    """Return integer noise for releases with the shapes `SHAPES`, drawn with a fixed seed."""
    key = np.random.default_rng(seed).bytes(KEY_BYTES)
    numbers = sum(math.prod(one) for one in SHAPES.values())
    size = math.prod(shape) * numbers
    return DiscreteGaussian(key, bits).draw(size).reshape(*shape, numbers)


def _check_integers(mechanism: Mechanism, bounded: Bounded, noise: np.ndarray) -> None:
    """Check that released integers are the rounded sum plus the noise, and that released values are
    exactly the lattice step times these integers.
    """
    found = jax.jit(mechanism.release)(noise, bounded)
    integers = [np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(found.integers)]
    kinds = {leaf.dtype for leaf in integers}
    assert kinds == {np.dtype(np.int64)}, f"lattice: integers of types {kinds}, expected int64"
    whole, step = np.concatenate(integers), found.event.step
    assert np.array_equal(_flat(found.value), step * whole), (
        "lattice: released values are not the step times the integers"
    )
    rest = (whole - noise) * step - _flat(bounded.value)
    allowed = (0.5 + 1e-6) * step
    assert np.all(np.abs(rest) <= allowed), (
        f"lattice: without its noise a release is {np.max(np.abs(rest)):.3g} from the sum, "
        f"expected at most half a step, {allowed:.3g}"
    )


def _noise(mechanism: Mechanism, bounded: Bounded, keys: Array) -> Array:
    # `keys` has shape (rows, releases, coordinates) and contains the integer noise of each release.
    # The noise of a release is the released value minus the exact value in `bounded`. The result
    # has, for each row, the sum of the noise of all releases in the row.

    def one(key: Array) -> Array:
        found = mechanism.release(key, bounded).value
        parts = jax.tree.map(
            lambda noised, exact: (noised.astype(float) - exact.astype(float)).ravel(),
            found,
            bounded.value,
        )
        return jnp.concatenate(jax.tree.leaves(parts))

    # Row by row: to map over all of them at once would take twice as long to compile.
    return jax.lax.map(lambda row: jnp.sum(jax.vmap(one)(row), axis=0), keys)


def _check_release(mechanism: Mechanism, scale: float, seed: int) -> GaussianEvent:
    """Check the shapes, types and cost of a release, and that it depends on the noise. Return the
    event of the release.
    """
    key, other = _drawn(seed, (2,), LEAST_BITS)
    bounded = _bounded("float64", scale, seed)
    plain = mechanism.release(key, bounded)
    assert isinstance(plain, Release), (
        f"cost: release returned {type(plain).__name__}, expected a Release with its cost"
    )
    assert isinstance(plain.cost, Cost), (
        f"cost: the release's cost is {type(plain.cost).__name__}, expected a Cost"
    )
    compiled = jax.jit(mechanism.release)
    gap = float(np.max(np.abs(_flat(plain.value) - _flat(compiled(key, bounded).value))))
    allowed = 1e-6 * (scale + plain.event.noise_sd)
    assert gap <= allowed, f"jit: a compiled release differs by {gap:.3g} from a plain one"
    for dtype in ("float32", "float64"):
        bounded = _bounded(dtype, scale, seed)
        found = compiled(key, bounded).value
        _same_structure(found, bounded.value)
        again, further = (_flat(compiled(k, bounded).value) for k in (key, other))
        assert np.array_equal(_flat(found), again), "noise: equal noise gave different releases"
        same = int(np.sum((again == further) & (key != other)))
        assert not same, f"noise: {same} of {again.size} numbers do not depend on their noise"
        _check_not_finite(compiled, dtype, scale, seed)
    _check_refusal(mechanism, key, bounded)
    return plain.event


def _check_refusal(mechanism: Mechanism, key: Array, bounded: Bounded) -> None:
    try:
        mechanism.release(key, bounded.value)
    except Exception:
        return
    raise AssertionError(
        "cost: the mechanism released arrays without a norm bound; expected an error"
    )


def _same_structure(found: Tree, expected: Tree) -> None:
    layout, wanted = jax.tree.structure(found), jax.tree.structure(expected)
    assert layout == wanted, f"shape: released {layout}, expected {wanted}"
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.shape, one.dtype) == (two.shape, two.dtype), (
            f"shape: released {one.dtype}{one.shape}, expected {two.dtype}{two.shape}"
        )


def _check_not_finite(release: Callable[..., Release], dtype: str, scale: float, seed: int) -> None:
    """Check that units with values that are not finite contribute nothing."""
    units = _contributions(dtype, seed)
    for unit, bad in enumerate((np.nan, np.inf, -np.inf)):
        units["table"][unit, unit, unit] = bad
    units["table"][3] = 1e30
    bounded = _clip_units(units, scale, nonnegative=False)
    reached, most = float(np.linalg.norm(_flat(bounded.value))), (UNITS - 3) * scale
    assert reached <= most, f"not finite: the sum has norm {reached:g}, expected at most {most:g}"
    found = _flat(release(_drawn(seed, (), LEAST_BITS), bounded).value)
    assert np.all(np.isfinite(found)), "not finite: released NaN or infinity from a finite sum"


def _check_events(mechanism: Mechanism, oracle: Oracle | None, scale: float, seed: int) -> None:
    """Check the event that the mechanism declares for each kind of sampling, with and without
    `vmap`.
    """
    key = _drawn(seed, (), LEAST_BITS)
    clips = scale * np.array([0.5, 1.0, 3.0])

    def expect(how: str, found: GaussianEvent, bounded: Bounded, drawn: Drawn) -> None:
        assert found.lattice is not None, f"event ({how}): declares no lattice"
        size = len(_flat(bounded.value))
        assert found.lattice.numbers == size, (
            f"event ({how}): declares {found.lattice.numbers} numbers, {size} are released"
        )
        wanted = _expected(found, bounded, drawn) if oracle is None else oracle(bounded, drawn)
        if wanted.lattice is None:
            wanted = msgspec.structs.replace(wanted, lattice=found.lattice)
        assert found == wanted, f"event ({how}): declared {found}, expected {wanted}"

    plain = _bounded("float64", scale, seed)
    expect("plain", mechanism.release(key, plain).event, plain, Drawn())
    for drawn, nonnegative in (
        (Drawn(), False),
        (Drawn(rate=np.asarray(0.25)), True),
        (Drawn(batch=np.asarray(2), total=np.asarray(UNITS)), False),
    ):
        each = [_bounded("float64", float(c), seed, nonnegative=nonnegative) for c in clips]
        together = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
        many = jax.tree.map(lambda leaf: np.stack([leaf] * len(each)), drawn)  # noqa: B023
        costs = jax.jit(jax.vmap(lambda b, d: mechanism.release(key, b, d).cost))(together, many)
        for row, bounded in enumerate(each):
            own: Cost = jax.tree.map(lambda leaf: leaf[row], costs)  # noqa: B023
            expect("jit and vmap", own.event(), bounded, drawn)


def _expected(found: GaussianEvent, bounded: Bounded, drawn: Drawn) -> GaussianEvent:
    return GaussianEvent(
        clip=float(bounded.clip),
        noise_sd=found.noise_sd,
        sampling=drawn.sampling(),
        nonnegative=bounded.nonnegative,
        lattice=found.lattice,
    )


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(tree)])

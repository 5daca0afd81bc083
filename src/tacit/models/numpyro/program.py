"""Run a NumPyro model on one batch of records, with θ substituted for its latent sites.

NumPyro keeps its stack of effect handlers in one list for the whole process, so two threads that
trace at once would see each other's sites. Every call therefore holds a lock. Because callers
compile their calls, the lock is held only during tracing.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.distribution import validation_enabled
from numpyro.primitives import Messenger

from tacit.arrays import Array
from tacit.errors import ConfigError, DataError
from tacit.models.base import Records

_LOCK = threading.RLock()
_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

FARTHEST = 50.0
"""Drawn values of bounded latent sites are replaced if an unconstrained coordinate is beyond ±
this.
"""
_WHOLE = (dist.constraints.real, dist.constraints.real_vector)

Sites = dict[str, dict[str, Any]]


def load_program(place_and_name: str) -> Callable[..., Any]:
    """Load the function that model.function names, as "package.module:function" or
    "file.py:function".
    """
    place, colon, name = place_and_name.rpartition(":")
    if not colon:
        raise ConfigError(
            f"model.function = {place_and_name!r}; write 'package.module:function' or "
            "'path/to/file.py:function'"
        )
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location("tacit_user_model", place)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, str(Path.cwd()))
            module = importlib.import_module(place)
    except (ImportError, OSError, SyntaxError) as error:
        raise ConfigError(
            f"model.function = {place_and_name!r} cannot be loaded ({error}); correct the path or "
            "the file"
        ) from error
    if not hasattr(module, name):
        raise ConfigError(
            f"model.function = {place_and_name!r}, but {place} has no {name!r}; correct the name"
        )
    return getattr(module, name)


class Latent(NamedTuple):
    """Position of a latent site in θ: its unconstrained value is θ[start:stop], reshaped to
    `shape`.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Program:
    """A NumPyro model function, the keys of the records that it takes, and its other arguments."""

    def __init__(
        self, model: Callable[..., Any], example: Records, arguments: Mapping[str, Any]
    ) -> None:
        if not callable(model):
            raise ConfigError(
                f"model is a {type(model).__name__}; pass the NumPyro model function itself"
            )
        self.model, self.arguments = model, dict(arguments)
        self.keys, self.optional = _accepted(model, tuple(example), tuple(arguments))
        self.columns, self.absent = tuple(example), _absent(model, {*example, *arguments})
        arrays = {key: _as_array(key, example[key]) for key in self.keys}
        self.shapes = {key: array.shape[1:] for key, array in arrays.items()}
        self.dtypes = {key: array.dtype for key, array in arrays.items()}

    def batch(self, records: Records) -> Records:
        """Return the arrays of `records` that the model takes. Raise a DataError that names the key
        if an array is missing or has a wrong shape.
        """
        batch, size = {}, None
        for key in self.keys:
            if records.get(key) is None:
                if key not in self.optional:
                    raise DataError(
                        f"records have no {key!r}, but the model needs {list(self.keys)}; add the "
                        "missing array"
                    )
                continue
            array = _as_array(key, records[key])
            if array.shape[1:] != self.shapes[key]:
                raise DataError(
                    f"records[{key!r}] has shape {array.shape}; the example's records have shape "
                    f"{self.shapes[key]}, so pass an array of shape {('n', *self.shapes[key])}"
                )
            size = array.shape[0] if size is None else size
            if array.shape[0] != size:
                raise DataError(
                    f"records[{key!r}] has {array.shape[0]} records, but another array has {size}; "
                    "give all arrays the same leading axis"
                )
            batch[key] = array
        if not size:
            raise DataError(f"records are empty; pass at least one record with {list(self.keys)}")
        return batch

    def blank(self, size: int) -> Records:
        """Return `size` records of zeros, with which the model is traced so that no data are
        stored.
        """
        return {key: np.zeros((size, *self.shapes[key]), self.dtypes[key]) for key in self.keys}

    def run(
        self,
        records: Records,
        *,
        theta: Array | None = None,
        latents: tuple[Latent, ...] = (),
        key: Array | None = None,
        simulate: bool = False,
        blank: bool = False,
    ) -> tuple[Sites, Array]:
        """Call the model once. Return all its sites, and the log-determinant log|dx/dθ| of the
        transform from θ to the values x of the latent sites.

        Without `theta`, latent sites are drawn with `key`. If `simulate`, observed sites are drawn
        as well. If `blank`, all records are zeros, and parameters of distributions are not checked,
        because zeros may make them invalid.
        """
        if theta is not None and theta.shape != (latents[-1].stop,):
            raise ConfigError(
                f"θ has shape {theta.shape}, but the model's latent sites need "
                f"({latents[-1].stop},); "
                "model and family must agree on the dimension"
            )
        substitute = FromUnconstrained(latents, theta)
        sites = self.call(records, substitute, key=key, simulate=simulate, blank=blank)
        return sites, substitute.log_det

    def call(
        self,
        records: Records,
        substitute: Messenger,
        *,
        key: Array | None = None,
        simulate: bool = False,
        blank: bool = False,
    ) -> Sites:
        """Call the model once with a handler that sets latent sites, and return all its sites."""
        model = handlers.uncondition(self.model) if simulate else self.model
        key = jax.random.key(0) if key is None else key
        flat = _FlatSites(key)
        checked = nullcontext() if not blank else validation_enabled(False)
        with (
            _LOCK, checked, handlers.trace() as sites,
            _WithinReach(key), handlers.seed(rng_seed=key), flat, substitute,
        ):  # fmt: skip
            model(**records, **self.arguments)
        return dict(sites)


class _FlatSites(Messenger):
    """Gives latent sites with a flat prior, which cannot be drawn, a value near the origin of ℝᵈ.

    It is used only if no θ is given: to find the sites and to choose a starting point.
    """

    def __init__(self, key: Array) -> None:
        super().__init__()
        self.key, self.count = key, 0

    def process_message(self, msg: Any) -> None:
        if msg["type"] != "sample" or msg["is_observed"] or msg["value"] is not None:
            return
        if not is_flat(msg["fn"]):
            return
        self.count += 1
        transform, shape = biject_to(msg["fn"].support), msg["fn"].shape()
        key = jax.random.fold_in(self.key, self.count)
        msg["value"] = transform(jax.random.normal(key, transform.inverse_shape(shape)))


class _WithinReach(Messenger):
    """Replaces extreme draws of bounded latent sites by values near the origin of ℝᵈ. A draw is
    extreme if an unconstrained coordinate is beyond ±`FARTHEST`.

    Most draws of a vague prior such as InverseGamma(0.001, 0.001) are extreme, infinite or 0. They
    cannot be a starting point, and a site that has such a draw as its scale has no finite draws.
    This class is used only if no θ is substituted.
    """

    def __init__(self, key: Array) -> None:
        super().__init__()
        self.key, self.count = key, 0

    def process_message(self, msg: Any) -> None:
        if msg["type"] != "sample" or msg["is_observed"] or msg["value"] is not None:
            return
        support = msg["fn"].support
        if support is None or support.is_discrete or support in _WHOLE:
            return
        try:
            transform = biject_to(support)
        except NotImplementedError:
            return
        value = msg["fn"](*msg["args"], **msg["kwargs"])
        free, self.count = transform.inv(value), self.count + 1
        near = jax.random.normal(jax.random.fold_in(self.key, self.count), jnp.shape(free))
        reached = jnp.abs(free) <= FARTHEST
        moved = transform(jnp.where(reached, free, near))
        msg["value"] = jnp.where(jnp.all(reached), value, moved)


def is_flat(distribution: Any) -> bool:
    """True if the distribution is an ImproperUniform, possibly expanded or with event
    dimensions.
    """
    while isinstance(distribution, dist.ExpandedDistribution | dist.Independent):
        distribution = distribution.base_dist
    return isinstance(distribution, dist.ImproperUniform)


class FromUnconstrained(Messenger):
    """Sets the value of each latent site from θ.

    The transform follows from the support of the site in this call, because the support may depend
    on another latent site.
    """

    def __init__(self, latents: tuple[Latent, ...], theta: Array | None) -> None:
        super().__init__()
        self.latents = {latent.name: latent for latent in latents}
        self.theta, self.log_det = theta, jnp.zeros(())

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "control_flow":
            raise ConfigError(
                "the model uses numpyro's scan or cond, whose sites have no fixed position in θ; "
                "sample all latent sites before, and use jax.lax.scan or jax.lax.cond"
            )
        latent = self.latents.get(msg.get("name"))
        if msg["type"] != "sample" or latent is None or self.theta is None:
            return
        free = self.theta[latent.start : latent.stop].reshape(latent.shape)
        free = free.astype(jnp.result_type(float))  # some transforms fail on float32 with x64
        transform = biject_to(msg["fn"].support)
        value = transform(free)
        self.log_det = self.log_det + jnp.sum(transform.log_abs_det_jacobian(free, value))
        msg["value"] = value.astype(self.theta.dtype)


def _as_array(key: str, value: Array) -> Array:
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.ndim < 1 or array.dtype.kind not in "biuf":
        raise DataError(
            f"records[{key!r}] has shape {array.shape} and type {array.dtype}; "
            "pass an array of numbers whose first axis is the record"
        )
    return array


def _absent(model: Callable[..., Any], given: set[str]) -> tuple[str, ...]:
    """Return the arguments of the model whose default is None and that are not in `given`."""
    parameters = inspect.signature(model).parameters.items()
    return tuple(name for name, one in parameters if one.default is None and name not in given)


def _accepted(
    model: Callable[..., Any], keys: tuple[str, ...], arguments: tuple[str, ...]
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the keys of the records that the model takes as arguments, and those of them that are
    optional.
    """
    parameters = inspect.signature(model).parameters
    named = {name: value for name, value in parameters.items() if value.kind in _KEYWORD}
    takes_any = any(value.kind is inspect.Parameter.VAR_KEYWORD for value in parameters.values())
    required = [
        name
        for name, value in parameters.items()
        if value.default is inspect.Parameter.empty
        and value.kind in (*_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    ]
    for name in arguments:
        if name in keys or not (name in named or takes_any):
            where = "also a key of the records" if name in keys else "not an argument of the model"
            raise ConfigError(f"arguments[{name!r}] is {where}; rename or remove it")
    missing = [name for name in required if name not in named or name not in (*keys, *arguments)]
    if missing:
        raise ConfigError(
            f"the model needs {missing}, but the records have {sorted(keys)} and arguments has "
            f"{sorted(arguments)}; add a column or argument of that name, or give it a default"
        )
    accepted = tuple(key for key in keys if takes_any or key in named)
    if not accepted:
        raise ConfigError(
            f"the model takes none of the columns {sorted(keys)} of the records; "
            "give its arguments the names of columns"
        )
    optional = frozenset(key for key in accepted if key not in required)
    return accepted, optional

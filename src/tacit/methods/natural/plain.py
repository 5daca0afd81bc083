"""The programs of `tacit.methods.natural.party` in NumPy, for models that support it (`InNumPy`).

Loading JAX and a compiled program would take longer than all the steps of most runs. Padding does
not change a reply, because rows of weight 0 are left out. Replies are the same in every engine,
because blocks of records have a fixed length.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tacit.arrays import Array, Arrays
from tacit.expfam import Family, Gaussian
from tacit.expfam.quadrature import weighing_draws
from tacit.methods.base import Task
from tacit.methods.natural.party import finite_slopes, gaussian_prior, total
from tacit.methods.natural.search import first_search, only_finite, searched
from tacit.methods.natural.stages import DISPERSION, DISPERSION_COUNT, FAILED
from tacit.models.base import Records
from tacit.models.capabilities import ImpliedVariance, InNumPy, WhitenedDerivatives

BLOCK_ROWS = 4096
"""Number of records whose derivatives are computed at a time; their arrays fit into the cache."""
DRAWS_BLOCK_ROWS = 256
"""Number of records whose log-likelihoods at many draws are computed at a time."""


def derivatives(model: InNumPy, family: Family, task: Task) -> Arrays:
    """Return the same as `tacit.methods.natural.party.derivatives`, computed in NumPy."""
    assert isinstance(family, Gaussian)
    public = task.public
    slots, size = public["mean"].shape
    found = WhitenedDerivatives(
        np.zeros(slots), np.zeros((slots, size)), np.zeros((slots, size, size))
    )

    def put(slot: int, mean: Array) -> tuple[WhitenedDerivatives, Array]:
        seen, finite = only_finite(_at_point(model, task, mean, public["root"][slot]))
        for whole, part in zip(found, seen, strict=True):
            whole[slot] = part
        return seen, finite

    if not public["search"]:
        for slot in range(int(public["points"])):
            put(slot, public["mean"][slot])
        return found._asdict() | {"theta": public["mean"][0], "good": np.zeros(())}
    prior, search = gaussian_prior(model, family), first_search(public["mean"][0])
    while search.goes_on:
        seen, finite = put(0, search.proposal)
        search = searched(search, total(seen, prior(search.proposal)), finite)
    _, finite = put(0, search.result)
    enough = np.count_nonzero(task.weights) >= 2 * size
    good = np.asarray(float(search.settled and finite and enough))
    return found._asdict() | {"theta": search.result, "good": good}


def at_draws(model: InNumPy, task: Task) -> Arrays:
    """Return the same as `tacit.methods.natural.party.at_draws`, computed in NumPy."""
    values = np.zeros(len(task.public["draws"]))
    for records, weights in blocks(task, DRAWS_BLOCK_ROWS):
        values += model.log_likelihoods(task.public["draws"], records, weights)
    return {"log_likelihood": np.where(np.isfinite(values), values, FAILED)}


def at_slopes(model: InNumPy, task: Task) -> Arrays:
    """Return the same as `tacit.methods.natural.party.at_slopes`, computed in NumPy."""
    draws = task.public["draws"]
    values, slopes, root = np.zeros(len(draws)), np.zeros(draws.shape), np.eye(draws.shape[1])
    point = task._replace(public={"spread": np.asarray(0.0)})
    for number, theta in enumerate(draws):
        found = _at_point(model, point, theta, root)
        values[number], slopes[number] = found.value, found.gradient
    return finite_slopes(values, slopes)


def weighed(model: InNumPy, task: Task) -> Arrays:
    """Return the log-likelihood at fixed draws from the q of the request, and sums that compare
    squared residuals with the variances that the model implies (`DispersionSums`).
    """
    assert isinstance(model, ImpliedVariance)
    public = task.public
    mean, root = public["mean"], public["root"]
    draws = mean + weighing_draws(len(mean)) @ root.T
    found = at_draws(model, task._replace(public={"draws": draws}))
    sums = np.zeros(DISPERSION_COUNT)
    for records, weights in blocks(task, BLOCK_ROWS):
        x = records["x"]
        variance = np.sum(np.square(x @ root), axis=1)
        sums += model.dispersion_sums(x @ mean, variance, records["y"], weights)
    return found | {DISPERSION: np.where(np.isfinite(sums), sums, 0.0)}


def _at_point(model: InNumPy, task: Task, mean: Array, root: Array) -> WhitenedDerivatives:
    parts = [
        model.whitened_derivatives(mean, root, task.public["spread"], records, weights)
        for records, weights in blocks(task, BLOCK_ROWS)
    ]
    found = parts[0]
    for part in parts[1:]:
        found = total(found, part)
    return found


def blocks(task: Task, rows: int) -> Iterator[tuple[Records, Array]]:
    """Yield (records, weights) in blocks of at most `rows` records. Padding, which has weight 0, is
    left out.
    """
    count = int(np.count_nonzero(task.weights))
    for start in range(0, count, rows):
        part = slice(start, min(start + rows, count))
        yield {name: column[part] for name, column in task.records.items()}, task.weights[part]

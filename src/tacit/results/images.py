"""Find other modes of a posterior that follow from a symmetry of the model.

The likelihood of some models does not change if the sign of parameters is changed (a slope whose
square is used, the loadings of a factor) or if components of a mixture are exchanged. A point that
results from such a change of θ is called an image of θ. The normal q describes only one mode. Its
draws, from which importance weights are computed, are not near the other modes. The posterior
density is therefore also evaluated at the images of q's mean that are more than `FAR` standard
deviations away. If the density at such an image is at least exp(−`NEARLY`) times the density at the
mean, and lower somewhere on the segment between both points, there is a second mode that q does not
describe. Without such a valley the image is on the slope of the mode of q, such as a scale that
could be larger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice

import numpy as np

from tacit.arrays import Natural
from tacit.expfam import Gaussian
from tacit.models import Model, Records
from tacit.models.capabilities import HasImages
from tacit.results.lines import RISE, line_points, mode_on_lines

NEARLY = 7.0
"""An image counts as a mode if its log-density is at most this much below that of the mean."""
FAR = 4.0
MOST_IMAGES = 1024
MOST_TRIED = 20_000
"""Largest number of images whose distance from the mean is computed."""
ALL_SIGNS = 6
"""Up to this many sites, or elements of a vector, all combinations of signs are tried."""
BETWEEN = np.arange(1, 16) / 16
"""Places of the points at which a segment is evaluated."""
MOST_SEGMENTS = 16
MOST_TERMS = 100_000_000
"""Largest product of the number of points and the number of records."""
MOST_PRODUCTS = 10_000_000_000
"""Largest product of the numbers of points, records and parameters."""
MOST_AT_ONCE = 10_000_000
"""Largest such product that is computed at once."""
MOST_LINE_POINTS = 24_100
Places = Mapping[str, tuple[slice, tuple[int, ...]]]
MOST_COMPONENTS = 8
"""Largest length of vectors whose elements are exchanged in pairs."""


def images_of(model: HasImages, theta: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield pairs of a description and a point at which the likelihood may be the same as at
    `theta`.

    Such a point is called an image of θ. There are four kinds of images. In the first kind, the
    signs of all coordinates of some sites are changed, where a site is a named variable of the
    model. In the second kind, elements are exchanged along one axis, in all sites with the same
    length of an axis. In the third kind, pairs of sites of equal shape are exchanged, such as a1
    with a2 and k1 with k2, or exchanged with changed signs. In the fourth kind, the signs of one or
    more coordinates of one site are changed. With the second and the third kind, the sign of one
    more site may change too, such as the log-odds of a mixture's share.
    """
    places = model.site_places
    yield from _turned(places, model.names, theta, most=2)
    exchanged = list(_exchanged(places, theta))
    yield from ((words, image) for words, _, image in exchanged)
    for words, moved, image in exchanged:
        for name in places:
            if name not in moved:
                turned = image.copy()
                turned[places[name][0]] *= -1.0
                yield f"{words} and the other sign of {name}", turned
    yield from _turned(places, model.names, theta, least=3)


def _turned(
    places: Places, names: Sequence[str], theta: np.ndarray, least: int = 1, most: int = 2**30
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield descriptions and points with other signs of some sites, or of some coordinates of one
    site. Between `least` and `most` of them change.
    """
    sites = {name: np.arange(at.start, at.stop) for name, (at, _) in places.items()}
    groups: list[tuple[dict[str, np.ndarray], tuple[int, ...]]] = [(sites, (1, 2, len(sites)))]
    for at in sites.values():
        # Pairs of the coordinates of a long vector would be too many.
        groups.append(({names[int(place)]: at[at == place] for place in at}, (1, len(at))))
    for group, counts in groups:
        few = range(1, len(group) + 1) if len(group) <= ALL_SIGNS else counts
        for count in few:
            for some in combinations(group, count) if least <= count <= most else ():
                image = theta.copy()
                for name in some:
                    image[group[name]] *= -1.0
                yield f"the other sign of {' and '.join(some)}", image


def _exchanged(places: Places, theta: np.ndarray) -> Iterator[tuple[str, set[str], np.ndarray]]:
    """Yield a description, the names of the changed sites, and `theta` with two components
    exchanged.
    """
    sizes = {length for _, shape in places.values() for length in shape}
    for size in sorted(one for one in sizes if 1 < one <= MOST_COMPONENTS):
        alike = {name: one for name, one in places.items() if size in one[1]}
        for pairs in _orders(size):
            order = np.arange(size)
            for first, second in pairs:
                order[[first, second]] = second, first
            image = theta.copy()
            for at, shape in alike.values():
                every = np.arange(at.start, at.stop).reshape(shape)
                image[every] = theta[np.take(every, order, axis=shape.index(size))]
            which = ", ".join(f"{first} and {second}" for first, second in pairs)
            yield f"elements {which} of {', '.join(alike)} exchanged", set(alike), image
    known = list(_numbered(places))
    known += [pairs for pairs in islice(_pairs(places), MOST_IMAGES) if pairs not in known]
    for sign, how in ((1.0, "exchanged"), (-1.0, "exchanged with changed signs")):
        for pairs in known[: MOST_IMAGES // 2]:
            image = theta.copy()
            for one, other in pairs:
                image[places[one][0]] = sign * theta[places[other][0]]
                image[places[other][0]] = sign * theta[places[one][0]]
            words = ", ".join(f"{one} and {other}" for one, other in pairs)
            yield f"{words} {how}", {name for pair in pairs for name in pair}, image


def _orders(size: int) -> Iterator[list[tuple[int, int]]]:
    """Yield pairs of elements to exchange: one pair, and then two pairs at a time if there are four
    elements.
    """
    yield from ([pair] for pair in combinations(range(size), 2))
    if size == 4:
        yield from ([(0, k), tuple(j for j in (1, 2, 3) if j != k)] for k in (1, 2, 3))


def _numbered(places: Places) -> Iterator[list[tuple[str, str]]]:
    """Yield lists of pairs of sites whose names differ only in the number at their end, or in the
    last part after an underscore.

    All pairs of one list have the same two ends, for example (a1, a2) and (k1, k2), or (slope_low,
    slope_high) and (sd_low, sd_high).
    """
    numbers: dict[str, dict[str, str]] = {}
    for name in places:
        if found := re.fullmatch(r"(.*?\D)(\d+)", name) or re.fullmatch(r"(.*_)([^_]+)", name):
            numbers.setdefault(found[2], {})[found[1]] = name
    for first, second in combinations(numbers, 2):
        stems = [stem for stem in numbers[first] if stem in numbers[second]]
        pairs = [(numbers[first][stem], numbers[second][stem]) for stem in stems]
        pairs = [(one, two) for one, two in pairs if places[one][1] == places[two][1]]
        if pairs:
            yield pairs


def _pairs(places: Places) -> Iterator[list[tuple[str, str]]]:
    """Yield single pairs of sites with the same shape, and then two such pairs at a time."""
    alike = [two for two in combinations(places, 2) if places[two[0]][1] == places[two[1]][1]]
    yield from ([two] for two in alike)
    for first, second in combinations(alike, 2):
        if not set(first) & set(second):
            yield [first, second]


def other_mode(
    model: Model, family: Gaussian, q: Natural, parties: Mapping[str, Records]
) -> str | None:
    """Return the description of a point that is probably another mode of the posterior; None if no
    such point is found.

    The points are images of q's mean (`images_of`) that are many standard deviations away, but have
    nearly the density of the mean, and points on lines through the mean (`tacit.results.lines`).
    """
    if not isinstance(model, HasImages):
        return None
    mean = np.asarray(family.location_scale(q)[0], np.float64)
    root = np.linalg.cholesky(np.asarray(family.covariance(q), np.float64))
    every = [records for records in parties.values() if records]
    joined = {name: np.concatenate([one[name] for one in every]) for name in every[0]}
    size = max(len(next(iter(joined.values()))), 1)
    terms = min(MOST_TERMS // size, MOST_PRODUCTS // (size * len(mean)))
    most = min(MOST_IMAGES, terms)
    found: list[tuple[str, np.ndarray]] = []
    inverse = np.linalg.inv(root)
    for name, image in islice(images_of(model, mean), MOST_TRIED):
        if len(found) < most and np.linalg.norm(inverse @ (image - mean)) > FAR:
            found.append((name, image))
    lines = line_points(mean, root, min(MOST_LINE_POINTS, terms))
    points = np.concatenate(
        [np.stack([mean, *(image for _, image in found)]), lines.reshape(-1, len(mean))]
    )
    density = _densities(model, points, joined)
    here, at_images, on_lines = np.split(density, [1, 1 + len(found)])
    if not np.isfinite(here[0]):
        return None  # there is no mode to compare with
    near = np.flatnonzero(at_images > here - NEARLY)
    near = near[np.argsort(-at_images[near], kind="stable")][: min(MOST_SEGMENTS, max(terms, 1))]
    if len(near):
        images = np.stack([found[place][1] for place in near])
        segments = mean + BETWEEN[:, None] * (images - mean)[:, None, :]
        between = _densities(model, segments.reshape(-1, len(mean)), joined)
        valleys = np.min(np.nan_to_num(between, nan=-np.inf).reshape(segments.shape[:2]), axis=1)
        apart = near[valleys < at_images[near] - RISE]
        if len(apart):
            return found[int(apart[0])][0]
    return mode_on_lines(on_lines.reshape(lines.shape[:2]), model.names)


def _densities(model: HasImages, points: np.ndarray, records: Records) -> np.ndarray:
    """Return log p(records, θ) at each point. Points are padded, so that few lengths compile, and
    computed in blocks if there are many.
    """
    padded = np.concatenate([points, np.repeat(points[:1], -len(points) % 32, axis=0)])
    count = MOST_AT_ONCE // max(len(next(iter(records.values()))), 1)
    step = max(32, count - count % 32)
    blocks = [padded[first : first + step] for first in range(0, len(padded), step)]
    return np.concatenate([np.asarray(model.log_joints(one, records)) for one in blocks])[
        : len(points)
    ]

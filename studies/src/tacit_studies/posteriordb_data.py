"""The posteriors of the study: which data, how they become records, and Stan's names of sites.

Transformed data of a Stan file (logs, centring, indicators) are computed from all records before
they are split, as the file does; only then are records distributed to parties.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.datasets import ReferenceStatistics, list_posteriors, load_posterior_data, load_reference
from tacit_studies import posteriordb_models as models

Data = Mapping[str, Any]
Records = dict[str, np.ndarray]
Prepared = tuple[Records, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """One posterior: a model, records and the reference of its draws."""

    name: str
    function: Callable[..., Any]
    prepare: Callable[[Data], Prepared]
    """Records and constants of the model, from the data of the Stan file."""
    noncentred: tuple[str, ...] = ()
    """Sites that NUTS samples in non-centred form, for posteriors without published draws."""
    compared: tuple[str, ...] = ()
    """Sites to compare, for posteriors without published draws; empty for those with such draws,
    which are compared in all published coordinates.
    """

    @property
    def data(self) -> str:
        """The name of the data set."""
        return self.name.split("-", 1)[0]

    @property
    def published(self) -> bool:
        """True if the reference is from posteriordb; otherwise it is our own NUTS run."""
        return not self.compared

    def load(self) -> Prepared:
        """All records and the constants."""
        return self.prepare(load_posterior_data(self.data))

    def reference(self) -> ReferenceStatistics:
        """The published statistics."""
        return load_reference(self.name)


def columns(*names: str, **transformed: Callable[[Data], np.ndarray]) -> Callable[[Data], Prepared]:
    """Columns of the data, and columns computed from them; all as real numbers."""

    def prepare(data: Data) -> Prepared:
        made = {name: data[name] for name in names}
        made |= {name: function(data) for name, function in transformed.items()}
        return {name: np.asarray(value, np.float64) for name, value in made.items()}, {}

    return prepare


def log_of(*names: str) -> Callable[[Data], np.ndarray]:
    """The logarithm of the product of columns; a name that begins with "/" divides."""

    def transformed(data: Data) -> np.ndarray:
        logs = (-np.log(data[n[1:]]) if n[0] == "/" else np.log(data[n]) for n in names)
        return np.sum(list(logs), axis=0)

    return transformed


def _is(name: str, level: int) -> Callable[[Data], np.ndarray]:
    return lambda data: data[name] == level


def _centred(name: str) -> Callable[[Data], np.ndarray]:
    return lambda data: data[name] - np.mean(data[name])


def _standardised(name: str) -> Callable[[Data], np.ndarray]:
    return lambda data: (data[name] - np.mean(data[name])) / (2 * np.std(data[name], ddof=1))


def _diamonds(data: Data) -> Prepared:
    x = np.asarray(data["X"][:, 1:], np.float64)
    return {"x": x - x.mean(axis=0), "y": np.asarray(data["Y"], np.float64)}, {}


def _eight_schools(data: Data) -> Prepared:
    records, _ = columns("y", "sigma")(data)
    return records | {"school": np.arange(data["J"])}, {"schools": data["J"]}


def _kilpisjarvi(data: Data) -> Prepared:
    constants = {name: data[name] for name in ("pmualpha", "psalpha", "pmubeta", "psbeta")}
    return columns("x", "y")(data)[0], constants


def _nes(data: Data) -> Prepared:
    age = [data["age_discrete"] == level for level in (2, 3, 4)]
    x = [data["real_ideo"], data["race_adj"], *age, data["educ1"], data["gender"], data["income"]]
    records = {"x": np.column_stack(x).astype(np.float64)}
    return records | columns("partyid7")(data)[0], {}


def _wells(data: Data) -> Prepared:
    x = np.column_stack([data["dist"] / 100.0, data["arsenic"]])
    return {"x": x, "switched": np.asarray(data["switched"])}, {}


def _glmm_poisson(data: Data) -> Prepared:
    records = {"year": data["year"], "row": np.arange(data["n"]), "counts": data["C"]}
    return records, {"years": data["n"]}


def _radon(*names: str) -> Callable[[Data], Prepared]:
    def prepare(data: Data) -> Prepared:
        records, _ = columns(*names, "log_radon")(data)
        return records | {"county": data["county_idx"] - 1}, {"counties": data["J"]}

    return prepare


ELECTION_GROUPS = {"a": "age", "b": "edu", "c": "age_edu", "d": "state", "e": "region_full"}


def _election88(data: Data) -> Prepared:
    black, female = data["black"], data["female"]
    x = [np.ones(data["N"]), black, female, data["v_prev_full"], female * black]
    records = {"x": np.column_stack(x).astype(np.float64), "y": data["y"]}
    records |= {n.removesuffix("_full"): data[n] - 1 for n in ELECTION_GROUPS.values()}
    levels = {letter: data[f"n_{name}"] for letter, name in ELECTION_GROUPS.items()}
    return records, {"levels": levels}


_LOG_EARN = {"log_earn": log_of("earn")}
_LOG_WEIGHT = {"log_weight": log_of("weight")}
_VOLUME = {"volume": log_of("diam1", "diam2", "canopy_height")}
_AREA = {"area": log_of("diam1", "diam2")}
_SHAPE = {"shape": log_of("diam1", "/diam2")}
_TALL = {"total_height": log_of("total_height")}
_DENSE = {"density": log_of("density")}
_LOG_COLUMNS = {n: log_of(n) for n in ("diam1", "diam2", "canopy_height")}
_WORK = {f"work{level}": _is("mom_work", level) for level in (2, 3, 4)}
_CENTRED = {name: _centred(name) for name in ("mom_hs", "mom_iq")}
_STANDARDISED = {name: _standardised(name) for name in ("mom_hs", "mom_iq")}

_PUBLISHED: dict[str, tuple[Callable[..., Any], Callable[[Data], Prepared]]] = {
    "diamonds": (models.diamonds, _diamonds),
    "log10earn_height": (
        models.log10earn_height,
        columns("height", log10_earn=lambda data: np.log10(data["earn"])),
    ),
    "logearn_height": (models.logearn_height, columns("height", **_LOG_EARN)),
    "logearn_height_male": (models.logearn_height_male, columns("height", "male", **_LOG_EARN)),
    "logearn_interaction": (models.logearn_interaction, columns("height", "male", **_LOG_EARN)),
    "logearn_logheight_male": (
        models.logearn_logheight_male,
        columns("male", log_height=log_of("height"), **_LOG_EARN),
    ),
    "eight_schools_noncentered": (models.eight_schools_noncentered, _eight_schools),
    "kidscore_momhs": (models.kidscore_momhs, columns("mom_hs", "kid_score")),
    "kidscore_momhsiq": (models.kidscore_momhsiq, columns("mom_hs", "mom_iq", "kid_score")),
    "kidscore_momiq": (models.kidscore_momiq, columns("mom_iq", "kid_score")),
    "kidscore_interaction_c": (models.kidscore_interaction, columns("kid_score", **_CENTRED)),
    "kidscore_interaction_z": (models.kidscore_interaction, columns("kid_score", **_STANDARDISED)),
    "kidscore_mom_work": (models.kidscore_mom_work, columns("kid_score", **_WORK)),
    "kilpisjarvi": (models.kilpisjarvi, _kilpisjarvi),
    "low_dim_gauss_mix": (models.low_dim_gauss_mix, columns("y")),
    "logmesquite": (
        models.logmesquite,
        columns("group", **_LOG_COLUMNS, **_TALL, **_DENSE, **_LOG_WEIGHT),
    ),
    "logmesquite_logva": (
        models.logmesquite_logva,
        columns("group", **_VOLUME, **_AREA, **_LOG_WEIGHT),
    ),
    "logmesquite_logvas": (
        models.logmesquite_logvas,
        columns("group", **_VOLUME, **_AREA, **_SHAPE, **_TALL, **_DENSE, **_LOG_WEIGHT),
    ),
    "logmesquite_logvash": (
        models.logmesquite_logvash,
        columns("group", **_VOLUME, **_AREA, **_SHAPE, **_TALL, **_LOG_WEIGHT),
    ),
    "logmesquite_logvolume": (models.logmesquite_logvolume, columns(**_VOLUME, **_LOG_WEIGHT)),
    "nes": (models.nes, _nes),
    "blr": (models.blr, columns("y", x=lambda data: data["X"])),
}
"""Model and records of each Stan file with published draws."""

_OWN = (
    Posterior(
        name="radon_all-radon_hierarchical_intercept_noncentered",
        function=models.radon_hierarchical_intercept_noncentered,
        prepare=_radon("log_uppm", "floor_measure"),
        compared=("mu_alpha", "sigma_alpha", "sigma_y", "beta", "alpha"),
    ),
    Posterior(
        name="radon_all-radon_variable_intercept_slope_noncentered",
        function=models.radon_variable_intercept_slope_noncentered,
        prepare=_radon("floor_measure"),
        compared=(
            "mu_alpha", "mu_beta", "sigma_alpha", "sigma_beta", "sigma_y", "alpha", "beta",
        ),
    ),
    Posterior(
        name="wells_data-wells_dist100ars_model",
        function=models.wells_dist100ars,
        prepare=_wells,
        compared=("alpha", "beta"),
    ),
    Posterior(
        name="election88-election88_full",
        function=models.election88_full,
        prepare=_election88,
        noncentred=tuple(ELECTION_GROUPS),
        compared=("beta", *(f"sigma_{name}" for name in ELECTION_GROUPS), *ELECTION_GROUPS),
    ),
    Posterior(
        name="GLMM_Poisson_data-GLMM_Poisson_model",
        function=models.glmm_poisson,
        prepare=_glmm_poisson,
        noncentred=("eps",),
        compared=("alpha", "beta1", "beta2", "beta3", "sigma", "eps"),
    ),
)  # fmt: skip

POSTERIORS: dict[str, Posterior] = {
    name: Posterior(
        name=name,
        function=_PUBLISHED[name.split("-", 1)[1]][0],
        prepare=_PUBLISHED[name.split("-", 1)[1]][1],
    )
    for name in list_posteriors()
} | {one.name: one for one in _OWN}


def split(records: Records, parties: int, seed: int) -> dict[str, Records]:
    """Distribute records at random to parties of equal size; with fewer records, one per party."""
    total = len(next(iter(records.values())))
    parties = min(parties, total)
    order = np.random.default_rng([seed, parties]).permutation(total)
    width = len(str(parties))
    return {
        f"party-{number + 1:0{width}d}": {key: value[part] for key, value in records.items()}
        for number, part in enumerate(np.array_split(order, parties))
    }


def stan_columns(sites: Mapping[str, Any], names: Iterable[str]) -> np.ndarray:
    """Draws of the named coordinates, draws × names; "beta[2]" is the second of site beta.

    >>> sites = {"beta": np.array([[1.0, 2.0]]), "sigma": np.array([3.0])}
    >>> stan_columns(sites, ["sigma", "beta[2]"])
    array([[3., 2.]])
    """
    found = []
    for name in names:
        matched = re.fullmatch(r"([^\[\]]+)(?:\[(\d+)\])?", name)
        if matched is None:
            raise ValueError(f"{name} is not a scalar or an element of a vector")
        site, index = matched.groups()
        value = np.asarray(sites[site], np.float64)
        if value.ndim != (1 if index is None else 2):
            shape = "(draws,)" if index is None else "(draws, elements)"
            raise ValueError(f"{name}: draws of {site} have shape {value.shape}, not {shape}")
        found.append(value if index is None else value[:, int(index) - 1])
    return np.column_stack(found)


def stan_names(sites: Mapping[str, Any], chosen: Iterable[str]) -> tuple[str, ...]:
    """Stan's names of all elements of the chosen sites.

    >>> stan_names({"beta": np.zeros((5, 2)), "sigma": np.zeros(5)}, ["beta", "sigma"])
    ('beta[1]', 'beta[2]', 'sigma')
    """
    names: list[str] = []
    for site in chosen:
        shape = np.shape(sites[site])[1:]
        names += [f"{site}[{k + 1}]" for k in range(shape[0])] if shape else [site]
    return tuple(names)

"""One party that is a site of its source holds what the whole federation would give it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tacit import data
from tacit.data import DataConfig, Federation, PartitionConfig, load_federation, load_party
from tacit.data.readers.download import locate
from tacit.data.readers.heart import HOSPITALS
from tacit.errors import ConfigError, DataError

Need = Callable[[str], None]


def same_records(alone: Federation, together: Federation, site: str) -> None:
    assert list(alone.parties) == [site]
    for mine, theirs in (
        (alone.parties[site], together.parties[site]),
        (alone.raw[site], together.raw[site]),
    ):
        assert list(mine) == list(theirs)
        for key, values in theirs.items():
            assert mine[key].dtype == values.dtype
            assert mine[key].tobytes() == values.tobytes(), key
    assert alone.names == together.names
    assert alone.output == together.output
    assert alone.unbounded == together.unbounded
    assert alone.true_values == together.true_values


@pytest.mark.parametrize("sites", [None, 3, 12])
def test_a_cohort_site_alone_has_the_records_it_has_among_all(sites):
    keys = {"records": 400, "held_out": 0.0, "keep": ("site", "bmi"), "person": "patient"}
    partition = PartitionConfig(kind="source", parties=10 if sites is None else sites)
    together = load_federation(DataConfig(**keys), partition, 5)
    for site in together.parties:
        same_records(
            load_party(DataConfig(site=site, **keys), site, 5, sites=sites), together, site
        )


def test_a_hospital_alone_has_the_records_it_has_among_all(need: Need):
    need("heart")
    keys = {"source": "heart", "held_out": 0.0, "keep": ("hospital", "chol")}
    together = load_federation(DataConfig(**keys), PartitionConfig(kind="source"), 0)
    assert tuple(together.parties) == HOSPITALS
    for site in HOSPITALS:
        same_records(load_party(DataConfig(site=site, **keys), site), together, site)


def test_a_hospital_needs_its_own_file_alone(
    need: Need, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    need("heart")
    folder = locate("heart")
    assert folder is not None
    (tmp_path / "heart").mkdir()
    shutil.copy(folder / "processed.va.data", tmp_path / "heart")
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    va = load_party(DataConfig(source="heart", site="va", held_out=0), "va")
    assert len(va.parties["va"]["y"]) == 200
    with pytest.raises(
        DataError, match=r"TACIT_DATA to a folder that contains heart/processed\.cleveland"
    ):
        load_party(DataConfig(source="heart", site="cleveland"), "cleveland")
    with pytest.raises(DataError, match='the files of "heart" are missing'):
        load_party(DataConfig(source="heart"), "all")


def test_a_site_holds_out_of_its_own_records():
    site = "hospital-3"
    whole, split = (
        load_party(DataConfig(site=site, records=300, held_out=share), site, 1, sites=4)
        for share in (0.0, 0.25)
    )
    n = len(whole.parties[site]["y"])
    assert split.test is not None
    assert len(split.test["y"]) == round(n / 4)
    both = np.vstack([split.parties[site]["x"], split.test["x"]])
    assert sorted(map(tuple, both)) == sorted(map(tuple, whole.parties[site]["x"]))


def test_without_a_site_all_records_are_one_partys():
    party = load_party(DataConfig(records=90, held_out=0, keep=("site",)), "all", sites=3)
    assert set(party.parties["all"]["site"].tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("keys", "sites", "message"),
    [
        (
            {"source": "heart", "site": "basel"},
            None,
            r'data\.site = "basel"; the sites of source "heart" are cleveland, hungarian,'
            r" switzerland, va: name one of them",
        ),
        (
            {"site": "hospital-3"},
            2,
            r'data\.site = "hospital-3"; the sites of source "synthetic-cohort" are hospital-1,'
            r" hospital-2: name",
        ),
        ({"site": "hospital-1"}, None, r'data\.site = "hospital-1"; .* hospital-01, hospital-02'),
        ({"site": ""}, 100, r'data\.site = ""; .*hospital-050, … \(100 in all\)'),
        ({}, 0, r"sites = 0; it must be at least 1|has 0 sites"),
    ],
)
def test_unknown_sites_are_refused_with_those_there_are(keys, sites, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_party(DataConfig(**keys), "here", sites=sites)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", [s for s in data.config.SOURCES if s not in ("heart", "file")])
def test_only_sources_with_sites_take_one(source):
    if source == "synthetic-cohort":
        assert DataConfig(source=source, site="hospital-1").site == "hospital-1"
        return
    with pytest.raises(ConfigError, match=rf'data\.site = "a" is not a key of source = "{source}"'):
        DataConfig(source=source, site="a")


@pytest.mark.parametrize("kind", ["balanced", "source"])
def test_a_whole_federation_has_no_site(kind):
    with pytest.raises(ConfigError, match=r'data\.site = "hospital-1"; it is for a single party'):
        load_federation(DataConfig(site="hospital-1"), PartitionConfig(kind=kind), 0)

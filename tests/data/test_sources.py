import numpy as np
import pytest

from tacit import data, datasets
from tacit.data import DataConfig, Federation, PartitionConfig, load_federation
from tacit.data.config import SOURCES
from tacit.errors import ConfigError


def pooled(federation: Federation, key: str) -> np.ndarray:
    return np.concatenate([records[key] for records in federation.parties.values()])


def sizes(federation: Federation) -> dict[str, int]:
    return {name: len(records["y"]) for name, records in federation.parties.items()}


def test_every_source_is_listed():
    listed = {info.name: info for info in datasets.list()}
    assert tuple(listed) == (*SOURCES, "posteriordb")
    assert {name for name, info in listed.items() if info.file_based} == {
        "adult",
        "rugged",
        "heart",
        "mimic3",
        "wikipedia",
        "posteriordb",
    }
    assert {name for name, info in listed.items() if info.sites} == {"synthetic-cohort", "heart"}


def test_adult_has_109_columns_near_standard(need):
    need("adult")
    federation = datasets.load("adult", parties=10, held_out=0.5, seed=1)
    assert federation.test is not None
    x = np.vstack([pooled(federation, "x"), federation.test["x"]])
    assert x.shape == (48_842, 109)
    assert len(set(federation.names)) == 109
    assert federation.names[0] == "intercept"
    assert federation.notes == ()
    assert np.abs(x[:, 1:7].mean(axis=0)).max() < 0.1
    assert np.abs(x[:, 1:7].std(axis=0) - 1).max() < 0.1
    assert (x[:, 7:].sum(axis=1) == 8).all()
    assert x[:, federation.names.index("workclass missing")].sum() == 2_799
    assert pooled(federation, "y").sum() + federation.test["y"].sum() == 11_687
    assert set(sizes(federation).values()) == {2442, 2443}


@pytest.mark.parametrize(
    ("parties", "size_skew", "label_skew", "small_size", "small_fraction", "large_fraction"),
    [
        (10, 0.0, 0.0, 2442, 0.76, 0.76),
        (10, 0.75, 0.95, 610, 0.99, 0.73),
        (10, 0.7, -3.0, 732, 0.043, 0.89),
        (200, 0.0, 0.0, 122, 0.75, 0.76),
        (200, 0.75, 0.95, 30, 0.97, 0.73),
        (200, 0.7, -3.0, 36, 0.03, 0.89),
    ],
)
def test_tmlr_tables_2_and_3(
    need, parties, size_skew, label_skew, small_size, small_fraction, large_fraction
):
    """Adult, half held out. λ_small of "unbalanced 2" is 4λ - 3 = .043 ± .008 by the split."""
    need("adult")
    federation = datasets.load(
        "adult",
        parties=parties,
        kind="skew",
        size_skew=size_skew,
        label_skew=label_skew,
        held_out=0.5,
        seed=3,
    )
    majority = {name: 1 - records["y"].mean() for name, records in federation.parties.items()}
    small = [name for name in majority if name.startswith("small")]
    large = [name for name in majority if name.startswith("large")]
    n_large = int(24_421 / parties * (1 + size_skew))
    assert len(small) == len(large) == parties // 2
    assert {sizes(federation)[name] for name in small} == {small_size}
    assert {sizes(federation)[name] - n_large for name in large} <= {0, 1, 2}
    assert sum(sizes(federation).values()) == 24_421
    for name in small:
        assert majority[name] == pytest.approx(small_fraction, abs=0.012)
    assert np.mean([majority[name] for name in large]) == pytest.approx(large_fraction, abs=0.01)


def test_rugged_least_squares_is_the_published_one(need):
    need("rugged")
    federation = datasets.load("rugged", parties=3, held_out=0)
    solution = np.linalg.lstsq(pooled(federation, "x"), pooled(federation, "y"))[0]
    assert federation.names == ("intercept", "cont_africa", "rugged", "cont_africa*rugged")
    assert solution == pytest.approx([9.223, -1.948, -0.203, 0.393], abs=5e-4)
    assert federation.output == "gaussian"
    assert federation.notes == (
        'column "log(rgdppc_2000)": rows dropped because of missing values: 64',
    )


def test_heart_parties_are_its_hospitals(need):
    need("heart")
    federation = datasets.load("heart", held_out=0, keep=("hospital",))
    assert sizes(federation) == {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    ill = [int(records["y"].sum()) for records in federation.parties.values()]
    assert ill == [139, 106, 115, 149]
    x, names = pooled(federation, "x"), federation.names
    missing = {name: int(x[:, names.index(f"{name} missing")].sum()) for name in ("chol", "thal")}
    assert missing == {"chol": 23 + 123 + 7 + 49, "thal": 2 + 266 + 52 + 166}
    assert federation.parties["switzerland"]["x"][:, names.index("chol missing")].all()
    assert [set(r["hospital"].tolist()) for r in federation.parties.values()] == [
        {0},
        {1},
        {2},
        {3},
    ]
    assert np.isfinite(x).all()
    assert np.abs(x).max() < 10


def test_heart_holds_out_a_share_of_each_hospital(need):
    need("heart")
    federation = datasets.load("heart", held_out=0.2, keep=("hospital",))
    assert federation.test is not None
    shares = np.bincount(federation.test["hospital"]) - np.array([60, 58, 24, 40])
    assert set(shares.tolist()) <= {0, 1}
    assert len(federation.test["y"]) == 184


def test_breast_cancer_is_near_standard():
    federation = datasets.load("breast-cancer", parties=3, held_out=0)
    x = pooled(federation, "x")
    assert x.shape == (569, 31)
    assert pooled(federation, "y").sum() == 212
    assert np.abs(x[:, 1:].mean(axis=0)).max() < 0.15
    assert np.abs(x[:, 1:].std(axis=0) - 1).max() < 0.1
    assert federation.notes == ()


def test_gaussian_mean_is_y_alone():
    federation = datasets.load("normal-mean", parties=5, held_out=0, seed=2)
    y = pooled(federation, "y")
    assert set(federation.parties["party-1"]) == {"y"}
    assert federation.names == ("mean",)
    assert len(y) == 10_000
    # Four standard errors: a false alarm in 16,000 seeds, and this seed is fixed.
    assert abs(y.mean() - 5) < 4 / 100
    other = datasets.load("normal-mean", records=50, mean=-3.0, sd=0.1, held_out=0)
    assert abs(pooled(other, "y").mean() + 3) < 0.1


def test_cohort_has_unequal_sites_of_different_case_mix():
    federation = datasets.load(held_out=0, seed=4)
    counts = list(sizes(federation).values())
    rates = [records["y"].mean() for records in federation.parties.values()]
    ages = [records["x"][:, 1].mean() for records in federation.parties.values()]
    assert len(counts) == 10
    assert sum(counts) == 10_000
    assert 100 <= min(counts) <= 200
    assert 2500 <= max(counts) <= 3500
    assert 0.2 <= pooled(federation, "y").mean() <= 0.25
    assert max(rates) > 2 * min(rates)
    assert max(ages) - min(ages) > 0.5
    assert pooled(federation, "x")[:, federation.names.index("hba1c missing")].any()


def test_cohort_truth_is_what_made_the_outcome():
    """The score Σ x (y - p) of the true weights has mean zero; that of other weights has not."""
    federation = datasets.load(held_out=0, records=40_000, seed=5)
    assert federation.true_values is not None
    assert tuple(federation.true_values) == federation.names
    x, y = pooled(federation, "x"), pooled(federation, "y")
    truth = np.array(list(federation.true_values.values()))

    def worst_z(weights: np.ndarray) -> float:
        p = 1 / (1 + np.exp(-x @ weights))
        return float(np.max(np.abs(x.T @ (y - p)) / np.sqrt((x * x).T @ (p * (1 - p)))))

    assert worst_z(truth) < 4.5
    assert worst_z(truth * 1.2) > 10
    assert np.linalg.matrix_rank(x) == x.shape[1], "a reference level leaves no direction free"


@pytest.mark.parametrize(("records", "total"), [(None, 50_000), (1_500, 1_500)])
def test_cohort_has_as_many_sites_as_asked(records, total):
    federation = datasets.load(parties=1000, records=records, held_out=0.2)
    assert len(federation.parties) == 1000
    assert federation.test is not None
    assert sum(sizes(federation).values()) + len(federation.test["y"]) == total
    assert min(sizes(federation).values()) >= 1
    assert len(set(sizes(federation).values())) > 1


def test_cohort_can_be_dealt_otherwise():
    federation = datasets.load(parties=4, kind="balanced", records=400, held_out=0, keep=("site",))
    assert set(sizes(federation).values()) == {100}
    assert len(set(federation.parties["party-1"]["site"].tolist())) > 3


def test_same_seed_same_federation_and_another_seed_another():
    config = DataConfig(source="breast-cancer", held_out=0.3)
    partition = PartitionConfig(kind="skew", parties=4, size_skew=0.5, label_skew=0.2)
    first, again, other = (load_federation(config, partition, seed) for seed in (7, 7, 8))
    for name, records in first.parties.items():
        for key, values in records.items():
            assert np.array_equal(values, again.parties[name][key])
    assert first.test is not None
    assert other.test is not None
    assert not np.array_equal(first.test["x"], other.test["x"])


def test_generated_data_are_pinned_to_the_seed():
    frame = data.synthetic_cohort(records=100, sites=2, seed=0).frame
    assert frame.equals(data.synthetic_cohort(records=100, sites=2, seed=0).frame)
    assert not frame.equals(data.synthetic_cohort(records=100, sites=2, seed=1).frame)
    held_out = datasets.load("normal-mean", parties=1, records=3, held_out=0, seed=0)
    expected = 5 + np.random.default_rng([0, 0]).standard_normal(3)
    assert sorted(pooled(held_out, "y")) == sorted(expected)


def test_split_gives_every_record_once():
    records = {"x": np.arange(20.0).reshape(10, 2), "y": np.arange(10.0)}
    train, test = data.split(records, held_out=0.3, seed=1)
    assert sorted([*train["y"], *test["y"]]) == list(range(10))
    assert len(test["y"]) == 3
    assert np.array_equal(test["x"][:, 0], 2 * test["y"])


def test_bad_arguments_are_refused():
    with pytest.raises(ConfigError, match="seed = -1"):
        datasets.load("normal-mean", seed=-1)
    with pytest.raises(ConfigError, match="held_out = 1"):
        data.split({"y": np.zeros(3)}, held_out=1.0)
    with pytest.raises(ConfigError, match=r'data\.keep names "wing"; choose from the columns'):
        datasets.load(keep=("wing",))
    with pytest.raises(ConfigError, match="has 3 sites but 2 records"):
        data.synthetic_cohort(records=2, sites=3)


def test_a_held_out_share_of_no_record_is_said():
    federation = datasets.load("normal-mean", parties=1, records=3, held_out=0.1)
    assert federation.test is None
    assert "holds out no record" in federation.notes[0]

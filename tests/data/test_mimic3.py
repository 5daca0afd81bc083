from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import skew as scipy_skew

from tacit import data, datasets
from tacit.data import DataConfig, Federation
from tacit.data.readers.mimic3.schema import CHANNELS, FEATURES
from tacit.errors import ConfigError, DataError

STAY = "7_episode1_timeseries.csv"


def row(hour: float, **cells: str) -> tuple[float, dict[str, str]]:
    return hour, cells


@pytest.fixture
def one_stay(tmp_path: Path, mimic3: SimpleNamespace):
    """A folder of one stay of given rows, beside others that make two classes."""

    def write(*rows: str | tuple, header: str | None = None) -> Federation:
        lines = [r if isinstance(r, str) else mimic3.row(r[0], **r[1]) for r in rows]
        mimic3.write_listfile(tmp_path / "train", {STAY: 1})
        mimic3.write_stay(tmp_path / "train" / STAY, lines, header or mimic3.header)
        other = "8_episode1_timeseries.csv"
        mimic3.write_listfile(tmp_path / "test", {other: 0})
        mimic3.write_stay(tmp_path / "test" / other, [mimic3.row(1.0)])
        return datasets.load("mimic3", path=str(tmp_path), parties=1, held_out=0)

    return write


def x_of(federation: Federation, label: float) -> dict[str, float]:
    (records,) = federation.parties.values()
    (at,) = np.flatnonzero(records["y"] == label)
    return dict(zip(federation.names, records["x"][at].tolist(), strict=True))


def test_the_schema_is_714_bounded_public_columns():
    assert len(FEATURES) == len({column.name for column in FEATURES}) == 17 * 7 * 6
    for column in FEATURES:
        assert column.low is not None
        assert column.high is not None
        assert column.center is not None
        assert column.low <= column.center <= column.high
    assert data.unbounded(DataConfig(source="mimic3")) == ()


def test_statistics_are_those_of_the_spans(one_stay):
    hours = [0.0, 2.0, 5.0, 20.0, 30.0, 39.0, 40.0]
    rates = [70.0, 90.0, 80.0, 120.0, 60.0, 61.0, 75.0]
    federation = one_stay(
        *(row(h, Heart_Rate=str(v)) for h, v in zip(hours, rates, strict=True)),
        row(47.5, Glucose="200"),
    )
    x = x_of(federation, 1)
    spans = {
        "all": rates,
        "first 10%": rates[:2],
        "first 25%": rates[:3],
        "first 50%": rates[:4],
        "last 10%": rates[5:],
        "last 25%": rates[4:],
        "last 50%": rates[3:],
    }
    for span, values in spans.items():
        assert x[f"Heart Rate min {span}"] == pytest.approx((min(values) - 80) / 20)
        assert x[f"Heart Rate max {span}"] == pytest.approx((max(values) - 80) / 20)
        assert x[f"Heart Rate mean {span}"] == pytest.approx((np.mean(values) - 80) / 20)
        assert x[f"Heart Rate std {span}"] == pytest.approx((np.std(values) - 10) / 10)
        assert x[f"Heart Rate skew {span}"] == pytest.approx(scipy_skew(values), abs=1e-9)
    assert x["Heart Rate count all"] == pytest.approx((7 - 48) / 48)
    assert x["Heart Rate count first 10%"] == pytest.approx((2 - 4.8) / 4.8)
    assert x["Glucose mean last 10%"] == pytest.approx(1.5)
    assert x["Glucose std all"] == -1
    assert x["Glucose skew all"] == 0


def test_gaps_are_zero_after_centring_and_counts_are_known(one_stay):
    x = x_of(one_stay(row(0.5, pH="7.4")), 1)
    for name in CHANNELS:
        if name != "pH":
            assert {x[f"{name} {kind} all"] for kind in ("min", "max", "mean", "std", "skew")} == {
                0
            }
            assert x[f"{name} count all"] == -1


@pytest.mark.parametrize(
    ("channel", "text", "value"),
    [
        ("Glascow coma scale eye opening", "4 Spontaneously", 4),
        ("Glascow coma scale eye opening", "None", 1),
        ("Glascow coma scale motor response", "Abnormal Flexion", 3),
        ("Glascow coma scale verbal response", "1.0 ET/Trach", 1),
        ("Glascow coma scale verbal response", "No Response-ETT", 1),
        ("Glascow coma scale total", "9", 9),
        ("Capillary refill rate", "1.0", 1),
        ("Capillary refill rate", "Delayed", 1),
    ],
)
def test_words_become_numbers(one_stay, channel, text, value):
    x = x_of(one_stay(row(1.0, **{channel: text})), 1)
    about = CHANNELS[channel]
    assert x[f"{channel} mean all"] == pytest.approx((value - about.center) / about.scale)


def test_implausible_values_are_clipped_and_said(one_stay):
    federation = one_stay(row(1.0, Weight="9999", pH="7.2"), row(2.0, pH="-3"))
    x = x_of(federation, 1)
    assert x["Weight max all"] == pytest.approx((300 - 80) / 20)
    assert x["pH min all"] == pytest.approx((6.7 - 7.4) / 0.08)
    assert federation.notes == (
        'channel "Weight": measurements clipped to [30, 300]: 1',
        'channel "pH": measurements clipped to [6.7, 7.8]: 1',
    )


def test_what_happens_after_48_hours_is_not_used(one_stay):
    federation = one_stay(
        row(-0.5, pH="7.0"), row(1.0, pH="7.4"), row(48.0, pH="7.4"), row(48.1, pH="7.0")
    )
    assert x_of(federation, 1)["pH min all"] == 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(1.0), "2.0,,,"], r"line 3 has 4 cells, but the header has 18"),
        ([row(1.0, Heart_Rate="fast")], r'line 2, column "Heart Rate": "fast" is not a number'),
        ([row(1.0, Heart_Rate="nan")], r'"nan" is not a number'),
        (
            [row(1.0, Glascow_coma_scale_eye_opening="wink")],
            r'"wink" is not a number and none of none, 1 no response',
        ),
        (["soon" + 17 * ","], r'column "Hours": "soon" is not a number'),
    ],
)
def test_a_malformed_row_is_named(one_stay, rows, message):
    with pytest.raises(DataError, match=message) as caught:
        one_stay(*rows)
    assert STAY in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_channel_is_named(one_stay, mimic3):
    with pytest.raises(DataError, match=r'has no column "pH"'):
        one_stay(header=mimic3.header.removesuffix(",pH"))


def test_a_listfile_must_be_the_benchmarks(tmp_path, mimic3):
    for name, label, message in (
        ("7_episode1.csv", "1", r'line 2: stay "7_episode1\.csv" is not <subject>_episode'),
        (STAY, "2", r'line 2: y_true = "2" must be 0 or 1'),
    ):
        mimic3.write_listfile(tmp_path / "train", {name: label})
        mimic3.write_listfile(tmp_path / "test", {})
        with pytest.raises(DataError, match=message):
            datasets.load("mimic3", path=str(tmp_path))
    mimic3.write_listfile(tmp_path / "train", {})
    with pytest.raises(DataError, match="both listfiles are empty"):
        datasets.load("mimic3", path=str(tmp_path))
    (tmp_path / "train" / "listfile.csv").write_text("stay,period_length\n")
    with pytest.raises(DataError, match='has no column "y_true"'):
        datasets.load("mimic3", path=str(tmp_path))
    (tmp_path / "train" / "listfile.csv").write_text(f"stay,y_true\n{STAY},1\n{STAY},0\n")
    with pytest.raises(DataError, match=r"line 3: .*occurs twice"):
        datasets.load("mimic3", path=str(tmp_path))


def test_a_missing_episode_is_named(tmp_path, mimic3):
    names = list(mimic3.write_benchmark(tmp_path))
    (tmp_path / "train" / names[0]).unlink()
    with pytest.raises(DataError, match=f"{names[0]} cannot be read"):
        datasets.load("mimic3", path=str(tmp_path))


def test_without_files_the_error_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    for attempt in (
        lambda: datasets.load("mimic3"),
        lambda: datasets.load("mimic3", path=str(tmp_path / "nowhere")),
        lambda: datasets.fetch("mimic3"),
    ):
        with pytest.raises(DataError) as caught:
            attempt()
        text = str(caught.value)
        assert caught.value.exit_code == 4
        assert "\n" not in text
        for part in (
            "MIMIC-III v1.4",
            "physionet.org/content/mimiciii/1.4",
            "CHARTEVENTS",
            "YerevaNN/mimic3-benchmarks",
            "create_in_hospital_mortality",
            "listfile.csv",
            "$TACIT_DATA/mimic3",
            "data.path",
        ):
            assert part in text
    monkeypatch.delenv("TACIT_DATA")
    with pytest.raises(DataError, match="are missing"):
        datasets.load("mimic3")


@pytest.mark.parametrize("inner", ["", "in-hospital-mortality"])
def test_files_are_found_in_tacit_data(tmp_path, mimic3, monkeypatch, inner):
    stays = mimic3.write_benchmark(tmp_path / "mimic3" / inner)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    assert next(info for info in datasets.list() if info.name == "mimic3").present
    assert datasets.fetch("mimic3") == tmp_path / "mimic3" / inner
    federation = datasets.load("mimic3", parties=3, held_out=0.2)
    assert federation.test is not None
    x = np.vstack([federation.test["x"], *(r["x"] for r in federation.parties.values())])
    assert x.shape == (len(stays), 715)
    assert np.isfinite(x).all()
    assert np.abs(x).max() <= 15
    y = np.concatenate([federation.test["y"], *(r["y"] for r in federation.parties.values())])
    assert y.sum() == sum(stays.values())
    assert federation.scaling == "public"
    assert federation.unbounded == ()


def test_balance_keeps_as_many_of_each_class_and_reads_no_more(tmp_path, mimic3):
    stays = mimic3.write_benchmark(tmp_path, subjects=40)
    died = sum(stays.values())
    federations = [
        datasets.load("mimic3", path=str(tmp_path), parties=2, held_out=0, balance=True, seed=seed)
        for seed in (1, 1, 2)
    ]
    sums = []
    for federation in federations:
        y = np.concatenate([records["y"] for records in federation.parties.values()])
        assert len(y) == 2 * died
        assert y.sum() == died
        assert (
            f"balance: {len(stays) - 2 * died} records of the larger class" in federation.notes[0]
        )
        sums.append(sum(records["x"].sum() for records in federation.parties.values()))
    assert sums[0] == sums[1] != sums[2]


def test_subjects_are_persons(tmp_path, mimic3):
    mimic3.write_benchmark(tmp_path)
    federation = datasets.load(
        "mimic3", path=str(tmp_path), parties=4, person="subject", held_out=0.25, seed=3
    )
    counts = [len(np.unique(records["person"])) for records in federation.parties.values()]
    sizes = [len(records["y"]) for records in federation.parties.values()]
    assert sum(counts) < sum(sizes)
    assert max(sizes) - min(sizes) <= 2
    assert federation.test is not None
    assert "person" not in federation.test


def test_bad_keys_are_refused():
    with pytest.raises(
        ConfigError, match=r'data\.outcome = "died" is not a key of source = "mimic3"'
    ):
        DataConfig(source="mimic3", outcome="died")
    with pytest.raises(ConfigError, match=r'data\.person = "hadm"; source "mimic3" has "subject"'):
        DataConfig(source="mimic3", person="hadm")

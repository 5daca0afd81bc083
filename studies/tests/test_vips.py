"""The VIPS study: its accounting against the known values, its figures from few documents."""

import json

import numpy as np
import pytest
from scipy import sparse

from tacit.datasets import Corpus
from tacit.errors import ConfigError
from tacit_studies import STUDIES, vips_topics
from tacit_studies.kept import kept
from tacit_studies.vips_topics import Fit, Scale, actual, claimed, fits, plot, unigram


def test_the_published_setting_has_the_known_epsilons():
    at = (400_000, 20_000, 1.24, 1e-4)
    assert claimed(*at, "rdp") == pytest.approx(1.90, abs=0.005)
    assert actual(*at, "rdp") == pytest.approx(3.48, abs=0.005)
    assert actual(*at, "pld") == pytest.approx(2.16, abs=0.01)


def test_a_result_is_made_once(tmp_path):
    calls = []

    def make():
        calls.append(1)
        return {"value": len(calls)}

    first = kept(tmp_path, {"a": (1, 2)}, make)
    assert kept(tmp_path, {"a": (1, 2)}, make) == first == {"value": 1}
    assert kept(tmp_path, {"a": (1, 3)}, make) == {"value": 2}
    (file,) = [path for path in tmp_path.iterdir() if '"value": 1' in path.read_text()]
    file.write_text(file.read_text()[:-5])
    assert kept(tmp_path, {"a": (1, 2)}, make) == {"value": 3}


@pytest.fixture
def corpus(monkeypatch):
    """Two topics of twenty words each, 300 documents."""
    rng = np.random.default_rng(0)
    shares = np.repeat(np.eye(2), 20, axis=1) / 20 * 0.95 + 0.05 / 40
    rows = [rng.multinomial(60, shares[i % 2]) for i in range(340)]
    counts = sparse.csr_array(np.array(rows))
    words = tuple(f"word{i}" for i in range(40))
    made = Corpus(train=counts[:300], test=counts[300:], vocabulary=words)
    monkeypatch.setattr(vips_topics, "load_corpus", lambda **_: made)
    monkeypatch.setattr(vips_topics, "QUICK", Scale(300, 2, (100, 150), (1.0,), (8.0,), 2))
    return made


@pytest.mark.filterwarnings("ignore:privacy")
def test_topics_against_epsilon(corpus, tmp_path):
    calls = []
    result = STUDIES["vips"](
        tmp_path, quick=True, figure="topics", progress=lambda *call: calls.append(call)
    )
    assert json.loads((tmp_path / "tables.json").read_text())["command"] == result["command"]
    table = next(one for one in result["tables"] if one["name"] == "vips-topics")
    rows = {(row[0], row[1]): row for row in table["rows"]}
    assert len(table["rows"]) == 1 + len(list(fits(vips_topics.QUICK)))
    plain, alone = rows["non-private", 100][8], unigram(corpus)
    assert plain < 0.9 * alone
    ours = rows["this library", 150]
    assert ours[4] == pytest.approx(8.0, rel=0.01)
    assert ours[7] == vips_topics.DELTA
    for recipe in ("published", "no clipping"):
        by_pld, by_rdp, by_strong = rows[recipe, 150][4:7]
        assert by_pld < by_rdp < by_strong
    common = next(one for one in result["tables"] if one["name"] == "vips-table-1")
    assert [row[0] for row in common["rows"]] == [
        "non-private",
        "PLD",
        "RDP (VIPS's moments)",
        "strong composition",
        "RDP (VIPS's moments), no clipping",
    ]
    assert {row[1] for row in common["rows"][1:]} == {vips_topics.COMMON_EPSILON}
    tight, renyi, strong, unclipped = (row[2] for row in common["rows"][1:])
    assert tight < renyi < strong  # the same ε, and what each accountant asks for it
    assert unclipped == pytest.approx(renyi)  # σ is relative to the clip
    # The published words are beside ours; VIPS has no fit by PLD.
    assert [row[8] for row in common["rows"]] == [10, None, 8, 8, 7]
    assert [row[7] is None for row in common["rows"]] == [False, True, False, False, False]
    assert common["rows"][4][7].split()[2] == "french"
    assert common["rows"][0][6] == len(common["rows"][0][5].split()) == 10
    clipped = next(one for one in result["tables"] if one["name"] == "vips-clipped")
    ((share, *_, counted, noise_sd),) = clipped["rows"]
    assert share == 0.1
    assert 0.0 <= counted <= 1.0
    assert 0.0 < noise_sd < 1.0
    assert calls[-1][:2] == (1, 1)
    again = STUDIES["vips"](tmp_path, quick=True, figure="topics")
    assert again["tables"] == result["tables"]


def test_figure_2_has_the_bound_that_vips_draws():
    def found(epsilon, completion, bound):
        by = {"pld": epsilon, "rdp": 2 * epsilon, "strong": 9 * epsilon}
        return {"completion": completion, "bound": bound, "epsilons": by}

    rows = [
        (Fit("non-private", {}), found(1.0, 90.0, 100.0)),
        (Fit("published", {}), found(1.0, 120.0, 140.0)),
        (Fit("no clipping", {}), found(1.0, 150.0, 170.0)),
    ]
    figure = plot(rows, 200.0)
    completion, bound = figure.axes
    drawn = [[tuple(p) for c in axes.collections for p in c.get_offsets()] for axes in figure.axes]
    assert drawn[0] == [(1, 120), (2, 120), (9, 120), (1, 150), (2, 150)]
    assert drawn[1] == [(1, 140), (2, 140), (9, 140), (1, 170), (2, 170)]
    assert "Hoffman" in bound.get_title(loc="left") + "".join(t.get_text() for t in bound.texts)
    assert {line.get_ydata()[0] for line in completion.lines} == {90.0, 200.0}
    assert {line.get_ydata()[0] for line in bound.lines} == {100.0, 200.0}


def test_a_bad_seed_costs_nothing(tmp_path):
    with pytest.raises(ConfigError, match="--seed -1"):
        STUDIES["vips"](tmp_path / "out", seed=-1)
    assert not (tmp_path / "out").exists()

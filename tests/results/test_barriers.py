"""The drawing of barriers says what the table of attackers says."""

import xml.etree.ElementTree as ET

import pytest

from tacit.plan.explain import Explanation, Row
from tacit.results.barriers import draw_barriers

SVG = "{http://www.w3.org/2000/svg}"


def explanation(*epsilons):
    rows = tuple(
        Row(attacker=f"attacker {i} <b>", sees="x" * 80, unit_epsilon=value, party_epsilon=None)
        for i, value in enumerate(epsilons)
    )
    return Explanation(
        party="north & co", unit="record", delta=1e-5, adjacency="replace-one", rows=rows,
        groups=(),
    )  # fmt: skip


def drawn(found, aggregation):
    root = ET.fromstring(draw_barriers(found, aggregation=aggregation, parties=4))
    texts = ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]
    lines = [line for line in root.iter(f"{SVG}line") if line.get("class") == "barrier"]
    servers = [float(box.get("x")) for box in root.iter(f"{SVG}rect")]
    return texts, lines, max(servers)


@pytest.mark.parametrize(("aggregation", "before"), [("plain", True), ("trusted", False)])
def test_the_barrier_stands_where_noise_is_added(aggregation, before):
    texts, lines, server = drawn(explanation(1.25, None), aggregation)
    assert len(lines) == 1
    assert (float(lines[0].get("x1")) < server) is before
    assert "ε = 1.25" in texts
    assert "not protected" in texts
    assert "attacker 0 <b>" in texts


def test_without_privacy_there_is_no_barrier():
    texts, lines, _ = drawn(explanation(None, None), None)
    assert not lines
    assert texts.count("not protected") == 2
    assert any("exact numbers" in text for text in texts)


def test_the_command_writes_the_drawing(tacit, tmp_path):
    code, out, err = tacit("explain", "examples/hospitals-private.toml", "--figure", "who/sees.svg")
    assert code == 0, err
    assert "who/sees.svg" in out
    ET.parse(tmp_path / "who" / "sees.svg")
    code, _, err = tacit("explain", "examples/hospitals-private.toml", "--figure", "sees.png")
    assert code == 2
    assert ".svg" in err

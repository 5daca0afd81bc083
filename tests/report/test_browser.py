"""A report as a browser shows it: wide and narrow, light and dark, printed, and for axe."""

import pytest
from browser import AXE, BROWSER, NO_AXE, NO_BROWSER, as_pdf, look

from tacit.report import write_report

pytestmark = pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)


def brightness(colour: str) -> float:
    return sum(map(int, colour.strip("rgb()").split(","))) / 3


@pytest.fixture
def page(make_run, result):
    names = ["intercept", "diabetes_medication=insulin", "antihypertensives"]
    result["posterior"] |= {
        "names": names,
        "mean": [-1.7509, -0.0090, 6.9e-6],
        "sd": [0.0211, 0.0122, 3.6e-6],
    }
    result["true_values"] = {"intercept": -1.75, "diabetes_medication=insulin": -0.0123}
    return write_report(make_run(result))


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_nothing_is_cut_off_and_figures_follow_the_colour_scheme(page, tmp_path, width, dark):
    found = look(page, tmp_path, width=width, dark=dark, axe=False)
    assert found["dark"] is dark
    assert found["beyond"] <= 0
    assert max(found["cut"]) <= 0
    assert (brightness(found["paper"]) < 60) is dark
    assert {brightness(ink) > 140 for ink in found["inks"]} == {dark}
    assert found["letters"] >= 8, "labels of figures are readable on a phone"


@pytest.mark.skipif(not AXE.is_file(), reason=NO_AXE)
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_serious_fault(page, tmp_path, dark):
    found = look(page, tmp_path, width=390, dark=dark, axe=True)
    assert [one for one in found["faults"] if one["impact"] in ("serious", "critical")] == []


def test_it_can_be_printed(page, tmp_path):
    printed = as_pdf(page, tmp_path)
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Type /Page") >= 2

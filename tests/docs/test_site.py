"""The documentation site: it builds without warnings, has no dead link and loads nothing remote."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from browser import AXE, BROWSER, NO_AXE, NO_BROWSER, OPTIONS, look
from pages import ROOT

import tacit

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="MkDocs is not installed: pip install tacit[docs]")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(target)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


class Page(HTMLParser):
    """Ids, links, and what a browser loads without being asked."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe", "source") and values.get("src"):
            self.loads.append(values["src"])
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev", "alternate"):
            self.loads.append(values.get("href", ""))


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_no_link_is_dead(site, pages):
    dead = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links start at the root of a server
            continue
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            anchor = unquote(parts.fragment)
            known = pages[target].ids if target in pages else set()
            if not target.exists() or (anchor and target in pages and anchor not in known):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert dead == []


def test_pages_load_nothing_from_elsewhere(site, pages):
    remote = {load for page in pages.values() for load in page.loads if urlsplit(load).netloc}
    assert remote == set()
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"(@import\s+|url\()[\"']?https?://", styles)


def test_reference_pages_are_generated(site):
    configuration = (site / "reference" / "configuration.html").read_text(encoding="utf-8")
    assert "insecure_noise_seed" in configuration
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "tacit ledger budget" in commands
    functions = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert "Fit a model to the records of several parties" in functions


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
def test_search_works_from_the_file_system(site, tmp_path):
    command = [BROWSER, *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--virtual-time-budget=15000", "--dump-dom", f"file://{site}/index.html?q=banks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    results = re.findall(r'class="md-search-result__link"[^>]*href="([^"]*)"', done.stdout)
    results += re.findall(r'href="([^"]*)"[^>]*class="md-search-result__link"', done.stdout)
    assert any("index.html" in link for link in results), done.stdout.count("md-search-result")


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
@pytest.mark.skipif(not AXE.is_file(), reason=NO_AXE)
@pytest.mark.parametrize(
    ("page", "width", "dark"),
    [("choosing-epsilon.html", 390, False), ("notebooks/own-data.html", 1280, True)],
)
def test_axe_finds_no_serious_fault(site, page, width, dark):
    path = site / page
    found = look(path, path.parent, width=width, dark=dark, axe=True)
    assert found["beyond"] <= 0
    assert [one for one in found["faults"] if one["impact"] in ("serious", "critical")] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_were_executed_in_order_without_errors(path):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: tacit[docs]")
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not any(output.output_type == "error" for output in outputs)
    text = path.read_text(encoding="utf-8")
    assert str(ROOT) not in text
    assert not re.search(r"/(home|root|tmp)/", text), "a path of the machine that executed it"
    for cell in cells:
        compile(cell.source, path.name, "exec")


def test_there_are_four_notebooks():
    assert {path.stem for path in NOTEBOOKS} == {
        "own-data", "hierarchical", "private-regression", "live",
    }  # fmt: skip


def test_the_citation_names_this_version():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == tacit.__version__
    assert citation["license"] == "Apache-2.0"

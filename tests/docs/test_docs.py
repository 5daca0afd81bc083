"""The examples of the README and of docs/ run as they stand."""

import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from pages import ROOT, blocks

from tacit.run.config import parse_config

PAGES = ["README.md", "docs/quickstart.md", "docs/extending.md"]


def files(page: str) -> dict[str, str]:
    """The examples that are whole files: their first line is a comment with the name."""
    named = ((re.match(r"# (\w+\.py)\n", source), source) for source in blocks(page, "python"))
    return {match[1]: source for match, source in named if match}


FILES = files("docs/extending.md")


@pytest.mark.parametrize("page", PAGES)
def test_python_examples_of_a_page_run_in_order(page):
    found = [source for source in blocks(page, "python") if source not in files(page).values()]
    assert found, f"{page} has lost its examples"
    names = {"__name__": f"docs_{Path(page).stem}"}
    for source in found:
        exec(compile(source, page, "exec"), names)


@pytest.mark.parametrize(
    "name", ["use_probit.py", "use_laplace.py", "use_noisy_sum.py", "use_threads.py"]
)
def test_worked_extensions_are_complete_files(name, tmp_path, monkeypatch):
    """A new model, method or engine and its use: two files, nothing else of tacit is touched."""
    module = name.removeprefix("use_")
    for part in (module, name):
        (tmp_path / part).write_text(FILES[part], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        runpy.run_path(str(tmp_path / name), run_name="__main__")
    finally:
        sys.modules.pop(module.removesuffix(".py"))


def test_toml_example_of_the_quickstart_is_a_configuration():
    sources = blocks("docs/quickstart.md", "toml")
    config, private = sources
    config = parse_config(tomllib.loads(config))
    # The second shows what replaces privacy = "none" and [method] in the first.
    first = tomllib.loads(sources[0])
    data = {key: first[key] for key in ("outcome", "positive", "columns", "data")}
    private = parse_config(data | tomllib.loads(private))
    assert config.data.outcome == "readmitted"
    assert config.data.party == "hospital"
    assert private.private is not None
    assert private.private.of("hospital-03")[0] == 0.5


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.name)
def test_example_configurations_parse(path):
    parse_config(tomllib.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", [*PAGES, "docs/glossary.md", "docs/decisions.md"])
def test_links_between_pages_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"

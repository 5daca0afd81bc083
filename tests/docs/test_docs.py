"""The examples of the README and of docs/ run as they stand."""

import re
import tomllib
from pathlib import Path

import pytest

from tacit.run.config import parse_config

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/quickstart.md", "docs/extending.md"]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_python_examples_of_a_page_run_in_order(page):
    found = blocks(page, "python")
    assert found, f"{page} has lost its examples"
    names = {"__name__": f"docs_{Path(page).stem}"}
    for source in found:
        exec(compile(source, page, "exec"), names)


def test_toml_example_of_the_quickstart_is_a_configuration():
    sources = blocks("docs/quickstart.md", "toml")
    config, private = sources
    config = parse_config(tomllib.loads(config))
    # The second shows what replaces privacy = "none" and [method] in the first.
    data = tomllib.loads(sources[0])["data"]
    private = parse_config({"data": data} | tomllib.loads(private))
    assert config.data.target == "readmitted"
    assert config.partition.column == "hospital"
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

"""The examples of the README and of docs/ run as they stand."""

import json
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from pages import ROOT, blocks, every_page, left_out, python_pages, shell_lines

import tacit
from tacit.cli.main import app
from tacit.run.config import parse_config

PAGES = ["README.md", *(f"docs/{page}" for page in python_pages())]
POSTERIORDB = any(one.name == "posteriordb" and one.present for one in tacit.datasets.list())


def files(page: str) -> dict[str, str]:
    """The examples that are whole files: their first line is a comment with the name."""
    named = ((re.match(r"# (\w+\.py)\n", source), source) for source in blocks(page, "python"))
    return {match[1]: source for match, source in named if match}


FILES = files("docs/extending.md")


@pytest.mark.filterwarnings("ignore")  # what ArviZ and fits say of themselves
@pytest.mark.parametrize("page", PAGES)
def test_python_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    without = left_out(page, "not run") + (
        [] if POSTERIORDB else left_out(page, "needs posteriordb")
    )
    found = [
        source
        for source in blocks(page, "python")
        if source not in files(page).values() and source not in without
    ]
    monkeypatch.chdir(tmp_path)  # examples write files
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setenv("MPLBACKEND", "agg")
    names = {"__name__": f"docs_{Path(page).stem}"}
    for source in found:
        exec(compile(source, page, "exec"), names)


def test_examples_that_are_not_run_are_few():
    assert sum(len(left_out(page, "not run")) for page in PAGES) <= 3


@pytest.mark.parametrize("page", every_page())
def test_toml_and_json_of_a_page_can_be_read(page):
    for source in blocks(page, "toml"):
        tomllib.loads(source)
    for source in blocks(page, "json"):
        json.loads(source)


def test_commands_in_the_documentation_exist():
    """Every line that starts with `tacit` names a command and options that it has."""
    root = typer.main.get_command(app)
    seen = 0
    for page in every_page():
        for line in shell_lines(page):
            words = shlex.split(line.rstrip("\\"), comments=True)
            command = root
            while len(words) > 1 and words[1] in getattr(command, "commands", {}):
                command = command.commands[words.pop(1)]
            known = {one for option in (*command.params, *root.params) for one in option.opts}
            known |= {"--help", "-h", "--debug", "--quiet"}
            options = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            assert options <= known, f"{page}: {line}"
            assert command is not root or options, f"{page}: {line} names no command"
            seen += 1
    assert seen > 40


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


@pytest.mark.parametrize("page", every_page())
def test_links_between_pages_lead_somewhere(page):
    """In the repository; test_site has those of the site, anchors included."""
    generated = {"changelog.md", "contributing.md", "security.md"}
    generated |= {"reference/configuration.md", "reference/commands.md"}
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#: ]+)(?:#[^)]*)?\)", text):
        if target not in generated:
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"


def test_files_and_packages_of_the_layout_exist():
    text = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    layout = text[text.index("## Where things are") :]
    named = re.findall(r"`([\w/.]+(?:\.(?:py|j2|css)|/))`", layout)
    assert len(named) > 50
    package = ROOT / "src/tacit"
    places = [ROOT if name.startswith(("src/", "tests/")) else package for name in named]
    missing = [name for name, at in zip(named, places, strict=True) if not (at / name).exists()]
    # Inner folders are named alone.
    assert [name for name in missing if not list(package.rglob(name.rstrip("/")))] == []
    packages = {one.name for one in package.iterdir() if one.is_dir() and one.name != "__pycache__"}
    assert packages <= {name.strip("/") for name in named}

"""Generated pages of the documentation site: commands, study file, and files of the repository.

MkDocs calls the functions named on_…; `mkdocs.yml` lists this file under hooks.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md",
         "SECURITY.md": "security.md"}  # fmt: skip
"""Pages at the top of the repository, by their place in the site."""
EXAMPLES = ("live/federation.toml", "live/tacit-party.service", "live/tacit-server.service")


def on_files(files: Files, config: Any) -> Files:
    """Add what is not written by hand in docs/."""
    generated = {
        "reference/configuration.md": configuration(),
        "reference/commands.md": commands(),
        **{place: _at_top((ROOT / name).read_text("utf-8")) for name, place in PAGES.items()},
        **{f"examples/{name}": (ROOT / "examples" / name).read_text("utf-8") for name in EXAMPLES},
    }
    for place, text in generated.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files beside docs/ lead to their copies in the site."""
    del page
    return markdown.replace("](../examples/", "](examples/")


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Name the search dialog, and convert links in notebooks, which MkDocs leaves as they are."""
    dialog = 'data-md-component="search" role="dialog"'
    output = output.replace(dialog, f'{dialog} aria-label="Search"')
    if not page.file.src_uri.endswith(".ipynb"):
        return output
    return re.sub(r'href="(\.\./[\w/-]+)\.md(#[^"]*)?"', r'href="\1.html\2"', output)


def _at_top(text: str) -> str:
    """Links of a page at the top of the repository, as seen from docs/."""
    for name, place in PAGES.items():
        text = text.replace(f"]({name})", f"]({place})")
    return text.replace("](docs/", "](")


def configuration() -> str:
    """The study file, from its JSON Schema."""
    from tacit.cli.schema import file_schema

    schema = file_schema("study")
    lines = [
        "# Study file",
        "",
        "Every key of a study file, from the schema that `tacit schema` prints. The keys of "
        "`[model]`, `[method]`, `[schedule]`, `[engine]` and `[data]` depend on their `kind` or "
        "`source`. [Quick start](../quickstart.md) has a commented example.",
        "",
        "## Top of the file",
        "",
        *_table(schema["properties"], schema.get("required", ())),
    ]
    done: set[str] = set()
    for key, value in schema["properties"].items():
        for name, title in _tables_of(f"[{key}]", value, schema["$defs"]):
            if name not in done:
                done.add(name)
                definition = schema["$defs"][name]
                lines += ["", f"## {title}", "", definition.get("description", ""), ""]
                lines += _table(definition["properties"], definition.get("required", ()))
    return "\n".join(lines) + "\n"


def _tables_of(title: str, value: Any, definitions: dict[str, Any]) -> list[tuple[str, str]]:
    """The tables that a key can hold, with their headings."""
    if isinstance(value, list):
        return [pair for one in value for pair in _tables_of(title, one, definitions)]
    if not isinstance(value, dict):
        return []
    reference = value.get("$ref")
    if reference is None:
        below = [value.get(key) for key in ("anyOf", "oneOf", "additionalProperties", "items")]
        return [pair for one in below for pair in _tables_of(title, one, definitions)]
    name = reference.rsplit("/", 1)[-1]
    definition = definitions[name]
    if "properties" not in definition:
        return _tables_of(title, definition, definitions)
    for key in ("kind", "source"):
        kinds = definition["properties"].get(key, {}).get("enum", [])
        if len(kinds) == 1:
            title = f'{title} {key} = "{kinds[0]}"'
    inner = [
        pair
        for key, one in definition["properties"].items()
        for pair in _tables_of(f"{title[:-1]}.{key}]" if title.endswith("]") else f"{title}, {key}",
                               one, definitions)
    ]  # fmt: skip
    return [(name, title), *inner]


def _table(properties: dict[str, Any], required: Any) -> list[str]:
    rows = ["| key | values | default | meaning |", "| --- | --- | --- | --- |"]
    for key, value in properties.items():
        default = json.dumps(value["default"], ensure_ascii=False) if "default" in value else ""
        default = "required" if key in required else default
        text = _cell(value.get("description", ""))
        rows.append(f"| `{key}` | {_cell(_values(value))} | {_cell(default)} | {text} |")
    return rows


def _values(value: dict[str, Any]) -> str:
    if "enum" in value:
        return ", ".join(f"`{json.dumps(one, ensure_ascii=False)}`" for one in value["enum"])
    if "$ref" in value:
        return value["$ref"].rsplit("/", 1)[-1]
    for key in ("anyOf", "oneOf"):
        if key in value:
            return " or ".join(_values(one) for one in value[key])
    limits = [
        f"{sign} {value[key]:g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"),
                          ("exclusiveMaximum", "<"))
        if key in value
    ]  # fmt: skip
    return " ".join([str(value.get("type", "any")), *limits])


def commands() -> str:
    """The command tree with its help."""
    import typer

    from tacit.cli.main import HELP, app

    root: Any = typer.main.get_command(app)
    lines = ["# Commands", "", HELP, ""]
    for name, command in root.commands.items():
        lines += _command(f"tacit {name}", command)
        for under, one in getattr(command, "commands", {}).items():
            lines += _command(f"tacit {name} {under}", one, level=3)
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any, level: int = 2) -> list[str]:
    text = re.sub(r"[\x08]", "", command.help or "")
    paragraphs = [
        f"```text\n{part.strip(chr(10))}\n```" if part.startswith("  ") else " ".join(part.split())
        for part in text.split("\n\n")
    ]
    lines = [f"{'#' * level} {name}", "", "\n\n".join(paragraphs), ""]
    rows = [
        (", ".join(f"`{one}`" for one in (option.opts or [option.name])), option)
        for option in command.params
        if option.name not in ("help", "install_completion", "show_completion")
    ]
    if rows and not hasattr(command, "commands"):
        lines += ["| argument | meaning |", "| --- | --- |"]
        for shown, option in rows:
            lines.append(f"| {shown} | {_cell(getattr(option, 'help', None) or option.name)} |")
        lines.append("")
    return lines


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")

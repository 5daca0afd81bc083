"""The example configurations that come with the package."""

from __future__ import annotations

from pathlib import Path

import typer

FOLDERS = (
    Path(__file__).parents[1] / "examples",  # of an installed package
    Path(__file__).parents[3] / "examples",  # of a source tree
)


def with_examples(path: Path) -> Path:
    """Return `path`, or the path of the packaged example that `path` names.

    If `path` is examples/NAME.toml and there is no such file, the path of the packaged example with
    this name is returned, and a note is printed. In all other cases `path` is returned unchanged,
    even if the file does not exist.
    """
    if path.exists() or path.parent != Path("examples"):
        return path
    for folder in FOLDERS:
        if (folder / path.name).is_file():
            typer.echo(f"note: no {path} here; using {folder / path.name}", err=True)
            return folder / path.name
    return path

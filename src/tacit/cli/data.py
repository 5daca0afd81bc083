"""`tacit data`: the built-in data sets."""

from __future__ import annotations

from typing import Annotated

import typer

from tacit.cli.options import Json

data_app = typer.Typer(help="List the built-in data sets and fetch their files.")


@data_app.command("list")
def data_list(json: Json = False) -> None:
    """List the data sources, and whether their files are on this machine.

    Example:

      tacit data list
    """
    from tacit.cli.commands import data_list_command

    data_list_command(as_json=json)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A source, e.g. adult.")],
    json: Json = False,
) -> None:
    """Download a public data set to the cache, checked against its SHA-256.

    If $TACIT_DATA/NAME has the files, they are used and nothing is downloaded. Example:

      tacit data fetch adult
    """
    from tacit.cli.commands import data_fetch_command

    data_fetch_command(name, as_json=json)

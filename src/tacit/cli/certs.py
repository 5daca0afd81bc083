"""`tacit certs`: the private authority of a federation between organisations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.options import Json, print_json

if TYPE_CHECKING:
    from tacit.live.transport.certificates import Issued

certs_app = typer.Typer(
    help="Certificates between organisations: make an authority, issue one for the server and one "
    "for each party (with --renew, again for the key that is in use), and revoke them."
)

Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="The directory of the authority.")
]
Days = Annotated[int, typer.Option(help="How long it is valid.")]
OutDirectory = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="Write certificate and key here [default: the authority's]."
    ),
]
Renew = Annotated[
    bool, typer.Option("--renew", help="A new certificate for the key that is in use.")
]
_OWN = Path("pki")
COLUMNS = ("role", "name", "until", "state", "serial", "key", "note")


@certs_app.command("init")
def certs_init(
    directory: Directory = _OWN,
    name: Annotated[str, typer.Option(help="What the authority is called.")] = "tacit",
    days: Days = 3650,
) -> None:
    """Make a private authority. Only the certificates that it issues are trusted.

    Example:

      tacit certs init --dir pki --name "heart study"
    """
    from tacit.live.transport.certificates import KEY, REVOKED, init_authority

    authority = init_authority(directory, name=name, days=days)
    typer.echo(f"authority {name!r}, valid for {days} days")
    typer.echo(f"  {authority}: give it to the server and to every party")
    typer.echo(
        f"  {directory / KEY}: SECRET; stays here, whoever has it can let anybody in; keep a copy"
    )
    typer.echo(
        f"  {directory / REVOKED}: goes to the server, anew after every `tacit certs revoke`"
    )


@certs_app.command("server")
def certs_server(
    hosts: Annotated[
        list[str],
        typer.Argument(metavar="HOST", help="Every name and address that parties connect to."),
    ],
    directory: Directory = _OWN,
    days: Days = 397,
    out: OutDirectory = None,
    renew: Renew = False,
) -> None:
    """Issue the server's certificate, for the host names and addresses it is reached under.

    The first is the name to renew or revoke it by. Examples:

      tacit certs server study.example.org 192.0.2.7

      tacit certs server study.example.org 192.0.2.7 --renew
    """
    from tacit.live.transport.certificates import issue_server

    certificate, key = issue_server(directory, hosts, out=out, days=days, renew=renew)
    _tell(f"server {hosts[0]}", "the server", certificate, key, directory, days, renew=renew)


@certs_app.command("party")
def certs_party(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The party, as the run names it.")],
    directory: Directory = _OWN,
    days: Days = 397,
    out: OutDirectory = None,
    renew: Renew = False,
) -> None:
    """Issue a party's certificate; it can take part under this name only, and never serve.

    Examples:

      tacit certs party north --out for-north

      tacit certs party north --renew
    """
    from tacit.live.transport.certificates import issue_party

    certificate, key = issue_party(directory, name, out=out, days=days, renew=renew)
    _tell(f"party {name}", "that party", certificate, key, directory, days, renew=renew)


@certs_app.command("revoke")
def certs_revoke(
    which: Annotated[
        str, typer.Argument(metavar="NAME|SERIAL", help="All of a name's, or one certificate.")
    ],
    reason: Annotated[str, typer.Option(help="Why, for whoever reads the list later.")] = "",
    directory: Directory = _OWN,
) -> None:
    """Take certificates back. The server refuses them once it has the new revoked.pem.

    Example:

      tacit certs revoke north --reason "laptop lost on 3 May"
    """
    from tacit.live.transport.certificates import REVOKED, revoke

    for row in revoke(directory, which, reason):
        typer.echo(f"revoked: {row.role} {row.name}, serial {row.serial}")
    typer.echo(
        f"copy {directory / REVOKED} to the server now (under another name, then rename it): "
        "it notices the new file while it runs"
    )


@certs_app.command("list")
def certs_list(directory: Directory = _OWN, json: Json = False) -> None:
    """List every certificate that was issued, until when it is valid and whether it was revoked.

    Example:

      tacit certs list --dir pki
    """
    from tacit.live.transport.certificates import show

    rows = show(directory)
    if json:
        print_json([dict(zip(COLUMNS, _row(row), strict=True)) for row in rows])
        return
    if not rows:
        typer.echo("nothing was issued; go on with: tacit certs server HOST")
        return
    table = [COLUMNS, *map(_row, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        typer.echo("  ".join(padded).rstrip())


def _row(row: Issued) -> tuple[str, ...]:
    note = row.reason or " ".join(row.hosts[1:])
    until = f"{row.not_after:%Y-%m-%d}"
    return row.role, row.name, until, row.state, row.serial, row.key_fingerprint[:16], note


def _tell(
    what: str, whose: str, certificate: Path, key: Path, directory: Path, days: int, *, renew: bool
) -> None:
    from tacit.live.transport.certificates import AUTHORITY

    typer.echo(f"{what}, valid for {days} days")
    typer.echo(f"  {certificate}: goes to {whose}, beside {directory / AUTHORITY}")
    if renew:
        typer.echo("  the key is the same and stays where it is; the old certificate still counts")
    else:
        typer.echo(f"  {key}: SECRET; hand it to {whose} over a safe channel, keep no copy")

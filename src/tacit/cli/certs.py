"""`tacit certs`: the private certificate authority of a federation between organisations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.options import Json, print_json

if TYPE_CHECKING:
    from tacit.live.transport.certificates import Issued

certs_app = typer.Typer(
    help="Certificates of a federation: create an authority, issue, renew and revoke certificates."
)

Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="The directory of the authority.")
]
Days = Annotated[int, typer.Option(help="Validity in days.")]
OutDirectory = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write certificate and key here [default: --dir]."),
]
Organisation = Annotated[
    str, typer.Option(metavar="NAME", help="Organisation that holds the certificate.")
]
Country = Annotated[
    str, typer.Option(metavar="CC", help="Country of the organisation, a two-letter code.")
]
Renew = Annotated[bool, typer.Option("--renew", help="Issue a new certificate for the same key.")]
_OWN = Path("pki")
COLUMNS = ("role", "name", "until", "state", "serial", "key", "holder", "note")


@certs_app.command("init")
def certs_init(
    directory: Directory = _OWN,
    name: Annotated[str, typer.Option(help="Name of the authority.")] = "tacit",
    days: Days = 3650,
) -> None:
    """Create a private certificate authority.

    The server and the parties of a run trust only certificates that this authority has issued.

    Example:

      tacit certs init --dir pki --name "heart study"
    """
    from tacit.live.transport.certificates import KEY, REVOKED, init_authority

    authority = init_authority(directory, name=name, days=days)
    typer.echo(f"authority {name!r}, valid for {days} days")
    typer.echo(f"  {authority}: give it to the server and to every party")
    typer.echo(
        f"  {directory / KEY}: SECRET; keep it here, with a backup: it can issue certificates"
    )
    typer.echo(f"  {directory / REVOKED}: copy it to the server after every `tacit certs revoke`")


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
    organisation: Organisation = "",
    country: Country = "",
) -> None:
    """Issue the server's certificate for its host names and addresses.

    The first host is the name for renewal and revocation. Examples:

      tacit certs server study.example.org 192.0.2.7

      tacit certs server study.example.org 192.0.2.7 --renew
    """
    from tacit.live.transport.certificates import Holder, issue_server

    holder = Holder(organisation, country)
    certificate, key = issue_server(
        directory, hosts, out=out, days=days, renew=renew, holder=holder
    )
    _tell(f"server {hosts[0]}", "the server", certificate, key, directory, days, renew=renew)


@certs_app.command("party")
def certs_party(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the party in federation.toml.")
    ],
    directory: Directory = _OWN,
    days: Days = 397,
    out: OutDirectory = None,
    renew: Renew = False,
    organisation: Organisation = "",
    country: Country = "",
) -> None:
    """Issue a party's certificate, valid for this name only.

    Examples:

      tacit certs party north --out for-north --organisation "North Hospital" --country FI

      tacit certs party north --renew
    """
    from tacit.live.transport.certificates import Holder, issue_party

    holder = Holder(organisation, country)
    certificate, key = issue_party(directory, name, out=out, days=days, renew=renew, holder=holder)
    _tell(f"party {name}", "that party", certificate, key, directory, days, renew=renew)


@certs_app.command("revoke")
def certs_revoke(
    which: Annotated[
        str,
        typer.Argument(
            metavar="NAME|SERIAL", help="A name (all its certificates) or one serial number."
        ),
    ],
    reason: Annotated[str, typer.Option(help="Reason, shown in lists.")] = "",
    directory: Directory = _OWN,
) -> None:
    """Revoke certificates. The server refuses them once it has the new revoked.pem.

    Example:

      tacit certs revoke north --reason "laptop lost on 3 May"
    """
    from tacit.live.transport.certificates import REVOKED, revoke

    for row in revoke(directory, which, reason):
        typer.echo(f"revoked: {row.role} {row.name}, serial {row.serial}")
    typer.echo(
        f"copy {directory / REVOKED} to the server now (under another name, then rename it): "
        "a running server detects the new file"
    )


@certs_app.command("list")
def certs_list(directory: Directory = _OWN, json: Json = False) -> None:
    """List all issued certificates with their validity.

    Example:

      tacit certs list --dir pki
    """
    from tacit.live.transport.certificates import show

    rows = show(directory)
    if json:
        print_json([dict(zip(COLUMNS, _row(row), strict=True)) for row in rows])
        return
    if not rows:
        typer.echo("no certificates yet; next: tacit certs server HOST")
        return
    table = [COLUMNS, *map(_row, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        typer.echo("  ".join(padded).rstrip())


@certs_app.command("fingerprint")
def certs_fingerprint(
    certificates: Annotated[
        list[Path], typer.Argument(metavar="CERTIFICATE", help="PEM files of parties.")
    ],
    json: Json = False,
) -> None:
    """Show the fingerprints of parties' public keys, as lines of a federation's [keys] table.

    Every party sends its line to the others over a channel that the certificate authority does not
    control, so that operators approve the keys of the real parties. Example:

      tacit certs fingerprint pki/party-north.pem
    """
    from tacit.live.transport.tls import fingerprint, name_of, read_certificate

    found = {
        name_of(path): fingerprint(read_certificate(path).public_key()) for path in certificates
    }
    if json:
        print_json(found)
        return
    for name, key in found.items():
        typer.echo(f'"{name}" = "{key}"')


def _row(row: Issued) -> tuple[str, ...]:
    note = row.reason or " ".join(row.hosts[1:])
    until = f"{row.not_after:%Y-%m-%d}"
    key, holder = row.key_fingerprint[:16], ", ".join(filter(None, (row.organisation, row.country)))
    return row.role, row.name, until, row.state, row.serial, key, holder, note


def _tell(
    what: str, whose: str, certificate: Path, key: Path, directory: Path, days: int, *, renew: bool
) -> None:
    from tacit.live.transport.certificates import AUTHORITY

    typer.echo(f"{what}, valid for {days} days")
    typer.echo(f"  {certificate}: give it to {whose}, together with {directory / AUTHORITY}")
    if renew:
        typer.echo("  the key is unchanged; the old certificate stays valid")
    else:
        typer.echo(f"  {key}: SECRET; give it to {whose} over a secure channel, keep no copy")

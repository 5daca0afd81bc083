"""A private certificate authority for servers and parties.

It is a directory: `ca.pem` (public), `ca.key` (secret), `revoked.pem` (signed revocation list) and
`issued.json` (list of all issued certificates). A certificate is listed before it is written, so
every existing certificate can be revoked. Several processes may use the directory.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tacit.errors import ConfigError, DataError
from tacit.live.transport.authority import (
    AUTHORITY,
    INDEX,
    KEY,
    PUBLIC,
    REVOKED,
    SECRET,
    Authority,
    Index,
    Issued,
    Role,
    index_bytes,
    locked,
    make_directory,
    opened,
    read_index,
    write,
)
from tacit.live.transport.tls import Revoked, fingerprint, read_key

PARTY_URI = "urn:tacit:party:"
MAX_DAYS = 36_500
_SKEW = timedelta(minutes=5)  # tolerance for slow clocks
_LIST_LIFE = timedelta(days=3650)  # an old list must never lock out all parties
_COUNTRY = re.compile(r"[A-Z]{2}")
_NAME = re.compile(r"[A-Za-z0-9._-]([A-Za-z0-9 ._-]{0,62}[A-Za-z0-9._-])?")
_HOST = re.compile(r"(?=.{1,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*"
                   r"(?=[^.]*[a-z_-])[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")  # fmt: skip


def init_authority(directory: Path, *, name: str = "tacit", days: int = 3650) -> Path:
    """Create an authority in a directory and return the path of its public certificate."""
    _check_name(name)
    now = _now()
    end = _end(days, now)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, key.public_key(), now, end, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(authority=True), critical=True)
    made = Authority(directory, builder.sign(key, hashes.SHA256()), key, Index())
    make_directory(directory)
    with locked(directory):
        present = [each for each in (AUTHORITY, KEY, REVOKED, INDEX) if (directory / each).exists()]
        if present:
            raise ConfigError(
                f"{directory} already holds {', '.join(present)} of an authority, which is never "
                "overwritten; choose another --dir"
            )
        write(
            (directory / KEY, _private_pem(key), SECRET),
            (directory / INDEX, index_bytes(made), PUBLIC),
            (directory / REVOKED, _revocation_list(made, now), PUBLIC),
            (
                directory / AUTHORITY,
                _pem(made.certificate),
                PUBLIC,
            ),  # last: completes the authority
        )
    return directory / AUTHORITY


class Holder(NamedTuple):
    """Organisation and country of a certificate's holder. They never identify a peer."""

    organisation: str = ""
    country: str = ""

    def check(self) -> Holder:
        """Refuse values that X.509 cannot represent."""
        if not (len(self.organisation) <= 64 and self.organisation.isprintable()):
            raise ConfigError(
                f"organisation {self.organisation!r}; use at most 64 printable characters"
            )
        if self.country and not _COUNTRY.fullmatch(self.country):
            raise ConfigError(f"country {self.country!r}; use its two-letter code, e.g. FI")
        return self

    def attributes(self) -> list[x509.NameAttribute]:
        """Country and organisation as attributes of a certificate's subject, if they are given."""
        named = ((NameOID.COUNTRY_NAME, self.country),)
        named += ((NameOID.ORGANIZATION_NAME, self.organisation),)
        return [x509.NameAttribute(oid, text) for oid, text in named if text]


NO_HOLDER = Holder()


def issue_server(
    directory: Path,
    hosts: Sequence[str],
    *,
    out: Path | None = None,
    days: int = 397,
    renew: bool = False,
    holder: Holder = NO_HOLDER,
) -> tuple[Path, Path]:
    """Issue a certificate and key for a server with these host names and addresses. Return the
    paths of the certificate and the key.

    The first host is the common name. With `renew`, the certificate is for the server's existing
    key. It keeps organisation and country unless `holder` gives others.
    """
    alternatives = [_host(host) for host in hosts]
    names = tuple(str(each.value) for each in alternatives)
    if not names or len(names[0]) > 64:
        raise ConfigError(
            f"hosts {', '.join(names) or '(none)'}; give at least one, the first of at most 64 "
            "characters"
        )
    return _issue(directory, "server", names[0], names, alternatives, out, days, renew, holder)


def issue_party(
    directory: Path,
    name: str,
    *,
    out: Path | None = None,
    days: int = 397,
    renew: bool = False,
    holder: Holder = NO_HOLDER,
) -> tuple[Path, Path]:
    """Issue certificate and key of a party; `renew` keeps key, organisation and country."""
    _check_name(name)
    uri = x509.UniformResourceIdentifier(PARTY_URI + quote(name, safe=""))
    return _issue(directory, "party", name, (), [uri], out, days, renew, holder)


def revoke(directory: Path, name_or_serial: str, reason: str = "") -> list[Issued]:
    """Revoke all certificates of a name, or the one with a given serial; return the revoked ones.

    Expired certificates are included, because they could be renewed. A second call writes the
    revocation list again.
    """
    now = _now()
    wanted = name_or_serial.strip()
    serial = wanted.lower().removeprefix("0x").replace(":", "").lstrip("0")
    with opened(directory) as authority:
        rows = authority.index.issued
        found = [at for at, row in enumerate(rows) if row.name == wanted or row.serial == serial]
        if not found:
            raise ConfigError(
                f"{wanted!r} is neither a name nor a serial issued by {directory}; "
                f"see: tacit certs list --dir {directory}"
            )
        for at in found:
            if not rows[at].revoked:
                rows[at] = msgspec.structs.replace(
                    rows[at], revoked=True, revoked_at=now, reason=" ".join(reason.split())
                )
        write(  # the index first: the list is made from it
            (directory / INDEX, index_bytes(authority), PUBLIC),
            (directory / REVOKED, _revocation_list(authority, now), PUBLIC),
        )
        return [rows[at] for at in found]


def show(directory: Path) -> list[Issued]:
    """List all issued certificates, oldest first; raise an error if the revocation list is
    incomplete.
    """
    rows = read_index(directory).issued
    listed = Revoked(directory / REVOKED, directory / AUTHORITY)
    for row in rows:
        if row.revoked and not listed.contains(int(row.serial, 16)):
            raise DataError(
                f"{directory / REVOKED} lacks the revoked serial {row.serial}; "
                f"write it again with: tacit certs revoke {row.serial} --dir {directory}"
            )
    return rows


def _issue(
    directory: Path,
    role: Role,
    name: str,
    hosts: tuple[str, ...],
    alternatives: list[x509.GeneralName],
    out: Path | None,
    days: int,
    renew: bool,
    holder: Holder,
) -> tuple[Path, Path]:
    """Sign a certificate; its serial is recorded on disk before the certificate is written."""
    now, holder = _now(), holder.check()
    place = out or directory
    stem = f"{role}-{name.replace(':', '_')}"  # scp reads text before a colon as a host
    certificate_path, key_path = place / f"{stem}.pem", place / f"{stem}.key"
    with opened(directory) as authority:
        end = _end(days, now, authority.certificate)
        rows = authority.index.issued
        mine = [row for row in rows if row.role == role and row.name == name]
        secret = None
        if renew:
            public = _known_key(mine, f"{role} {name!r}", key_path)
            holder = Holder(
                holder.organisation or mine[-1].organisation, holder.country or mine[-1].country
            )
        else:
            _check_new(mine, f"{role} {name!r}", key_path)
            secret = ec.generate_private_key(ec.SECP256R1())
            public = secret.public_key()
        certificate = _sign_leaf(authority, role, name, alternatives, public, now, end, holder)
        rows.append(
            Issued(
                serial=f"{certificate.serial_number:x}",
                name=name,
                role=role,
                hosts=hosts,
                not_after=end,
                key_fingerprint=fingerprint(public),
                public_key=_public_der(public),
                organisation=holder.organisation,
                country=holder.country,
            )
        )
        make_directory(place)
        keys = [(key_path, _private_pem(secret), SECRET)] if secret else []
        write(
            (directory / INDEX, index_bytes(authority), PUBLIC),
            *keys,
            (certificate_path, _pem(certificate), PUBLIC),
        )
    return certificate_path, key_path


def _check_new(mine: list[Issued], who: str, key_path: Path) -> None:
    live = [row for row in mine if row.state == "live"]
    if live:
        raise ConfigError(
            f"{who} has a certificate until {max(row.not_after for row in live):%Y-%m-%d}; "
            "renew it with --renew, or revoke it first"
        )
    if key_path.exists():
        raise ConfigError(
            f"{key_path} exists, and keys are not overwritten; move it or choose --out"
        )


def _known_key(mine: list[Issued], who: str, key_path: Path) -> Any:
    """Return the public key for a renewal: the last key of this name. A revoked key is refused."""
    if not mine:
        raise ConfigError(f"{who} has no certificate to renew; issue one without --renew")
    last = mine[-1]
    taken_back = [
        row for row in mine if row.revoked and row.key_fingerprint == last.key_fingerprint
    ]
    if taken_back:
        raise ConfigError(
            f"the key of {who} was revoked on {taken_back[-1].revoked_at:%Y-%m-%d} and cannot be "
            "certified again; revoke any other valid certificate of this name, then issue a new "
            "one without --renew"
        )
    if key_path.exists() and fingerprint(read_key(key_path).public_key()) != last.key_fingerprint:
        raise ConfigError(
            f"{key_path} is not the key of the last certificate of {who}; move it or choose --out"
        )
    return serialization.load_der_public_key(last.public_key)


def _sign_leaf(
    authority: Authority,
    role: Role,
    name: str,
    alternatives: list[x509.GeneralName],
    public: Any,
    now: datetime,
    end: datetime,
    holder: Holder,
) -> x509.Certificate:
    """Sign a certificate for one role (server or party), so that a party cannot act as the
    server.
    """
    oids = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "party": ExtendedKeyUsageOID.CLIENT_AUTH}
    subject = x509.Name([*holder.attributes(), x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer = authority.certificate.subject
    builder = _builder(subject, issuer, public, now, end, authority.key.public_key())
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(authority=False), True),
        (x509.ExtendedKeyUsage([oids[role]]), False),
        (x509.SubjectAlternativeName(alternatives), False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(authority.key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, public: Any, now: datetime, end: datetime, signer: Any
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _revocation_list(authority: Authority, now: datetime) -> bytes:
    """Sign the list of all revoked serials.

    The number of the list is the count of revoked serials, so an older list has a smaller number.
    """
    revoked = [row for row in authority.index.issued if row.revoked]
    signer = authority.key.public_key()
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now - _SKEW)
        .next_update(now + _LIST_LIFE)
        .add_extension(x509.CRLNumber(len(revoked)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )
    for row in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(int(row.serial, 16))
        builder = builder.add_revoked_certificate(
            entry.revocation_date(row.revoked_at or now).build()
        )
    return _pem(builder.sign(authority.key, hashes.SHA256()))


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name {name!r}; use 1 to 64 of the characters A-Z a-z 0-9 space . _ - with no space "
            "at either end"
        )


def _host(text: str) -> x509.GeneralName:
    name = text.strip().lower()
    try:
        if "%" not in name:  # zones are local to one machine
            return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if _HOST.fullmatch(name):
            return x509.DNSName(name)
    raise ConfigError(
        f"host {text!r} is neither an IP address nor a DNS name; write it as clients use it, e.g. "
        "server.example.org (no wildcard, port or zone, international names as xn--)"
    )


def _end(days: int, now: datetime, authority: x509.Certificate | None = None) -> datetime:
    if not 1 <= days <= MAX_DAYS:
        raise ConfigError(f"--days {days}; use 1 to {MAX_DAYS}")
    if authority is None:
        return now + timedelta(days=days)
    limit = authority.not_valid_after_utc
    if now + timedelta(days=days) > limit:
        left = (limit - now).days
        remedy = f"use at most {left} days" if left >= 1 else "make a new certificate authority"
        raise ConfigError(
            f"--days {days} is too long: the certificate authority itself expires on "
            f"{limit:%Y-%m-%d}; {remedy}"
        )
    return now + timedelta(days=days)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)  # certificates have no microseconds


def _pem(signed: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    return signed.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _public_der(key: Any) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.DER, form)

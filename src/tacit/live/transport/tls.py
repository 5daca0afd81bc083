"""Mutual TLS between organisations, with revocation.

Only TLS 1.3 is used, both ends present a certificate, and only one private authority is trusted.
The application checks revocation after the handshake and while connected, because OpenSSL checks
only at the handshake, with a list read when the context was made.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tacit.errors import DataError, PeerError

_OTHERS = 0o077
_TICK_NS = 2_000_000_000  # writes within one tick of the file system have equal times
_USES = {
    ssl.PROTOCOL_TLS_SERVER: (ExtendedKeyUsageOID.SERVER_AUTH, "server"),
    ssl.PROTOCOL_TLS_CLIENT: (ExtendedKeyUsageOID.CLIENT_AUTH, "party"),
}


@dataclass(frozen=True)
class Peer:
    """Identity of the other end, taken from its certificate."""

    name: str
    serial: int
    key_fingerprint: str  # unchanged when a certificate is renewed
    not_after: datetime
    holder: str = ""
    """Organisation and country, for display; the name is the identity."""


@dataclass(frozen=True)
class Credentials:
    """Certificate files of a server or party."""

    certificate: Path
    key: Path
    authority: Path
    revoked: Path | None = None

    def check(self) -> None:
        """Check that the files are readable, belong together, and are not expired or revoked."""
        authority = read_certificate(self.authority, "authority")
        certificate = read_certificate(self.certificate, "certificate")
        key = read_key(self.key)
        if fingerprint(key.public_key()) != fingerprint(certificate.public_key()):
            raise DataError(
                f"key {self.key} does not belong to certificate {self.certificate}; "
                "use two files that belong together"
            )
        if not signed_by(certificate, authority):
            raise DataError(
                f"certificate {self.certificate} is not signed by authority {self.authority}; "
                "use the ca.pem of its authority"
            )
        _check_dates(self.authority, authority, "make a new authority with: tacit certs init")
        _check_dates(
            self.certificate, certificate, "have the authority renew it: tacit certs … --renew"
        )
        serial = certificate.serial_number
        if self.revoked and Revoked(self.revoked, self.authority).contains(serial):
            raise DataError(
                f"certificate {self.certificate} (serial {serial:x}) was revoked; "
                "ask the certificate authority for a new one"
            )


class _List(NamedTuple):
    """Content of a revocation list that was read; immutable, so threads may share it."""

    stamp: tuple[int, ...]
    settled: bool  # True if a later change will have another stamp
    number: int
    serials: frozenset[int]


class Revoked:
    """Revoked serials, always from the current file.

    If the list is missing, incomplete, older than a list read before or not signed by the
    authority, every query raises a `DataError` until the list is fixed. An unknown status is
    therefore never treated as "not revoked".
    """

    def __init__(self, path: Path, authority: Path) -> None:
        self._path = path
        self._authority = read_certificate(authority, "authority")
        self._list = self._read(None)

    def contains(self, serial: int) -> bool:
        """True if this serial was revoked; reads the file again if it has changed."""
        return serial in self._current().serials

    def _current(self) -> _List:
        try:
            same = _stamp(self._path.stat()) == self._list.stamp
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error
        if not (same and self._list.settled):
            self._list = self._read(self._list)
        return self._list

    def _read(self, before: _List | None) -> _List:
        try:
            with self._path.open("rb") as file:
                stamp = _stamp(os.fstat(file.fileno()))  # of the file that is read
                settled = time.time_ns() - stamp[1] > _TICK_NS
                found = x509.load_pem_x509_crl(file.read())
            number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
            serials = frozenset(entry.serial_number for entry in found)
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error
        except (ValueError, x509.ExtensionNotFound, UnsupportedAlgorithm) as error:
            raise self._unusable("not a complete revocation list") from error
        if not _list_signed_by(found, self._authority):
            raise self._unusable("not signed by the certificate authority")
        if before is not None and number < before.number:
            raise self._unusable(
                f"its number {number} is below {before.number}, the number of the list read before"
            )
        return _List(stamp, settled, number, serials)

    def _unusable(self, why: str) -> DataError:
        return DataError(
            f"revocation list {self._path}: {why}; all connections are refused until the "
            "authority's revoked.pem is restored (copy it to a temporary name, then rename it)"
        )


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the TLS 1.3 context of a server, which accepts only client certificates that the
    federation's certificate authority has signed.
    """
    context = _context(credentials, ssl.PROTOCOL_TLS_SERVER)
    # A ticket would resume a session without checking the certificate again.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    return context


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the TLS 1.3 context of a party with its certificate; it checks the server's host
    name.
    """
    context = _context(credentials, ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = True
    context.hostname_checks_common_name = False  # only names issued as host names
    return context


def peer_of(ssl_object: ssl.SSLSocket | ssl.SSLObject) -> Peer:
    """Return the identity of the peer after the handshake."""
    der = ssl_object.getpeercert(True)
    if der is None:
        raise PeerError("the peer presented no certificate; connect with an issued one")
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except ValueError as error:
        raise PeerError(
            f"the peer's certificate cannot be read ({error}); issue it with: tacit certs"
        ) from error
    if len(names) != 1:
        raise PeerError(
            f"the peer's certificate (serial {certificate.serial_number:x}) has {len(names)} "
            "common names, not 1; issue it with: tacit certs party"
        )
    return Peer(
        name=str(names[0].value),
        serial=certificate.serial_number,
        key_fingerprint=fingerprint(certificate.public_key()),
        not_after=certificate.not_valid_after_utc,
        holder=_holder(certificate.subject),
    )


def _holder(subject: x509.Name) -> str:
    """Return organisation and country on one line, as far as the certificate has them."""
    oids = (NameOID.ORGANIZATION_NAME, NameOID.COUNTRY_NAME)
    found = [str(each.value) for oid in oids for each in subject.get_attributes_for_oid(oid)]
    text = ", ".join(found)
    return "".join(letter if letter.isprintable() else " " for letter in text)[:150]


def name_of(path: Path) -> str:
    """Return the common name in a certificate file."""
    names = read_certificate(path).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise DataError(f"certificate {path} has {len(names)} common names, not 1; issue it again")
    return str(names[0].value)


def fingerprint(public_key: Any) -> str:
    """Return the SHA-256 of the public key. A peer keeps it when its certificate is renewed."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(public_key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def read_certificate(path: Path, what: str = "certificate") -> x509.Certificate:
    """Read a PEM file with one certificate; `what` describes it in errors."""
    try:
        found = x509.load_pem_x509_certificates(_bytes(path, what))
    except ValueError as error:
        raise DataError(
            f"{what} {path} is not a complete PEM certificate; copy it again"
        ) from error
    if len(found) != 1:
        raise DataError(f"{what} {path} holds {len(found)} certificates, not 1; keep one")
    return found[0]


def read_key(path: Path) -> Any:
    """Read a private key; refused if others can read it or if it has a passphrase."""
    data = _bytes(path, "key")
    mode = path.stat().st_mode & 0o777
    if os.name == "posix" and mode & _OTHERS:
        raise DataError(
            f"key {path} has mode {mode:04o}, other users can read it; chmod 600 '{path}'"
        )
    try:
        return serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DataError(
            f"key {path} is not a complete PEM private key without a passphrase; copy it again"
        ) from error


def signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """True if the authority directly signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _list_signed_by(found: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key: Any = authority.public_key()
    try:
        return found.issuer == authority.subject and found.is_signature_valid(key)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False


def _context(credentials: Credentials, protocol: ssl._SSLMethod) -> ssl.SSLContext:
    """Return a TLS context with the settings that servers and parties share."""
    credentials.check()
    _check_use(credentials.certificate, protocol)
    # `ssl.create_default_context` would trust the system's authorities too, and write the keys of
    # every session to wherever $SSLKEYLOGFILE says.
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.options |= ssl.OP_NO_COMPRESSION
    try:
        authority = read_certificate(credentials.authority, "authority")
        context.load_verify_locations(cadata=authority.public_bytes(serialization.Encoding.DER))
        context.load_cert_chain(credentials.certificate, credentials.key)
    except (ssl.SSLError, OSError) as error:
        raise DataError(
            f"certificate {credentials.certificate}: {error}; issue a new one with: tacit certs"
        ) from error
    return context


def _check_use(path: Path, protocol: ssl._SSLMethod) -> None:
    """Refuse a certificate of the wrong role, which would otherwise fail later, at the
    handshake.
    """
    wanted, role = _USES[protocol]
    try:
        extensions = read_certificate(path).extensions
        uses = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        uses = []
    if wanted not in uses:
        raise DataError(
            f"certificate {path} is not for a {role}; issue one with: tacit certs {role}"
        )


def _check_dates(path: Path, certificate: x509.Certificate, remedy: str) -> None:
    now = datetime.now(UTC)
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise DataError(
            f"certificate {path} expired on {end:%Y-%m-%d} and it is {now:%Y-%m-%d} by this "
            f"machine's clock; {remedy}"
        )
    if now < start:
        raise DataError(
            f"certificate {path} is not valid before {start:%Y-%m-%d %H:%M} UTC and it is "
            f"{now:%Y-%m-%d %H:%M}; check this machine's clock"
        )


def _bytes(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{what} {path}: {error.strerror or error}; check the path") from error


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino

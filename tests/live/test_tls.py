"""Real handshakes on loopback: who gets in, and everybody who must not."""

import asyncio
import os
import shutil
import socket
import ssl
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tacit.errors import DataError, PeerError
from tacit.live.transport import tls
from tacit.live.transport.certificates import init_authority, issue_party, issue_server, revoke
from tacit.live.transport.tls import (
    Credentials,
    Peer,
    Revoked,
    client_context,
    peer_of,
    read_certificate,
    read_key,
    server_context,
)

SECONDS = 30.0
ALERT = (ssl.SSLError, ConnectionError)  # what a refusal of the other end looks like
USES = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "party": ExtendedKeyUsageOID.CLIENT_AUTH}


def credentials_in(pki: Path) -> dict[str, Credentials]:
    init_authority(pki)
    made = {
        "server": issue_server(pki, ["localhost", "127.0.0.1"]),
        "party": issue_party(pki, "north"),
    }
    return {role: Credentials(*files, pki / "ca.pem") for role, files in made.items()}


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> dict[str, Credentials]:
    return credentials_in(tmp_path_factory.mktemp("ours") / "pki")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> dict[str, Credentials]:
    """Another authority with the same names throughout."""
    return credentials_in(tmp_path_factory.mktemp("theirs") / "pki")


def special(
    pki: Path, where: Path, role: str, start: timedelta, end: timedelta, *, names: int = 1
) -> Credentials:
    """A certificate that `tacit certs` would not issue, signed by its authority."""
    now = datetime.now(UTC)
    authority, key = read_certificate(pki / "ca.pem"), ec.generate_private_key(ec.SECP256R1())
    signer = authority.public_key()
    assert isinstance(signer, ec.EllipticCurvePublicKey)
    attribute = x509.NameAttribute(NameOID.COMMON_NAME, "north")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([attribute] * names))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + start)
        .not_valid_after(now + end)
        .add_extension(x509.ExtendedKeyUsage([USES[role]]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
        .sign(read_key(pki / "ca.key"), hashes.SHA256())
    )
    made = Credentials(where / "special.pem", where / "special.key", pki / "ca.pem")
    made.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    made.key.touch(mode=0o600)
    made.key.write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
    return made


def unchecked(protocol: ssl._SSLMethod, mine: Credentials | None, trusts: Path) -> ssl.SSLContext:
    """What somebody would use who does not keep to our rules."""
    context = ssl.SSLContext(protocol)
    context.load_verify_locations(trusts)
    if mine is not None:
        context.load_cert_chain(mine.certificate, mine.key)
    return context


@dataclass
class End:
    """What one end saw: the peer, or why there was none."""

    peer: Peer | None = None
    error: Exception | None = None
    version: str | None = None
    tickets: bool = False


def meet(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost"
) -> tuple[End, End]:
    """One connection over TCP. The server speaks first: a refused client learns it by reading."""
    at_server, at_client = End(), End()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(SECONDS)

        def serve() -> None:
            connection, _ = listening.accept()
            connection.settimeout(SECONDS)
            try:
                with connection, server.wrap_socket(connection, server_side=True) as secure:
                    at_server.peer, at_server.version = peer_of(secure), secure.version()
                    secure.sendall(b"welcome")
                    secure.recv(1)
            except Exception as error:
                at_server.error = error

        thread = threading.Thread(target=serve)
        thread.start()
        plain = socket.create_connection(listening.getsockname(), timeout=SECONDS)
        try:
            with plain, client.wrap_socket(plain, server_hostname=host) as secure:
                assert secure.recv(7) == b"welcome"
                at_client.peer, at_client.version = peer_of(secure), secure.version()
                at_client.tickets = bool(secure.session and secure.session.has_ticket)
                secure.sendall(b".")
        except (OSError, AssertionError, PeerError) as error:
            at_client.error = error
        thread.join(SECONDS)
        assert not thread.is_alive()
    return at_server, at_client


def refused_by_server(ours, mine: Credentials | None, match: str) -> None:
    client = unchecked(ssl.PROTOCOL_TLS_CLIENT, mine, ours["server"].authority)
    at_server, at_client = meet(server_context(ours["server"]), client)
    assert at_server.peer is None
    assert isinstance(at_server.error, ssl.SSLError)
    assert match in str(at_server.error)
    assert isinstance(at_client.error, ALERT), "and the client heard nothing"


def refused_by_client(ours, theirs: Credentials, match: str, host: str = "localhost") -> None:
    server = unchecked(ssl.PROTOCOL_TLS_SERVER, theirs, ours["server"].authority)
    server.verify_mode = ssl.CERT_REQUIRED
    at_server, at_client = meet(server, client_context(ours["party"]), host)
    assert at_client.peer is None
    assert isinstance(at_client.error, ssl.SSLCertVerificationError)
    assert match in str(at_client.error)
    assert isinstance(at_server.error, ALERT)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_good_pair_connects_and_each_knows_the_other(ours, host):
    server, client = server_context(ours["server"]), client_context(ours["party"])
    at_server, at_client = meet(server, client, host)
    assert (at_server.error, at_client.error) == (None, None)
    assert at_server.version == at_client.version == "TLSv1.3"
    assert not at_client.tickets
    certificate = read_certificate(ours["party"].certificate)
    assert at_server.peer is not None
    assert at_client.peer is not None
    assert (at_server.peer.name, at_client.peer.name) == ("north", "localhost")
    assert at_server.peer.serial == certificate.serial_number
    assert at_server.peer.not_after == certificate.not_valid_after_utc
    assert at_server.peer.not_after.tzinfo is not None


def test_the_same_contexts_serve_asyncio(ours):
    async def meet_once() -> Peer:
        found = asyncio.get_running_loop().create_future()

        async def serve(_, writer: asyncio.StreamWriter) -> None:
            found.set_result(peer_of(writer.get_extra_info("ssl_object")))
            writer.close()
            await writer.wait_closed()

        secure = server_context(ours["server"]), client_context(ours["party"])
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=secure[0]) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=secure[1])
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
        return await found

    assert asyncio.run(asyncio.wait_for(meet_once(), SECONDS)).name == "north"


def test_contexts_trust_one_authority_and_no_other(ours, monkeypatch, tmp_path):
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    for context in (server_context(ours["server"]), client_context(ours["party"])):
        assert context.cert_store_stats()["x509_ca"] == 1
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.options & ssl.OP_NO_COMPRESSION
        assert context.minimum_version == context.maximum_version == ssl.TLSVersion.TLSv1_3
        assert context.keylog_filename is None
    assert server_context(ours["server"]).num_tickets == 0
    assert client_context(ours["party"]).check_hostname
    assert not client_context(ours["party"]).hostname_checks_common_name


def test_renewal_keeps_the_identity(tmp_path):
    pki = tmp_path / "pki"
    made = credentials_in(pki)
    server = server_context(made["server"])
    before = meet(server, client_context(made["party"]))[0].peer
    issue_party(pki, "north", renew=True)
    after = meet(server, client_context(made["party"]))[0].peer
    assert before is not None
    assert after is not None
    assert after.key_fingerprint == before.key_fingerprint
    assert after.serial != before.serial


def test_no_certificate_is_refused(ours):
    refused_by_server(ours, None, "PEER_DID_NOT_RETURN_A_CERTIFICATE")


def test_another_authority_with_the_same_names_is_refused(ours, theirs):
    refused_by_server(ours, theirs["party"], "certificate verify failed")
    refused_by_client(ours, theirs["server"], "certificate verify failed")


@pytest.mark.parametrize(("start", "end", "match"), [(-9, -1, "expired"), (1, 9, "not yet valid")])
def test_certificates_count_only_in_their_time(ours, tmp_path, start, end, match):
    pki = ours["server"].authority.parent
    span = timedelta(days=start), timedelta(days=end)
    refused_by_server(ours, special(pki, tmp_path, "party", *span), match)
    refused_by_client(ours, special(pki, tmp_path, "server", *span), match)


def test_a_party_cannot_serve_nor_a_server_take_part(ours):
    # The certificate of a party bears no host name; one that did would fail for its purpose.
    refused_by_client(ours, ours["party"], "certificate verify failed")
    refused_by_server(ours, ours["server"], "unsuitable certificate purpose")


def test_a_party_with_the_servers_host_name_still_cannot_serve(ours, tmp_path):
    span = timedelta(days=-1), timedelta(days=1)
    pretender = special(ours["server"].authority.parent, tmp_path, "party", *span)
    refused_by_client(ours, pretender, "unsuitable certificate purpose")


def test_the_wrong_host_name_is_refused(ours):
    refused_by_client(ours, ours["server"], "Hostname mismatch", host="other.example")
    refused_by_client(ours, ours["server"], "IP address mismatch", host="127.0.0.2")


def test_older_tls_is_refused_at_both_ends(ours):
    client = unchecked(ssl.PROTOCOL_TLS_CLIENT, ours["party"], ours["party"].authority)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    at_server, at_client = meet(server_context(ours["server"]), client)
    assert "UNSUPPORTED_PROTOCOL" in str(at_server.error)
    assert isinstance(at_client.error, ALERT)
    server = unchecked(ssl.PROTOCOL_TLS_SERVER, ours["server"], ours["party"].authority)
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    at_server, at_client = meet(server, client_context(ours["party"]))
    assert isinstance(at_server.error, ALERT)
    assert isinstance(at_client.error, ALERT)


def test_plain_text_is_refused(ours):
    server = server_context(ours["server"])
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ssl.SSLError):
            server.wrap_socket(here, server_side=True)


def test_a_peer_has_a_certificate_with_one_name(ours, tmp_path):
    class Nobody:
        def getpeercert(self, binary_form=False, /):
            return None

    class Broken:
        def getpeercert(self, binary_form=False, /):
            return b"not a certificate"

    with pytest.raises(PeerError, match="presented no certificate"):
        peer_of(Nobody())
    with pytest.raises(PeerError, match="cannot be read"):
        peer_of(Broken())
    span = timedelta(days=-1), timedelta(days=1)
    two = special(ours["server"].authority.parent, tmp_path, "party", *span, names=2)
    client = unchecked(ssl.PROTOCOL_TLS_CLIENT, two, two.authority)
    at_server, _ = meet(server_context(ours["server"]), client)
    assert isinstance(at_server.error, PeerError)
    assert "2 common names, not 1" in str(at_server.error)


# Revocation.


@pytest.fixture
def pki(tmp_path) -> Path:
    credentials_in(tmp_path / "pki")
    return tmp_path / "pki"


def serial_of(path: Path) -> int:
    return read_certificate(path).serial_number


def test_a_revocation_is_seen_while_running(pki):
    made = Credentials(pki / "party-north.pem", pki / "party-north.key", pki / "ca.pem")
    server = Credentials(pki / "server-localhost.pem", pki / "server-localhost.key", made.authority)
    revoked = Revoked(pki / "revoked.pem", pki / "ca.pem")
    peer = meet(server_context(server), client_context(made))[0].peer
    assert peer is not None
    assert not revoked.contains(peer.serial)
    revoke(pki, "north")
    assert revoked.contains(peer.serial)
    assert not revoked.contains(serial_of(server.certificate))
    assert Revoked(pki / "revoked.pem", pki / "ca.pem").contains(peer.serial)
    with pytest.raises(DataError, match="was revoked; ask"):
        replace(made, revoked=pki / "revoked.pem").check()


def fails_closed(pki: Path, match: str) -> None:
    """At the start as well as while running, at every question, and until it is mended."""
    with pytest.raises(DataError, match=match):
        Revoked(pki / "revoked.pem", pki / "ca.pem")


@pytest.mark.parametrize("kept", [0, 1, 40, 200, -40])
def test_a_torn_list_fails_closed_until_it_is_whole(pki, kept):
    path, serial = pki / "revoked.pem", serial_of(pki / "party-north.pem")
    revoked, whole = Revoked(path, pki / "ca.pem"), path.read_bytes()
    path.write_bytes(whole[:kept])
    for _ in range(2):
        with pytest.raises(
            DataError, match="not a complete revocation list; all connections are refused"
        ):
            revoked.contains(serial)
    fails_closed(pki, "not a complete revocation list")
    path.write_bytes(whole)
    assert not revoked.contains(serial)


def test_a_changed_byte_fails_closed(pki):
    revoke(pki, "north")
    path = pki / "revoked.pem"
    found = x509.load_pem_x509_crl(path.read_bytes())
    der = bytearray(found.public_bytes(serialization.Encoding.DER))
    at = der.index(serial_of(pki / "party-north.pem").to_bytes(20, "big").lstrip(b"\0"))
    der[at + 5] ^= 1  # another serial than the one that was revoked
    path.write_bytes(x509.load_der_x509_crl(bytes(der)).public_bytes(serialization.Encoding.PEM))
    fails_closed(pki, "not signed by the certificate authority")


def test_a_missing_list_fails_closed(pki):
    revoked = Revoked(pki / "revoked.pem", pki / "ca.pem")
    (pki / "revoked.pem").unlink()
    with pytest.raises(DataError, match="No such file"):
        revoked.contains(1)
    fails_closed(pki, "No such file")


def test_a_list_of_another_authority_fails_closed(pki, theirs):
    revoked = Revoked(pki / "revoked.pem", pki / "ca.pem")
    shutil.copy(theirs["server"].authority.parent / "revoked.pem", pki / "revoked.pem")
    with pytest.raises(DataError, match="not signed by the certificate authority"):
        revoked.contains(1)
    fails_closed(pki, "not signed by the certificate authority")


def test_an_older_list_cannot_bring_anybody_back(pki):
    path, serial = pki / "revoked.pem", serial_of(pki / "party-north.pem")
    old = path.read_bytes()
    revoke(pki, "north")
    revoked = Revoked(path, pki / "ca.pem")
    path.write_bytes(old)
    with pytest.raises(DataError, match="its number 0 is below 1"):
        revoked.contains(serial)


def test_the_list_is_read_only_when_it_changed(pki, monkeypatch):
    monkeypatch.setattr(tls, "_TICK_NS", -1)  # as if the file had been there for long
    revoked, reads = Revoked(pki / "revoked.pem", pki / "ca.pem"), []
    real = x509.load_pem_x509_crl
    monkeypatch.setattr(x509, "load_pem_x509_crl", lambda data: reads.append(1) or real(data))
    for _ in range(3):
        revoked.contains(1)
    assert reads == []
    os.utime(pki / "revoked.pem", ns=(1, 1))
    revoked.contains(1)
    revoked.contains(1)
    assert reads == [1]


def test_a_change_that_leaves_no_trace_in_size_or_time_is_seen(pki, theirs, monkeypatch):
    monkeypatch.setattr(tls, "_stamp", lambda status: (0, status.st_ctime_ns // 10**15, 0, 0))
    monkeypatch.setattr(tls.time, "time_ns", lambda: 0)  # the file is as young as can be
    revoked = Revoked(pki / "revoked.pem", pki / "ca.pem")
    assert not revoked.contains(1)
    shutil.copy(theirs["server"].authority.parent / "revoked.pem", pki / "revoked.pem")
    with pytest.raises(DataError, match="not signed by the certificate authority"):
        revoked.contains(1)


# Files that could not make a connection are told apart before anybody tries.


def both_refuse(credentials: Credentials, match: str) -> None:
    for call in (Credentials.check, server_context, client_context):
        with pytest.raises(DataError, match=match) as refused:
            call(credentials)
        assert "\n" not in str(refused.value)


def test_good_files_pass(pki, ours):
    for each in ours.values():
        each.check()
        replace(each, revoked=each.authority.parent / "revoked.pem").check()


@pytest.mark.parametrize("field", ["certificate", "key", "authority", "revoked"])
def test_each_missing_or_damaged_file_is_named(ours, tmp_path, field):
    nowhere, damaged = tmp_path / "nowhere.pem", tmp_path / "damaged.pem"
    both_refuse(replace(ours["party"], **{field: nowhere}), r"nowhere\.pem: No such file")
    damaged.touch(mode=0o600)
    damaged.write_bytes(ours["party"].key.read_bytes()[:60])
    both_refuse(replace(ours["party"], **{field: damaged}), r"damaged\.pem:? (is )?not a complete")


def test_a_key_that_others_can_read_is_refused(pki):
    made = Credentials(pki / "party-north.pem", pki / "party-north.key", pki / "ca.pem")
    for mode in (0o644, 0o640, 0o604, 0o610):
        made.key.chmod(mode)
        both_refuse(made, rf"mode {mode:04o}, other users can read it; chmod 600")
    made.key.chmod(0o400)
    made.check()


def test_a_key_with_a_passphrase_is_refused_rather_than_asked_for(ours, tmp_path):
    secret = read_key(ours["party"].key)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    locked = tmp_path / "locked.key"
    locked.touch(mode=0o600)
    locked.write_bytes(secret.private_bytes(*form, serialization.BestAvailableEncryption(b"word")))
    both_refuse(replace(ours["party"], key=locked), "without a passphrase")


def test_a_key_of_another_certificate_is_refused(ours):
    both_refuse(replace(ours["party"], key=ours["server"].key), "does not belong to certificate")


def test_an_authority_that_did_not_sign_is_refused(ours, theirs):
    wrong = replace(ours["party"], authority=theirs["party"].authority)
    both_refuse(wrong, "is not signed by authority")
    both_refuse(replace(ours["party"], authority=ours["server"].certificate), "is not signed by")


def test_more_than_one_authority_is_refused(ours, theirs, tmp_path):
    two = tmp_path / "two.pem"
    two.write_bytes(ours["party"].authority.read_bytes() + theirs["party"].authority.read_bytes())
    both_refuse(replace(ours["party"], authority=two), "holds 2 certificates, not 1")


def test_dates_are_told(ours, tmp_path):
    pki, day = ours["party"].authority.parent, timedelta(days=1)
    expired = datetime.now(UTC) - day
    both_refuse(special(pki, tmp_path, "party", -2 * day, -day), f"expired on {expired:%Y-%m-%d}")
    both_refuse(special(pki, tmp_path, "party", day, 2 * day), "is not valid before .* clock")


def test_the_wrong_role_is_told_before_connecting(ours):
    with pytest.raises(DataError, match="is not for a server; issue one with: tacit certs server"):
        server_context(ours["party"])
    with pytest.raises(DataError, match="is not for a party; issue one with: tacit certs party"):
        client_context(ours["server"])

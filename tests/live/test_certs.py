"""The private authority: what it issues, what it refuses, and what a crash leaves behind."""

import ipaddress
import json
import os
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from tacit.cli.certs import certs_app
from tacit.errors import ConfigError, DataError
from tacit.live.transport import certificates as certs
from tacit.live.transport.certificates import (
    init_authority,
    issue_party,
    issue_server,
    revoke,
    show,
)
from tacit.live.transport.tls import Credentials, Revoked, read_certificate, read_key


@pytest.fixture
def pki(tmp_path) -> Path:
    init_authority(tmp_path / "pki", name="heart study")
    return tmp_path / "pki"


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def extension(certificate, kind):
    return certificate.extensions.get_extension_for_class(kind)


def listed(pki: Path) -> Revoked:
    return Revoked(pki / "revoked.pem", pki / "ca.pem")


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def rewrite_index(pki: Path, **changes) -> None:
    index = json.loads((pki / "issued.json").read_text())
    for row in index["issued"]:
        row.update(changes)
    (pki / "issued.json").write_text(json.dumps(index))


def test_the_authority_signs_nothing_but_ends_and_lists(pki):
    authority = read_certificate(pki / "ca.pem")
    constraints = extension(authority, x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    usage = extension(authority, x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert usage.value.crl_sign
    assert not usage.value.digital_signature
    assert isinstance(authority.public_key(), ec.EllipticCurvePublicKey)
    assert authority.public_key().curve.name == "secp256r1"
    assert authority.signature_hash_algorithm is not None
    assert authority.signature_hash_algorithm.name == "sha256"
    assert show(pki) == []
    assert not listed(pki).contains(authority.serial_number)


def test_keys_are_born_private_and_the_rest_is_not_writable(tmp_path, open_umask, monkeypatch):
    modes = []
    real = os.open

    def watched(path, flags, mode=0o777, **more):
        descriptor = real(path, flags, mode, **more)
        if flags & os.O_CREAT:
            modes.append((Path(path).name, stat.S_IMODE(os.fstat(descriptor).st_mode)))
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    pki = tmp_path / "pki"
    init_authority(pki)
    issue_party(pki, "north", out=tmp_path / "north")
    issue_server(pki, ["localhost"])
    born = {mode for name, mode in modes if ".key" in name}
    assert born == {0o600}
    assert {mode for name, mode in modes if ".key" not in name} == {0o644}
    for path in [*pki.iterdir(), *(tmp_path / "north").iterdir()]:
        wanted = 0o600 if path.suffix == ".key" else 0o644
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    assert stat.S_IMODE(pki.stat().st_mode) == 0o755
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("left", ["ca.pem", "ca.key", "issued.json"])
def test_an_authority_or_a_part_of_one_is_never_overwritten(pki, left):
    for path in pki.iterdir():
        if path.name != left:
            path.unlink()
    before = contents(pki)
    with pytest.raises(ConfigError, match=rf"already holds {left} of an authority.*--dir"):
        init_authority(pki)
    assert contents(pki) == before


def test_a_server_certificate_names_its_hosts_and_only_serves(pki):
    path, key = issue_server(pki, ["Study.Example.org", "127.0.0.1", "::1", "tacit_server"])
    certificate = read_certificate(path)
    names = extension(certificate, x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["study.example.org", "tacit_server"]
    addresses = [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    uses = extension(certificate, x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert not extension(certificate, x509.BasicConstraints).value.ca
    assert (path.name, key.name) == ("server-study.example.org.pem", "server-study.example.org.key")
    assert issue_server(pki, ["::1"])[0].name == "server-__1.pem"


def test_a_party_certificate_carries_its_name_twice_and_never_serves(pki, tmp_path):
    before = datetime.now(UTC)
    path, key = issue_party(pki, "St. Mary 2", out=tmp_path / "mary" / "keys", days=30)
    certificate = read_certificate(path)
    assert certificate.subject.rfc4514_string() == "CN=St. Mary 2"
    names = extension(certificate, x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uris == ["urn:tacit:party:St.%20Mary%202"]
    assert names.get_values_for_type(x509.DNSName) == []
    uses = extension(certificate, x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    late = timedelta(minutes=5)
    assert abs(certificate.not_valid_before_utc - (before - late)) < timedelta(seconds=5)
    assert abs(certificate.not_valid_after_utc - before - timedelta(days=30)) < timedelta(minutes=1)
    Credentials(path, key, pki / "ca.pem", pki / "revoked.pem").check()
    assert sorted(each.name for each in pki.iterdir()) == [
        "ca.key", "ca.pem", "issued.json", "revoked.pem",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["", " north", "north ", "a/b", "../a", "a\nb", "nörth", "x" * 65, "a:b", "a,CN=b"]
)
def test_names_that_could_be_taken_for_something_else_are_refused(pki, tmp_path, name):
    with pytest.raises(ConfigError, match="use 1 to 64 of the characters"):
        issue_party(pki, name)
    with pytest.raises(ConfigError, match="use 1 to 64 of the characters"):
        init_authority(tmp_path / "other", name=name)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["a", "x" * 64, "..", "a  b", "-x"])
def test_other_names_stay_inside_the_directory(pki, name):
    path, _ = issue_party(pki, name)
    assert path.parent == pki
    assert path.exists()


@pytest.mark.parametrize(
    "host",
    ["", "*.example.org", "a b", "1.2.3.400", "10", "host:8443", "fe80::1%eth0", "köln.de", "a..b",
     "a.", "-a.org", "x" * 64 + ".org", ".".join(["x" * 60] * 5)],
)  # fmt: skip
def test_hosts_that_no_client_could_check_are_refused(pki, host):
    with pytest.raises(ConfigError, match="neither an IP address nor a DNS name"):
        issue_server(pki, ["localhost", host])


def test_a_server_needs_a_host_and_the_first_must_fit(pki):
    with pytest.raises(ConfigError, match="at least one"):
        issue_server(pki, [])
    long = ".".join(["x" * 30] * 3)
    with pytest.raises(ConfigError, match="at most 64"):
        issue_server(pki, [long])
    assert issue_server(pki, ["short.example", long])[0].exists()


def test_lifetimes_have_bounds(tmp_path):
    with pytest.raises(ConfigError, match="--days 0; use 1 to"):
        init_authority(tmp_path / "pki", days=0)
    init_authority(tmp_path / "pki", days=10)
    for days in (0, -3, 10**9):
        with pytest.raises(ConfigError, match=f"--days {days}; use 1 to"):
            issue_party(tmp_path / "pki", "north", days=days)
    with pytest.raises(ConfigError, match=r"--days 11 is too long: .*use at most (9|10)"):
        issue_party(tmp_path / "pki", "north", days=11)
    assert issue_party(tmp_path / "pki", "north", days=9)[0].exists()


def test_one_live_certificate_for_each_name(pki, tmp_path):
    until = datetime.now(UTC) + timedelta(days=397)
    words = rf"has a certificate until {until:%Y-%m}.*; renew it with --renew, or revoke it first"
    for issue in (
        lambda out=None: issue_party(pki, "north", out=out),
        lambda out=None: issue_server(pki, ["localhost"], out=out),
    ):
        issue()
        before = contents(pki)
        with pytest.raises(ConfigError, match=words):
            issue(tmp_path / "elsewhere")
        assert contents(pki) == before
    assert not (tmp_path / "elsewhere").exists()


def test_renewal_keeps_the_key_and_needs_only_the_index(pki):
    path, key = issue_party(pki, "north", days=10)
    first, secret = read_certificate(path), key.read_bytes()
    issue_party(pki, "north", renew=True, days=20)
    assert key.read_bytes() == secret
    second = read_certificate(path)
    assert second.public_key() == first.public_key()
    assert second.serial_number != first.serial_number
    assert second.not_valid_after_utc > first.not_valid_after_utc
    Credentials(path, key, pki / "ca.pem").check()
    path.unlink()  # both went to the party, as they should
    key.unlink()
    issue_party(pki, "north", renew=True)
    assert read_certificate(path).public_key() == first.public_key()
    assert not key.exists()
    assert len({row.key_fingerprint for row in show(pki)}) == 1
    assert len({row.serial for row in show(pki)}) == 3


def test_a_renewed_server_may_get_another_host(pki):
    path, _ = issue_server(pki, ["localhost"])
    first = read_certificate(path)
    issue_server(pki, ["localhost", "127.0.0.1"], renew=True)
    assert read_certificate(path).public_key() == first.public_key()
    assert show(pki)[-1].hosts == ("localhost", "127.0.0.1")


def test_what_cannot_be_renewed(pki):
    with pytest.raises(ConfigError, match="no certificate to renew"):
        issue_party(pki, "north", renew=True)
    _, key = issue_party(pki, "north")
    revoke(pki, "north")
    with pytest.raises(ConfigError, match=r"was revoked on .* without --renew"):
        issue_party(pki, "north", renew=True)
    with pytest.raises(ConfigError, match="keys are not overwritten; move it or choose --out"):
        issue_party(pki, "north")
    key.unlink()
    issue_party(pki, "north")
    _, other = issue_party(pki, "south")
    key.write_bytes(other.read_bytes())
    with pytest.raises(ConfigError, match="is not the key of the last certificate of party"):
        issue_party(pki, "north", renew=True)


def test_an_expired_certificate_can_be_renewed_or_replaced(pki, tmp_path):
    issue_party(pki, "north")
    rewrite_index(pki, not_after="2020-01-01T00:00:00Z")
    assert [row.state for row in show(pki)] == ["expired"]
    issue_party(pki, "north", renew=True)
    assert [row.state for row in show(pki)] == ["expired", "live"]
    rewrite_index(pki, not_after="2020-01-01T00:00:00Z")
    issue_party(pki, "north", out=tmp_path / "new")
    assert len({row.key_fingerprint for row in show(pki)}) == 2


def test_revoking_a_name_takes_back_all_of_it_and_a_serial_only_one(pki):
    for renew in (False, True):
        issue_party(pki, "north", renew=renew)
        issue_party(pki, "south", renew=renew)
    serials = {name: [int(row.serial, 16) for row in show(pki) if row.name == name]
               for name in ("north", "south")}  # fmt: skip
    assert [row.name for row in revoke(pki, "north", "laptop\nlost")] == ["north", "north"]
    revoke(pki, f"0x{serials['south'][0]:X}")
    now = listed(pki)
    assert all(now.contains(serial) for serial in serials["north"])
    assert [now.contains(serial) for serial in serials["south"]] == [True, False]
    states = {(row.name, row.state, row.reason) for row in show(pki)}
    assert ("north", "revoked", "laptop lost") in states
    with pytest.raises(ConfigError, match="neither a name nor a serial"):
        revoke(pki, "east")
    with pytest.raises(
        ConfigError, match="revoke any other valid certificate of this name"
    ):  # the same key was taken back once
        issue_party(pki, "south", renew=True)


def test_the_list_lasts_for_years_and_its_number_grows(pki):
    def read():
        return x509.load_pem_x509_crl((pki / "revoked.pem").read_bytes())

    assert read().next_update_utc > datetime.now(UTC) + timedelta(days=3600)
    issue_party(pki, "north")
    revoke(pki, "north")
    assert extension(read(), x509.CRLNumber).value.crl_number == 1
    when = next(row.revoked_at for row in show(pki))
    revoke(pki, "north", "again")
    row = next(iter(show(pki)))
    assert (row.revoked_at, row.reason) == (when, ""), "the first word stands"


def test_a_crash_between_index_and_list_is_seen_and_mended_by_repeating(pki, monkeypatch):
    issue_party(pki, "north")
    stop_after_renames(monkeypatch, 1)
    with pytest.raises(DataError, match="power"):
        revoke(pki, "north")
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"lacks the revoked serial .* write it again with"):
        show(pki)
    revoke(pki, "north")
    assert [row.state for row in show(pki)] == ["revoked"]


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_failure_while_issuing_leaves_no_certificate_that_nobody_knows(pki, monkeypatch, renames):
    stop_after_renames(monkeypatch, renames)
    with pytest.raises(DataError, match="power"):
        issue_party(pki, "north")
    monkeypatch.undo()
    assert not (pki / "party-north.pem").exists()
    assert not list(pki.glob("*.part"))
    assert len(show(pki)) == min(renames, 1)
    if renames == 2:  # the key is there: certify it
        path, key = issue_party(pki, "north", renew=True)
    else:
        if renames:
            revoke(pki, "north")
        path, key = issue_party(pki, "north")
    Credentials(path, key, pki / "ca.pem", pki / "revoked.pem").check()


def stop_after_renames(monkeypatch, count: int) -> None:
    real, done = os.replace, []

    def replace(source, target):
        if len(done) == count:
            raise OSError(5, "power", str(target))
        done.append(target)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)


def test_an_out_that_cannot_be_written_changes_nothing(pki, tmp_path):
    (tmp_path / "file").write_text("")
    before = contents(pki)
    with pytest.raises(DataError, match="choose another directory"):
        issue_party(pki, "north", out=tmp_path / "file" / "deeper")
    assert contents(pki) == before


def test_a_damaged_authority_is_refused_in_one_line(pki, tmp_path):
    for call in (show, lambda where: issue_party(where, "a"), lambda where: revoke(where, "a")):
        with pytest.raises(DataError, match="is not the directory of a certificate authority"):
            call(tmp_path / "nowhere")
    (pki / "ca.key").chmod(0o640)
    with pytest.raises(DataError, match=r"mode 0640.*chmod 600"):
        issue_party(pki, "north")
    (pki / "ca.key").chmod(0o600)
    init_authority(tmp_path / "other")
    (pki / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(DataError, match="does not belong to"):
        issue_party(pki, "north")
    (pki / "issued.json").write_text("{")
    with pytest.raises(DataError, match="restore it from a backup"):
        show(pki)


def test_writers_at_the_same_time_lose_nothing(pki):
    names = [f"site {number}" for number in range(8)]
    issue_party(pki, "gone")
    work = [threading.Thread(target=issue_party, args=(pki, name)) for name in names]
    work.append(threading.Thread(target=revoke, args=(pki, "gone")))
    for each in work:
        each.start()
    for each in work:
        each.join()
    rows = show(pki)
    assert sorted(row.name for row in rows) == sorted([*names, "gone"])
    assert [row.name for row in rows if row.revoked] == ["gone"]


def test_the_commands_say_what_is_secret_and_what_goes_where(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(certs_app, arguments)
        assert result.exit_code == 0, result.output
        return result.output

    assert "pki/ca.key: SECRET" in call("init")
    assert "no certificates yet" in call("list")
    assert "pki/server-localhost.key: SECRET" in call("server", "localhost", "127.0.0.1")
    assert "for-north/party-north.pem: give it to" in call("party", "north", "--out", "for-north")
    renewed = call("party", "north", "--out", "for-north", "--renew", "--days", "7")
    assert "SECRET" not in renewed
    assert "valid for 7 days" in renewed
    assert "copy pki/revoked.pem" in call("revoke", "north", "--reason", "laptop lost")
    lines = call("list").splitlines()
    columns = ["role", "name", "until", "state", "serial", "key", "holder", "note"]
    assert lines[0].split() == columns
    assert len(lines) == 4
    assert lines[-1].endswith("laptop lost")
    assert "127.0.0.1" in lines[1]
    read_key(tmp_path / "pki" / "ca.key")
    with pytest.raises(ConfigError, match="already holds"):
        CliRunner().invoke(certs_app, ["init"], catch_exceptions=False)
    assert certs.AUTHORITY == "ca.pem"


def test_organisation_and_country_are_in_the_certificate_and_kept_on_renewal(tmp_path):
    from cryptography.x509.oid import NameOID

    from tacit.live.transport.certificates import Holder, init_authority, issue_party, show
    from tacit.live.transport.tls import read_certificate

    init_authority(tmp_path / "pki")
    holder = Holder("North Hospital", "FI")
    issue_party(tmp_path / "pki", "north", holder=holder)
    certificate, _ = issue_party(tmp_path / "pki", "north", renew=True)
    subject = read_certificate(certificate).subject
    told = {attribute.oid: attribute.value for attribute in subject}
    assert told == {
        NameOID.COMMON_NAME: "north",
        NameOID.ORGANIZATION_NAME: "North Hospital",
        NameOID.COUNTRY_NAME: "FI",
    }
    assert [(row.organisation, row.country) for row in show(tmp_path / "pki")] == [holder] * 2
    for bad in (Holder("x" * 65), Holder("a\nb"), Holder("", "Finland"), Holder("", "fi")):
        with pytest.raises(ConfigError):
            issue_party(tmp_path / "pki", "south", holder=bad)

"""The downloader against a server of this process; the public addresses are never asked."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.data import DataConfig, PartitionConfig, load_federation
from tacit.data.readers.download import REGISTRY, PublicFile, cache_folder
from tacit.datasets import fetch
from tacit.datasets import list as sources
from tacit.errors import ConfigError, DataError

CONTENT = b"cont_africa;rugged;rgdppc_2000\n" + b"1;0.5;1000\n0;2;3000\n0;1;\n" * 3000


class Server:
    """One file under every path, and a count of the requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.body = CONTENT
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                self.send_response(404 if "absent" in self.path else 200)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))

    def file(self, name: str = "rugged_data.csv", path: str = "data") -> PublicFile:
        return PublicFile(
            name=name,
            url=f"http://127.0.0.1:{self.http.server_port}/{path}",
            sha256=hashlib.sha256(CONTENT).hexdigest(),
            size=len(CONTENT),
        )


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TACIT_DATA", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    running = Server()
    monkeypatch.setitem(REGISTRY, "rugged", (running.file(),))
    running.thread.start()
    yield running
    running.http.shutdown()
    running.thread.join()
    running.http.server_close()


def cached() -> list[str]:
    folder = cache_folder() / "rugged"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def is_present() -> bool:
    return next(info.present for info in sources() if info.name == "rugged")


def test_a_download_is_checked_cached_and_not_repeated(server: Server):
    seen: list[tuple[str, int, int]] = []
    assert not is_present()
    folder = fetch("rugged", progress=lambda *step: seen.append(step))
    assert (folder / "rugged_data.csv").read_bytes() == CONTENT
    assert cached() == ["rugged_data.csv"]
    assert is_present()
    assert seen[-1] == ("rugged_data.csv", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert fetch("rugged") == folder
    assert len(server.requests) == 1


def test_loading_a_source_never_downloads_it(server: Server):
    data = DataConfig(source="rugged", held_out=0)
    with pytest.raises(DataError, match="tacit data fetch rugged"):
        load_federation(data, PartitionConfig(parties=2), seed=0)
    assert server.requests == []


def test_a_fetched_source_loads(server: Server):
    fetch("rugged")
    data = DataConfig(source="rugged", held_out=0)
    federation = load_federation(data, PartitionConfig(parties=2), seed=0)
    assert sum(len(records["y"]) for records in federation.parties.values()) == 6000
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"tampered", CONTENT + b"more", CONTENT * 20])
def test_a_wrong_checksum_keeps_nothing(server: Server, body: bytes):
    server.body = body
    with pytest.raises(DataError, match=r"has SHA-256 .*, expected .*was deleted"):
        fetch("rugged")
    assert cached() == []


def test_a_server_error_is_one_line_with_a_way_out(server: Server, monkeypatch):
    monkeypatch.setitem(REGISTRY, "rugged", (server.file(path="absent"),))
    with pytest.raises(DataError, match=r"404.*\$TACIT_DATA/rugged/rugged_data\.csv") as caught:
        fetch("rugged")
    assert "\n" not in str(caught.value)
    assert cached() == []


def test_an_unreachable_server_is_one_line(server: Server, monkeypatch, tmp_path: Path):
    gone = PublicFile(
        name="rugged_data.csv", url=(tmp_path / "nowhere").as_uri(), sha256="0", size=1
    )
    monkeypatch.setitem(REGISTRY, "rugged", (gone,))
    with pytest.raises(DataError, match="could not download file://"):
        fetch("rugged")


def test_an_interrupted_fetch_goes_on_where_it_stopped(server: Server, monkeypatch):
    files = (server.file("a.csv"), server.file("b.csv", path="absent"))
    monkeypatch.setitem(REGISTRY, "rugged", files)
    with pytest.raises(DataError, match="absent"):
        fetch("rugged")
    monkeypatch.setitem(REGISTRY, "rugged", (files[0], server.file("b.csv", path="there")))
    fetch("rugged")
    assert server.requests == ["/data", "/absent", "/there"]
    assert cached() == ["a.csv", "b.csv"]


def test_tacit_data_comes_first(server: Server, monkeypatch, tmp_path: Path):
    fetch("rugged")
    given = tmp_path / "given" / "rugged"
    given.mkdir(parents=True)
    (given / "rugged_data.csv").write_bytes(CONTENT)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "given"))
    assert fetch("rugged") == given
    (given / "rugged_data.csv").write_bytes(b"changed")
    with pytest.raises(DataError, match=r"given/rugged/rugged_data\.csv has SHA-256"):
        fetch("rugged")


def test_an_unwritable_cache_is_named(server: Server, monkeypatch, tmp_path: Path):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(DataError, match="set XDG_CACHE_HOME to a writable folder"):
        fetch("rugged")


def test_there_is_nothing_to_fetch_for_generated_sources():
    with pytest.raises(ConfigError, match="no files to fetch; the sources with files are adult"):
        fetch("normal-mean")

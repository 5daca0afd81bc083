"""posteriordb: fetched from a server of this process, checked, summarised and read."""

import functools
import http.server
import io
import json
import threading
import zipfile

import numpy as np
import pytest

from tacit import datasets
from tacit.data.readers import posteriordb
from tacit.errors import ConfigError, DataError

DATA = {"N": 3, "y": [1, 2.5, 1e5]}
POSTERIOR = "toy-model_a"


def packed(content: object, name: str = "toy.json") -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as file:
        # Another spelling than ours, as the public files have.
        file.writestr(name, json.dumps(content, indent=2).replace("100000.0", "1e+05"))
    return body.getvalue()


def made_chains() -> list[dict[str, list[float]]]:
    rng = np.random.default_rng(0)
    return [
        {"beta[1]": rng.normal(3, 2, 50).tolist(), "sigma": rng.gamma(4, 1, 50).tolist()}
        for _ in range(4)
    ]


@pytest.fixture
def public(tmp_path, monkeypatch):
    """The public layout on a loopback server, and its address."""
    root = tmp_path / "posterior_database"
    (root / "data/data").mkdir(parents=True)
    (root / "data/data/toy.json.zip").write_bytes(packed(DATA))
    draws = root / "reference_posteriors/draws/draws"
    draws.mkdir(parents=True)
    (draws / f"{POSTERIOR}.json.zip").write_bytes(packed(made_chains(), "draws.json"))
    entry = posteriordb.summarise_draws(made_chains(), "test")
    monkeypatch.setattr(posteriordb, "DATA", {"toy": posteriordb._digest(DATA)})
    monkeypatch.setattr(posteriordb, "REFERENCES", {POSTERIOR: posteriordb.fingerprint(entry)})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TACIT_DATA", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setattr(posteriordb, "PUBLIC", f"http://127.0.0.1:{server.server_port}")
        yield root
        server.shutdown()
        thread.join()


def test_a_fetch_keeps_data_and_statistics(public):
    with pytest.raises(DataError, match="tacit data fetch posteriordb"):
        datasets.load_posterior_data("toy")
    seen = []
    folder = datasets.fetch("posteriordb", progress=lambda *step: seen.append(step))
    assert seen == [("toy.json", 1, 2), (f"draws of {POSTERIOR}", 2, 2)]
    data = datasets.load_posterior_data("toy")
    assert data["N"] == 3
    np.testing.assert_array_equal(data["y"], [1, 2.5, 1e5])
    found = datasets.load_reference(POSTERIOR)
    pooled = {key: np.concatenate([c[key] for c in made_chains()]) for key in made_chains()[0]}
    assert found.names == ("beta[1]", "sigma")
    assert found.draws == 200
    for at, draws in enumerate(pooled.values()):
        assert found.mean[at] == pytest.approx(np.mean(draws))
        assert found.sd[at] == pytest.approx(np.std(draws, ddof=1))
        assert found.quantiles[:, at] == pytest.approx(np.quantile(draws, [0.05, 0.5, 0.95]))
    assert found.correlation[0, 1] == pytest.approx(np.corrcoef(*pooled.values())[0, 1])
    info = next(one for one in datasets.list() if one.name == "posteriordb")
    assert info.present
    assert info.file_based
    for file in public.rglob("*.zip"):
        file.unlink()
    assert datasets.fetch("posteriordb") == folder, "what is here is not fetched again"


def test_other_numbers_are_refused(public):
    (public / "data/data/toy.json.zip").write_bytes(packed(DATA | {"N": 4}))
    with pytest.raises(DataError, match=r"SHA-256 digest .*was expected.* was not stored"):
        datasets.fetch("posteriordb")
    (public / "data/data/toy.json.zip").write_bytes(b"no zip")
    with pytest.raises(DataError, match="not a zip file"):
        datasets.fetch("posteriordb")
    (public / "data/data/toy.json.zip").unlink()
    with pytest.raises(DataError, match=r"404.*TACIT_DATA/posteriordb"):
        datasets.fetch("posteriordb")


@pytest.mark.parametrize("scale", [1.01, 0.5])
def test_other_draws_are_refused(public, scale):
    chains = made_chains()
    chains[0]["sigma"] = [scale * value + 1.0 for value in chains[0]["sigma"]]
    path = public / f"reference_posteriors/draws/draws/{POSTERIOR}.json.zip"
    path.write_bytes(packed(chains))
    with pytest.raises(DataError, match=r"Σ mean/sd.*expected"):
        datasets.fetch("posteriordb")
    path.write_bytes(packed([{"a": [1.0]}, {"b": [2.0]}]))
    with pytest.raises(DataError, match="not a list of chains"):
        datasets.fetch("posteriordb")


def test_changed_local_files_are_refused(public):
    folder = datasets.fetch("posteriordb")
    entry = json.loads((folder / "reference.json").read_text())
    entry[POSTERIOR]["sd"][0] *= 1.1
    (folder / "reference.json").write_text(json.dumps(entry))
    with pytest.raises(DataError, match="its draws are not those of commit"):
        datasets.load_reference(POSTERIOR)
    (folder / "data/toy.json").write_text(json.dumps(DATA | {"N": 4}))
    with pytest.raises(DataError, match="SHA-256"):
        datasets.load_posterior_data("toy")


def test_unknown_names_and_load_say_what_to_do():
    with pytest.raises(ConfigError, match="earnings"):
        datasets.load_posterior_data("nothing")
    with pytest.raises(ConfigError, match="sblri-blr"):
        datasets.load_reference("nothing")
    with pytest.raises(ConfigError, match="load_reference"):
        datasets.load("posteriordb")


def test_the_files_here_are_the_recorded_ones():
    if posteriordb.locate() is None:
        pytest.skip("posteriordb is not here: `tacit data fetch posteriordb`")
    for name in posteriordb.DATA:
        assert datasets.load_posterior_data(name)
    for name in datasets.list_posteriors():
        reference = datasets.load_reference(name)
        assert len(reference.names) == len(reference.mean) == len(reference.sd)
        assert reference.draws == 10_000

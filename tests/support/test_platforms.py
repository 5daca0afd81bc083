"""tacit without the modules that only Unix has, as on Windows."""

import os
import socket
import subprocess
import sys
import textwrap

import harness
import numpy as np
import pytest

BLOCK = """
    import sys, warnings

    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name in {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"}:
                raise ImportError(f"{name} is only on Unix")

    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Blocked())
    warnings.simplefilter("ignore")
"""


def without_unix(script, *argv, **options):
    code = textwrap.dedent(BLOCK) + textwrap.dedent(script)
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", code, *argv]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        **options,
    )  # fmt: skip


def test_every_module_imports():
    script = """
        import importlib, pkgutil
        import tacit, tacit_studies

        for package in (tacit, tacit_studies):
            for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                if not module.name.startswith("tacit.engines.ray"):  # Ray has its own platforms
                    importlib.import_module(module.name)
        print("all imported")
    """
    process = without_unix(script)
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert told.strip().endswith("all imported")


def test_a_live_federation(tmp_path, pki):
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    federation = harness.Federation.make(
        tmp_path, pki, serve={"keep_result_for": "2s", "listen": f"127.0.0.1:{port}"},
        join={"servers": [f"127.0.0.1:{port}"]},
    )  # fmt: skip
    script = """
        sys.argv = ["tacit", *sys.argv[1:]]
        from tacit.cli.main import entry
        entry()
    """
    server = without_unix(script, "serve", "server.toml", "--json", cwd=federation.base)
    parties = []
    try:
        for name in federation.parties:
            path = str(federation.base / name / "party.toml")
            approval = without_unix(script, "approve", path, "--yes")
            out, _ = approval.communicate(timeout=120)
            assert approval.returncode == 0, out
            parties.append(without_unix(script, "join", path))
        for process in parties:
            out, _ = process.communicate(timeout=180)
            assert process.returncode == 0, out
        out, _ = server.communicate(timeout=60)
        assert server.returncode == 0, out
    finally:
        for process in (server, *parties):
            if process.poll() is None:
                process.kill()
    exact = harness.exact_posterior(*(harness.RECORDS[name] for name in federation.parties))
    for name in federation.parties:
        with np.load(next((federation.base / name).rglob("posterior.npz"))) as found:
            mean = -0.5 * exact["linear"] / exact["quadratic"]
            assert found["mean"] == pytest.approx([mean], rel=1e-9)


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return harness.Pki.make(tmp_path_factory.mktemp("pki"), harness.PARTIES)

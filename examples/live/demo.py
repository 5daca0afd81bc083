"""A live federation on one machine: a server and four hospitals as processes, over TLS.

    python examples/live/demo.py            # exact updates, compared with one process, bit for bit;
                                            # then secure sums, of which the server sees the total
    python examples/live/demo.py --private  # noise, a ledger and a budget at every hospital

Every organisation has a directory of its own under runs/live, as if it were a machine of its own.
The hospitals are the four of the heart-disease data where those files are here, else made up.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

HERE = Path(__file__).parent
MARK = ".made-by-tacit-live-demo"
TACIT = [sys.executable, "-m", "tacit.cli.main"]
HEART = ("cleveland", "hungarian", "switzerland", "va")
COHORT = ("hospital-1", "hospital-2", "hospital-3", "hospital-4")
PRIVACY = "[privacy]\nepsilon = 2.0\ndelta = 1e-5\n"
DEADLINE_S = 240
BOX = set("┏┃┡│└┓┩┘━─┴┳╇")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/live"))
    parser.add_argument("--private", action="store_true", help="with noise, ledgers and budgets")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` is reached
    began = time.monotonic()
    out: Path = options.out.resolve()
    make_fresh(out)

    title("1. An authority, and a certificate for everybody")
    names = HEART if heart_is_here() else COHORT
    make_organisations(out, names, private=options.private)

    title("2. Every operator reads what is agreed and approves it")
    approve(out, names)
    if options.private:
        title("   … and allows what may be spent: a budget in the hospital's own ledger")
        set_budgets(out, names)

    title("3. A server and four parties, each a process, over TLS 1.3 on this machine")
    run_processes(out, names)
    print()
    tacit("status", out / "server" / "server.toml")

    title("4. What they have learnt")
    show_coefficients(out / "server")
    if options.private:
        print("\nThe noise came from the operating system, so no second run gives these numbers.")
        tacit("ledger", "show", "--ledger", out / names[0] / "ledger.sqlite", lines=6)
    else:
        title("5. The same federation in one process")
        compare(out)
        title("6. The same hospitals with privacy, and a server that sees only sums")
        secure_run(out / "secure", names)
    print(f"\n{time.monotonic() - began:.0f} s. Look around in {shown(out)}: a directory a party,")
    print("each with party.toml, state/log.jsonl, state/public/ (the posterior), state/private/.")


# Files -------------------------------------------------------------------------------------------


def secure_run(out: Path, names: tuple[str, ...]) -> None:
    """A private run of secure sums, and what its server has seen of single hospitals."""
    from tacit.live.server.sums import SLOT, KeptSlot, read_kept

    make_organisations(out, names, private=True, secure=True)
    approve(out, names, only="secure sums")
    set_budgets(out, names)
    run_processes(out, names)
    print()
    show_coefficients(out / "server")
    slot: KeptSlot = read_kept(out / "server" / "state" / SLOT, KeptSlot)
    print(f"\nWhat the server saw of the last of {slot.number + 1} rounds ({slot.length} numbers):")
    width = max(map(len, names))
    for name in slot.survivors:
        first = np.frombuffer(slot.masked[name], "<u8")[:3]
        print(f"{name:>{width}} | {' '.join(f'{int(word):016x}' for word in first)} …")
    print(
        "These words are uniform: each hospital's masks are unknown to it. Only their sum could be"
    )
    print("unmasked, and it carries the noise of the guarantee.")


def make_fresh(out: Path) -> None:
    if out.exists() and any(out.iterdir()):
        if not (out / MARK).exists():
            sys.exit(f"{out} is not empty and was not made by this script; choose another --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()


def heart_is_here() -> bool:
    from tacit.datasets import list as sources

    return any(source.name == "heart" and source.present for source in sources())


def make_organisations(
    out: Path, names: tuple[str, ...], *, private: bool, secure: bool = False
) -> None:
    authority = out / "authority"
    certificates = issue_again if secure else issue
    certificates(out, authority, names)
    port = free_port()
    agreed = federation(names, private=private)
    if secure:
        agreed = with_secure_sums(agreed, out, names)
    for place in ("server", *names):
        shutil.copy(authority / "ca.pem", out / place)
        (out / place / "federation.toml").write_text(agreed, encoding="utf-8")
    shutil.copy(authority / "revoked.pem", out / "server")
    server = (HERE / "server.toml").read_text(encoding="utf-8")
    server = server.replace("127.0.0.1:7443", f"127.0.0.1:{port}")
    (out / "server" / "server.toml").write_text(server, encoding="utf-8")
    for name in names:
        party = (HERE / "party.toml").read_text(encoding="utf-8")
        party = party.replace("localhost:7443", f"localhost:{port}").replace("hospital-1", name)
        party = party.replace('retry_for = "1h"', 'retry_for = "60s"')
        if private:
            party = party.replace("# ledger =", "ledger =")
        (out / name / "party.toml").write_text(party, encoding="utf-8")


def issue(out: Path, authority: Path, names: tuple[str, ...]) -> None:
    tacit("certs", "init", "--dir", authority, "--name", "live demo")
    tacit("certs", "server", "localhost", "127.0.0.1", "--dir", authority, "--out", out / "server")
    for number, name in enumerate(names):
        party = ("certs", "party", name, "--dir", authority, "--out", out / name)
        tacit(*party, lines=None if number == 0 else 1)


def issue_again(out: Path, authority: Path, names: tuple[str, ...]) -> None:
    """The certificates of the first run, in directories of their own."""
    shutil.copytree(out.parent / "authority", authority)
    for place in ("server", *names):
        (out / place).mkdir(parents=True)
        for file in (out.parent / place).glob("*-*.*"):
            if file.suffix in (".pem", ".key"):
                shutil.copy2(file, out / place)


def with_secure_sums(agreed: str, out: Path, names: tuple[str, ...]) -> str:
    """The agreed file with thresholds, and the fingerprint of every hospital's key."""
    files = [next((out / name).glob("party-*.pem")) for name in names]
    print(f"$ tacit certs fingerprint {' '.join(shown(file) for file in files[:1])} …")
    keys = quiet("certs", "fingerprint", *files)
    print(f"  {keys.splitlines()[0]}")
    secure = f'aggregation = "secure"\n\n[privacy.secure]\ncolluding = 1\n\n[keys]\n{keys}'
    agreed = agreed.replace("rounds = 20", "rounds = 12")  # what private scoring usually needs
    return agreed.replace(PRIVACY, f"{PRIVACY}{secure}", 1)


def federation(names: tuple[str, ...], *, private: bool) -> str:
    """examples/live/federation.toml, for the hospitals that are here and with privacy if asked."""
    text = (HERE / "federation.toml").read_text(encoding="utf-8")
    records = 2000
    if names == HEART:
        records = 900
        text = text.replace("readmission at four hospitals", "heart disease at four hospitals")
        text = text.replace('"synthetic-cohort"\nrecords = 2000', '"heart"')
        for made_up, real in zip(COHORT, HEART, strict=True):
            text = text.replace(f'"{made_up}"', f'"{real}"')
    if private:
        text = text.replace('privacy = "none"\n', f"records = {records}\n")
        text = text.replace("[data]", f"{PRIVACY}\n[data]", 1)
    return text


def approve(out: Path, names: tuple[str, ...], *, only: str = "") -> None:
    tacit("approve", out / names[0] / "party.toml", "--yes", only=only)
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(
            lambda name: quiet("approve", out / name / "party.toml", "--yes"), names[1:]
        )
        for name, text in zip(names[1:], done, strict=True):
            print(f"… {name} approves the same {last_with(text, 'digest: ')[:24]}…")


def set_budgets(out: Path, names: tuple[str, ...]) -> None:
    allowed = ("--epsilon", "2", "--delta", "1e-5", "--reason", "live demo")

    def allow(name: str) -> str:
        ledger = ("--ledger", out / name / "ledger.sqlite")
        return quiet("ledger", "budget", out / name / "party.toml", *allowed, *ledger)

    with ThreadPoolExecutor(2) as pool:
        for name, text in zip(names, pool.map(allow, names), strict=True):
            print(f"{name}: {last_with(text, 'budget of').rpartition(': ')[2]}")


# Processes ---------------------------------------------------------------------------------------


def run_processes(out: Path, names: tuple[str, ...]) -> None:
    """Start everybody, show what they say, wait for the end; whatever happens, leave nobody."""
    width = max(map(len, ("server", *names)))
    listening = threading.Event()
    started: dict[str, subprocess.Popen[str]] = {}
    readers = []

    def start(name: str, *command: object) -> None:
        process = subprocess.Popen(
            [*TACIT, *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
        started[name] = process
        reader = threading.Thread(target=follow, args=(name, process), daemon=True)
        reader.start()
        readers.append(reader)

    def follow(name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if name == "server" and "listening on" in line:
                listening.set()
            if worth_showing(line, name == names[0] or name == "server"):
                print(f"{name:>{width}} | {line.rstrip()}", flush=True)

    try:
        start("server", "serve", out / "server" / "server.toml")
        wait_for(listening, started["server"])
        for name in names:
            start(name, "join", out / name / "party.toml")
        wait_for_end(started)
        for reader in readers:
            reader.join(timeout=5)
    finally:
        end(started)


def worth_showing(line: str, whole: bool) -> bool:
    """Tables come at the end, once; every answer is shown of one party only."""
    if BOX.intersection(line) or "posterior with 95" in line:
        return False
    return whole or not any(words in line for words in (": answer ", "privacy: ", "NOT PRIVATE"))


def wait_for(event: threading.Event, process: subprocess.Popen[str]) -> None:
    while not event.wait(0.1):
        if process.poll() is not None:
            sys.exit("the server did not start; see its lines above")


def wait_for_end(started: dict[str, subprocess.Popen[str]]) -> None:
    latest = time.monotonic() + DEADLINE_S
    while any(process.poll() is None for process in started.values()):
        for name, process in started.items():
            if process.poll():
                sys.exit(f"{name} ended with exit code {process.returncode}; see its lines above")
        if time.monotonic() > latest:
            sys.exit(f"not finished after {DEADLINE_S} s; see the logs in state/log.jsonl")
        time.sleep(0.1)


def end(started: dict[str, subprocess.Popen[str]]) -> None:
    """The parties first, so that nobody waits for a server that is gone."""
    for process in reversed(started.values()):
        if process.poll() is None:
            process.terminate()
    for process in started.values():
        try:
            process.wait(timeout=8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


# The result --------------------------------------------------------------------------------------


def show_coefficients(server: Path) -> None:
    with np.load(server / "state" / "public" / "posterior.npz") as found:
        names, means, sds = found["names"], found["mean"], found["sd"]
    width = max(len(name) for name in names)
    print(f"{'':{width}}     mean     95 % interval")
    for name, mean, sd in zip(names, means, sds, strict=True):
        print(f"{name:{width}} {mean:8.3f}   {mean - 1.96 * sd:7.3f} … {mean + 1.96 * sd:6.3f}")


def compare(out: Path) -> None:
    """`tacit run` of what is agreed, each party answering alone as it does over the network."""
    from tacit.engines.settings import InProcessSettings
    from tacit.live.config import read_agreed
    from tacit.run.config import resolved_toml

    config = read_agreed(out / "server" / "federation.toml").federation.as_config()
    config = msgspec.structs.replace(config, engine=InProcessSettings(batch_parties=False))
    path = out / "one-process.toml"
    path.write_text(resolved_toml(config), encoding="utf-8")
    print(f"$ tacit run {shown(path)}")
    quiet("run", path, "--out", out / "one-process")
    with (
        np.load(out / "server" / "state" / "public" / "posterior.npz") as live,
        np.load(out / "one-process" / "public" / "posterior.npz") as one,
    ):
        different = [key for key in one.files if live[key].tobytes() != one[key].tobytes()]
        count = sum(one[key].size for key in one.files if key.startswith("natural/"))
    if different:
        sys.exit(f"the two posteriors differ in {', '.join(different)}: that is a bug")
    print(f"All {count} natural parameters are the same to the last bit.")


# Commands ----------------------------------------------------------------------------------------


def tacit(*arguments: object, lines: int | None = None, only: str = "") -> None:
    """A command as one would type it, and what it says; `only`: the lines with these words."""
    print("$ tacit " + " ".join(shown(argument) for argument in arguments))
    said = [line for line in quiet(*arguments).rstrip().splitlines() if only in line]
    for line in said[:lines]:
        print(f"  {line}")
    print(end="", flush=True)


def quiet(*arguments: object) -> str:
    done = subprocess.run(
        [*TACIT, *map(str, arguments)], capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode:
        command = " ".join(map(str, arguments))
        sys.exit(f"tacit {command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def last_with(text: str, words: str) -> str:
    return next((line for line in reversed(text.splitlines()) if words in line), "")


def shown(argument: object) -> str:
    text = str(argument)
    text = text.removeprefix(f"{Path.cwd()}/") if isinstance(argument, Path) else text
    return f'"{text}"' if re.search(r"\s", text) else text


def title(text: str) -> None:
    print(f"\n{text}\n", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nstopped; all processes have ended", file=sys.stderr)
        sys.exit(130)

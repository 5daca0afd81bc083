"""Servers and parties in processes that can be killed: one import for many of them.

Reads a JSON line a command and answers with one: {"what": "serve" | "join", "file"} forks and
answers with the process's id; {"what": "wait", "pid", "within_s"} with its exit code or null.
A party with "die_at" {"place", "visit", "leave"} kills itself at that place of that visit or the
first one after it.
"""

import asyncio
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from tacit.live.config import read_party, read_server
from tacit.live.join import join
from tacit.live.serve import serve
from tacit.party.charge import Charging
from tacit.party.compute import SinglePartyComputer
from tacit.server.messages import encode_reply


def work(command: dict[str, Any]) -> None:
    path = Path(command["file"])
    if command["what"] == "serve":
        asyncio.run(serve(read_server(path), standby=command.get("standby", False)))
    else:
        asyncio.run(join(read_party(path)))


def die_at(place: str, visit: int, leave: str) -> None:
    """Arrange to be killed: compiling, computing, or with an answer that is not stored yet.

    That answer is written to the file `leave` first, which no party would do.
    """

    def killed(request: Any) -> None:
        if request.visit >= visit:
            os.kill(os.getpid(), signal.SIGKILL)

    rehearse, compute, store = (
        SinglePartyComputer.rehearse,
        SinglePartyComputer.compute,
        Charging.store,
    )

    def rehearsed(self: SinglePartyComputer, requests: Any) -> None:
        if place == "compiling":
            for request in requests:
                killed(request)
        rehearse(self, requests)

    def computed(self: SinglePartyComputer, requests: Any, keys: Any) -> Any:
        if place == "computing":
            for request in requests:
                killed(request)
        return compute(self, requests, keys)

    def stored(self: Charging, requests: Any, replies: Any) -> Any:
        for request in requests:
            if place == "storing" and request.visit >= visit:
                Path(leave).write_bytes(encode_reply(replies[request.id]))
                killed(request)
        return store(self, requests, replies)

    SinglePartyComputer.rehearse, SinglePartyComputer.compute, Charging.store = (
        rehearsed,
        computed,
        stored,
    )  # pyright: ignore


def child(command: dict[str, Any]) -> int:
    """Fork; the exit code tells the kind of the error, the standard error what it was."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if command.get("namespace"):
            enter(command["namespace"])
        if command.get("die_at"):
            die_at(**command["die_at"])
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        work(command)
        code = 0
    except BaseException as error:
        code = getattr(error, "exit_code", 1)
        print(f"{command['what']} {command['file']}: {error!r}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def enter(namespace: str) -> None:
    """Into a network namespace that `ip netns` has made."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{namespace}").open() as file:
        if library.setns(file.fileno(), 0x40000000):  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), "setns")


def wait(pid: int, within_s: float) -> int | None:
    end = time.monotonic() + within_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.01)


def main() -> None:
    """One command after another."""
    warnings.filterwarnings("ignore", message=".*fork.*")
    for line in sys.stdin:
        command = json.loads(line)
        if command["what"] == "wait":
            answer = wait(command["pid"], command["within_s"])
        else:
            answer = child(command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

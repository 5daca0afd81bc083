"""Private runs in processes that can be killed: one import for many of them.

Reads a JSON line a command and answers with one. {"argv": [[…], …]} calls `tacit` once for each
list, all at the same time, and answers with the exit codes. {"run": config, "out", "ledger",
"resume", "kill_after", "since"} makes one run that is killed so many seconds after it began to
work ("start") or after the server has taken its first answers ("round").
"""

import json
import os
import select
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import tacit.cli.commands
import tacit.cli.main
import tacit.cli.show.results
from tacit.run.config import parse_config
from tacit.run.run import run


def child(work):
    """Fork; the child's exit code is what `work` returns."""
    pid = os.fork()
    if pid:
        return pid
    code: Any = 1
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        code = work()
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException as error:
        code = getattr(error, "exit_code", 1)
        print(repr(error), file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def code_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def call(argv):
    sys.argv = ["tacit", *argv]
    tacit.cli.main.main()


def killed(command):
    reading, writing = os.pipe()

    def work():
        def told(_state, _log):
            os.write(writing, b"!")

        def observe(_prepared):
            if command["since"] == "start":
                os.write(writing, b"!")
            return told

        run(
            parse_config(command["run"]), Path(command["out"]), resume=command["resume"],
            ledger=Path(command["ledger"]), observe=observe,
        )  # fmt: skip
        return 0

    pid = child(work)
    os.close(writing)
    select.select([reading], [], [], 120.0)  # the moment, or the end of the child
    os.close(reading)
    if command["kill_after"] is not None:
        time.sleep(command["kill_after"])
        os.kill(pid, signal.SIGKILL)
    return code_of(pid)


def main():
    """One command after another."""
    warnings.filterwarnings("ignore", message=".*fork.*")
    for line in sys.stdin:
        command = json.loads(line)
        if "argv" in command:
            pids = [child(lambda argv=argv: call(argv)) for argv in command["argv"]]
            answer = [code_of(pid) for pid in pids]
        else:
            answer = killed(command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

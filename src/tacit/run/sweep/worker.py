"""A worker of a sweep: `python -m tacit.run.sweep.worker FOLDER [LEDGER]`.

It reads one job per line, writes one row per line, and reuses compiled code. If the sweep ends, the
worker stops at once, and its run can later continue from the checkpoint.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading

import msgspec

from tacit.support.type_info import prepare


def main() -> None:
    """Read jobs and run them until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep handles Ctrl-C
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # library output goes to the log, not between the rows
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    from tacit.run.sweep.job import Job, carry_out_job

    folder, ledger = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    while True:
        job = msgspec.json.decode(jobs.get(), type=prepare(Job))
        answers.write(msgspec.json.encode(carry_out_job(job, folder, ledger)) + b"\n")
        answers.flush()


def _listen(jobs: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        jobs.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()

"""Files of a run directory, each written atomically.

    RUN/README.txt   says which part may be shared
    RUN/public/      config.toml, events.jsonl, posterior.npz, result.json, report.html
    RUN/private/     checkpoint/, evaluation.json, report.html (`tacit report --private`), the
                     ledger of a simulation; mode 0700
    RUN/.lock        while a process runs in the directory: the lock that excludes others

In a run with a guarantee everything in public/ is a function of the charged releases and of public
inputs (configuration, schema, seed); `tacit.results.published` selects it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import ConfigError, DataError
from tacit.support.locks import holder, is_locked, locked_for_now
from tacit.support.storage import write_text, writing

if TYPE_CHECKING:  # a directory is checked before anything heavy is imported
    from tacit.server.state import Log

CONFIG = "config.toml"
LOCK = ".lock"
COVERED = """\
public/   may be shared. It was made from the releases that were charged to the ledger and from
          public inputs: the configuration, the schema, the seed.
private/  must stay with those who may see the records: metrics on held-out records, counts,
          timings, the checkpoint. No privacy guarantee covers it.
"""
NOT_COVERED = """\
This run has no privacy guarantee: nothing in this directory is covered by one. public/ has the
result; private/ has the checkpoint, which is needed to resume the run, and all measurements.
"""


def public_part(out: Path) -> Path:
    """Return the shareable part of a run directory."""
    return out / "public"


def private_part(out: Path) -> Path:
    """Return the confidential part of a run directory."""
    return out / "private"


def checkpoint_path(out: Path) -> Path:
    """Return the path of the server's checkpoint."""
    return private_part(out) / "checkpoint" / "server.sqlite"


def is_run(out: Path) -> bool:
    """True if a run was started in this directory."""
    return checkpoint_path(out).parent.is_dir()


def check_out(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Raise an error unless a run can be started or resumed in `out` with these options.

    A directory is overwritten only if it is a run directory. No process may run in it.
    """
    if is_locked(out / LOCK):
        raise _in_use(out)
    _check_contents(out, resume=resume, overwrite=overwrite)


@contextlib.contextmanager
def reserved(out: Path, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Check the directory like `check_out`, and exclude other processes from it.

    The directory is created if needed. Directories that were created and are empty at the end are
    removed.
    """
    check_out(out, resume=resume, overwrite=overwrite)
    missing = [path for path in (out, *out.parents) if not path.exists()]
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, missing)
        make_directory(out)
        try:
            stack.enter_context(locked_for_now(out / LOCK))
        except BlockingIOError:
            raise _in_use(out) from None
        except OSError as error:
            raise ConfigError(
                f"--out {out} cannot be written ({error.strerror}); choose another directory"
            ) from None
        _check_contents(out, resume=resume, overwrite=overwrite)  # another run may have ended
        yield


def empty_directory(out: Path) -> None:
    """Remove everything in a run directory except its lock; the private part, which shows that it
    is a run directory, last.
    """
    for path in sorted(out.iterdir(), key=lambda path: path == private_part(out)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _remove_empty(paths: list[Path]) -> None:
    with contextlib.suppress(OSError):
        for path in paths:
            path.rmdir()


def _in_use(out: Path) -> ConfigError:
    pid = holder(out / LOCK)
    named = "" if pid is None else f" (process {pid})"
    return ConfigError(
        f"--out {out}: another process{named} is running in this directory; wait until it has "
        "ended, or choose another directory"
    )


def _check_contents(out: Path, *, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite contradict each other; leave one out")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; choose a directory")
    # A config.toml is not enough: other programs have one too.
    before_parts = (out / "checkpoint" / "server.sqlite").exists()
    ours = is_run(out) or before_parts
    if resume and before_parts and not is_run(out):
        raise DataError(
            f"{out} was written by version 0.1, before run directories had a public and a private "
            "part; resume it with that version, or start again with --overwrite"
        )
    if resume and not ours:
        raise DataError(
            f"{out} is not a run directory, so there is nothing to resume; leave --resume out"
        )
    if out.exists() and any(path.name != LOCK for path in out.iterdir()) and not resume:
        if not overwrite:
            raise ConfigError(
                f"--out {out} is not empty; use --resume to continue, --overwrite to start again, "
                "or another directory"
            )
        if not ours:
            raise ConfigError(
                f"--out {out} is not a run directory and is not overwritten; choose another "
                "directory"
            )


def make_directory(out: Path) -> None:
    """Create the run directory."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out {out} cannot be created ({error.strerror}); choose another directory"
        ) from None


def make_run_directory(out: Path, *, covered: bool) -> None:
    """Create both parts of a run directory; only its owner can read the private one."""
    private = private_part(out)
    private.mkdir(mode=0o700, exist_ok=True)
    private.chmod(0o700)
    checkpoint_path(out).parent.mkdir(exist_ok=True)
    public_part(out).mkdir(exist_ok=True)
    write_text(out / "README.txt", COVERED if covered else NOT_COVERED)


class Events:
    """Writer of events.jsonl, which is rebuilt from the checkpoint after a crash."""

    def __init__(self, path: Path, start: dict[str, Any], log: Log) -> None:
        self.path = path
        write_text(path, "".join(json.dumps(line) + "\n" for line in (start, *log)))

    def write(self, log: Log) -> None:
        """Append one event."""
        if log:
            with writing(self.path), self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in log)

"""The files of a run directory. Each is whole or absent, whatever happens while it is written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import ConfigError, DataError

if TYPE_CHECKING:  # a directory is checked before anything heavy is imported
    from tacit.posterior import Posterior
    from tacit.server.state import Log


def check_out(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a directory that is somebody's work."""
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite contradict each other; leave one out")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; choose a directory")
    # The first file that a run makes; a config.toml alone may be anybody's.
    ours = (out / "checkpoint" / "server.sqlite").exists()
    if resume and not ours:
        raise DataError(f"{out} is not a run directory; nothing to resume: leave --resume out")
    if out.exists() and any(out.iterdir()) and not resume:
        if not overwrite:
            raise ConfigError(
                f"--out {out} is not empty; use --resume to go on, --overwrite to start anew, or "
                "another directory"
            )
        if not ours:
            raise ConfigError(f"--out {out} is not a run directory; it will not be overwritten")


def make_directory(out: Path) -> None:
    """Make the run directory, or say why not."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out {out} cannot be made ({error.strerror}); choose another"
        ) from None


class Events:
    """events.jsonl: after a crash rewritten from the checkpoint, then appended to."""

    def __init__(self, path: Path, start: dict[str, Any], log: Log) -> None:
        self.path = path
        write_text(path, "".join(json.dumps(line) + "\n" for line in (start, *log)))

    def write(self, log: Log) -> None:
        """Append."""
        if log:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in log)


def write_text(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)  # noqa: PTH105 - atomic on every platform


def write_posterior(path: Path, posterior: Posterior) -> None:
    """Names, means, sds and natural parameters as a NumPy archive."""
    import numpy as np

    part = path.with_name("posterior.part.npz")
    arrays = {f"natural/{key}": value for key, value in posterior.natural.items()}
    np.savez(
        part,
        **{key: np.array(values) for key, values in posterior.table().items()},
        **arrays,  # pyright: ignore[reportArgumentType]
    )
    os.replace(part, path)  # noqa: PTH105 - atomic on every platform

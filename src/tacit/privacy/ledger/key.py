"""The party's secret key, stored next to the ledger.

The key authenticates every entry, and without it a fingerprint reveals nothing about the records.
The key never leaves the state directory and is never overwritten, because the ledger cannot be read
with another key.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tacit.errors import DataError
from tacit.privacy.ledger.fingerprint import KEY_BYTES, check_key

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def load_key(path: Path) -> bytes:
    """Read the key; raise an error if it is missing, damaged or readable by other users."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            key = file.read(KEY_BYTES + 1)
    except FileNotFoundError as error:
        raise DataError(
            f"{path} is missing; the ledger cannot be checked without its key: restore it from a"
            " copy"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); fix its permissions") from error
    if os.name == "posix" and mode & _OTHERS:
        raise DataError(
            f"{path} has mode {mode:04o}; other users can read the key: chmod 600 {path}"
        )
    check_key(key)
    return key

"""Membership of a live run, stored on disk."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import msgspec

from tacit.errors import DataError
from tacit.live.protocol.messages import Promise
from tacit.support.storage import sealed, unsealed, write_durably, writing
from tacit.support.type_info import prepare


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A party that has joined: its key, and what it announced about itself."""

    key: str
    serial: str
    """Serial of the party's certificate, in hexadecimal because it has more than 64 bits."""
    data_size: int = 0
    protocol: int = 0
    guarantee: Promise | None = None
    heartbeat: bool | None = None
    """True if the party replies to heartbeats; None if the party does not support heartbeats."""
    delivered: bool = False
    """True if the party has received the result."""
    listening: bool = False
    """True if the party answers no further request and waits for the result."""


class Roster(msgspec.Struct, frozen=True, kw_only=True):
    """Permanent id of the run, and its members."""

    run: str
    digest: str
    members: dict[str, Member] = {}
    approvals: dict[str, str] = {}
    """Digest of the proposed version of the agreed file, for each party that has approved it."""
    returned: dict[str, Any] = {}
    """Factors that parties returned before the start (`pack_natural`), by party."""

    def having(self, **changes: Any) -> Roster:
        """Return a copy with these changes."""
        return msgspec.structs.replace(self, **changes)


def load_roster(path: Path, digest: str) -> Roster:
    """Load the roster of a state directory, or create one. A roster that belongs to another
    configuration is refused.
    """
    if not path.exists():
        roster = Roster(run=f"run-{secrets.token_hex(12)}", digest=digest)
        save_roster(path, roster)
        return roster
    roster = _read_roster(path)
    if roster.digest != digest:
        raise DataError(
            f"{path} belongs to another configuration (digest {roster.digest[:12]}…, now "
            f"{digest[:12]}…); serve that configuration, or choose another state directory"
        )
    return roster


def roster_digest(path: Path) -> str | None:
    """Return the digest of the configuration that a roster belongs to; None if there is no
    roster.
    """
    return _read_roster(path).digest if path.exists() else None


def _read_roster(path: Path) -> Roster:
    try:
        return msgspec.msgpack.decode(unsealed(path.read_bytes()), type=prepare(Roster))
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise DataError(
            f"{path} cannot be read ({' '.join(str(error).split())}); restore it from a copy or "
            "start again with another state directory"
        ) from None


def save_roster(path: Path, roster: Roster) -> None:
    """Write the roster atomically and durably."""
    with writing(path):
        write_durably(path, sealed(msgspec.msgpack.encode(roster)))

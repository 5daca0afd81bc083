"""Who takes part in a live run: kept on disk, so that a restarted server knows its parties."""

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
    """A party that has joined: what it announced and the key that it is known by."""

    key: str
    serial: str
    """Of its certificate, as hexadecimal digits: it has more than 64 bits."""
    data_size: int = 0
    protocol: int = 0
    guarantee: Promise | None = None
    heartbeat: bool | None = None
    """Whether it answers heartbeats; None: it does not know them."""
    delivered: bool = False
    """Whether it has been given the result."""
    listening: bool = False
    """Whether it answers no further request and waits for the result."""


class Roster(msgspec.Struct, frozen=True, kw_only=True):
    """The run's name, for ever, and its members."""

    run: str
    digest: str
    members: dict[str, Member] = {}
    returned: dict[str, Any] = {}
    """Factors that parties gave back before the start, as `pack_natural` makes them."""

    def having(self, **changes: Any) -> Roster:
        """A changed copy."""
        return msgspec.structs.replace(self, **changes)


def load_roster(path: Path, digest: str) -> Roster:
    """The roster in a state directory, or a new one; another configuration's is refused."""
    if not path.exists():
        roster = Roster(run=f"run-{secrets.token_hex(12)}", digest=digest)
        save_roster(path, roster)
        return roster
    try:
        roster = msgspec.msgpack.decode(unsealed(path.read_bytes()), type=prepare(Roster))
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise DataError(
            f"{path} cannot be read ({' '.join(str(error).split())}); restore it from a copy or "
            "start anew with another state directory"
        ) from None
    if roster.digest != digest:
        raise DataError(
            f"{path} belongs to another configuration (digest {roster.digest[:12]}…, now "
            f"{digest[:12]}…); serve that one, or choose another state directory"
        )
    return roster


def save_roster(path: Path, roster: Roster) -> None:
    """Whole or not at all, and on the disk when this returns."""
    with writing(path):
        write_durably(path, sealed(msgspec.msgpack.encode(roster)))

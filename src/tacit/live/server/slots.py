"""Limits on the number of connections, such that no peer can occupy all of them.

Until its certificate is checked, a connection uses one of `MAX_HANDSHAKES` slots. If none is free,
an older handshake is closed, so that silent peers never block a party. After the check, a
connection uses one of `serve.most_connections` slots, and one peer has at most `MAX_PER_PARTY`
connections. A party of the run is always accepted: if all slots are in use, a connection that is
not needed is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from tacit.live.server.connection import Connection

MAX_HANDSHAKES = 128
"""Largest number of simultaneous TLS handshakes; each may hold about 300 kB."""
MAX_PER_PARTY = 3
"""Largest number of connections per party: one in use, one being replaced, and one joining."""


class HandshakeSlots:
    """Connections in the TLS handshake, oldest first."""

    def __init__(self, most: int = MAX_HANDSHAKES) -> None:
        self._most = most
        self._tasks: dict[asyncio.Task[Any], bool] = {}  # True: TLS has started

    def __len__(self) -> int:
        return len(self._tasks)

    def enter(self, task: asyncio.Task[Any]) -> bool:
        """Add a handshake; return True if another handshake was closed to make room.

        Handshakes of peers that have sent nothing are closed first.
        """
        full = len(self._tasks) >= self._most
        if full:
            silent = (one for one, speaks in self._tasks.items() if not speaks)
            victim = next(silent, next(iter(self._tasks)))
            del self._tasks[victim]
            victim.cancel()
        self._tasks[task] = False
        return full

    def speaks(self, task: asyncio.Task[Any] | None) -> None:
        """Record that the peer has started a TLS handshake."""
        if task in self._tasks:
            self._tasks[task] = True

    def leave(self, task: asyncio.Task[Any]) -> None:
        """Remove a finished or failed handshake."""
        self._tasks.pop(task, None)


class ConnectionSlots:
    """The connections of peers with a certificate, oldest first."""

    def __init__(self, most: int, parties: Collection[str]) -> None:
        self._most, self._parties = most, frozenset(parties)
        self._open: list[Connection] = []

    def __len__(self) -> int:
        return len(self._open)

    def list_parties(self, parties: Collection[str]) -> None:
        """Reserve one slot for each of these parties."""
        self._parties = frozenset(parties)
        self._most = max(self._most, len(self._parties))

    def enter(self, connection: Connection) -> tuple[bool, Connection | None]:
        """Add a connection; return whether it was accepted, and a connection that was closed to
        make room.

        The second value is None if no connection was closed.
        """
        name = connection.peer.name
        same = [one for one in self._open if one.peer.name == name]
        victim = None
        if len(same) >= MAX_PER_PARTY:
            victim = min(same, key=_worth)
        elif len(self._open) >= self._most:
            if not same and name not in self._parties:
                return False, None
            victim = min(same or self._dispensable(), key=_worth, default=None)
            if victim is None:
                return False, None
        if victim is not None:
            self.leave(victim)
            victim.abort()
        self._open.append(connection)
        return True, victim

    def leave(self, connection: Connection) -> None:
        """Remove a closed connection."""
        if connection in self._open:
            self._open.remove(connection)

    def _dispensable(self) -> list[Connection]:
        """Return the connections that may be closed: all but the most useful one of each listed
        party.
        """
        needed: dict[str, Connection] = {}
        for one in self._open:
            name = one.peer.name
            if name in self._parties and (name not in needed or _worth(one) > _worth(needed[name])):
                needed[name] = one
        return [one for one in self._open if one is not needed.get(one.peer.name)]


def _worth(connection: Connection) -> int:
    # Connections with the smallest number are closed first.
    if connection.replaced:
        return 0
    return 1 if connection.member is None else 2

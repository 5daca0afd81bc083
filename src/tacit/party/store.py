"""Stores for replies and for what methods remember, in a party's file or in the run's process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tacit.arrays import Arrays, Natural
from tacit.errors import DataError
from tacit.pvi import multiply
from tacit.server.checkpoint import Checkpoint
from tacit.server.messages import (
    Reply,
    Request,
    decode_reply,
    encode_reply,
    pack_natural,
    unpack_natural,
)
from tacit.support.storage import sealed, unsealed, write_durably, writing
from tacit.support.type_info import prepare


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """When and why a party stopped answering."""

    round: int
    visit: int
    reason: str


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    run: str | None = None
    request: str | None = None
    reply: bytes = b""
    factor: Any = None
    visits: int = 0
    result: Any = None
    result_public: Any = None
    memory: Any = None
    memory_visit: int | None = None
    earlier_memory: Any = None
    stopped: Stopped | None = None


class PartyStore:
    """A party's store in one file, written atomically. A repeated request gets the same bytes."""

    def __init__(self, path: Path, digest: str) -> None:
        """Open the file; the state of another configuration is renamed and not used."""
        self._path = path
        self._kept = _Kept(digest=digest)
        kept = _read(path)
        if kept is not None and kept.digest == digest:
            self._kept = kept

    @staticmethod
    def unfinished(path: Path) -> str | None:
        """Return the digest of the configuration of the run in this file, if it has no result
        yet.
        """
        kept = _read(path)
        return None if kept is None or kept.run is None or kept.result is not None else kept.digest

    @staticmethod
    def digest_in(path: Path) -> str | None:
        """Return the digest of the configuration to which the file belongs; None if there is no
        file.
        """
        kept = _read(path)
        return None if kept is None else kept.digest

    def adopt(self, digest: str) -> None:
        """Continue the same run under a new version of its configuration."""
        self._write(msgspec.structs.replace(self._kept, digest=digest))

    @property
    def run(self) -> str | None:
        """Id of the run that this party has joined."""
        return self._kept.run

    @property
    def factor(self) -> Natural | None:
        """The party's factor after its last answer."""
        return None if self._kept.factor is None else unpack_natural(self._kept.factor)

    @property
    def visits(self) -> int:
        """Number of different requests that were answered."""
        return self._kept.visits

    @property
    def result(self) -> Natural | None:
        """The final posterior, once received."""
        return None if self._kept.result is None else unpack_natural(self._kept.result)

    @property
    def stopped(self) -> Stopped | None:
        """When this party stopped answering; None while it answers."""
        return self._kept.stopped

    def stop(self, stopped: Stopped | None) -> None:
        """Record that the party stopped answering, or that it answers again (None)."""
        if stopped != self._kept.stopped:
            self._write(msgspec.structs.replace(self._kept, stopped=stopped))

    def memory_at(self, party: str, visit: int) -> Natural | None:
        """Return what the method had stored at the party before this visit (its memory).

        A reply that was lost after its memory was stored is recomputed from the earlier memory.
        """
        del party  # the file has one party
        kept = self._kept
        memory = kept.earlier_memory if visit == kept.memory_visit else kept.memory
        return None if memory is None else unpack_natural(memory)

    def keep_memories(self, memories: Mapping[str, tuple[int, Natural]]) -> None:
        """Store the method's memory after a visit, before the reply is sent."""
        for party, (visit, memory) in memories.items():
            earlier = self.memory_at(party, visit)
            self._write(
                msgspec.structs.replace(
                    self._kept,
                    memory=pack_natural(memory),
                    memory_visit=visit,
                    earlier_memory=None if earlier is None else pack_natural(earlier),
                )
            )

    def joined(self, run: str) -> None:
        """Record the run; a new run resets the store."""
        if run != self._kept.run:
            self._write(_Kept(digest=self._kept.digest, run=run))

    def recall(self, request: Request) -> Reply | None:
        """Return the reply to this request, if it was the last one."""
        return decode_reply(self._kept.reply) if self._kept.request == request.id else None

    def keep_reply(self, request: Request, reply: Reply) -> None:
        """Store a reply and the resulting factor, before the reply is sent."""
        if self._kept.request == request.id:
            return
        factor = request.factor
        if any(value.dtype == np.int64 for value in reply.released.values()):
            factor = None  # only the server reads integers of a private release
        self._write(
            msgspec.structs.replace(
                self._kept,
                request=request.id,
                reply=encode_reply(reply),
                factor=factor and pack_natural(multiply(factor, reply.released)),
                visits=self._kept.visits + 1,
            )
        )

    @property
    def result_public(self) -> Arrays:
        """Public arrays of the final posterior."""
        return unpack_natural(self._kept.result_public or {})

    def finish(self, result: Natural, public: Arrays) -> None:
        """Store the result."""
        self._write(
            msgspec.structs.replace(
                self._kept, result=pack_natural(result), result_public=pack_natural(public)
            )
        )

    def _write(self, kept: _Kept) -> None:
        with writing(self._path):
            write_durably(self._path, sealed(msgspec.msgpack.encode(kept)))
        self._kept = kept


def _read(path: Path) -> _Kept | None:
    if not path.exists():
        return None
    try:
        return msgspec.msgpack.decode(unsealed(path.read_bytes()), type=prepare(_Kept))
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise DataError(
            f"{path} cannot be read ({' '.join(str(error).split())}); restore it from a copy. "
            "If the method keeps no memory at the party, you can delete the file and rejoin: "
            "the server has this party's factor"
        ) from None


class PartyState(NamedTuple):
    """State of one party of this process: its last reply, and the method's memory at the party.

    `memory` was made by visit `visit`; `earlier` is the memory before it. A lost reply is
    recomputed from `earlier`.
    """

    last: Reply | None = None
    memory: Natural | None = None
    visit: int | None = None
    earlier: Natural | None = None


class ProcessStore:
    """Store of the parties of one process, in memory; what methods remember is also in the
    checkpoint.

    Replies are stored by the checkpoint of the server, which runs in the same process.
    """

    def __init__(self) -> None:
        self.states: dict[str, PartyState] = {}
        self._checkpoint: Checkpoint | None = None

    def use(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint, and store memories there."""
        self._checkpoint = checkpoint
        self.states |= {name: PartyState(None, *one) for name, one in checkpoint.kept().items()}

    def recall(self, request: Request) -> Reply | None:
        """Return the reply to this request, if it was the party's last one."""
        last = self.states.get(request.party, PartyState()).last
        return last if last is not None and last.id == request.id else None

    def memory_at(self, party: str, visit: int) -> Natural | None:
        """Return what the method had stored at the party before this visit (its memory)."""
        state = self.states.get(party, PartyState())
        return state.earlier if visit == state.visit else state.memory

    def keep_memories(self, memories: Mapping[str, tuple[int, Natural]]) -> None:
        """Store the method's memories after these visits."""
        kept = {}
        for party, (visit, memory) in memories.items():
            earlier = self.memory_at(party, visit)
            state = self.states.get(party, PartyState())
            self.states[party] = state._replace(memory=memory, visit=visit, earlier=earlier)
            kept[party] = (memory, visit, earlier)
        if self._checkpoint is not None:
            self._checkpoint.keep(kept)

    def keep_reply(self, request: Request, reply: Reply) -> None:
        """Store a party's last reply."""
        state = self.states.get(request.party, PartyState())
        self.states[request.party] = state._replace(last=reply)

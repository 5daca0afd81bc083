"""Stores for replies and method memories: in a file of the party, or in the memory of the
process.
"""

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
    """Round and visit at which a party stopped answering, and the reason."""

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
    verdict: Any = None
    memory: Any = None
    memory_visit: int | None = None
    earlier_memory: Any = None
    stopped: Stopped | None = None


class PartyStore:
    """Stores the state of one party in one file, which is written atomically.

    A repeated request gets the stored reply.
    """

    def __init__(self, path: Path, digest: str) -> None:
        """Open the file.

        If the stored digest differs from `digest`, the file belongs to another configuration. Its
        state is then ignored, and replaced at the next write.
        """
        self._path = path
        self._kept = _Kept(digest=digest)
        kept = _read(path)
        if kept is not None and kept.digest == digest:
            self._kept = kept

    @staticmethod
    def unfinished(path: Path) -> str | None:
        """Return the configuration digest of the unfinished run in this file.

        The result is None if there is no run, or if the run has a result.
        """
        kept = _read(path)
        return None if kept is None or kept.run is None or kept.result is not None else kept.digest

    @staticmethod
    def digest_in(path: Path) -> str | None:
        """Return the configuration digest that is stored in this file; None if there is no file."""
        kept = _read(path)
        return None if kept is None else kept.digest

    def adopt(self, digest: str) -> None:
        """Continue the run under a changed configuration with this digest."""
        self._write(msgspec.structs.replace(self._kept, digest=digest))

    @property
    def run(self) -> str | None:
        """Id of the run that this party has joined; None before it joins."""
        return self._kept.run

    @property
    def factor(self) -> Natural | None:
        """The party's factor after its last reply; None if no factor is stored."""
        return None if self._kept.factor is None else unpack_natural(self._kept.factor)

    @property
    def visits(self) -> int:
        """Number of different requests that the party has answered."""
        return self._kept.visits

    @property
    def result(self) -> Natural | None:
        """Natural parameters of the final posterior; None before the party has received it."""
        return None if self._kept.result is None else unpack_natural(self._kept.result)

    @property
    def stopped(self) -> Stopped | None:
        """When and why this party stopped answering; None while it answers."""
        return self._kept.stopped

    def stop(self, stopped: Stopped | None) -> None:
        """Record that the party stopped answering, or that it answers again (None)."""
        if stopped != self._kept.stopped:
            self._write(msgspec.structs.replace(self._kept, stopped=stopped))

    def memory_at(self, party: str, visit: int) -> Natural | None:
        """Return the method memory as it was before this visit.

        If a reply was lost and its visit is answered again, this is still the memory before the
        first answer.
        """
        del party  # the file has one party
        kept = self._kept
        memory = kept.earlier_memory if visit == kept.memory_visit else kept.memory
        return None if memory is None else unpack_natural(memory)

    def keep_memories(self, memories: Mapping[str, tuple[int, Natural]]) -> None:
        """Store the method memory after a visit. This is called before the reply is sent."""
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
        """Store the id of the run. If another id was stored, all other state is deleted."""
        if run != self._kept.run:
            self._write(_Kept(digest=self._kept.digest, run=run))

    def recall(self, request: Request) -> Reply | None:
        """Return the stored reply if it answers this request; otherwise None.

        Only the last reply is stored.
        """
        return decode_reply(self._kept.reply) if self._kept.request == request.id else None

    def keep_reply(self, request: Request, reply: Reply) -> None:
        """Store a reply and the party's factor after it. This is called before the reply is
        sent.
        """
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
        """Public arrays that belong to the final posterior; empty before the party has
        received it.
        """
        return unpack_natural(self._kept.result_public or {})

    @property
    def verdict(self) -> dict[str, Any] | None:
        """The server's assessment of the final posterior, as JSON types; None if the server sent no
        assessment.
        """
        return self._kept.verdict

    def finish(
        self, result: Natural, public: Arrays, verdict: Mapping[str, Any] | None = None
    ) -> None:
        """Store the natural parameters and public arrays of the final posterior, and the server's
        assessment of it.
        """
        self._write(
            msgspec.structs.replace(
                self._kept,
                result=pack_natural(result),
                result_public=pack_natural(public),
                verdict=None if verdict is None else dict(verdict),
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
            "If the method stores no memory at the party, you can delete the file and join again, "
            "because the server has this party's factor"
        ) from None


class PartyState(NamedTuple):
    """The last reply of a party, and the memory of its method.

    `memory` is the method's memory after visit number `visit`. `earlier` is the memory before that
    visit, from which a lost reply is computed again.
    """

    last: Reply | None = None
    memory: Natural | None = None
    visit: int | None = None
    earlier: Natural | None = None


class ProcessStore:
    """Stores the state of all parties of this process in memory.

    Method memories are also written to the checkpoint. Replies are not, because the checkpoint of
    the server, in the same process, contains them.
    """

    def __init__(self) -> None:
        self.states: dict[str, PartyState] = {}
        self._checkpoint: Checkpoint | None = None

    def use(self, checkpoint: Checkpoint) -> None:
        """Read method memories from a checkpoint, and write later memories to the same
        checkpoint.
        """
        self._checkpoint = checkpoint
        self.states |= {name: PartyState(None, *one) for name, one in checkpoint.kept().items()}

    def recall(self, request: Request) -> Reply | None:
        """Return the party's last reply if it answers this request; otherwise None."""
        last = self.states.get(request.party, PartyState()).last
        return last if last is not None and last.id == request.id else None

    def memory_at(self, party: str, visit: int) -> Natural | None:
        """Return the method memory of a party as it was before this visit."""
        state = self.states.get(party, PartyState())
        return state.earlier if visit == state.visit else state.memory

    def keep_memories(self, memories: Mapping[str, tuple[int, Natural]]) -> None:
        """Store, for each party, the number of a visit and the method memory after this visit."""
        kept = {}
        for party, (visit, memory) in memories.items():
            earlier = self.memory_at(party, visit)
            state = self.states.get(party, PartyState())
            self.states[party] = state._replace(memory=memory, visit=visit, earlier=earlier)
            kept[party] = (memory, visit, earlier)
        if self._checkpoint is not None:
            self._checkpoint.keep(kept)

    def keep_reply(self, request: Request, reply: Reply) -> None:
        """Store a reply as the last reply of its party."""
        state = self.states.get(request.party, PartyState())
        self.states[request.party] = state._replace(last=reply)

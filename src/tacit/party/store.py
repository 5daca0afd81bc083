"""What parties keep between requests: in a file of their own, or in the process of the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

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
    """From where on a party has not contributed, and why."""

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
    """One file, whole or absent. Asked the same again, a party sends the same bytes."""

    def __init__(self, path: Path, digest: str) -> None:
        """Open; what belongs to another configuration is put aside."""
        self._path = path
        self._kept = _Kept(digest=digest)
        if not path.exists():
            return
        try:
            kept = msgspec.msgpack.decode(unsealed(path.read_bytes()), type=prepare(_Kept))
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            raise DataError(
                f"{path} cannot be read ({' '.join(str(error).split())}); restore it from a copy, "
                "or, unless the method keeps something at the party, delete it to rejoin: the "
                "server has this party's factor"
            ) from None
        if kept.digest == digest:
            self._kept = kept

    @property
    def run(self) -> str | None:
        """The run that this party has joined."""
        return self._kept.run

    @property
    def factor(self) -> Natural | None:
        """The party's factor after its last answer."""
        return None if self._kept.factor is None else unpack_natural(self._kept.factor)

    @property
    def visits(self) -> int:
        """How many different requests were answered."""
        return self._kept.visits

    @property
    def result(self) -> Natural | None:
        """The final posterior, once it was heard."""
        return None if self._kept.result is None else unpack_natural(self._kept.result)

    @property
    def stopped(self) -> Stopped | None:
        """From where on this party answers nothing; None while it does."""
        return self._kept.stopped

    def stop(self, stopped: Stopped | None) -> None:
        """Keep that no further request is answered, or that they are answered again."""
        if stopped != self._kept.stopped:
            self._write(msgspec.structs.replace(self._kept, stopped=stopped))

    def memory_at(self, party: str, visit: int) -> Natural | None:
        """What the party's method had kept to itself before that visit.

        An answer that was lost after its memory was kept is made again from where it started.
        """
        del party  # there is only one
        kept = self._kept
        memory = kept.earlier_memory if visit == kept.memory_visit else kept.memory
        return None if memory is None else unpack_natural(memory)

    def keep_memories(self, memories: Mapping[str, tuple[int, Natural]]) -> None:
        """Keep what belongs to the answer to that visit, before the answer is sent."""
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
        """Remember the run; another one starts from nothing."""
        if run != self._kept.run:
            self._write(_Kept(digest=self._kept.digest, run=run))

    def recall(self, request: Request) -> Reply | None:
        """The answer to that request, if it was the last one."""
        return decode_reply(self._kept.reply) if self._kept.request == request.id else None

    def keep_reply(self, request: Request, reply: Reply) -> None:
        """Keep an answer before it is sent, and the factor that it leads to."""
        if self._kept.request == request.id:
            return
        factor = request.factor
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
        """The arrays that were published with it."""
        return unpack_natural(self._kept.result_public or {})

    def finish(self, result: Natural, public: Arrays) -> None:
        """Keep the result."""
        self._write(
            msgspec.structs.replace(
                self._kept, result=pack_natural(result), result_public=pack_natural(public)
            )
        )

    def _write(self, kept: _Kept) -> None:
        with writing(self._path):
            write_durably(self._path, sealed(msgspec.msgpack.encode(kept)))
        self._kept = kept


class PartyState(NamedTuple):
    """What a party of this process keeps: its last reply, and what its method kept.

    `earlier` is what it had kept before visit `visit`, which made `memory`: an answer that is made
    again, since it was lost before it was stored, starts where the first one did.
    """

    last: Reply | None = None
    memory: Natural | None = None
    visit: int | None = None
    earlier: Natural | None = None


class ProcessStore:
    """What the parties of one process keep: in memory, and memories in the run's checkpoint too.

    Replies are kept by the checkpoint of the server, which runs in the same process.
    """

    def __init__(self) -> None:
        self.states: dict[str, PartyState] = {}
        self._checkpoint: Checkpoint | None = None

    def use(self, checkpoint: Checkpoint) -> None:
        """Go on from what a checkpoint holds, and keep memories there."""
        self._checkpoint = checkpoint
        self.states |= {name: PartyState(None, *one) for name, one in checkpoint.kept().items()}

    def recall(self, request: Request) -> Reply | None:
        """The reply to that request, if it was the party's last one."""
        last = self.states.get(request.party, PartyState()).last
        return last if last is not None and last.id == request.id else None

    def memory_at(self, party: str, visit: int) -> Natural | None:
        """What the party's method kept before that visit."""
        state = self.states.get(party, PartyState())
        return state.earlier if visit == state.visit else state.memory

    def keep_memories(self, memories: Mapping[str, tuple[int, Natural]]) -> None:
        """Keep what belongs to these visits."""
        kept = {}
        for party, (visit, memory) in memories.items():
            earlier = self.memory_at(party, visit)
            state = self.states.get(party, PartyState())
            self.states[party] = state._replace(memory=memory, visit=visit, earlier=earlier)
            kept[party] = (memory, visit, earlier)
        if self._checkpoint is not None:
            self._checkpoint.keep(kept)

    def keep_reply(self, request: Request, reply: Reply) -> None:
        """Keep a party's last reply."""
        state = self.states.get(request.party, PartyState())
        self.states[request.party] = state._replace(last=reply)

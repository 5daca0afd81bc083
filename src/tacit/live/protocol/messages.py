"""The messages of the protocol (thesis §3.1.2, Code 3.1), with their names and fields.

On the wire a message is externally tagged: {"JoinCluster": {"data_size": 1000}}, and one without
fields is the bare string. Fields that are `UNSET` by default are ours: they are left out towards a
peer that has not announced `protocol`, and ignored by one that does not know them.
docs/protocol.md is the specification.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

PROTOCOL = 2
"""The version of what goes beyond the thesis."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Time = Annotated[datetime, Meta(tz=True)]
Short = Annotated[str, Meta(max_length=200)]
Words = Annotated[str, Meta(max_length=2000)]


class Array(msgspec.Struct, frozen=True):
    """Numbers row by row: little-endian float64 in a binary encoding, a list in JSON."""

    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=2**31)], ...], Meta(max_length=4)]
    data: bytes | list[float]


Distribution = dict[str, float | Array | None]
"""A scalar normal as {mean, variance}, or natural parameters as arrays by name."""


class Duration(msgspec.Struct, frozen=True):
    """A length of time as its seconds and nanoseconds."""

    secs: Count
    nanos: Annotated[int, Meta(ge=0, lt=10**9)] = 0

    @classmethod
    def of(cls, seconds: float) -> Duration:
        """The duration of so many seconds."""
        whole = int(seconds)
        return cls(whole, min(round((seconds - whole) * 1e9), 10**9 - 1))

    @property
    def seconds(self) -> float:
        """Seconds."""
        return self.secs + self.nanos * 1e-9


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What a party tells of the guarantee that it keeps; nothing in it depends on a record."""

    epsilon: float
    delta: float
    unit: Short
    adjacency: Short
    answers: Count


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What all messages share: a name, and whether they travel as that name alone."""

    bare: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The tag on the wire."""
        return tag_of(type(self))


class ClientMessage(Message, frozen=True, kw_only=True):
    """From a party."""


class ServerMessage(Message, frozen=True, kw_only=True):
    """From the server."""


class JoinCluster(ClientMessage, frozen=True, kw_only=True):
    """A party asks to take part. `data_size` may be rounded, and 0 is "not told"."""

    data_size: Count
    protocol: Count | UnsetType = UNSET
    configuration: Short | UnsetType = UNSET
    encodings: tuple[Short, ...] | UnsetType = UNSET
    guarantee: Promise | UnsetType = UNSET
    heartbeat: bool | UnsetType = UNSET
    """Given: this party reads Heartbeat; True: it also answers each while it waits."""


class ReJoinCluster(ClientMessage, frozen=True, kw_only=True):
    """A party that took part before is back."""

    bare: ClassVar[bool] = True


class UpdatedLikelihood(ClientMessage, frozen=True, kw_only=True):
    """The answer to SelectedForTraining: new factor, its ratio to the old one, loss.

    Between peers that announced the protocol the server keeps the factors: `new_likelihood` is
    None, and a loss that is withheld is None. `delta` is everything that the party releases.
    """

    new_likelihood: Distribution | None = None
    delta: Distribution
    loss: float | None = None
    request: Short | UnsetType = UNSET
    factor_version: Count | UnsetType = UNSET


class ReturnLastLikelihood(ClientMessage, frozen=True, kw_only=True):
    """A party's last factor, for a server that has lost its own copy."""

    likelihood: Distribution


class EarlyLeaveCluster(ClientMessage, frozen=True, kw_only=True):
    """A party goes before the end; without `expected_absence`, for good.

    With `listening` it will answer no further request, and connects again to receive the result.
    """

    reason: Words | None = None
    expected_absence: Duration | None = None
    listening: bool | UnsetType = UNSET


class FinalLeaveTraining(ClientMessage, frozen=True, kw_only=True):
    """A party goes at the end."""

    available_for_future_training: bool


class ClientAcknowledgement(ClientMessage, frozen=True, kw_only=True):
    """A party has heard that the server closes."""

    bare: ClassVar[bool] = True


class ClientHeartbeat(ClientMessage, frozen=True, kw_only=True):
    """The answer to a server's Heartbeat."""

    bare: ClassVar[bool] = True


class ClientError(ClientMessage, frozen=True, kw_only=True):
    """A party could not make sense of a message, or could not answer."""

    error: Words | None = None
    reason: Words | None = None


class AcceptedIntoCluster(ServerMessage, frozen=True, kw_only=True):
    """A party takes part. `run` names the run for ever; `parties` is how many are on its list."""

    expected_start_time: Time | None = None
    protocol: Count | UnsetType = UNSET
    configuration: Short | UnsetType = UNSET
    run: Short | UnsetType = UNSET
    parties: Count | UnsetType = UNSET
    encodings: tuple[Short, ...] | UnsetType = UNSET
    return_likelihood: bool | UnsetType = UNSET
    heartbeat_s: float | UnsetType = UNSET


class ReAcceptanceIntoCluster(ServerMessage, frozen=True, kw_only=True):
    """A party is back; `last_likelihood` is its factor as the server knows it."""

    last_likelihood: Distribution
    protocol: Count | UnsetType = UNSET
    configuration: Short | UnsetType = UNSET
    run: Short | UnsetType = UNSET
    parties: Count | UnsetType = UNSET
    encodings: tuple[Short, ...] | UnsetType = UNSET
    factor_version: Count | UnsetType = UNSET
    heartbeat_s: float | UnsetType = UNSET


class RejectionFromCluster(ServerMessage, frozen=True, kw_only=True):
    """A party does not take part; `code` is for programs ("rejoin": ReJoinCluster would do)."""

    reason: Words | None = None
    fixable: bool
    code: Short | UnsetType = UNSET


class SelectedForTraining(ServerMessage, frozen=True, kw_only=True):
    """A party's turn: q, and ρ (None: 1).

    `request` is answered once; `factor` is the party's own as the server keeps it, `visit` counts
    the party's turns and `initial` says that q is still the prior. `stage` names what is wanted and
    `public` is what the server publishes for it; where the stage does not read them,
    `current_posterior` is None and `factor` is left out.
    """

    current_posterior: Distribution | None
    damping_factor: float | None = None
    request: Short | UnsetType = UNSET
    run: Short | UnsetType = UNSET
    visit: Count | UnsetType = UNSET
    factor_version: Count | UnsetType = UNSET
    factor: Distribution | UnsetType = UNSET
    initial: bool | UnsetType = UNSET
    round: Count | UnsetType = UNSET
    stage: Short | UnsetType = UNSET
    public: Distribution | UnsetType = UNSET


class EarlyCloseOfConnection(ServerMessage, frozen=True, kw_only=True):
    """The server goes before the end; without `return_in`, for good."""

    reason: Words | None = None
    return_in: Duration | None = None


class EndOfTraining(ServerMessage, frozen=True, kw_only=True):
    """The result; `public` where the method reads the posterior with it."""

    final_posterior: Distribution
    future_training: Time | None = None
    rounds: Count | UnsetType = UNSET
    public: Distribution | UnsetType = UNSET


class ServerAcknowledgement(ServerMessage, frozen=True, kw_only=True):
    """The server has heard that a party leaves."""

    bare: ClassVar[bool] = True


class ServerHeartbeat(ServerMessage, frozen=True, kw_only=True):
    """The connection works, and there is nothing to do; only to a party that reads it."""

    bare: ClassVar[bool] = True


class ServerError(ServerMessage, frozen=True, kw_only=True):
    """The server could not make sense of a message."""

    error: Words | None = None
    reason: Words | None = None


_TAGS: dict[type[Message], str] = {
    ClientAcknowledgement: "EndOfConnectionAcknowledgement",
    ServerAcknowledgement: "EndOfConnectionAcknowledgement",
    ClientHeartbeat: "Heartbeat",
    ServerHeartbeat: "Heartbeat",
    ClientError: "Error",
    ServerError: "Error",
}


def tag_of(kind: type[Message]) -> str:
    """The name on the wire: both sides have an Error, a Heartbeat and so on."""
    return _TAGS.get(kind, kind.__name__)


def _by_tag(side: Any) -> dict[str, Any]:
    return {tag_of(kind): kind for kind in side.__subclasses__()}


CLIENT_MESSAGES: dict[str, type[ClientMessage]] = _by_tag(ClientMessage)
SERVER_MESSAGES: dict[str, type[ServerMessage]] = _by_tag(ServerMessage)

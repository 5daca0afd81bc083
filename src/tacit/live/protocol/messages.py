"""The messages of the protocol (thesis §3.1.2, Code 3.1), with their names and fields.

A message is externally tagged: {"JoinCluster": {"data_size": 1000}}; a message without fields is a
bare string. Fields that are `UNSET` by default are extensions: they are not sent to a peer that has
not announced `protocol`, and a peer that does not know them ignores them. docs/protocol.md is the
specification.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tacit.live.secure.messages import Consent, Offer, Parcel

PROTOCOL = 4
"""Version of the protocol extensions."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Time = Annotated[datetime, Meta(tz=True)]
Short = Annotated[str, Meta(max_length=200)]
Words = Annotated[str, Meta(max_length=2000)]


class Array(msgspec.Struct, frozen=True):
    """An array, written row by row: a list in JSON; in a binary encoding little-endian float64, or
    int64 if the stage releases integers.
    """

    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=2**31)], ...], Meta(max_length=4)]
    data: bytes | list[int | float]


Distribution = dict[str, float | Array | list[float | None] | None]
"""A normal as {mean, variance}, each a number or a list; or natural parameters, as arrays by
name.
"""


class Duration(msgspec.Struct, frozen=True):
    """A duration in seconds and nanoseconds."""

    secs: Count
    nanos: Annotated[int, Meta(ge=0, lt=10**9)] = 0

    @classmethod
    def of(cls, seconds: float) -> Duration:
        """Make a duration from seconds."""
        whole = int(seconds)
        return cls(whole, min(round((seconds - whole) * 1e9), 10**9 - 1))

    @property
    def seconds(self) -> float:
        """Seconds."""
        return self.secs + self.nanos * 1e-9


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """A party's privacy guarantee, as reported to the server.

    It does not depend on records, with one exception: with batches without replacement it depends
    on the party's number of units, which is public under replace-one.
    """

    epsilon: float
    delta: float
    unit: Short
    adjacency: Short
    answers: Count


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of messages; a `bare` message has no fields and is sent as its name only."""

    bare: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The name of the message in its encoding."""
        return tag_of(type(self))


class ClientMessage(Message, frozen=True, kw_only=True):
    """Base class of messages from a party."""


class ServerMessage(Message, frozen=True, kw_only=True):
    """Base class of messages from the server."""


class JoinCluster(ClientMessage, frozen=True, kw_only=True):
    """Request to join. `data_size` may be rounded; 0 means not reported."""

    data_size: Count
    protocol: Count | UnsetType = UNSET
    configuration: Short | UnsetType = UNSET
    encodings: tuple[Short, ...] | UnsetType = UNSET
    guarantee: Promise | UnsetType = UNSET
    heartbeat: bool | UnsetType = UNSET
    """If set, this party understands Heartbeat; if True, it also replies to each one while it
    waits.
    """


class ReJoinCluster(ClientMessage, frozen=True, kw_only=True):
    """Request to join again after a lost connection."""

    bare: ClassVar[bool] = True


class UpdatedLikelihood(ClientMessage, frozen=True, kw_only=True):
    """The answer to SelectedForTraining: the new factor, its ratio to the old factor, and the loss.

    Between peers that announced the protocol the server keeps the factors: `new_likelihood` is
    None, and a loss that is withheld is None. `delta` contains everything that the party releases.
    """

    new_likelihood: Distribution | None = None
    delta: Distribution
    loss: float | None = None
    request: Short | UnsetType = UNSET
    factor_version: Count | UnsetType = UNSET


class ReturnLastLikelihood(ClientMessage, frozen=True, kw_only=True):
    """A party's last factor, for a server that has lost its copy."""

    likelihood: Distribution


class EarlyLeaveCluster(ClientMessage, frozen=True, kw_only=True):
    """A party leaves before the end. Without `expected_absence` it leaves permanently.

    With `listening` it answers no further request, but connects again to receive the result.
    """

    reason: Words | None = None
    expected_absence: Duration | None = None
    listening: bool | UnsetType = UNSET


class FinalLeaveTraining(ClientMessage, frozen=True, kw_only=True):
    """A party leaves at the end."""

    available_for_future_training: bool


class ClientAcknowledgement(ClientMessage, frozen=True, kw_only=True):
    """A party acknowledges that the server closes the connection."""

    bare: ClassVar[bool] = True


class ClientHeartbeat(ClientMessage, frozen=True, kw_only=True):
    """The answer to a server's Heartbeat."""

    bare: ClassVar[bool] = True


class ClientError(ClientMessage, frozen=True, kw_only=True):
    """A party could not process a message or a request."""

    error: Words | None = None
    reason: Words | None = None


class OfferedKeys(ClientMessage, frozen=True, kw_only=True):
    """A party's public keys for the secure sums of a run; the answer to RequestKeys."""

    offer: Offer


class DealtShares(ClientMessage, frozen=True, kw_only=True):
    """Encrypted shares of a party's secrets for every other party; the answer to KeyRoster."""

    parcels: tuple[Parcel, ...]


class MaskedUpdate(ClientMessage, frozen=True, kw_only=True):
    """The answer to SelectedForTraining in a secure sum: masked little-endian 64-bit words."""

    slot: Count
    request: Short
    words: bytes


class SurvivorSignature(ClientMessage, frozen=True, kw_only=True):
    """A party's signature over a set of survivors; the answer to SurvivorSet."""

    slot: Count
    request: Short
    signature: bytes


class UnmaskShares(ClientMessage, frozen=True, kw_only=True):
    """Shares of the survivors' seeds and of the other parties' keys; the answer to
    UnmaskRequest.
    """

    slot: Count
    request: Short
    seeds: dict[str, bytes]
    keys: dict[str, bytes]


class AcceptedIntoCluster(ServerMessage, frozen=True, kw_only=True):
    """A party was accepted. `run` is the permanent id of the run, `parties` its number of
    parties.
    """

    expected_start_time: Time | None = None
    protocol: Count | UnsetType = UNSET
    configuration: Short | UnsetType = UNSET
    run: Short | UnsetType = UNSET
    parties: Count | UnsetType = UNSET
    encodings: tuple[Short, ...] | UnsetType = UNSET
    return_likelihood: bool | UnsetType = UNSET
    heartbeat_s: float | UnsetType = UNSET


class ReAcceptanceIntoCluster(ServerMessage, frozen=True, kw_only=True):
    """A party was accepted again; `last_likelihood` is its factor at the server."""

    last_likelihood: Distribution
    protocol: Count | UnsetType = UNSET
    configuration: Short | UnsetType = UNSET
    run: Short | UnsetType = UNSET
    parties: Count | UnsetType = UNSET
    encodings: tuple[Short, ...] | UnsetType = UNSET
    factor_version: Count | UnsetType = UNSET
    heartbeat_s: float | UnsetType = UNSET


class RejectionFromCluster(ServerMessage, frozen=True, kw_only=True):
    """A party was refused; `code` is machine-readable ("rejoin": send ReJoinCluster)."""

    reason: Words | None = None
    fixable: bool
    code: Short | UnsetType = UNSET


class SelectedForTraining(ServerMessage, frozen=True, kw_only=True):
    """Request for an update, with q and ρ (None: 1).

    `request` is answered once. `factor` is the party's factor at the server, `visit` counts the
    party's requests, and `initial` means that q is still the prior. `stage` names the kind of
    update, and `public` contains the arrays that the server publishes for it. If the stage does not
    need them, `current_posterior` is None and `factor` is left out.
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
    traceparent: Short | UnsetType = UNSET
    """Trace context of this request (W3C Trace Context)."""


class RequestKeys(ServerMessage, frozen=True, kw_only=True):
    """Request for a party's public keys for the secure sums of the run."""

    bare: ClassVar[bool] = True


class KeyRoster(ServerMessage, frozen=True, kw_only=True):
    """The public keys of all parties, ordered by name."""

    offers: tuple[Offer, ...]


class PartyShares(ServerMessage, frozen=True, kw_only=True):
    """Shares from the other parties for this one; they complete the set-up."""

    parcels: tuple[Parcel, ...]


class SurvivorSet(ServerMessage, frozen=True, kw_only=True):
    """The survivors of a slot: the parties whose masked updates are summed, ordered by name."""

    slot: Count
    request: Short
    names: tuple[str, ...]


class UnmaskRequest(ServerMessage, frozen=True, kw_only=True):
    """Request for shares, with signatures that prove that all parties were sent the same
    survivors.
    """

    slot: Count
    request: Short
    consents: tuple[Consent, ...]


class EarlyCloseOfConnection(ServerMessage, frozen=True, kw_only=True):
    """The server closes before the end. Without `return_in` it closes permanently."""

    reason: Words | None = None
    return_in: Duration | None = None


class EndOfTraining(ServerMessage, frozen=True, kw_only=True):
    """The final posterior, with `public` arrays if the method needs them to interpret it."""

    final_posterior: Distribution
    future_training: Time | None = None
    rounds: Count | UnsetType = UNSET
    public: Distribution | UnsetType = UNSET


class ServerAcknowledgement(ServerMessage, frozen=True, kw_only=True):
    """The server acknowledges that a party leaves."""

    bare: ClassVar[bool] = True


class ServerHeartbeat(ServerMessage, frozen=True, kw_only=True):
    """Keep-alive while there is no request; sent only to parties that understand it."""

    bare: ClassVar[bool] = True


class ServerError(ServerMessage, frozen=True, kw_only=True):
    """The server could not process a message."""

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
    """Return the name of a message in its encoding; party and server messages may have the same
    name, such as Error.
    """
    return _TAGS.get(kind, kind.__name__)


def _by_tag(side: Any) -> dict[str, Any]:
    return {tag_of(kind): kind for kind in side.__subclasses__()}


CLIENT_MESSAGES: dict[str, type[ClientMessage]] = _by_tag(ClientMessage)
SERVER_MESSAGES: dict[str, type[ServerMessage]] = _by_tag(ServerMessage)

"""The messages of the protocol (thesis §3.1.2, Code 3.1), with their names and fields.

A message is externally tagged: {"JoinCluster": {"data_size": 1000}}; a message without fields is a
bare string. Fields that are `UNSET` by default are extensions. They are not sent to a peer that has
not announced `protocol`, and a peer that does not support them ignores them. docs/protocol.md is
the specification.
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
MOST_LETTERS, MOST_CAUTIONS = 2000, 200
Words = Annotated[str, Meta(max_length=MOST_LETTERS)]


class Array(msgspec.Struct, frozen=True):
    """An array in row-major order.

    In JSON, `data` is a list of numbers. In a binary encoding it is the bytes of little-endian
    float64 numbers, or of int64 numbers if the stage releases integers.
    """

    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=2**31)], ...], Meta(max_length=4)]
    data: bytes | list[int | float]


Distribution = dict[str, float | Array | list[float | None] | None]
"""A normal as {mean, variance}, each a number or a list; or a dict from names of natural parameters
to arrays.
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
        """The duration in seconds."""
        return self.secs + self.nanos * 1e-9


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """A party's privacy guarantee, as reported to the server.

    The guarantee does not depend on the party's records, with one exception: if batches are drawn
    without replacement, it depends on the party's number of units. That number is public under
    replace-one.
    """

    epsilon: float
    delta: float
    unit: Short
    adjacency: Short
    answers: Count


class Caution(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why numbers of the result may be unreliable."""

    kind: Short
    text: Words


class FinalVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the run converged, why, and all cautions, as in the server's result.json."""

    converged: bool | None
    why: Words
    cautions: Annotated[tuple[Caution, ...], Meta(max_length=MOST_CAUTIONS)] = ()
    learned: list[float] | None = None
    """1 − (posterior sd / prior sd)² of each coefficient; None if it is not known."""


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
    """The answer to SelectedForTraining.

    `delta` contains everything that the party releases. `new_likelihood` is the party's new factor;
    it is None if both peers announced `protocol`, because the server then computes the factors.
    `loss` is None if it is withheld.
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
    """The answer to EndOfTraining: the party leaves."""

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
    """The answer to UnmaskRequest.

    `seeds` maps names of survivors to shares of their mask seeds, and `keys` maps names of the
    other parties to shares of their secret keys.
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
    """Request for an update, with the posterior q and the damping factor ρ (None means 1).

    `request` is the id of the request; each id is answered once. `factor` is the party's factor at
    the server, `visit` counts the party's requests, and `initial` means that q is still the prior.
    `stage` names the kind of update, and `public` contains the arrays that the server publishes for
    this stage. `current_posterior` is None and `factor` is left out if the stage does not need
    them.
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
    """Encrypted shares of the other parties' secrets, for the receiving party; the last message of
    the set-up.
    """

    parcels: tuple[Parcel, ...]


class SurvivorSet(ServerMessage, frozen=True, kw_only=True):
    """The survivors of a slot: the parties whose masked updates are summed, ordered by name."""

    slot: Count
    request: Short
    names: tuple[str, ...]


class UnmaskRequest(ServerMessage, frozen=True, kw_only=True):
    """Request for the shares that unmask a sum.

    `consents` are the parties' signatures, which prove that all parties were sent the same
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
    """The final posterior, with `public` arrays if the method needs them to interpret it, and the
    server's verdict on it.
    """

    final_posterior: Distribution
    future_training: Time | None = None
    rounds: Count | UnsetType = UNSET
    public: Distribution | UnsetType = UNSET
    verdict: FinalVerdict | UnsetType = UNSET


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

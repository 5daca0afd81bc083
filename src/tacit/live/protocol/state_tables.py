"""The two state machines as tables: (state, message) -> action and next state.

A pair that is not in a table is answered with Error, and the state does not change. The tables are
printed in docs/protocol.md.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from tacit.live.protocol.messages import CLIENT_MESSAGES, SERVER_MESSAGES, Message


class ServerSide(Enum):
    """State of a connection at the server."""

    CONNECTED = "connected"
    WAITING = "waiting"
    TRAINING = "training"
    ENDING = "ending"
    CLOSING = "closing"
    GONE = "gone"


class PartySide(Enum):
    """State of a connection at the party."""

    JOINING = "joining"
    REJOINING = "rejoining"
    WAITING = "waiting"
    TRAINING = "training"
    LEAVING = "leaving"
    GONE = "gone"


class Do(NamedTuple):
    """An action and the next state. After a refusal the next state is GONE."""

    action: str
    then: ServerSide | PartySide


_S, _P = ServerSide, PartySide
_TO_SERVER = ("OfferedKeys", "DealtShares", "MaskedUpdate", "SurvivorSignature", "UnmaskShares")
_TO_PARTY = ("RequestKeys", "KeyRoster", "PartyShares", "SurvivorSet", "UnmaskRequest")

SERVER: dict[tuple[ServerSide, str], Do] = {
    (_S.CONNECTED, "JoinCluster"): Do("admit", _S.WAITING),
    (_S.CONNECTED, "ReJoinCluster"): Do("readmit", _S.WAITING),
    (_S.CONNECTED, "Error"): Do("note", _S.CONNECTED),
    (_S.WAITING, "UpdatedLikelihood"): Do("take", _S.WAITING),
    (_S.WAITING, "ReturnLastLikelihood"): Do("restore", _S.WAITING),
    (_S.WAITING, "EarlyLeaveCluster"): Do("part", _S.GONE),
    (_S.WAITING, "Error"): Do("note", _S.WAITING),
    (_S.WAITING, "Heartbeat"): Do("alive", _S.WAITING),
    (_S.TRAINING, "UpdatedLikelihood"): Do("take", _S.WAITING),
    (_S.TRAINING, "ReturnLastLikelihood"): Do("restore", _S.TRAINING),
    (_S.TRAINING, "EarlyLeaveCluster"): Do("part", _S.GONE),
    (_S.TRAINING, "Error"): Do("note", _S.WAITING),
    (_S.TRAINING, "Heartbeat"): Do("alive", _S.TRAINING),
    (_S.ENDING, "FinalLeaveTraining"): Do("finish", _S.GONE),
    (_S.ENDING, "UpdatedLikelihood"): Do("take", _S.ENDING),
    (_S.ENDING, "EarlyLeaveCluster"): Do("part", _S.GONE),
    (_S.ENDING, "EndOfConnectionAcknowledgement"): Do("finish", _S.GONE),
    (_S.ENDING, "Error"): Do("note", _S.ENDING),
    (_S.ENDING, "Heartbeat"): Do("alive", _S.ENDING),
    (_S.CLOSING, "EndOfConnectionAcknowledgement"): Do("finish", _S.GONE),
    (_S.CLOSING, "UpdatedLikelihood"): Do("take", _S.CLOSING),
    (_S.CLOSING, "EarlyLeaveCluster"): Do("part", _S.GONE),
    (_S.CLOSING, "Error"): Do("note", _S.CLOSING),
    (_S.CLOSING, "Heartbeat"): Do("alive", _S.CLOSING),
    **{
        (side, name): Do("add_up", side)
        for side in (_S.WAITING, _S.TRAINING, _S.ENDING, _S.CLOSING)
        for name in _TO_SERVER
    },
    (_S.TRAINING, "MaskedUpdate"): Do("add_up", _S.WAITING),
}
"""A dict from (state, name of a party's message) to the server's action and next state."""

PARTY: dict[tuple[PartySide, str], Do] = {
    (_P.JOINING, "AcceptedIntoCluster"): Do("enter", _P.WAITING),
    (_P.JOINING, "RejectionFromCluster"): Do("turn_away", _P.GONE),
    (_P.JOINING, "EarlyCloseOfConnection"): Do("close", _P.GONE),
    (_P.JOINING, "Error"): Do("fail", _P.GONE),
    (_P.REJOINING, "ReAcceptanceIntoCluster"): Do("enter", _P.WAITING),
    (_P.REJOINING, "RejectionFromCluster"): Do("turn_away", _P.GONE),
    (_P.REJOINING, "EarlyCloseOfConnection"): Do("close", _P.GONE),
    (_P.REJOINING, "Error"): Do("fail", _P.GONE),
    (_P.WAITING, "SelectedForTraining"): Do("train", _P.TRAINING),
    (_P.WAITING, "EarlyCloseOfConnection"): Do("close", _P.GONE),
    (_P.WAITING, "EndOfTraining"): Do("end", _P.GONE),
    (_P.WAITING, "Error"): Do("note", _P.WAITING),
    (_P.WAITING, "Heartbeat"): Do("echo", _P.WAITING),
    (_P.TRAINING, "SelectedForTraining"): Do("train", _P.TRAINING),
    (_P.TRAINING, "EarlyCloseOfConnection"): Do("close", _P.GONE),
    (_P.TRAINING, "EndOfTraining"): Do("end", _P.GONE),
    (_P.TRAINING, "Error"): Do("note", _P.WAITING),
    (_P.TRAINING, "Heartbeat"): Do("echo", _P.TRAINING),
    (_P.LEAVING, "EndOfConnectionAcknowledgement"): Do("depart", _P.GONE),
    (_P.LEAVING, "SelectedForTraining"): Do("ignore", _P.LEAVING),
    (_P.LEAVING, "EarlyCloseOfConnection"): Do("depart", _P.GONE),
    (_P.LEAVING, "EndOfTraining"): Do("end", _P.GONE),
    (_P.LEAVING, "Error"): Do("note", _P.LEAVING),
    (_P.LEAVING, "Heartbeat"): Do("ignore", _P.LEAVING),
    **{(_P.WAITING, name): Do("help_sum", _P.WAITING) for name in _TO_PARTY},
    **{(_P.LEAVING, name): Do("ignore", _P.LEAVING) for name in _TO_PARTY},
}
"""A dict from (state, name of a server's message) to the party's action and next state."""

MEANING = {
    "admit": "check the configuration digest and the list of parties; AcceptedIntoCluster, or "
    "RejectionFromCluster",
    "readmit": "check that it is the same party; ReAcceptanceIntoCluster and its open request "
    "again, or RejectionFromCluster",
    "take": "apply the update if its request is still open and its factor version is right; "
    "otherwise ignore it, or answer with Error and repeat the request; after three unusable "
    "updates in a row the party is excluded",
    "add_up": "check the message and add it to the secure sum of its slot; answer with Error if "
    "the check fails; late messages are not used",
    "help_sum": "check the message, store the new state and answer; refuse and log a message that "
    "contradicts the approved terms or an earlier answer",
    "restore": "before the start: use the factor as the party's factor if the operator allows it, "
    "otherwise answer with Error; after the start: compare it with the server's factor and log "
    "the result",
    "part": "EndOfConnectionAcknowledgement; with an expected absence wait for the return, "
    "otherwise keep or divide out the factor",
    "finish": "close the connection",
    "note": "log the Error and repeat the open request; the third Error on a connection closes "
    "the connection",
    "alive": "count it as the answer to a Heartbeat",
    "enter": "compare the configuration digest with the approved one; leave if it differs",
    "turn_away": "stop, or send ReJoinCluster if the code says so",
    "train": "charge, compute, UpdatedLikelihood; a repeated request gets the stored answer; a "
    "newer request replaces an older one",
    "close": "EndOfConnectionAcknowledgement; reconnect after return_in, or stop",
    "end": "keep the final posterior; FinalLeaveTraining",
    "echo": "answer with Heartbeat",
    "depart": "close the connection",
    "ignore": "do nothing: the server sent the message before it knew that this party leaves",
    "fail": "close the connection; try the next address",
}


def after(side: ServerSide | PartySide, message: Message) -> Do | None:
    """Return action and next state for a message; None means: reply with Error and keep the
    state.
    """
    if isinstance(side, ServerSide):
        return SERVER.get((side, message.name))
    return PARTY.get((side, message.name))


def as_markdown(side: type[ServerSide] | type[PartySide]) -> str:
    """Return one state machine as a Markdown table with one row per message and one column per
    state.
    """
    table = SERVER if side is ServerSide else PARTY
    names = CLIENT_MESSAGES if side is ServerSide else SERVER_MESSAGES
    states = [state for state in side if state.value != "gone"]
    lines = ["| message | " + " | ".join(state.value for state in states) + " |"]
    lines.append("|" + " --- |" * (len(states) + 1))
    for name in names:
        cells = []
        for state in states:
            do = table.get((state, name))  # pyright: ignore[reportArgumentType,reportCallIssue]
            cells.append("Error" if do is None else f"{do.action} → {do.then.value}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)

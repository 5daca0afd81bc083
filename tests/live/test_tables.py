"""The two state machines, looked at one pair after another."""

from pathlib import Path

import pytest

from tacit.live.protocol import messages as m
from tacit.live.protocol.messages import CLIENT_MESSAGES, SERVER_MESSAGES
from tacit.live.protocol.state_tables import (
    MEANING,
    PARTY,
    SERVER,
    Do,
    PartySide,
    ServerSide,
    after,
    as_markdown,
)
from tacit.live.secure.messages import Offer

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
SIDES = [(ServerSide, SERVER, CLIENT_MESSAGES), (PartySide, PARTY, SERVER_MESSAGES)]
NAMED = pytest.mark.parametrize(("side", "table", "names"), SIDES, ids=["server", "party"])

OFFER = Offer(party="a", public_key=b"", sharing=b"", masking=(), seeds=())
ONE_OF_EACH = [
    m.JoinCluster(data_size=1),
    m.ReJoinCluster(),
    m.UpdatedLikelihood(delta={}),
    m.ReturnLastLikelihood(likelihood={}),
    m.EarlyLeaveCluster(),
    m.FinalLeaveTraining(available_for_future_training=False),
    m.ClientAcknowledgement(),
    m.ClientHeartbeat(),
    m.ClientError(),
    m.OfferedKeys(offer=OFFER),
    m.DealtShares(parcels=()),
    m.MaskedUpdate(slot=0, request="r", words=b""),
    m.SurvivorSignature(slot=0, request="r", signature=b""),
    m.UnmaskShares(slot=0, request="r", seeds={}, keys={}),
    m.RequestKeys(),
    m.KeyRoster(offers=()),
    m.PartyShares(parcels=()),
    m.SurvivorSet(slot=0, request="r", names=()),
    m.UnmaskRequest(slot=0, request="r", consents=()),
    m.AcceptedIntoCluster(),
    m.ReAcceptanceIntoCluster(last_likelihood={}),
    m.RejectionFromCluster(fixable=True),
    m.SelectedForTraining(current_posterior={}),
    m.EarlyCloseOfConnection(),
    m.EndOfTraining(final_posterior={}),
    m.ServerAcknowledgement(),
    m.ServerHeartbeat(),
    m.ServerError(),
]


def to(side):
    """The messages that arrive at a side."""
    sender = m.ClientMessage if side is ServerSide else m.ServerMessage
    return [message for message in ONE_OF_EACH if isinstance(message, sender)]


@NAMED
def test_every_state_with_every_message(side, table, names):
    assert {message.name for message in to(side)} == set(names)
    defined = 0
    for state in side:
        for message in to(side):
            do = after(state, message)
            assert do == table.get((state, message.name))
            if do is None:
                continue
            defined += 1
            assert isinstance(do, Do)
            assert do.action in MEANING
            assert type(do.then) is side
    assert defined == len(table)  # nothing in the table is for a message that never arrives


@NAMED
def test_nothing_happens_after_the_end(side, table, names):
    for message in to(side):
        assert after(side.GONE, message) is None


@NAMED
def test_an_error_is_never_answered_by_an_error(side, table, names):
    for state in side:
        if state is not side.GONE:
            assert (state, "Error") in table


# What a side says of its own accord moves it too: the server selects, ends and closes, a party
# answers and leaves.
SPOKEN = {
    ServerSide: {
        ServerSide.WAITING: {ServerSide.TRAINING, ServerSide.ENDING, ServerSide.CLOSING},
        ServerSide.TRAINING: {ServerSide.ENDING, ServerSide.CLOSING},
    },
    PartySide: {
        PartySide.TRAINING: {PartySide.WAITING, PartySide.LEAVING},
        PartySide.WAITING: {PartySide.LEAVING},
    },
}


def reached(side, table, start, spoken):
    found, new = set(), {start}
    while new:
        found |= new
        new = {do.then for (state, _), do in table.items() if state in new} | {
            state for each in new for state in spoken.get(each, ())
        }
        new -= found
    return found


@NAMED
def test_every_state_can_end(side, table, names):
    for state in side:
        assert side.GONE in reached(side, table, state, {}), "by what arrives alone"


def test_every_state_can_begin():
    server = reached(ServerSide, SERVER, ServerSide.CONNECTED, SPOKEN[ServerSide])
    assert server == set(ServerSide)
    party = reached(PartySide, PARTY, PartySide.JOINING, SPOKEN[PartySide])
    party |= reached(PartySide, PARTY, PartySide.REJOINING, SPOKEN[PartySide])
    assert party == set(PartySide)


def test_every_action_is_used_and_explained():
    used = {do.action for _, table, _ in SIDES for do in table.values()}
    assert used == set(MEANING)
    assert all(MEANING.values())


def test_updates_are_taken_only_from_a_party_that_has_joined():
    taking = {state for (state, _), do in SERVER.items() if do.action == "take"}
    assert taking == set(ServerSide) - {ServerSide.CONNECTED, ServerSide.GONE}
    joining = {(state, name) for (state, name), do in SERVER.items() if "admit" in do.action}
    assert joining == {
        (ServerSide.CONNECTED, "JoinCluster"),
        (ServerSide.CONNECTED, "ReJoinCluster"),
    }


@NAMED
def test_the_specification_has_the_tables_as_they_are(side, table, names):
    printed = as_markdown(side)
    rows = printed.splitlines()
    assert len(rows) == len(names) + 2
    assert printed.count("→") == len(table)
    assert f"\n\n{printed}\n\n" in PAGE.read_text(encoding="utf-8")


def test_the_specification_explains_every_action_in_these_words():
    text = PAGE.read_text(encoding="utf-8")
    for action, meaning in MEANING.items():
        assert f"- **{action}**: {meaning}.\n" in text


@pytest.mark.parametrize("kind", [*CLIENT_MESSAGES.values(), *SERVER_MESSAGES.values()])
def test_the_specification_names_every_field(kind):
    sides = PAGE.read_text(encoding="utf-8").split("\n## ")
    title = "From a party" if issubclass(kind, m.ClientMessage) else "From the server"
    (section,) = [each for each in sides if each.startswith(title)]
    (entry,) = [each for each in section.split("\n### ") if each.startswith(f"{m.tag_of(kind)}\n")]
    for name in kind.__struct_fields__:
        assert f"| `{name}` |" in entry

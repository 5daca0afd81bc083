"""What a dishonest server, network or party tries is refused, and nothing is unmasked."""

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tacit.errors import ConfigError, PeerError
from tacit.live.secure import party as party_side
from tacit.live.secure import server as server_side
from tacit.live.secure.checks import SecureSumError
from tacit.live.secure.messages import Consent, Roster, Survivors, Unmask
from tacit.live.secure.signing import sign
from tacit.live.secure.terms import Terms

change = msgspec.structs.replace


def refused(words):
    return pytest.raises(SecureSumError, match=words)


@pytest.fixture
def group(make_group):
    return make_group(6)


@pytest.fixture
def closed(group, vectors):
    """A group whose survivors are fixed but not signed."""
    return group, group.collect(vectors(group.keys, 4))


# Survivor sets ------------------------------------------------------------------------------


def test_two_survivor_sets_for_one_request(closed):
    group, told = closed
    group.consent("p000", told)
    other = change(told, names=told.names[:-1])
    with refused("second set"):
        group.consent("p000", other)


def test_parties_that_are_told_different_sets_reveal_nothing(closed):
    group, told = closed
    other = change(told, names=tuple(name for name in told.names if name != "p005"))
    consents = [group.consent(name, told) for name in ("p000", "p001", "p002")]
    consents += [group.consent(name, other) for name in ("p003", "p004")]
    for name in ("p000", "p003"):
        with refused("did not sign the set"):
            group.reveal(name, Unmask(slot=0, request="r0", consents=tuple(consents)))


def test_survivors_below_the_quorum(closed):
    group, told = closed
    few = change(told, names=told.names[: group.terms.quorum - 1])
    with refused("at least"):
        group.consent("p000", few)


def test_survivors_without_the_party_or_with_a_stranger_or_twice(closed):
    group, told = closed
    with refused("without this party"):
        group.consent("p000", change(told, names=told.names[1:]))
    with refused("not on the roster"):
        group.consent("p000", change(told, names=(*told.names, "stranger")))
    with refused("twice"):
        group.consent("p000", change(told, names=("p000", *told.names)))


def test_survivors_of_a_slot_that_was_not_answered(closed):
    group, told = closed
    with refused("sent no masked vector"):
        group.consent("p000", change(told, slot=1))
    with refused("sent no masked vector"):
        group.consent("p000", change(told, request="r9"))


# Signatures and shares ----------------------------------------------------------------------


def consented(group, told):
    return [group.consent(name, told) for name in told.names]


def test_a_forged_or_borrowed_signature(closed):
    group, told = closed
    consents = consented(group, told)
    forged = Consent(
        party="p001", slot=0,
        signature=sign(ec.generate_private_key(ec.SECP256R1()),
                       told.signed(group.server.roster.digest)),
    )  # fmt: skip
    borrowed = change(consents[2], party="p001")
    for bad in (forged, borrowed):
        asked = Unmask(slot=0, request="r0", consents=(consents[0], bad, *consents[2:]))
        with refused("did not sign"):
            group.reveal("p000", asked)
        with refused("signed a set"):
            server_side.take_consent(group.server, bad)


def test_fewer_signatures_than_the_threshold_and_one_of_them_often(closed):
    group, told = closed
    consents = consented(group, told)
    few = consents[: group.terms.threshold - 1]
    for given in (few, [*few, few[0], few[0]]):
        with refused("signatures over the survivors"):
            group.reveal("p000", Unmask(slot=0, request="r0", consents=tuple(given)))


def test_shares_before_the_survivors_were_signed(closed):
    group, told = closed
    consents = [group.consent(name, told) for name in told.names if name != "p000"]
    with refused("before the set"):
        group.reveal("p000", Unmask(slot=0, request="r0", consents=tuple(consents)))


def test_never_both_shares_of_one_party(closed):
    group, told = closed
    asked = Unmask(slot=0, request="r0", consents=tuple(consented(group, told)))
    shares = group.reveal("p000", asked)
    assert not set(shares.seeds) & set(shares.keys)
    assert set(shares.seeds) == set(told.names)
    # Asked again, and after a restart from the stored state: the same.
    raw = msgspec.msgpack.encode(group.parties["p000"])
    group.parties["p000"] = msgspec.msgpack.decode(raw, type=party_side.PartyState)
    assert group.reveal("p000", asked) == shares


def test_a_wrong_share_names_its_sender(closed):
    group, told = closed
    consents = consented(group, told)
    for consent in consents:
        group.server = server_side.take_consent(group.server, consent)
    shares = group.reveal("p001", server_side.unmask_request(group.server, 0))
    bad = bytes([shares.seeds["p004"][0], *shares.seeds["p004"][1:-1], 7])
    with refused("did not deal") as caught:
        server_side.take_shares(group.server, change(shares, seeds=shares.seeds | {"p004": bad}))
    assert caught.value.culprit == "p001"
    other_slot = party_side._share(group.parties["p001"].shares["p004"], 1, 0)
    with refused("did not deal"):
        server_side.take_shares(
            group.server, change(shares, seeds=shares.seeds | {"p004": other_slot})
        )
    with refused("not match the request"):
        server_side.take_shares(group.server, change(shares, keys={"p005": bad}))


def test_a_dealer_whose_shares_do_not_fit_is_named(make_group, vectors, monkeypatch):
    group = make_group(4, until="offered")
    real = party_side.shamir.split

    def dealt_wrongly(secret, points, threshold):
        return real((secret + 1) % party_side.shamir.PRIME, points, threshold)

    name = "p002"
    for each, key in group.keys.items():
        monkeypatch.setattr(party_side.shamir, "split", dealt_wrongly if each == name else real)
        group.parties[each], parcels = party_side.deal_shares(
            group.parties[each], group.terms, group.server.roster, key
        )
        group.server = server_side.take_parcels(group.server, each, parcels)
    for each in group.keys:
        group.parties[each] = party_side.accept_shares(
            group.parties[each], group.terms, server_side.parcels_for(group.server, each)
        )
    with refused("match its seed") as caught:
        group.sum(vectors(group.keys, 3))
    assert caught.value.culprit == name


# Keys and set-up ----------------------------------------------------------------------------


def offers(group):
    return {offer.party: offer for offer in group.server.roster.offers}


def resigned(group, offer, **changes):
    offer = change(offer, **changes)
    return change(offer, signature=sign(group.keys[offer.party], offer.signed(group.terms.digest)))


def roster_with(group, offer):
    changed = offers(group) | {offer.party: offer}
    return Roster(offers=tuple(each for _, each in sorted(changed.items())))


def deal(group, name, roster):
    return party_side.deal_shares(group.parties[name], group.terms, roster, group.keys[name])


@pytest.mark.parametrize(
    "what", ["copied", "repeated", "short", "fewer", "unsigned", "other key", "replayed run"]
)
def test_rosters_with_bad_keys(what, make_group):
    group = make_group(4, until="offered")
    first, second = offers(group)["p000"], offers(group)["p001"]
    bad = {
        "copied": lambda: resigned(group, second, masking=first.masking),
        "repeated": lambda: resigned(group, second, masking=(second.masking[0],) * 2),
        "short": lambda: resigned(group, second, sharing=b"short"),
        "fewer": lambda: resigned(group, second, masking=second.masking[:1]),
        "unsigned": lambda: change(second, masking=second.masking[::-1]),
        "other key": lambda: change(second, public_key=first.public_key),
        "replayed run": lambda: change(
            second,
            signature=sign(group.keys["p001"], second.signed(change(group.terms, run="x").digest)),
        ),
    }[what]()
    with pytest.raises(SecureSumError):
        deal(group, "p003", roster_with(group, bad))


def test_keys_of_small_order(make_group, vectors):
    group = make_group(4, until="offered")
    bad = resigned(group, offers(group)["p001"], sharing=bytes(32))
    with pytest.raises(PeerError, match="small order"):
        deal(group, "p003", roster_with(group, bad))


def test_rosters_of_other_parties(make_group):
    group = make_group(5, until="offered")
    roster = group.server.roster
    few = Roster(offers=roster.offers[: group.terms.quorum - 1])
    with refused("at least"):
        deal(group, "p000", few)
    with refused("in the order of the names"):
        deal(group, "p000", Roster(offers=roster.offers[::-1]))
    stranger = ec.generate_private_key(ec.SECP256R1())
    _, offer = party_side.offer_keys(group.terms, "p009", stranger)
    with refused("does not list this party"):
        deal(group, "p000", Roster(offers=(*roster.offers, offer)))
    renamed = change(offer, party="p001")
    with refused("unapproved key"):
        deal(group, "p000", roster_with(group, renamed))
    with refused("keys that this party sent"):
        group.parties["p000"], _ = party_side.offer_keys(group.terms, "p000", group.keys["p000"])
        deal(group, "p000", roster)


def test_a_second_roster(group):
    with refused("second roster"):
        deal(group, "p000", group.server.roster)


def test_parcels_that_were_changed_or_sent_to_others(make_group):
    group = make_group(4, until="offered")
    dealt = {}
    for name, key in group.keys.items():
        group.parties[name], parcels = party_side.deal_shares(
            group.parties[name], group.terms, group.server.roster, key
        )
        dealt |= {(name, parcel.recipient): parcel for parcel in parcels}
    mine = [dealt[name, "p000"] for name in ("p001", "p002", "p003")]

    def accept(parcels):
        return party_side.accept_shares(group.parties["p000"], group.terms, parcels)

    damaged = change(mine[0], box=mine[0].box[:-1] + b"x")
    relabelled = change(dealt["p001", "p002"], recipient="p000")
    for bad in (damaged, relabelled, change(mine[0], hashes=mine[1].hashes)):
        with refused("not signed"):
            accept([bad, *mine[1:]])
    with refused("missing"):
        accept(mine[1:])
    with refused("missing"):
        accept([mine[1], *mine[1:]])
    # Signed by its dealer, but not what it encrypted: the dealer is named.
    forged = change(mine[0], hashes=mine[1].hashes)
    forged = change(
        forged, signature=sign(group.keys["p001"], forged.signed(group.server.roster.digest))
    )
    with refused("does not match its signature") as caught:
        accept([forged, *mine[1:]])
    assert caught.value.culprit == "p001"


# Slots and requests -------------------------------------------------------------------------


def test_a_vector_is_sent_once_for_a_slot_and_a_request(group, vectors):
    sent = vectors(group.keys, 4)["p000"]
    first = group.mask("p000", 0, "r0", sent)
    assert group.mask("p000", 0, "r0", sent + 1) == first, "the stored words, not a new vector"
    with refused("was used for request"):
        group.mask("p000", 0, "r1", sent)
    with refused("another sum"):
        group.mask("p000", 1, "r0", sent)
    with refused("the set-up has"):
        group.mask("p000", 2, "r2", sent)


def test_a_request_is_not_answered_again_after_another_set_up(make_group, vectors):
    """Sums of one request over two rosters would differ by one party's vector."""
    group = make_group(4)
    sent = vectors(group.keys, 4)
    group.sum(sent)
    for name, key in group.keys.items():
        group.parties[name], _ = party_side.offer_keys(group.terms, name, key, group.parties[name])
    group.server = server_side.ServerState(group.terms)
    for party in group.parties.values():
        group.server = server_side.take_offer(group.server, party.offer)
    group.server = server_side.make_roster(group.server)
    group.deal()
    with refused("another sum or after another set-up"):
        group.mask("p000", 0, "r0", sent["p000"])
    group.mask("p000", 0, "r1", sent["p000"])


def test_two_vectors_of_one_party(closed, vectors):
    group, _ = closed
    group.server = server_side.open_slot(group.server, 1, "r1", 4)
    masked = group.mask("p000", 1, "r1", vectors(["p000"], 4)["p000"])
    state = server_side.take_masked(group.server, masked)
    assert server_side.take_masked(state, masked) == state
    with refused("two vectors") as caught:
        server_side.take_masked(state, change(masked, words=bytes(32)))
    assert caught.value.culprit == "p000"
    with refused("bytes for"):
        server_side.take_masked(state, change(masked, party="p001", words=bytes(8)))
    with refused("not requested"):
        server_side.take_masked(state, change(masked, request="r0"))


def test_masks_of_different_requests_do_not_cancel(make_group, vectors):
    """A server that asks parties under different requests for one slot gets noise."""
    group = make_group(4)
    sent = {name: np.zeros(4, np.int64) for name in group.keys}
    group.server = server_side.open_slot(group.server, 0, "r0", 4)
    for name, vector in sent.items():
        masked = group.mask(name, 0, "r0" if name != "p003" else "r1", vector)
        group.server = server_side.take_masked(group.server, change(masked, request="r0"))
    group.server, told = server_side.close_slot(group.server, 0)
    with refused("sent no masked vector"):
        group.consent("p003", told)


def test_vectors_are_integers(group):
    for bad in (np.zeros(3), np.zeros((2, 2), np.int64), np.zeros(3, np.int32)):
        with pytest.raises(TypeError):
            party_side.mask_vector(group.parties["p000"], 0, "r0", bad)


# Terms --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "changes", "words"),
    [
        (2, {}, "3 to"),
        (6, {"threshold": 3}, "at least 4"),
        (7, {"threshold": 4}, "at least 5"),
        (6, {"quorum": 3}, r"from \d \(the threshold\) to"),
        (6, {"quorum": 7}, r"from \d \(the threshold\) to"),
        (6, {"colluding": 0}, "from 1 to 4"),
        (6, {"colluding": 3, "threshold": 5, "quorum": 5}, None),
        (6, {"colluding": 4, "threshold": 6, "quorum": 5}, r"from \d \(the threshold\) to"),
        (6, {"slots": 0}, "slots"),
    ],
)
def test_terms(count, changes, words):
    given = {
        "run": "r", "configuration": "c", "threshold": 4, "quorum": 5, "colluding": 1, "slots": 1,
        "parties": {f"p{i}": f"f{i}" for i in range(count)},
    } | changes  # fmt: skip
    if words is None:
        Terms(**given)
        return
    with pytest.raises(ConfigError, match=words):
        Terms(**given)


def test_terms_with_one_key_for_two_parties():
    with pytest.raises(ConfigError, match="same public key"):
        Terms(
            run="r", configuration="c", threshold=3, quorum=3, colluding=1, slots=1,
            parties={"a": "f", "b": "f", "c": "g"},
        )  # fmt: skip


def test_survivors_are_signed_with_slot_and_request():
    told = Survivors(slot=0, request="r0", names=("a", "b"))
    bodies = {
        told.signed(b"1"), told.signed(b"2"), change(told, slot=1).signed(b"1"),
        change(told, request="r1").signed(b"1"), change(told, names=("ab",)).signed(b"1"),
    }  # fmt: skip
    assert len(bodies) == 5

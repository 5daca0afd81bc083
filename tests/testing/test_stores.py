"""The stores of the library pass their suite; stores with a known fault are rejected for it."""

import base64
import secrets
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest

from tacit.party.store import PartyStore
from tacit.privacy.ledger.ledger import Ledger
from tacit.server.checkpoint import Checkpoint
from tacit.support.storage import sealed, write_durably
from tacit.testing import check_store
from tacit.testing.kill_points import kill_points


def party_store(folder, digest, kind=PartyStore):
    return kind(folder / "party.state", digest)


def checkpoint(folder, digest, kind=Checkpoint):
    return kind(folder / "checkpoint.sqlite", digest=digest)


def ledger(folder, digest, kind=Ledger):
    return kind(folder / "ledger.sqlite", create=True)


@pytest.mark.parametrize(
    ("kind", "opened"),
    [("party", party_store), ("checkpoint", checkpoint), ("ledger", ledger)],
    ids=["party", "checkpoint", "ledger"],
)
def test_the_stores_of_the_library_pass(kind, opened):
    check_store(opened, kind)


def test_kill_points_are_between_any_two_writes(tmp_path):
    folder, place = tmp_path / "folder", tmp_path / "place"
    folder.mkdir()
    place.mkdir()
    with kill_points(folder, place) as snapshots:
        (folder / "a").write_bytes(b"first")
        (folder / "a").replace(folder / "b")
    seen = [{path.name: path.read_bytes() for path in copy.iterdir()} for _, copy in snapshots.made]
    assert seen == [{}, {"a": b""}, {"a": b"first"}, {"b": b"first"}]


class InPlace(PartyStore):
    """Writes over the file that is there."""

    def _write(self, kept):
        self._path.write_bytes(sealed(msgspec.msgpack.encode(kept)))
        self._kept = kept


class Unsealed(PartyStore):
    """Whatever can be decoded is believed."""

    def __init__(self, path, digest):
        if path.exists():
            path.write_bytes(sealed(path.read_bytes().partition(b"\n")[2][32:]))
        super().__init__(path, digest)


class ForAnyRun(PartyStore):
    """Does not look at the configuration."""

    def __init__(self, path, digest):
        super().__init__(path, "any")


class InMemory(PartyStore):
    """Writes what was kept when it is closed."""

    def _write(self, kept):
        self._kept = kept

    def close(self):
        super()._write(self._kept)


class Rounding(PartyStore):
    """Keeps replies in 32 bits."""

    def keep_reply(self, request, reply):
        short = {name: np.float32(value) for name, value in reply.released.items()}
        super().keep_reply(request, reply._replace(released=short))


class InTwoWrites(PartyStore):
    """Counts an answer before it keeps it."""

    def keep_reply(self, request, reply):
        self._write(msgspec.structs.replace(self._kept, visits=self._kept.visits + 1))
        self._write(msgspec.structs.replace(self._kept, visits=self._kept.visits - 1))
        super().keep_reply(request, reply)


class OneMemory(PartyStore):
    """Has no memory of the visit before."""

    def memory_at(self, party, visit):
        return super().memory_at(party, visit + 1000)


class RawErrors(PartyStore):
    """What the decoder says is not translated."""

    def __init__(self, path, digest):
        if path.exists() and not path.read_bytes().startswith(b"tacit-state-1\n"):
            raise ValueError("no header")
        super().__init__(path, digest)


class RemembersAnotherRun(PartyStore):
    """Joins another run and still has the replies of the first."""

    def joined(self, run):
        if run != self._kept.run:
            self._write(msgspec.structs.replace(self._kept, run=run))


class WithoutVerdict(PartyStore):
    """Leaves out the server's assessment of the result."""

    def finish(self, result, public, verdict=None):
        super().finish(result, public)


class CannotBeAdopted(PartyStore):
    """Stays with its configuration."""

    def adopt(self, digest):
        pass


class SavesInParts(Checkpoint):
    """One transaction for the posterior and one for the factors."""

    def save(self, state, log=()):
        if self._saved is not None:
            super().save(replace(state, factors=self._saved.factors))
        super().save(state, log)


class LogOnce(Checkpoint):
    """Leaves out the log of all but the first state."""

    def save(self, state, log=()):
        super().save(state, log if self._saved is None else ())


class NewSecret(Checkpoint):
    """Draws the run's secret whenever it is opened."""

    def __init__(self, path, *, digest):
        super().__init__(path, digest=digest)
        self._db.execute("UPDATE secret SET body = ?", (secrets.token_bytes(16),))


class LosesReplies(Checkpoint):
    """Leaves out the replies that wait for the rest of their round."""

    def _put_replies(self, state, old):
        pass


class AdoptsInParts(Checkpoint):
    """One transaction for the configuration and one for the state."""

    def adopt(self, digest, state, log=()):
        super().adopt(digest, None)
        assert state is not None
        self.save(state, log)


class KeepsSecrets(Ledger):
    """Writes the noise keys to a file and forgets to remove them."""

    def open_many(self, asks):
        before = self.path.with_suffix(".noise")
        draw, drawn = secrets.token_bytes, []

        def noting(count=None):
            drawn.append(draw(count))
            return drawn[-1]

        secrets.token_bytes = noting
        try:
            found = super().open_many(asks)
        finally:
            secrets.token_bytes = draw
        write_durably(before, b"".join(secret.hex().encode() for secret in drawn))
        return found


class LosesKeys(Ledger):
    """A charge whose answer was lost is charged again, with other noise."""

    def open_many(self, asks):
        known = [charge.seq for charge in self.charges("run-1")]
        with self._log.writing():
            self._log.store.erase_secrets(known)
        return super().open_many(asks)


class ChargesOneByOne(Ledger):
    """Several charges are several transactions."""

    def open_many(self, asks):
        parts = [super(ChargesOneByOne, self).open_many([ask]) for ask in asks]
        return [r for replies, _ in parts for r in replies], [o for _, some in parts for o in some]


class NeverRefuses(Ledger):
    """Every budget is large."""

    def set_budgets(self, budgets, *, reason, raising=False):
        large = {one: msgspec.structs.replace(b, epsilon=1e9) for one, b in budgets.items()}
        super().set_budgets(large, reason=reason)


class ForgetsOtherRuns(Ledger):
    """Compares each charge with the budget as if it were the first."""

    def open_many(self, asks):
        if any(ask.request == "larger" for ask in asks):
            return [None], []
        return super().open_many(asks)


class ChargesLess(Ledger):
    """Charges releases with twice the noise that they have."""

    def open_many(self, asks):
        return super().open_many([
            msgspec.structs.replace(ask, events=[
                msgspec.structs.replace(event, noise_sd=2.0 * event.noise_sd)
                for event in ask.events
            ])
            for ask in asks
        ])  # fmt: skip


class IgnoresContent(Ledger):
    """A repeated request gets the same key, whatever it asks."""

    def open_many(self, asks):
        return super().open_many([msgspec.structs.replace(ask, content="") for ask in asks])


class SharesKeys(Ledger):
    """All requests of a round have one key."""

    def open_many(self, asks):
        replies, opened = super().open_many(asks)
        return replies, [one._replace(key=opened[0].key) for one in opened]


class LogsKeys(Ledger):
    """Writes the noise keys to a log."""

    form = staticmethod(repr)

    def open_many(self, asks):
        replies, opened = super().open_many(asks)
        with self.path.with_suffix(".log").open("a") as log:
            log.writelines(f"{self.form(one.key)}\n" for one in opened)
        return replies, opened


class LogsKeysInHex(LogsKeys):
    """As digits and capital letters."""

    form = staticmethod(lambda key: key.hex().upper())


class LogsKeysInBase64(LogsKeys):
    """As a token in a URL."""

    form = staticmethod(lambda key: base64.urlsafe_b64encode(key).decode().rstrip("="))


@pytest.mark.parametrize(
    ("kind", "opened", "broken", "message"),
    [
        (
            "party",
            party_store,
            InPlace,
            r"atomic: killed after open, in joined: the store cannot be opened",
        ),
        (
            "party",
            party_store,
            Unsealed,
            r"torn: party.state, byte \d+ changed: (the damage|raised)",
        ),
        ("party", party_store, ForAnyRun, r"other run: .*the store is not empty"),
        ("party", party_store, InMemory, r"written: joined has returned, but a store opened now"),
        (
            "party",
            party_store,
            Rounding,
            r"written: keep_reply .*factor.linear: the array .* became",
        ),
        (
            "party",
            party_store,
            InTwoWrites,
            r"atomic: killed .*, in keep_reply: the store holds neither",
        ),
        ("party", party_store, OneMemory, r"written: keep_memories .*memories.1 was NoneType None"),
        ("party", party_store, RawErrors, r"torn: .* raised ValueError \(no header\)"),
        ("checkpoint", checkpoint, SavesInParts, r"atomic: killed .*, in save of state 1: the sto"),
        ("checkpoint", checkpoint, LogOnce, r"written: save of state 2 .*store.log = "),
        ("checkpoint", checkpoint, NewSecret, r"written: save of state 0 .*secret"),
        ("ledger", ledger, KeepsSecrets, r"noise key: ledger.noise still holds the secret"),
        ("ledger", ledger, LosesKeys, r"written: open_many .*(charged|keys)"),
        ("party", party_store, RemembersAnotherRun, r"written: joined, another run .*visits = 0"),
        ("party", party_store, WithoutVerdict, r"written: finish .*verdict was dict"),
        ("party", party_store, CannotBeAdopted, r"adopt: killed after close: .*the store.run"),
        ("checkpoint", checkpoint, LosesReplies, r"written: save of replies that have arrived"),
        ("checkpoint", checkpoint, AdoptsInParts, r"adopt: killed .*: the store holds neither"),
        ("ledger", ledger, NeverRefuses, r"budget: one release exceeds ε = 10.6: it was accepted"),
        ("ledger", ledger, ForgetsOtherRuns, r"budget: a release together with the earlier one"),
        ("ledger", ledger, ChargesLess, r"spent: ε of data set 'a' .*: found 1.99.*between 4.377"),
        ("ledger", ledger, IgnoresContent, r"content: .* with another content: it was accepted"),
        ("ledger", ledger, SharesKeys, r"noise key: 2 charges have 1 different noise keys"),
        ("ledger", ledger, LogsKeys, r"noise key: ledger.log still holds the key of an answer"),
        ("ledger", ledger, LogsKeysInHex, r"noise key: ledger.log still holds the key"),
        ("ledger", ledger, LogsKeysInBase64, r"noise key: ledger.log still holds the key"),
        ("ledger", ledger, ChargesOneByOne, r"atomic: killed .*, in open_many: the store holds"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_broken_stores_are_rejected(kind, opened, broken, message):
    with pytest.raises(AssertionError, match=message):
        check_store(partial(opened, kind=broken), kind)

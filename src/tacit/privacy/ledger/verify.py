"""Read-only views of the ledger: rows for display, a full check, and an export.

The output contains no key and no stored reply. Its hashes are keyed, so that they reveal nothing
about records.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from tacit.errors import DataError, TacitError
from tacit.privacy.ledger.chain import (
    ADVICE,
    Entry,
    fault,
    follow,
    read_row,
    records_hash,
    reply_hash,
)
from tacit.privacy.ledger.cost import Spent
from tacit.privacy.ledger.noise import is_sound
from tacit.privacy.ledger.state import State
from tacit.privacy.ledger.store import Store

_SHOWN = 10


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One entry, for display.

    The `state` of a charge is "charged", or "answered" if its reply is stored.
    """

    seq: int
    time: str
    kind: str
    state: str
    dataset: str
    run: str
    request: str
    attempt: int
    unit: str
    adjacency: str
    purpose: str
    detail: Any
    hash: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a full check. `receipt` states the number and the hash of the last entry."""

    path: str
    entries: int
    problems: tuple[str, ...]
    receipt: str

    @property
    def sound(self) -> bool:
        """True if no problem was found."""
        return not self.problems


def as_row(entry: Entry, state: State) -> Row:
    """Convert an entry to a row for display."""
    answered = (entry.run, entry.request) in state.answers
    values = {name: getattr(entry, name) for name in Row.__struct_fields__ if hasattr(entry, name)}
    said = {"charge": "answered" if answered else "charged"}.get(entry.kind, "")
    detail = msgspec.json.decode(entry.body)
    if entry.kind == "records":
        detail = detail[0]  # the digest, without the number of records
    return Row(**{**values, "state": said, "detail": detail, "hash": entry.hash.hex()})


def write_export(path: Path, form: str, rows: list[Row], spent: list[Spent], receipt: str) -> None:
    """Write an export atomically.

    A CSV file contains the entries. A JSON file also contains the spent ε and the receipt.
    """
    if form == "json":
        body = msgspec.json.format(
            msgspec.json.encode({"receipt": receipt, "spent": spent, "entries": rows})
        )
    else:
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(Row.__struct_fields__)
        for row in rows:
            writer.writerow([_cell(getattr(row, name)) for name in Row.__struct_fields__])
        body = text.getvalue().encode()
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(body)
        os.replace(part, path)  # noqa: PTH105 - atomic on every platform
    except OSError as error:
        raise DataError(
            f"{path} cannot be written ({error.strerror}); choose another path"
        ) from error


def _cell(value: Any) -> str:
    """Escape text that a spreadsheet would read as a formula."""
    text = value if isinstance(value, str | int) else msgspec.json.encode(value).decode()
    text = str(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def audit(path: Path, receipt: str | None = None) -> Report:
    """Check the whole ledger and list all problems.

    `receipt` is the receipt of an earlier report or export that was stored outside the ledger. Only
    a receipt can show that database, head and key were all restored to an older state.
    """
    problems: list[str] = []
    hashes: dict[int, str] = {}
    try:
        with closing(Store(path)) as store:
            store.unlock()
            with store.transaction():
                hashes[0] = store.first.hex()
                for check in (_structure, _chain, _heads):
                    _collect(problems, store, hashes, check)
                if not problems:
                    _collect(problems, store, hashes, _replies)
                    _collect(problems, store, hashes, _noise_secrets)
                    _collect(problems, store, hashes, _records)
        if receipt is not None:
            problems += _receipt(receipt, hashes)
    except TacitError as error:
        problems.append(_plain(error))
    count = max(hashes, default=0)
    return Report(
        path=str(path),
        entries=max(len(hashes) - 1, 0),
        problems=tuple(problems),
        receipt=f"{count}:{hashes.get(count, '')}",
    )


_Hashes = dict[int, str]
_Check = Callable[[Store, _Hashes], Iterable[str]]


def _collect(problems: list[str], store: Store, hashes: _Hashes, check: _Check) -> None:
    """Run one check and append what it finds to `problems`. An error counts as a problem."""
    try:
        with store.errors():
            problems.extend(islice(check(store, hashes), _SHOWN))
    except TacitError as error:
        problems.append(_plain(error))


def _plain(error: TacitError) -> str:
    return str(error).removesuffix(f"; {ADVICE}")


def _structure(store: Store, _: _Hashes) -> Iterable[str]:
    store.check_structure()
    return ()


def _chain(store: Store, hashes: _Hashes) -> Iterable[str]:
    """Yield every problem in the chain of entries, and add the hash of each entry to `hashes`."""
    count, last = 0, store.first
    for row in store.rows():
        entry = read_row(row, count + 1)
        problem = fault(store.key, entry, count, last)
        if problem:
            yield problem
        count, last = entry.seq, entry.hash
        hashes[count] = last.hex()


def _heads(store: Store, hashes: _Hashes) -> Iterable[str]:
    count, head = max(hashes), store.head()
    if (head.count, head.hash.hex()) != (count, hashes[count]):
        yield f"the head records {head.count} entries, but the last one found is {count}"
    store.check_reaches(store.outer_head(), count)


def _replies(store: Store, _: _Hashes) -> Iterable[str]:
    """Yield a problem for each missing or changed reply, and for replies that the chain does not
    record.
    """
    state = State(last=store.first)
    for entry in follow(store.key, store.rows(), 0, store.first):
        state.apply(entry)
    for (run, request), answer in state.answers.items():
        body = store.reply(answer.seq)
        if body is None or reply_hash(store.key, run, request, body) != answer.digest:
            yield f"the stored reply of entry {answer.seq} is missing or was changed"
    ((found,),) = store.db.execute("SELECT count(*) FROM replies").fetchall()
    if found != len(state.answers):
        yield f"{len(state.answers)} replies were stored, {found} are present"


def _noise_secrets(store: Store, _: _Hashes) -> Iterable[str]:
    """Yield one problem per noise secret that was changed, or whose charge is missing or already
    has a reply.
    """
    if not store.has_noise_secrets():
        return
    state = State(last=store.first)
    for entry in follow(store.key, store.rows(), 0, store.first):
        state.apply(entry)
    charges = {charge.seq: charge for found in state.charges.values() for charge in found}
    for kept in store.noise_secrets():
        charge = charges.get(kept.seq)
        if charge is None:
            yield f"the noise secret {kept.seq} belongs to no charge"
            continue
        if not is_sound(store, charge, kept):
            yield f"the noise secret of entry {kept.seq} was changed"
        if (charge.run, charge.request) in state.answers:
            yield f"the noise secret of entry {kept.seq} was not erased with its reply"


def _records(store: Store, _: _Hashes) -> Iterable[str]:
    """Yield one problem per entry whose record hashes are missing or were changed."""
    state = State(last=store.first)
    for entry in follow(store.key, store.rows(), 0, store.first):
        state.apply(entry)
    for content, known in state.records.items():
        stored = store.records(known.seq)
        if stored is None or records_hash(store.key, content, *stored) != known.digest:
            yield f"the record hashes of entry {known.seq} are missing or were changed"


def _receipt(receipt: str, hashes: _Hashes) -> list[str]:
    count, _, digest = receipt.partition(":")
    if count.isdecimal() and digest and hashes.get(int(count)) == digest:
        return []
    return [
        f"the ledger does not contain what the receipt {receipt[:80]} says: everything was restored"
        " to an older state, or the receipt belongs to another ledger"
    ]

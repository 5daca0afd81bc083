"""The part of a ledger that only reads: budgets, charges, spent ε, and checks of the entries."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from tacit.errors import ConfigError
from tacit.privacy.ledger.chain import follow
from tacit.privacy.ledger.cost import (
    CachedAccountant,
    Spent,
)
from tacit.privacy.ledger.exposure import Exposure
from tacit.privacy.ledger.fingerprint import DatasetId, fingerprint
from tacit.privacy.ledger.log import EntryLog
from tacit.privacy.ledger.noise import stored_secret
from tacit.privacy.ledger.overlap import Overlaps, division_name
from tacit.privacy.ledger.paths import own_ledger
from tacit.privacy.ledger.records import HashedRecords, hash_records
from tacit.privacy.ledger.state import Budget, Charge, Epsilon, State
from tacit.privacy.ledger.verify import Report, Row, as_row, audit, write_export


class LedgerReader:
    """The methods of `tacit.privacy.ledger.ledger.Ledger` that add no entry."""

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        create: bool = False,
        epsilon: Epsilon | None = None,
    ) -> None:
        self._log = EntryLog(own_ledger() if path is None else Path(path), create=create)
        self._accountant = CachedAccountant(epsilon)
        self._hashed: dict[str, HashedRecords] = {}
        self._older: dict[str, DatasetId] = {}
        self._divisions: dict[str, str] = {}
        self._overlaps: tuple[Any, Overlaps] = None, Overlaps({})

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self._log.store.path

    def close(self) -> None:
        """Close the file."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def identify(self, schema: Any, records: Mapping[str, np.ndarray]) -> DatasetId:
        """Return the id of a data set under this party's key: see `identify_many`.

        Parameters
        ----------
        schema
            Public schema of the records.
        records
            The records, by column.
        """
        return self.identify_many(schema, {"": records})[""]

    def identify_many(
        self,
        schema: Any,
        parties: Mapping[str, Mapping[str, Any]],
        *,
        person: str | None = None,
        older: Callable[[str], DatasetId] | None = None,
    ) -> dict[str, DatasetId]:
        """Return the ids of the data sets of parties that have no record in common.

        The caller guarantees that no record is at two of these parties. Equal rows of two parties
        are therefore different records, and equal columns (such as a time grid) do not mean that
        two parties hold the same records.

        The keyed hashes of the records are compared with those of all data sets in the ledger,
        because charges to another data set also count for the records that both data sets contain.
        The hashes are stored when the data set gets its first budget or charge.

        Parameters
        ----------
        schema
            Public schema of the records.
        parties
            All columns of each party with all records, before any split, selection or preparation.
        person
            Column that identifies the person of a record.
        older
            Function from the name of a party to the id that version 0.1 gave its data set. It is
            called only if the ledger has data sets of that version. Charges to the id that it
            returns then also count for the new id.
        """
        found = hash_records(schema, parties, self._log.store.key, person=person)
        if len(found) > 1:
            named = division_name(hashed.id.content for hashed in found.values())
            self._divisions.update((hashed.id.content, named) for hashed in found.values())
        with self._log.writing() as state:
            first_version = {one.content: one for one in state.datasets}
        for content in state.records:
            first_version.pop(content, None)
        for name, hashed in found.items():
            content = hashed.id.content
            self._hashed[content] = hashed
            if older is not None and first_version and content not in state.records:
                before = older(name)
                if before.content in first_version:
                    self._older[content] = before
        return {name: hashed.id for name, hashed in found.items()}

    def first_version_id(self, schema: Any, records: Mapping[str, np.ndarray]) -> DatasetId:
        """Return the id that version 0.1 gives a data set: see `fingerprint`.

        Parameters
        ----------
        schema
            Public schema of the records.
        records
            The training records, by column.
        """
        return fingerprint(schema, records, self._log.store.key)

    def _exposure(self, state: State) -> Exposure:
        """Return the charges in `state`, together with the overlaps between data sets (common
        records). Call this inside the context `writing`.
        """
        contents = dict.fromkeys(self._hashed, "")
        contents |= {one: known.division for one, known in state.records.items()}
        contents |= self._divisions
        # Hashes of an earlier version are replaced when their data set is identified again.
        present = contents, frozenset(self._hashed)
        if self._overlaps[0] != present:
            stored = contents.keys() - self._hashed.keys()
            hashed = self._hashed | {one: self._log.records(state, one) for one in stored}
            self._overlaps = present, Overlaps(hashed, contents)
        return Exposure(state, self._overlaps[1], self._older)

    def derived_key(self, use: str) -> bytes:
        """Derive a key for another purpose from the ledger's key. The same purpose always gives the
        same key.

        Parameters
        ----------
        use
            Purpose of the key.
        """
        state = hashlib.blake2b(key=self._log.store.key, person=b"tacit.derived", digest_size=32)
        state.update(use.encode())
        return state.digest()

    def budget(self, data: DatasetId | str) -> Budget | None:
        """Return the budget of a data set; None if the data set has no budget and inherits none.

        A data set without a budget inherits one if each of its records is also in a data set with a
        budget. It inherits the smallest of these budgets.

        Parameters
        ----------
        data
            A data set of `datasets()`, or its id as `tacit ledger show --all` prints it.
        """
        with self._log.writing() as state:
            return self._exposure(state).budget(_as_dataset(data))

    def recall(self, run: str, request: str) -> bytes | None:
        """Return one stored reply: see `recall_many`.

        Parameters
        ----------
        run, request
            Ids of the run and of the request.
        """
        return self.recall_many([(run, request)])[0]

    def recall_many(self, requests: Sequence[tuple[str, str]]) -> list[bytes | None]:
        """Return the stored reply for each pair (run, request), or None if no reply is stored.

        A stored reply can be sent again unchanged.

        Parameters
        ----------
        requests
            Pairs of a run and a request.
        """
        with self._log.writing() as state:
            return [self._log.reply(state, place) for place in requests]

    def charges(self, run: str) -> list[Charge]:
        """Return the charges of a run, in order.

        Parameters
        ----------
        run
            Id of the run.
        """
        with self._log.writing() as state:
            found = [c for cs in state.charges.values() for c in cs if c.run == run]
        return sorted(found, key=lambda charge: charge.seq)

    def paid_for(self, run: str) -> list[Charge]:
        """Return the charges of a run whose replies can be sent without a new charge.

        These replies are stored, or can be recomputed with a stored noise key.

        Parameters
        ----------
        run
            Id of the run.
        """
        with self._log.writing() as state:
            return [
                charges[-1]
                for place, charges in state.charges.items()
                if place[0] == run
                and (place in state.answers or stored_secret(self._log.store, charges[-1]))
            ]

    def spent(self, data: DatasetId | str) -> Spent:
        """Return the ε spent on a data set, with its budget.

        Parameters
        ----------
        data
            A data set of `datasets()`, or its id.
        """
        dataset = _as_dataset(data)
        with self._log.writing() as state:
            exposure = self._exposure(state)
            budget, family = exposure.budget(dataset), state.family(dataset.content)
            charged = exposure.largest(dataset)
            epsilon = committed = as_one_run = None
            if budget is not None:
                epsilon = max(self._accountant.of_charges(one, budget) for one in charged)
                committed = max(self._accountant.of(one, budget) for one in charged)
                as_one_run = max(self._accountant.as_one_run(one, budget) for one in charged)
            charges = [c for cs in state.charges.values() for c in cs]
            return Spent(
                dataset=str(dataset),
                epsilon=epsilon,
                budget=budget,
                remaining=None
                if budget is None or committed is None
                else budget.epsilon - committed,
                charges=sum(charge.dataset.content in family for charge in charges),
                releases=max(sum(one.paid.values()) for one in charged),
                family=len(family),
                committed=committed,
                as_one_run=as_one_run,
                shared=exposure.overlaps.others(dataset.content),
            )

    def remaining(self, data: DatasetId | str) -> float | None:
        """Return the ε of the budget minus the ε of all charges and unfinished plans; None if there
        is no budget.

        ε is not additive: use `check` to see whether a run fits.

        Parameters
        ----------
        data
            A data set of `datasets()`, or its id.
        """
        return self.spent(data).remaining

    def datasets(self) -> list[DatasetId]:
        """Return all data sets in the ledger, in the order of their first entry."""
        with self._log.writing() as state:
            return list(state.datasets)

    def lookalikes(self, dataset: DatasetId) -> list[DatasetId]:
        """Return the charged data sets that have this one's schema and are not linked with it.

        Parameters
        ----------
        dataset
            The data set, as returned by `identify`.
        """
        with self._log.writing() as state:
            return list(state.lookalikes(dataset))[::-1]

    def entries(self, data: DatasetId | str | None = None) -> list[Row]:
        """Read all entries from disk, check them, and return them in order.

        Parameters
        ----------
        data
            If given, only the entries of this data set and of the data sets linked with it are
            returned.
        """
        store, dataset = self._log.store, None if data is None else _as_dataset(data)
        with self._log.writing() as state:
            entries = list(follow(store.key, store.rows(), 0, store.first))
            family = None if dataset is None else state.family(dataset.content)
            return [
                as_row(entry, state)
                for entry in entries
                if family is None or DatasetId.parse(entry.dataset).content in family
            ]

    def receipt(self) -> str:
        """Return the number and the hash of the last entry as text.

        A receipt that is stored outside the ledger can later show that the ledger was restored to
        an older state.
        """
        with self._log.writing() as state:
            return f"{state.count}:{state.last.hex()}"

    def verify(self, receipt: str | None = None) -> Report:
        """Check every entry and stored reply on disk; the report lists all problems.

        Parameters
        ----------
        receipt
            A receipt from an earlier report or export, kept elsewhere. Only a receipt can reveal
            that the whole ledger was restored to an older state.
        """
        return audit(self._log.store.path, receipt)

    def export(self, path: str | Path, format: Literal["json", "csv"] = "json") -> None:
        """Write all entries to a file. A JSON file also contains the spent ε. Keys and replies are
        not written.

        Parameters
        ----------
        path
            The file to write.
        format
            "json" or "csv".
        """
        if format not in ("json", "csv"):
            raise ConfigError(f'format = "{format}"; choose json or csv')
        spent = [self.spent(dataset) for dataset in self.datasets()]
        write_export(Path(path), format, self.entries(), spent, self.receipt())


def _as_dataset(data: DatasetId | str) -> DatasetId:
    return data if isinstance(data, DatasetId) else DatasetId.parse(data)

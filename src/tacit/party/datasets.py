"""Ids by which a ledger recognises the data sets of parties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tacit.data import Federation
from tacit.data.records import pooled
from tacit.methods.private import PERSON
from tacit.models import Records
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.ledger import Ledger


def identify_parties(
    ledger: Ledger, federation: Federation, parties: Iterable[str]
) -> dict[str, DatasetId]:
    """Return the data set id of each party's records, computed with the ledger's key.

    An id depends on all rows and columns of the source, including those that this run does not use.
    """
    names = list(parties)
    if not federation.source and not federation.raw:
        return identify_arrays(ledger, {name: federation.parties[name] for name in names})
    source = source_records(federation, names)
    raw = _by_party(federation.raw, names)
    form = federation.known_by
    return ledger.identify_many(
        form or {"columns": sorted(source[names[0]])},
        source,
        person=federation.person,
        older=lambda name: ledger.first_version_id(
            form or {"columns": sorted(raw[name]), "target": federation.outcome}, raw[name]
        ),
    )


def source_records(federation: Federation, names: list[str]) -> Mapping[str, Records]:
    """Return a mapping from party names to all rows and columns of the party's source.

    If the federation has no source, its prepared records are returned.
    """
    source = federation.raw if federation.source is None else federation.source
    return _by_party(source or federation.parties, names)


def _by_party(records: Mapping[str, Records], names: list[str]) -> Mapping[str, Records]:
    """Return the records of the parties `names`.

    In a pooled baseline, `names` are not keys of `records`. Each name then gets all records.
    """
    if set(names) <= set(records):
        return {name: records[name] for name in names}
    whole = pooled({name: records[name] for name in records})
    return dict.fromkeys(names, whole)


def identify_arrays(ledger: Ledger, parties: Mapping[str, Records]) -> dict[str, DatasetId]:
    """Return the data set id of each party's arrays.

    The column of person ids is left out, because ids may differ between fits.
    """
    arrays: dict[str, dict[str, Any]] = {
        name: {key: value for key, value in records.items() if key != PERSON}
        for name, records in parties.items()
    }
    columns = sorted(next(iter(arrays.values()))) if arrays else []
    return ledger.identify_many({"arrays": columns}, arrays)

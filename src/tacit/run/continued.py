"""Records that arrive later: a run whose prior is the posterior of an earlier run.

Suppose that two batches of records are independent given θ. The posterior given both batches is
then the posterior given the second batch, if the prior is the posterior given the first batch (MEng
§5.1, TMLR §2). Only the new records are read, and only their statistics are released and charged.
With conjugate factors the result is the posterior given all records. In private runs the statistics
of each batch have separate noise.

A record in both batches would count twice. A run therefore stores keyed hashes of its records in
its private part. A later run that continues it refuses records with the same hashes.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tacit.data import Federation
from tacit.errors import ConfigError, DataError
from tacit.expfam import Natural
from tacit.party.datasets import source_records
from tacit.plan.plan import Plan
from tacit.privacy.ledger.fingerprint import KEY_BYTES
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.records import hash_records
from tacit.results.saved import model_settings, read_saved
from tacit.results.summary import DataFacts, GuaranteeFacts, public_of
from tacit.run.config import Continues
from tacit.run.directory import private_part
from tacit.support.argument_names import column_key
from tacit.support.storage import sealed, unsealed, write_durably, writing

RECORDS = "records"
CONTINUED = ("exact", "expected-statistics", "dp-statistics")
"""Kinds of methods whose runs can be continued with new records."""
_CHECK_BYTES = 16


@dataclass(frozen=True)
class Earlier:
    """The earlier run that is continued: its posterior, model, data and guarantee."""

    folder: Path
    natural: Natural
    family: str
    kind: str
    settings: dict[str, object] | None
    data: DataFacts
    guarantee: GuaranteeFacts | None

    def digest(self, key: bytes) -> str:
        """Return a keyed digest of the posterior, with which a resumed run checks that it is
        unchanged.
        """
        state = hashlib.blake2b(digest_size=16, key=key)
        for name in sorted(self.natural):
            state.update(name.encode() + np.ascontiguousarray(self.natural[name]).tobytes())
        return state.hexdigest()


def read_earlier(continues: Continues) -> Earlier:
    """Read the earlier run; refuse it if it did not converge."""
    folder = Path(continues.run).expanduser()
    result, posterior, _ = read_saved(public_of(folder))
    if result.converged is False:
        raise DataError(
            f"continues.run = {continues.run!r}: that run did not converge ({result.why}), and its "
            "posterior would be the prior of this run; first repeat that run so that it converges"
        )
    model = result.model
    return Earlier(
        folder, posterior.natural, posterior.family.kind, model.kind, model.settings, result.data,
        result.privacy.guarantee,
    )  # fmt: skip


def check_same_model(earlier: Earlier, plan: Plan) -> None:
    """Refuse an earlier posterior of another model, family, schema or scaling."""
    where = f"continues.run = {str(earlier.folder)!r}"
    if (earlier.kind, earlier.family) != (plan.model.kind, plan.family.kind):
        raise ConfigError(
            f"{where} has a {earlier.family} posterior of model {earlier.kind!r}, but this run "
            f"has a {plan.family.kind} posterior of model {plan.model.kind!r}; use the same "
            "posterior and model in both runs"
        )
    settings = model_settings(plan.model)
    if settings is None or earlier.settings is None:
        raise ConfigError(
            f"{where}: the settings of model {plan.model.kind!r} are not stored, so the two runs "
            "cannot be compared; fit all records in one run"
        )
    other = sorted(
        name
        for name in {*settings, *earlier.settings}
        if settings.get(name) != earlier.settings.get(name)
    )
    if other:
        raise ConfigError(
            f"{where} was fitted with other values of these settings of the model: "
            f"{', '.join(other)} ({other[0]} was {_brief(earlier.settings.get(other[0]))} and is "
            f"now {_brief(settings.get(other[0]))}); declare bounds, levels and settings in the "
            "study file, so that both runs use the same values"
        )


def check_same_guarantee(earlier: Earlier, plan: Plan) -> None:
    """Refuse a private update whose ε would not cover all records that its result depends on.

    The result also depends on the earlier records, which only the guarantee of the earlier run
    covers. A person or a party may have records in both runs, and the ε of neither run covers both
    releases.
    """
    then, now = earlier.guarantee, plan.guarantee
    if now is None:
        return
    where = f"continues.run = {str(earlier.folder)!r}"
    if now.unit != "record":
        raise ConfigError(
            f"{where} with privacy.unit = {now.unit!r}; a {now.unit} with records in both runs "
            "would not be covered by the ε of either run: use privacy.unit = 'record', or fit all "
            "records in one run"
        )
    if then is None or (then.caveat is not None and now.caveat is None):
        lacks = "no guarantee" if then is None else "noise from a known seed"
        raise ConfigError(
            f"{where} has {lacks}, so this run's ε would not cover the earlier records; "
            "continue a run with a guarantee, or set privacy = 'none' in this run"
        )
    if (then.unit, then.adjacency) != (now.unit, now.adjacency):
        raise ConfigError(
            f"{where} protects a {then.unit} ({then.adjacency}), this run a {now.unit} "
            f"({now.adjacency}); use the same privacy.unit and privacy.adjacency in both"
        )


def check_same_columns(earlier: Earlier, data: DataFacts) -> None:
    """Refuse records that are read or scaled differently from those of the earlier run.

    Otherwise θ would have different meanings in the two runs.
    """
    for name in ("outcome", "positive", "levels", "scaling", "keep"):
        then, now = getattr(earlier.data, name), getattr(data, name)
        if then != now:
            raise ConfigError(
                f"continues.run = {str(earlier.folder)!r} has {name} = {then!r}, but this run has "
                f"{now!r}; use the same {name} in both runs"
            )
    then = {row["name"]: row for row in earlier.data.columns or ()}
    now = {row["name"]: row for row in data.columns or ()}
    for column in sorted({*then, *now}):
        before, after = then.get(column, {}), now.get(column, {})
        changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
        changed -= {"unit", "draft"}
        if changed:
            key = min(changed)
            raise ConfigError(
                f"column {column!r} has {key} = {before.get(key)!r} in {earlier.folder}, but this "
                f"run has {after.get(key)!r}; declare {column_key(column)}.{key} in the study "
                "file, so that both runs use the same scale"
            )


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


class SeenRecords:
    """Keyed hashes of the records that a chain of runs has used."""

    def __init__(self, key: bytes, hashes: np.ndarray, *, own_key: bool) -> None:
        self.key, self.hashes, self.own_key = key, hashes, own_key

    @classmethod
    def of(cls, plan: Plan, federation: Federation, key: bytes, *, own_key: bool) -> SeenRecords:
        """Hash all rows of the run's data source, for the parties whose records are in this
        process.
        """
        here = [name for name, records in plan.parties.items() if records]
        source = source_records(federation, here)
        hashed = hash_records([], source, key).values()
        rows = np.unique(np.concatenate([one.elements for one in hashed]))
        return cls(key, rows, own_key=own_key)

    def joined(self, other: SeenRecords) -> SeenRecords:
        """Return the union of this object's hashes and those of `other`, with the key of this
        object.
        """
        hashes = np.union1d(self.hashes, other.hashes)
        return SeenRecords(self.key, hashes, own_key=self.own_key)

    def in_common(self, other: SeenRecords) -> int:
        """Return the number of records that both objects contain."""
        return len(np.intersect1d(self.hashes, other.hashes, assume_unique=True))

    def write(self, out: Path) -> None:
        """Write the hashes into the private part of a run directory.

        The key is written with the hashes, unless it is the key of a ledger. Without the key,
        guesses about a record cannot be tested against its hash.
        """
        key = self.key if self.own_key else bytes(KEY_BYTES)
        body = key + _key_check(self.key) + self.hashes.astype("<u8").tobytes()
        path = private_part(out) / RECORDS
        with writing(path):
            write_durably(path, sealed(body))


def new_key() -> bytes:
    """Return a new random key, for a run without a ledger."""
    return secrets.token_bytes(KEY_BYTES)


def read_seen(folder: Path, ledger_key: bytes | None) -> SeenRecords:
    """Read the hashes in the private part of a run directory.

    Parameters
    ----------
    folder
        The run directory.
    ledger_key
        Key of the ledger to which this run is charged; None if there is no ledger.
    """
    path = private_part(folder) / RECORDS
    try:
        body = unsealed(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"{path} cannot be read ({reason}); this file lists the records that the earlier run "
            "has used: set continues.run to the complete directory, including private/, of a run "
            f"with method.kind = {' or '.join(CONTINUED)}"
        ) from None
    own, check = body[:KEY_BYTES], body[KEY_BYTES : KEY_BYTES + _CHECK_BYTES]
    stored = own != bytes(KEY_BYTES)
    key = own if stored else ledger_key
    if key is None or _key_check(key) != check:
        raise ConfigError(
            f"{folder} was charged to a ledger that this run does not use, so records in both "
            "runs could not be detected; use the same ledger: --ledger FILE"
        )
    hashes = np.frombuffer(body[KEY_BYTES + _CHECK_BYTES :], "<u8")
    return SeenRecords(key, hashes, own_key=stored)


def _key_check(key: bytes) -> bytes:
    return hashlib.blake2b(key=key, digest_size=_CHECK_BYTES, person=b"tacit.keycheck").digest()


def records_used(
    plan: Plan, federation: Federation, continues: Continues | None, ledger: Path | None
) -> SeenRecords | None:
    """Return the hashes of the records of a run and of the runs that it continues.

    The result is None if runs of this method cannot be continued. Raises a DataError if the earlier
    runs have used some of the records, because these would count twice.

    Parameters
    ----------
    plan, federation
        The plan and the records of the run.
    continues
        The earlier run, if there is one.
    ledger
        The ledger whose key is used for the hashes; None to use a key that is stored in the run
        directory.
    """
    if not plan.method.takes_batches or (ledger is not None and not ledger.exists()):
        return None  # without its ledger a run is refused later
    key = None
    if ledger is not None:
        with Ledger(ledger) as book:
            key = book.derived_key("records")
    if continues is None:
        own = new_key() if key is None else key
        return SeenRecords.of(plan, federation, own, own_key=key is None)
    seen = read_seen(Path(continues.run).expanduser(), key)
    new = SeenRecords.of(plan, federation, seen.key, own_key=seen.own_key)
    common = seen.in_common(new)
    if common and continues.equal_rows == "refuse":
        raise DataError(
            f"{common} of the {len(new.hashes)} rows are equal to rows that {continues.run} has "
            "used, and would count twice; give new records only, or set "
            'continues.equal_rows = "allow" if equal rows are different records'
        )
    return new.joined(seen)

"""The three configuration files of a live federation.

federation.toml, called the agreed file, contains the settings that all members agree on. A party's
operator approves the digest of this file, and the server and the parties check that their digests
are equal. server.toml and party.toml refer to the agreed file by `federation = "federation.toml"`
and contain local settings: addresses, certificates, paths of records.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from tacit.data.config import CORPORA, WITH_SITES, DataConfig
from tacit.data.partition_settings import PartitionConfig
from tacit.errors import ConfigError, DataError, TacitError
from tacit.live.settings import Join, Serve
from tacit.methods.settings import AutoMethod, MethodSettings
from tacit.models.settings import AutoModel, ModelSettings, NumPyroSettings
from tacit.privacy.settings import Privacy
from tacit.run.config import PRIVACY_MISSING, Config, model_faults, parse_study, read_toml
from tacit.run.study_file import SHOWN_AS, TOP
from tacit.server.settings import ScheduleSettings, SynchronousSettings, parties_per_round
from tacit.support.argument_names import column_key
from tacit.support.table_reader import read_table
from tacit.support.tables import Table, plain
from tacit.support.validation import Count, Seed

OWN_FILE_PLACEHOLDER = "each-party-has-its-own.csv"
"""Placeholder of data.path in the agreed file."""
FILES = ("file", "documents")
"""Kinds of data source for which each party has its own files."""


class ContinuedRun(Table, frozen=True, kw_only=True):
    """An earlier live run, whose posterior is the prior of this run on later records."""

    place: ClassVar[str] = "continues"

    run: str
    """Id of the earlier run, e.g. "run-4f1c…"."""
    posterior: str
    """Digest of that run's posterior, as `tacit update SERVER.toml --study FILE` writes it."""
    equal_rows: Literal["refuse", "allow"] = "refuse"
    """"refuse": a row that a party has used in the earlier run is an error, because it would count
    twice; "allow": equal rows are different records."""


class Federation(Table, frozen=True, kw_only=True):
    """Settings on which all parties and the server agree."""

    advice: ClassVar[Mapping[str, str]] = {
        "privacy": PRIVACY_MISSING,
        "parties": "list the names in the parties' certificates",
    }
    placeholders: ClassVar[Mapping[str, Any]] = {"privacy": "none", "parties": ("one",)}
    shown_as: ClassVar[Mapping[str, str]] = SHOWN_AS
    renamed: ClassVar[Mapping[str, str]] = Config.renamed

    privacy: Literal["none"] | Privacy
    """The guarantee. Training without privacy must be requested explicitly: "none"."""
    parties: tuple[str, ...]
    """Common names of the parties' certificates, in the order of their updates."""
    version: Count = 1
    """Number of this version; a higher one adds parties to a running federation."""
    name: str = "federation"
    """Name of the run in results and reports."""
    seed: Seed = 0
    """Seed of everything that is random and public."""
    posterior: Literal["auto", "mean-field", "full"] = "auto"
    """Covariance of the Gaussian posterior: diagonal ("mean-field") or full."""
    data: DataConfig = DataConfig(held_out=0.0)
    """The public schema of the records."""
    model: ModelSettings = AutoModel()
    method: MethodSettings = AutoMethod()
    schedule: ScheduleSettings = SynchronousSettings()
    records: Count | None = None
    """Approximate number of units of all parties together; public under replace-one."""
    quorum: Count | None = None
    """Number of replies that complete a round after the server's deadline; by default all."""
    on_leave: Literal["keep", "divide-out"] = "keep"
    """What happens to the factor of a party that leaves permanently."""
    continues: ContinuedRun | None = None
    """The earlier run that this run updates with new records; None if this run starts from the
    prior.
    """
    keys: dict[str, str] = msgspec.field(default_factory=dict)
    """For secure sums: a dict from party names to the SHA-256 of their public keys in hexadecimal
    (`tacit certs fingerprint`).
    """

    @property
    def private(self) -> Privacy | None:
        """The [privacy] table; None in a run without privacy."""
        return None if self.privacy == "none" else self.privacy

    def faults(self) -> Iterator[str | TacitError]:
        if not self.parties:
            yield "parties is empty; list the names in the parties' certificates"
        for name in dict.fromkeys(self.parties):
            if self.parties.count(name) > 1:
                yield f"parties names {name!r} twice; name it once"
        yield from self._quorum_faults()
        yield from self._secure_faults()
        if self.data.source == "sql":
            yield (
                'data.source = "sql" in the agreed file; leave it out: each party\'s own file has'
                " data.path, or data.database and data.query"
            )
        if self.data.scaling != "public":
            yield (
                'data.scaling = "pooled" in a live federation, where records are never in one '
                "place: "
                "declare the schema and leave scaling out"
            )
        for key in ("party", "site"):
            if getattr(self.data, key) is not None:
                yield (
                    f"data.{key} = {getattr(self.data, key)!r} in a federation's file, whose "
                    "parties each have their own records; site is for a party.toml: leave it out"
                )
        yield from self._outcome_faults()
        yield from self._document_faults()
        yield from model_faults(self.model, self.data)
        if self.private and self.private.adjacency == "replace-one" and self.records is None:
            yield (
                "records is missing; under adjacency = 'replace-one' the number of units is "
                "public: set the approximate total, e.g. records = 900"
            )

    def _quorum_faults(self) -> Iterator[str]:
        if self.quorum is None:
            return
        if self.quorum > len(self.parties):
            count = len(self.parties)
            yield f"quorum = {self.quorum}; it must be between 1 and the {count} parties"
        asked = parties_per_round(self.schedule)
        if asked is not None and self.quorum > asked:
            yield (
                f"quorum = {self.quorum}, but schedule.parties_per_round = {asked}; a round never "
                "has that many replies: lower the quorum or raise parties_per_round"
            )

    def _secure_faults(self) -> Iterator[str | TacitError]:
        if self.private is None or self.private.aggregation != "secure":
            if self.keys:
                yield (
                    "keys are given, but only privacy.aggregation = 'secure' uses them: leave them "
                    "out"
                )
            return
        if self.quorum is not None:
            yield (
                f"quorum = {self.quorum} with privacy.aggregation = 'secure'; the smallest sum is "
                "privacy.secure.quorum: set that key and leave quorum out"
            )
        try:
            self.private.thresholds(len(self.parties))
        except ConfigError as error:
            yield error
        for name in self.parties:
            if not re.fullmatch(r"[0-9a-f]{64}", self.keys.get(name, "")):
                yield (
                    f"keys has no SHA-256 fingerprint of {name!r}, which secure sums need so that "
                    "no server can pretend to be a party: ask it for the output of tacit certs "
                    "fingerprint CERTIFICATE.pem"
                )
                break
        for name in sorted(self.keys.keys() - set(self.parties)):
            yield f"keys names {name!r}, which is not in parties; leave it out"
        values = list(self.keys.values())
        if len(set(values)) < len(values):
            yield "two parties have the same fingerprint in keys; issue one key per party"

    def _outcome_faults(self) -> Iterator[str]:
        data = self.data
        if data.source != "file" or data.positive is None or not data.outcome:
            return
        declared = {column.name: column for column in data.columns}
        if data.outcome not in declared or not declared[data.outcome].levels:
            yield (
                f'outcome = "{data.outcome}" has no levels, and parties could read different ones: '
                f"declare them as {column_key(data.outcome)}.levels"
            )

    def _document_faults(self) -> Iterator[str]:
        if self.data.source not in CORPORA:
            return
        if self.data.source != "documents":
            yield (
                f'data.source = "{self.data.source}" in a live federation; every party would have '
                'the same documents: use "documents", and data.path in each party\'s file'
            )
        elif self.data.vocabulary is None:
            yield (
                "data.vocabulary is missing; name a text file next to the federation file, with "
                "one word per line"
            )

    def as_config(self, data: DataConfig | None = None) -> Config:
        """Convert to the configuration of an in-process run."""
        data = data or self.data
        sites = data.source in WITH_SITES
        return Config(
            privacy=self.privacy,
            name=self.name,
            seed=self.seed,
            posterior=self.posterior,
            data=data,
            partition=PartitionConfig(
                kind="source" if sites else "balanced", parties=len(self.parties)
            ),
            model=self.model,
            method=self.method,
            schedule=self.schedule,
        )


class OwnData(Table, frozen=True, kw_only=True):
    """Location of this party's records; their schema is in the agreed file."""

    place: ClassVar[str] = "data"

    path: str | None = None
    """The file with this party's records."""
    database: str | None = None
    """A DuckDB file with this party's records, for `query`."""
    query: str | None = None
    """The SQL query whose rows are this party's records."""
    separator: str | None = None
    """Separator of a CSV file."""
    site: str | None = None
    """Site of this party, for the synthetic cohort and the heart data."""


class ServerFile(Table, frozen=True, kw_only=True):
    """Settings in server.toml."""

    federation: str
    """Path of the agreed file, relative to this one."""
    serve: Serve


class PartyFile(Table, frozen=True, kw_only=True):
    """Settings in party.toml."""

    federation: str
    """Path of the agreed file, relative to this one."""
    join: Join
    data: OwnData = OwnData()
    ledger: str | None = None
    """Ledger to charge; None: the user's default ledger."""


class Agreed(msgspec.Struct, frozen=True, kw_only=True):
    """The agreed file (federation.toml), with its path and its digest."""

    path: Path
    federation: Federation
    digest: str
    earlier: Path | None = None
    """Local state directory of the earlier run, if the federation continues one."""

    def terms(self, plan: Any) -> Callable[[str], Any]:
        """Return a function that takes the id of a run and returns the terms of its secure sums."""
        from tacit.live.secure.agreed import terms_of

        return functools.partial(
            terms_of,
            configuration=self.digest,
            keys=self.federation.keys,
            thresholds=plan.thresholds,
            rounds=plan.schedule.rounds,
        )


class ServerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of server.toml and of the agreed file that it names."""

    base: Path
    agreed: Agreed
    own: ServerFile

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.base / Path(self.own.serve.state).expanduser()


class PartySetup(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of party.toml and of the agreed file that it names."""

    base: Path
    agreed: Agreed
    own: PartyFile

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.base / Path(self.own.join.state).expanduser()

    @property
    def data(self) -> DataConfig:
        """Data settings of this party: the schema in the agreed file, combined with the location of
        the records in party.toml (a path, a query or a site).
        """
        own, agreed = self.own.data, self.agreed.federation.data
        if own.query is not None:
            return self._queried(own, agreed)
        if own.database is not None:
            raise ConfigError(f'data.database = "{own.database}" without data.query; add the query')
        if agreed.source in FILES and own.path is None:
            raise ConfigError(
                "data.path is missing in the party's file; give the path of its records, e.g. "
                'path = "records.csv"'
            )
        changes: dict[str, Any] = {}
        if own.path is not None:
            changes["path"] = str(self.base / Path(own.path).expanduser())
        if own.separator is not None:
            changes["separator"] = own.separator
        if own.site is not None:
            changes["site"] = own.site
        return msgspec.structs.replace(agreed, **changes)

    def _queried(self, own: OwnData, agreed: DataConfig) -> DataConfig:
        if agreed.source != "file":
            raise ConfigError(
                f"data.query is for a party's own table, but the federation has source = "
                f'"{agreed.source}"; remove data.query'
            )
        for key in ("path", "separator", "site"):
            if getattr(own, key) is not None:
                raise ConfigError(f"data.{key} and data.query are both set; remove one of them")
        database = own.database
        if database is not None:
            database = str(self.base / Path(database).expanduser())
        return msgspec.structs.replace(
            agreed, source="sql", path=None, separator=",", database=database, query=own.query
        )


def read_agreed(path: Path, *, copy: Path | None = None) -> Agreed:
    """Read federation.toml, or a copy of an earlier version of it."""
    raw = read_toml(copy or path)
    data = raw.setdefault("data", {})
    if isinstance(data, dict):
        data.setdefault("held_out", 0.0)
        file = "source" not in data and not raw.keys().isdisjoint(TOP)
        if file or data.get("source") == "documents":
            data.setdefault("path", OWN_FILE_PLACEHOLDER)
    federation = parse_study(raw, Federation)
    return Agreed(path=path, federation=federation, digest=digest_of(federation, path.parent))


def read_server(path: Path, overrides: tuple[str, ...] = ()) -> ServerSetup:
    """Read server.toml and its agreed file."""
    raw = _own_table(path, overrides, "serve", "tacit serve")
    own = read_table(raw, ServerFile)
    agreed = _with_earlier(read_agreed(path.parent / own.federation), path, own.serve.earlier)
    setup = ServerSetup(base=path.parent, agreed=agreed, own=own)
    federation, start = setup.agreed.federation, own.serve.start
    parties, most = len(federation.parties), own.serve.most_connections
    secure = federation.private is not None and federation.private.aggregation == "secure"
    if secure and start.parties not in (None, parties):
        raise ConfigError(
            f"serve.start.parties = {start.parties} with privacy.aggregation = 'secure'; all "
            f"{parties} parties take part in the set-up of secure sums: remove the key"
        )
    if most < parties:
        raise ConfigError(
            f"serve.most_connections = {most}; the federation has {parties} parties: set it to "
            f"at least {parties}"
        )
    return setup


def read_party(path: Path, overrides: tuple[str, ...] = ()) -> PartySetup:
    """Read party.toml and its agreed file."""
    raw = _own_table(path, overrides, "join", "tacit join")
    own = read_table(raw, PartyFile)
    agreed = _with_earlier(read_agreed(path.parent / own.federation), path, own.join.earlier)
    setup = PartySetup(base=path.parent, agreed=agreed, own=own)
    parties = len(setup.agreed.federation.parties)
    if parties < own.join.minimum_parties:
        raise ConfigError(
            f"the federation has {parties} parties, but join.minimum_parties = "
            f"{own.join.minimum_parties}; join a larger federation, or lower the value"
        )
    return setup


def _with_earlier(agreed: Agreed, path: Path, earlier: str | None) -> Agreed:
    if (agreed.federation.continues is None) != (earlier is None):
        raise ConfigError(
            f"earlier = {earlier!r} in {path.name}, but {agreed.path.name} continues no run; leave "
            "it out"
            if earlier is not None
            else f"earlier is missing in {path.name}; {agreed.path.name} continues a run: name the "
            "state directory of that run here"
        )
    if earlier is None:
        return agreed
    return msgspec.structs.replace(agreed, earlier=path.parent / Path(earlier).expanduser())


def kind_of(path: Path) -> Literal["server", "party", "federation", "run"]:
    """Return the kind of a configuration file, judged by the tables that it contains."""
    raw = read_toml(path)
    if "serve" in raw:
        return "server"
    if "join" in raw:
        return "party"
    return "federation" if "parties" in raw else "run"


def digest_of(federation: Federation, base: Path) -> str:
    """Return the SHA-256 of the agreed settings and of the model file and vocabulary file that they
    name.

    Paths of records and ledgers are not included.
    """
    body = plain(federation)
    body["data"] = {key: v for key, v in body["data"].items() if key not in ("path", "separator")}
    if isinstance(body["privacy"], dict):
        body["privacy"].pop("ledger", None)
        if body["privacy"].get("aggregation") != "secure":
            body["privacy"].pop("secure", None)
    if not federation.keys:
        body.pop("keys", None)
    if federation.version == 1:
        body.pop("version")
    if federation.continues is None:
        body.pop("continues", None)
    place = model_file(federation.model)
    if place.endswith(".py"):
        body["function"] = _text_digest(base, place, "model.function")
    if federation.data.vocabulary is not None:
        body["vocabulary"] = _text_digest(base, federation.data.vocabulary, "data.vocabulary")
    return hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()


def model_file(model: ModelSettings) -> str:
    """Return the path of the Python file of a NumPyro model; empty for other models."""
    return model.function.rpartition(":")[0] if isinstance(model, NumPyroSettings) else ""


def _text_digest(base: Path, place: str, key: str) -> str:
    try:
        text = (base / place).read_bytes()
    except OSError as error:
        raise DataError(
            f"{key} = {place!r}: {error.strerror}; put the file next to the federation file"
        ) from None
    return hashlib.sha256(text).hexdigest()


def _own_table(path: Path, overrides: tuple[str, ...], table: str, command: str) -> dict[str, Any]:
    raw = read_toml(path, overrides)
    if table not in raw:
        raise ConfigError(
            f"{path} has no [{table}] table; {command} needs a file with one: see docs/live.md"
        )
    return raw

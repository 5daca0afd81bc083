"""The three files of a live federation.

federation.toml is what everybody has agreed on; its digest is what a party's operator approves and
what server and parties compare. server.toml and party.toml say `federation = "federation.toml"` and
what concerns one end only: addresses, certificates, where the records lie.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import msgspec

from tacit.data.config import CORPORA, WITH_SITES, DataConfig, PartitionConfig
from tacit.errors import ConfigError, DataError
from tacit.live.settings import Join, Serve
from tacit.privacy.settings import Privacy
from tacit.run.config import (
    MAX_SEED,
    Config,
    MethodConfig,
    ModelConfig,
    ScheduleConfig,
    convert_config,
    read_toml,
)

EACH_ITS_OWN = "each-party-has-its-own.csv"
"""Stands for data.path in the agreed file."""
FILES = ("file", "documents")
"""Sources of which each party has files of its own."""


class Federation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all parties and the server agree on."""

    privacy: Literal["none"] | Privacy
    parties: tuple[str, ...]
    """The common names of the certificates that may take part, in the order of their updates."""
    name: str = "federation"
    seed: int = 0
    family: Literal["auto", "mean-field", "full"] = "auto"
    data: DataConfig = DataConfig(held_out=0.0)
    """The public schema of the records."""
    model: ModelConfig = ModelConfig()
    method: MethodConfig = MethodConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    records: int | None = None
    """How many units all parties have together, about; public under substitution."""
    quorum: int | None = None
    """With how many answers a round may do after the server's deadline; None: everybody's."""
    on_leave: Literal["keep", "divide-out"] = "keep"
    """What becomes of the factor of a party that leaves for good."""

    @property
    def private(self) -> Privacy | None:
        """The privacy table, if there is one."""
        return None if self.privacy == "none" else self.privacy

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"seed = {self.seed}; it must be in 0 … {MAX_SEED}")
        if not self.parties:
            raise ConfigError("parties is empty; list the names in the parties' certificates")
        doubles = [name for name in self.parties if self.parties.count(name) > 1]
        if doubles:
            raise ConfigError(f"parties names {doubles[0]!r} twice; name it once")
        if self.quorum is not None and not 1 <= self.quorum <= len(self.parties):
            raise ConfigError(
                f"quorum = {self.quorum}; it must be between 1 and the {len(self.parties)} parties"
            )
        asked = self.schedule.parties_per_round
        if self.quorum is not None and asked is not None and self.quorum > asked:
            raise ConfigError(
                f"quorum = {self.quorum}, but schedule.parties_per_round = {asked}; a round never "
                "has so many answers: lower the quorum or ask more parties"
            )
        if self.records is not None and not self.records >= 1:
            raise ConfigError(f"records = {self.records}; it must be at least 1")
        if self.data.preparation != "public":
            raise ConfigError(
                'data.preparation = "pooled" in a live federation; nobody has all the records: '
                'declare the schema and say "public"'
            )
        self._check_documents()
        if self.private and self.private.relation == "substitute" and self.records is None:
            raise ConfigError(
                "records is missing; under relation = 'substitute' the number of units is public: "
                "say about how many all parties have together, e.g. records = 900"
            )
        self.as_config()

    def _check_documents(self) -> None:
        """Documents are each party's own, their vocabulary is everybody's."""
        if self.data.source not in CORPORA:
            return
        if self.data.source != "documents":
            raise ConfigError(
                f'data.source = "{self.data.source}" in a live federation; every party would have '
                'the same documents: use "documents", and data.path in each party\'s file'
            )
        if self.data.vocabulary is None:
            raise ConfigError(
                "data.vocabulary is missing; the words are agreed on: name a text file beside the "
                "federation file, one word a line"
            )

    def as_config(self, data: DataConfig | None = None) -> Config:
        """The same as a run in one process would say it."""
        data = data or self.data
        sites = data.source in WITH_SITES
        return Config(
            privacy=self.privacy,
            name=self.name,
            seed=self.seed,
            family=self.family,
            data=data,
            partition=PartitionConfig(
                kind="source" if sites else "balanced", parties=len(self.parties)
            ),
            model=self.model,
            method=self.method,
            schedule=self.schedule,
        )


class OwnData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a party's records lie; what they look like is agreed."""

    path: str | None = None
    separator: str | None = None
    site: str | None = None


class ServerFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """server.toml."""

    federation: str
    serve: Serve


class PartyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """party.toml."""

    federation: str
    join: Join
    data: OwnData = OwnData()
    ledger: str | None = None
    """The ledger that a private run is charged to; None: the user's own."""


class Agreed(msgspec.Struct, frozen=True, kw_only=True):
    """The agreed file as it was read, and its digest."""

    path: Path
    federation: Federation
    digest: str


class ServerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a server's files say."""

    base: Path
    agreed: Agreed
    own: ServerFile

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.base / Path(self.own.serve.state).expanduser()


class PartySetup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a party's files say."""

    base: Path
    agreed: Agreed
    own: PartyFile

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.base / Path(self.own.join.state).expanduser()

    @property
    def data(self) -> DataConfig:
        """The agreed schema, and where the records lie here."""
        own, agreed = self.own.data, self.agreed.federation.data
        if agreed.source in FILES and own.path is None:
            raise ConfigError(
                "data.path is missing in the party's file; say where its records lie, e.g. "
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


def read_agreed(path: Path) -> Agreed:
    """federation.toml."""
    raw = read_toml(path)
    data = raw.setdefault("data", {})
    if isinstance(data, dict):
        data.setdefault("held_out", 0.0)
        if data.get("source") in FILES:
            data.setdefault("path", EACH_ITS_OWN)
    federation = convert_config(raw, Federation)
    if federation.data.site is not None:
        raise ConfigError(
            f"data.site = {federation.data.site!r} in {path}; it is one party's own: say it in its "
            "party.toml"
        )
    return Agreed(path=path, federation=federation, digest=digest_of(federation, path.parent))


def read_server(path: Path, overrides: tuple[str, ...] = ()) -> ServerSetup:
    """server.toml and the agreed file that it names."""
    raw = _own_table(path, overrides, "serve", "tacit serve")
    own = convert_config(raw, ServerFile)
    setup = ServerSetup(base=path.parent, agreed=read_agreed(path.parent / own.federation), own=own)
    parties, most = len(setup.agreed.federation.parties), own.serve.most_connections
    if most < parties:
        raise ConfigError(
            f"serve.most_connections = {most}; the federation has {parties} parties and each needs "
            f"a connection: set it to at least {parties}"
        )
    return setup


def read_party(path: Path, overrides: tuple[str, ...] = ()) -> PartySetup:
    """party.toml and the agreed file that it names."""
    raw = _own_table(path, overrides, "join", "tacit join")
    own = convert_config(raw, PartyFile)
    setup = PartySetup(base=path.parent, agreed=read_agreed(path.parent / own.federation), own=own)
    parties = len(setup.agreed.federation.parties)
    if parties < own.join.minimum_parties:
        raise ConfigError(
            f"the federation has {parties} parties, join.minimum_parties = "
            f"{own.join.minimum_parties}; join a larger one, or lower it"
        )
    return setup


def kind_of(path: Path) -> Literal["server", "party", "federation", "run"]:
    """Which of the files this is, by its tables."""
    raw = read_toml(path)
    if "serve" in raw:
        return "server"
    if "join" in raw:
        return "party"
    return "federation" if "parties" in raw else "run"


def digest_of(federation: Federation, base: Path) -> str:
    """SHA-256 of all that is agreed on, texts of a model program and a vocabulary included.

    Where a party's records and its ledger lie is nobody else's business.
    """
    privacy = federation.privacy
    if privacy != "none":
        privacy = msgspec.structs.replace(privacy, ledger=None)
    body = msgspec.to_builtins(federation) | {
        "data": {
            key: value
            for key, value in msgspec.to_builtins(federation.data).items()
            if key not in ("path", "separator")
        },
        "privacy": msgspec.to_builtins(privacy),
    }
    place = (federation.model.program or "").rpartition(":")[0]
    if place.endswith(".py"):
        body["program"] = _text_digest(base, place, "model.program")
    if federation.data.vocabulary is not None:
        body["vocabulary"] = _text_digest(base, federation.data.vocabulary, "data.vocabulary")
    return hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()


def _text_digest(base: Path, place: str, key: str) -> str:
    try:
        text = (base / place).read_bytes()
    except OSError as error:
        raise DataError(
            f"{key} = {place!r}: {error.strerror}; the file must lie beside the federation file"
        ) from None
    return hashlib.sha256(text).hexdigest()


def _own_table(path: Path, overrides: tuple[str, ...], table: str, command: str) -> dict[str, Any]:
    raw = read_toml(path, overrides)
    if table not in raw:
        raise ConfigError(
            f"{path} has no [{table}] table; {command} needs the file with it: see docs/live.md"
        )
    return raw

"""The configuration of a run: one TOML file, validated when it is read.

Each table of the file is declared in the package that it configures: `tacit.methods.settings`,
`tacit.models.settings`, `tacit.server.settings`, `tacit.engines.settings`, `tacit.data.config`,
`tacit.privacy.settings`. No array library is imported here, so `tacit check` refuses an invalid
file quickly.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from tacit.data.config import CORPORA, GENERATED, DataConfig, faults_together
from tacit.data.partition_settings import PartitionConfig
from tacit.engines.settings import EngineSettings, InProcessSettings
from tacit.errors import ConfigError, DataError, TacitError
from tacit.methods.settings import AutoMethod, MethodSettings
from tacit.models.registry import MODEL_SETTINGS
from tacit.models.settings import AutoModel, ModelSettings
from tacit.privacy.settings import RUN_DIRECTORY, Privacy
from tacit.run.study_file import SHOWN_AS, lowered, raised
from tacit.server.settings import ScheduleSettings, SynchronousSettings
from tacit.support.argument_names import toml_key
from tacit.support.table_reader import find_faults, read_toml_file
from tacit.support.tables import Table, given, plain, raise_all, short, shown
from tacit.support.validation import MAX_SEED, Count, Seed

__all__ = ["MAX_SEED", "MODEL_SETTINGS", "Config", "parse_config", "read_config"]

C = TypeVar("C", bound=Table)
PRIVACY_MISSING = (
    "add a [privacy] table, e.g. epsilon = 1.0 and delta = 1e-5, or set "
    'privacy = "none" at the top of the file to train without privacy'
)


class EvaluateConfig(Table, frozen=True, kw_only=True):
    """Evaluation after the run."""

    place: ClassVar[str] = "evaluate"

    draws: Count = 100
    """Number of draws from the posterior for predictions."""
    reference: Literal["auto", "none", "nuts"] = "auto"
    """"auto": the exact posterior if there is one; "nuts": NumPyro's NUTS on the pooled data."""
    publish: bool = False
    """True copies metrics on held-out records, which contain no noise, into the public part of a
    private run. The result then lists them as not covered by the guarantee.
    """


class Continues(Table, frozen=True, kw_only=True):
    """The earlier run whose posterior is the prior of this run, if new records have arrived."""

    place: ClassVar[str] = "continues"

    run: str
    """Directory of the earlier run."""
    equal_rows: Literal["refuse", "allow"] = "refuse"
    """"refuse": a row that is equal to one of the earlier run is an error, because a record in both
    runs would count twice. "allow": equal rows are treated as different records.
    """


class TuneConfig(Table, frozen=True, kw_only=True):
    """Settings of `tacit tune`; `tacit run` ignores them."""

    place: ClassVar[str] = "tune"

    trials: Count = 24
    """Number of settings to try."""
    repeats: Count = 8
    """Number of synthetic federations for the final comparison."""
    records: Count | None = None
    """Total number of training records over all parties. The default is the public number of
    records of the data source or, for a data file, a fixed number per party.
    """
    grid: dict[str, Any] = msgspec.field(default_factory=dict)
    """List of values to try for each key, such as method.clip; by default a small grid that depends
    on the method.
    """


class Config(Table, frozen=True, kw_only=True):
    """A study: data, model, privacy and method."""

    advice: ClassVar[Mapping[str, str]] = {"privacy": PRIVACY_MISSING}
    placeholders: ClassVar[Mapping[str, Any]] = {"privacy": "none"}
    shown_as: ClassVar[Mapping[str, str]] = SHOWN_AS
    renamed: ClassVar[Mapping[str, str]] = {"target": "outcome", "family": "posterior"}

    privacy: Literal["none"] | Privacy
    """The guarantee. Training without privacy must be requested explicitly: "none"."""
    name: str = "run"
    """Title of the run in results and reports."""
    seed: Seed = 0
    """Seed of everything that is random and public."""
    posterior: Literal["auto", "mean-field", "full"] = "auto"
    """Covariance of the Gaussian posterior: diagonal ("mean-field") or full."""
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    model: ModelSettings = AutoModel()
    method: MethodSettings = AutoMethod()
    schedule: ScheduleSettings = SynchronousSettings()
    engine: EngineSettings = InProcessSettings()
    evaluate: EvaluateConfig = EvaluateConfig()
    tune: TuneConfig = TuneConfig()
    continues: Continues | None = None
    """An earlier run on other records, whose posterior this run updates (`tacit update`)."""
    baseline: Literal["none", "committee-same-prior", "committee-split-prior", "central"] = "none"
    """Baseline to run instead of a federation. "committee-…": the parties fit alone, each with the
    same prior or with a share of it, and their posteriors are combined once. "central": one fit to
    the pooled records.
    """

    @property
    def private(self) -> Privacy | None:
        """The [privacy] table; None in a run without privacy."""
        return None if self.privacy == "none" else self.privacy

    def faults(self) -> Iterator[str | TacitError]:
        yield from faults_together(self.data, self.partition)
        yield from model_faults(self.model, self.data)
        yield from ledger_faults(self.private, self.data)
        if self.continues is not None and self.baseline != "none":
            yield (
                f'baseline = "{self.baseline}" with continues; a baseline starts from the prior: '
                "leave one of them out"
            )


def model_faults(model: ModelSettings, data: DataConfig) -> Iterator[str]:
    """Yield an error for each key of [model] that has no effect, because the data are documents."""
    if isinstance(model, AutoModel) and data.source in CORPORA:
        for key, value in given(model).items():
            yield (
                f'model.{key} = {shown(value)} has no effect: data.source = "{data.source}" has '
                "documents, whose topics have no such prior; leave it out"
            )


def ledger_faults(private: Privacy | None, data: DataConfig) -> Iterator[str]:
    """Yield an error if privacy.ledger = "run-directory" and the records are real, because the run
    directory may be deleted.
    """
    own = private is not None and private.ledger == RUN_DIRECTORY
    if own and data.source not in GENERATED:
        yield (
            f'privacy.ledger = "{RUN_DIRECTORY}" with data.source = "{data.source}"; the ledger of'
            " real records must outlive the run: name a file elsewhere or leave the key out"
            f" (generated records: {', '.join(GENERATED)})"
        )


def read_config(path: Path, overrides: tuple[str, ...] = (), seed: int | None = None) -> Config:
    """Read the configuration in a TOML file and apply `--set key=value` and `--seed`."""
    raw = read_toml(path, overrides)
    for key, command in (("serve", "tacit serve"), ("join", "tacit join"), ("parties", "")):
        if key in raw:
            raise ConfigError(
                f"{path} has {key!r}: it belongs to a live federation, not to a run in one "
                f"process; see docs/live.md{'' if key == 'parties' else f' and {command} --help'}"
            )
    if seed is not None:
        raw["seed"] = seed
    return parse_config(raw)


def read_toml(path: Path, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read a TOML file as a dictionary and apply `--set key=value`."""
    raw = read_toml_file(path)
    for asked in overrides:
        override(raw, asked)
    return raw


def parse_config(raw: Mapping[str, Any]) -> Config:
    """Parse a configuration from a dictionary.

    >>> raw = {"privacy": "none", "data": {"source": "adult"}, "schedule": {"rounds": 3}}
    >>> parse_config(raw).schedule.rounds
    3
    """
    try:
        return parse_study(raw, Config)
    except ConfigError as error:
        error.also = (*error.also, *_missing_file(raw))
        raise


def parse_study(raw: Mapping[str, Any], kind: type[C]) -> C:
    """Convert the dictionary of a study file to an object of type `kind`.

    Keys of [data], such as outcome, may be at the top of the file (see
    `tacit.run.study_file.lowered`). If there are errors, the first is raised, and the others are in
    its attribute `also`.
    """
    low, wrong = lowered(raw)
    made, faults = find_faults(low, kind)
    raise_all((*faults, *wrong))
    assert made is not None
    return made


def _missing_file(raw: Mapping[str, Any]) -> list[TacitError]:
    """Return a list with one error if the data file does not exist; otherwise an empty list."""
    data = raw.get("data")
    if not isinstance(data, dict) or "source" in data:
        return []
    path = data.get("path")
    if not isinstance(path, str) or not path or Path(path).expanduser().exists():
        return []  # another error names a directory
    return [DataError(f'data.path = "{path}"; there is no such file: check the path')]


def plain_config(config: Config) -> dict[str, Any]:
    """Convert the configuration to a dictionary that `parse_config` reads."""
    return raised(plain(config))


def resolved_toml(config: Config) -> str:
    """Convert the whole configuration, including defaults, to TOML."""
    import tomlkit

    body = plain_config(config)
    if config.tune == TuneConfig():  # not used by a run
        del body["tune"]
    return tomlkit.dumps(body)


def config_digest(config: Config, data_fingerprint: str) -> str:
    """Compute the digest of configuration and data that identifies a checkpoint.

    It excludes the name, [tune] and [evaluate], which do not change the posterior, and the engine,
    which changes the posterior only by rounding.
    """
    body = msgspec.json.encode(plain(_identity(config)), order="deterministic")
    return hashlib.sha256(body + data_fingerprint.encode()).hexdigest()


def check_same_configuration(config: Config, path: Path, out: Path) -> None:
    """Raise an error with the first key in which a configuration differs from the config.toml of
    the run in `out`, among the keys of `config_digest`.

    A file that is missing, or that this version cannot read, is not compared.
    """
    try:
        earlier = parse_config(read_toml_file(path))
    except TacitError:
        return
    before, now = (dict(_keys(plain_config(_identity(one)))) for one in (earlier, config))
    for key in sorted(before.keys() | now.keys()):
        old, new = (short(one[key]) if key in one else "not set" for one in (before, now))
        if before.get(key) != now.get(key):
            raise DataError(
                f"--out {out} belongs to another configuration: {key} is {old} there and {new} "
                f"here; resume with the keys in {path}, or choose another --out"
            )


def _identity(config: Config) -> Config:
    """Return the configuration without the keys that do not identify a run."""
    return msgspec.structs.replace(
        config, name="", engine=InProcessSettings(), tune=TuneConfig(), evaluate=EvaluateConfig()
    )


def _keys(body: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each dotted key of nested tables with its value."""
    for name, value in body.items():
        key = f"{place}{toml_key(name)}"
        if isinstance(value, dict):
            yield from _keys(value, f"{key}.")
        else:
            yield key, value


def set_key(raw: dict[str, Any], key: str, value: Any) -> None:
    """Change one dotted key of a plain configuration.

    >>> raw = {"schedule": {"rounds": 3}}
    >>> set_key(raw, "schedule.rounds", 5)
    >>> raw
    {'schedule': {'rounds': 5}}
    """
    *parents, last = key.split(".")
    place = raw
    for parent in parents:
        place = place.setdefault(parent, {})
        if not isinstance(place, dict):
            raise ConfigError(
                f"{key} = {value!r}; {parent!r} is a value, not a table; check the key"
            )
    place[last] = value


def override(raw: dict[str, Any], asked: str) -> None:
    """Apply one `--set key=value`."""
    set_key(raw, *read_override(asked))


def read_override(asked: str) -> tuple[str, Any]:
    """Split one `--set key=value` into key and value."""
    key, equals, text = asked.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {asked!r}; write --set key=value, e.g. schedule.rounds=20")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    return key.strip(), value

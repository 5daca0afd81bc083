"""The configuration of a run: one TOML file, validated when it is read.

Nothing here needs an array library, so that `tacit check` answers a bad file at once.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from tacit.data.config import CORPORA, SOURCES, DataConfig, PartitionConfig, check_together
from tacit.errors import ConfigError, DataError, TacitError
from tacit.privacy.settings import Privacy
from tacit.run.faults import config_faults, source_fault
from tacit.run.ranges import METHOD_RANGES, MODEL_RANGES, check_ranges
from tacit.server.schedule import SCHEDULES, Damping, PowerDamping
from tacit.support.type_info import prepare

MAX_SEED = 2**32 - 1
C = TypeVar("C", bound=msgspec.Struct)


PRIOR_KEYS = ("prior_mean", "prior_sd")
MODEL_KEYS = {
    "logistic": PRIOR_KEYS,
    "softmax": PRIOR_KEYS,
    "linear": (*PRIOR_KEYS, "noise_sd"),
    "poisson": (*PRIOR_KEYS, "largest"),
    "gaussian-mean": (*PRIOR_KEYS, "noise_sd"),
    "bnn": ("prior_sd", "hidden", "noise_sd"),
    "numpyro": ("program", "static"),
    "lda": (
        "topics",
        "doc_topic_prior",
        "topic_word_prior",
        "document_words",
        "clip_share",
        "document_steps",
    ),
}
"""Which keys of [model] a model of each kind reads."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is learnt. "auto" is logistic, softmax, linear, gaussian-mean or lda, by the target."""

    kind: Literal[
        "auto",
        "logistic",
        "softmax",
        "linear",
        "poisson",
        "gaussian-mean",
        "bnn",
        "numpyro",
        "lda",
    ] = "auto"
    prior_mean: float = 0.0
    prior_sd: float = 1.0
    noise_sd: float = 1.0
    hidden: int = 50
    largest: float | None = None
    """For kind = "poisson": the largest count that a record may hold; None: the target's high."""
    program: str | None = None
    """For kind = "numpyro": "package.module:function" or "path/to/file.py:function"."""
    static: dict[str, Any] = {}
    """For kind = "numpyro": further keyword arguments that are not records."""
    topics: int = 10
    """This and what follows are for kind = "lda"."""
    doc_topic_prior: float | None = None
    """α; left out, 1/topics."""
    topic_word_prior: float | None = None
    """η; left out, 1/topics."""
    document_words: int = 500
    """N: how many words a private answer draws from each document."""
    clip_share: float = 0.05
    """a: method.clip = 1 is a clip of a·N words."""
    document_steps: int = 30
    """How long the topics of a document are looked for, at most."""

    def __post_init__(self) -> None:
        if (self.kind == "numpyro") != (self.program is not None):
            raise ConfigError(
                f"model.program = {self.program!r} with model.kind = {self.kind!r}; a NumPyro "
                "model needs both kind = 'numpyro' and program = 'module:function', others neither"
            )
        if self.kind != "auto":
            self.check_keys(self.kind)
        check_ranges(self, "model", MODEL_RANGES)

    def check_keys(self, kind: str) -> None:
        """Refuse a key that is set and that a model of this kind does not have."""
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if field.name in ("kind", *MODEL_KEYS[kind]) or value == _default(field):
                continue
            raise no_effect(field.name, value, kind)


def no_effect(key: str, value: Any, kind: str) -> ConfigError:
    """The error for a key that a model of this kind does not have."""
    return ConfigError(
        f"model.{key} = {value!r} has no effect with model.kind = {kind!r}, which "
        f"takes {', '.join(MODEL_KEYS[kind])}; leave it out"
    )


class MethodConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a party answers. A key left out takes the method's own default."""

    kind: Literal[
        "auto",
        "exact",
        "natural-vi",
        "gradient-vi",
        "dpsgd",
        "private-scoring",
        "private-update",
        "expected-statistics",
        "private-statistics",
        "hybrid",
    ] = "auto"
    steps: int | None = None
    step_size: float | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    draws: int | None = None
    clip: float | None = None
    rate: float | None = None
    sampling: Literal["poisson", "without-replacement"] | None = None
    momentum: float | None = None
    precision: Literal["isotropic", "per-coordinate", "fixed"] | None = None
    precision_weight: float | None = None
    most_noise: float | None = None
    label_agnostic: bool | None = None
    shards: int | None = None
    objective: Literal["averaged", "virtual"] | None = None
    averaged_share: float | None = None
    repair: Literal["none", "truncate"] | None = None
    noise_aware: bool | None = None
    once: bool | None = None
    share: float | None = None
    gradient_clip: float | None = None
    form: Literal["even", "roll-back", "server-factor", "log-precision"] | None = None
    clip_end: float | None = None
    noise_end: float | None = None
    step_end: float | None = None
    adaptive: float | None = None
    whiten: float | None = None
    """The share of a private run's budget that a noisy second moment of x takes, by which x is
    then whitened; left out: x stays as it is."""
    whiten_bound: float | None = None
    """The norm to which x is clipped for that second moment, and for nothing else."""
    empirical_bayes: bool | None = None
    dtype: Literal["float32", "float64"] | None = None

    def __post_init__(self) -> None:
        check_ranges(self, "method", METHOD_RANGES)


class DampingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """ρ in a straight line from start to end over that many rounds, or (offset + t)^−decay."""

    start: float | None = None
    end: float | None = None
    rounds: int | None = None
    offset: float | None = None
    decay: float | None = None

    def made(self) -> Damping | PowerDamping:
        """The damping that it says."""
        given = {key: v for key, v in msgspec.structs.asdict(self).items() if v is not None}
        if given.keys() == {"start", "end", "rounds"}:
            return Damping(**given)
        if given.keys() == {"offset", "decay"}:
            return PowerDamping(**given)
        for form in (("start", "end", "rounds"), ("offset", "decay")):
            if given and given.keys() < set(form):
                missing = next(key for key in form if key not in given)
                raise ConfigError(f"schedule.damping.{missing} is missing; add it")
        raise ConfigError(
            f"schedule.damping has {', '.join(given) or 'nothing'}; give start, end and rounds, or "
            "offset and decay, or a number"
        )


class ScheduleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom the server asks, when, and with what damping."""

    kind: Literal["sequential", "synchronous", "asynchronous"] = "synchronous"
    rounds: int | None = None
    """None: as many as the method usually takes, 20 or, for private scoring, 12."""
    damping: float | DampingConfig | None = None
    parties_per_round: int | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        # The schedule itself checks its values; asking it here tells the user before data load.
        options = msgspec.structs.asdict(self)
        kind = options.pop("kind")
        if isinstance(self.damping, DampingConfig):
            options["damping"] = self.damping.made()
        SCHEDULES[kind](**options)


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What carries the messages."""

    kind: Literal["in-process", "ray"] = "in-process"
    """"ray": parties on the actors of a Ray cluster of one organisation (docs/scale.md)."""
    batch_parties: bool = True
    """False answers each party alone: the same bits as over a network, but slower."""
    address: str | None = None
    """For kind = "ray": a running cluster, HOST:PORT; None: one of its own on this machine."""
    actors: int | None = None
    """For kind = "ray": how many processes hold parties; None: one a core of the cluster."""
    clock: Literal["simulated", "wall"] = "simulated"
    """For kind = "ray" with an asynchronous schedule: "simulated" applies answers in the seeded
    order of the in-process engine, so that a run is repeatable; "wall" as they arrive."""

    def __post_init__(self) -> None:
        if self.kind != "ray":
            given = {"address": self.address, "actors": self.actors}
            if self.clock != "simulated":
                given["clock"] = self.clock
            for key, value in given.items():
                if value is not None:
                    raise ConfigError(
                        f"engine.{key} = {value!r} with engine.kind = {self.kind!r}; it is for "
                        'engine.kind = "ray": set that, or leave it out'
                    )
        if self.actors is not None and not self.actors >= 1:
            raise ConfigError(f"engine.actors = {self.actors}; at least 1 is needed")


class EvaluateConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured at the end."""

    draws: int = 100
    reference: Literal["auto", "none", "nuts"] = "auto"
    """"auto": the exact posterior where there is one; "nuts": NumPyro's NUTS on the pooled data."""
    publish: bool = False
    """True puts metrics on held-out records, which are exact, into the public part of a private
    run; the result then lists them as not covered by the guarantee."""

    def __post_init__(self) -> None:
        if not self.draws >= 1:
            raise ConfigError(f"evaluate.draws = {self.draws}; at least 1 draw is needed")


class TuneConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `tacit tune` tries; a run does not look at it."""

    trials: int = 24
    repeats: int = 8
    """On how many made-up federations the best settings are compared in the end."""
    records: int | None = None
    """How many training records there are in all, where only a file knows."""
    grid: dict[str, Any] = {}
    """Values to try for keys such as method.clip; left out, a small grid of the method's own."""

    def __post_init__(self) -> None:
        for key in ("trials", "repeats", "records"):
            value = getattr(self, key)
            if value is not None and not value >= 1:
                raise ConfigError(f"tune.{key} = {value}; at least 1 is needed")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole run."""

    privacy: Literal["none"] | Privacy
    """What is guaranteed. Training without has to be asked for by name: "none"."""
    name: str = "run"
    seed: int = 0
    family: Literal["auto", "mean-field", "full"] = "auto"
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    model: ModelConfig = ModelConfig()
    method: MethodConfig = MethodConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    engine: EngineConfig = EngineConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    tune: TuneConfig = TuneConfig()
    baseline: Literal["none", "committee-same-prior", "committee-split-prior", "central"] = "none"
    """A comparison instead of a federation: parties that each learn alone and meet once, with the
    whole prior or a share of it each, or all records in one place."""

    @property
    def private(self) -> Privacy | None:
        """The privacy table, if there is one."""
        return None if self.privacy == "none" else self.privacy

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"seed = {self.seed}; it must be in 0 … {MAX_SEED}")
        check_together(self.data, self.partition)
        if self.model.kind == "auto":
            self._check_auto()

    def _check_auto(self) -> None:
        """Refuse a model key that none of the kinds that "auto" may stand for reads."""
        kinds = _possible_models(self)
        read = set().union(*(MODEL_KEYS[kind] for kind in kinds))
        for field in msgspec.structs.fields(self.model):
            value = getattr(self.model, field.name)
            if field.name not in (*read, "kind") and value != _default(field):
                raise _no_effect_with_auto(field.name, value, self.data.source, kinds)


def _no_effect_with_auto(
    key: str, value: Any, source: str | None, kinds: tuple[str, ...]
) -> ConfigError:
    return ConfigError(
        f"model.{key} = {value!r} has no effect with model.kind = 'auto' and "
        f"data.source = {source!r}, where auto is {' or '.join(kinds)}; "
        "leave it out, or name model.kind"
    )


def read_config(path: Path, overrides: tuple[str, ...] = (), seed: int | None = None) -> Config:
    """The configuration in a TOML file, with `--set key=value` and `--seed` applied."""
    raw = read_toml(path, overrides)
    for key, command in (("serve", "tacit serve"), ("join", "tacit join"), ("parties", "")):
        if key in raw:
            raise ConfigError(
                f"{path} has {key!r}: it belongs to a live federation, not to a run in one "
                f"process; see docs/live.md{'' if key == 'parties' else f' and {command} --help'}"
            )
    if seed is not None:
        raw["seed"] = seed
    return parse_written(raw)


def parse_written(raw: dict[str, Any]) -> Config:
    """The configuration that a user wrote: keys without effect are refused whatever their value.

    A dictionary that a configuration was turned into has all keys; that is for `parse_config`.
    """
    unused = _without_effect(raw)
    try:
        config = parse_config(raw)
    except ConfigError as error:
        said = [error, *error.also]
        new = [
            one
            for key, one in unused.items()
            if not any(str(fault).startswith(f"{key} ") for fault in said)
        ]
        error.also = (*error.also, *new, *_missing_file(raw))
        raise
    if unused:
        first, *others = unused.values()
        first.also = tuple(others)
        raise first
    return config


def _without_effect(raw: dict[str, Any]) -> dict[str, ConfigError]:
    """Keys of [model] and [data] that are written and that nothing reads, with the error."""
    found: dict[str, ConfigError] = {}
    data, model = (
        table if isinstance(table := raw.get(name), dict) else {} for name in ("data", "model")
    )
    kind, source = model.get("kind", "auto"), data.get("source")
    kinds = (kind,) if kind != "auto" else _auto_kinds(source)
    if all(one in MODEL_KEYS for one in kinds):
        read = {"kind"}.union(*(MODEL_KEYS[one] for one in kinds))
        for field in msgspec.structs.fields(ModelConfig):
            key = field.name
            if key not in model or key in read:
                continue
            found[f"model.{key}"] = (
                no_effect(key, model[key], kind)
                if kind != "auto"
                else _no_effect_with_auto(key, model[key], source, kinds)
            )
    if source in SOURCES and source != "gaussian-mean":
        for key in ("mean", "sd"):
            if key in data:
                found[f"data.{key}"] = ConfigError(
                    f'data.{key} = {data[key]!r}; only source = "gaussian-mean" has it: leave it'
                    " out"
                )
    return found


def _missing_file(raw: dict[str, Any]) -> list[TacitError]:
    """What reading the records would find, for a file with other faults."""
    data = raw.get("data")
    if not isinstance(data, dict) or data.get("source") != "file":
        return []
    path = data.get("path")
    if not isinstance(path, str) or not path or Path(path).expanduser().is_file():
        return []
    return [DataError(f'data.path = "{path}"; there is no such file: check the path')]


def read_toml(path: Path, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """A TOML file as it is, with `--set key=value` applied."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"File not found: {path}; give the path of a TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); give the path of a TOML file") from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}; mend that line") from None
    for asked in overrides:
        override(raw, asked)
    return raw


def parse_config(raw: dict[str, Any]) -> Config:
    """The configuration in a plain dictionary.

    >>> raw = {"privacy": "none", "data": {"source": "adult"}, "schedule": {"rounds": 3}}
    >>> parse_config(raw).schedule.rounds
    3
    """
    return convert_config(raw, Config)


def convert_config(raw: dict[str, Any], kind: type[C]) -> C:
    """A plain dictionary as a configuration of some kind.

    Raises the first fault, a line with key, value and what to do; the others are in its `also`.
    """
    named = {field.name for field in msgspec.structs.fields(kind)}
    unsaid = source_fault(raw) if {"privacy", "data"} <= named else None
    try:
        converted = msgspec.convert(raw, prepare(kind))
    except (msgspec.ValidationError, ConfigError) as error:
        refused: Exception | None = error  # it names one fault; below, all are looked for
    else:
        if unsaid is None:
            return converted
        refused = unsaid
    first, *others = config_faults(raw, kind) or [ConfigError(str(refused))]
    first.also = tuple(others)
    raise first


def resolved_toml(config: Config) -> str:
    """The whole configuration as TOML, defaults included; None and keys without effect left out."""
    import tomlkit

    plain = msgspec.to_builtins(config)
    read = {"kind"}.union(*(MODEL_KEYS[kind] for kind in _possible_models(config)))
    plain["model"] = {key: value for key, value in plain["model"].items() if key in read}
    if config.data.source != "gaussian-mean":
        del plain["data"]["mean"], plain["data"]["sd"]
    if config.tune == TuneConfig():  # which a run does not read
        del plain["tune"]
    return tomlkit.dumps(_without_none(plain))


def _possible_models(config: Config) -> tuple[str, ...]:
    """The kinds that model.kind may stand for; "auto" is decided by the target."""
    if config.model.kind != "auto":
        return (config.model.kind,)
    return _auto_kinds(config.data.source)


def _auto_kinds(source: str | None) -> tuple[str, ...]:
    return ("lda",) if source in CORPORA else ("logistic", "softmax", "linear", "gaussian-mean")


def _default(field: msgspec.structs.FieldInfo) -> Any:
    factory = field.default_factory
    return field.default if factory is msgspec.NODEFAULT else factory()


def config_digest(config: Config, data_fingerprint: str) -> str:
    """What a checkpoint belongs to: the configuration and the data.

    Not its name, not [tune] nor [evaluate], which do not change the posterior, and not the engine,
    whose choice changes it by rounding only.
    """
    same = msgspec.structs.replace(
        config, name="", engine=EngineConfig(), tune=TuneConfig(), evaluate=EvaluateConfig()
    )
    body = msgspec.json.encode(same, order="deterministic")
    return hashlib.sha256(body + data_fingerprint.encode()).hexdigest()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value


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
            raise ConfigError(f"{key} = {value!r}; {parent!r} is a value, not a section")
    place[last] = value


def override(raw: dict[str, Any], asked: str) -> None:
    """Apply one `--set key=value`."""
    key, equals, text = asked.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {asked!r}; write --set key=value, e.g. schedule.rounds=20")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    set_key(raw, key.strip(), value)

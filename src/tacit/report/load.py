"""Read and validate a run directory.

A report is made only from `config.toml`, `events.jsonl` and `result.json` in the public part of a
run directory, so it contains nothing private. Optional facts (true values, a reference, a positive
fraction) may be missing; present ones must have the right type.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeVar

import msgspec

from tacit.errors import DataError
from tacit.results.shown import NORMAL_95, Shown
from tacit.support.type_info import prepare

SCHEMA = "tacit/result/1"
AGAIN = "run it again with `tacit run`, or give the directory of a finished run"

T = TypeVar("T")


class Round(TypedDict):
    """One line of events.jsonl with event "round"."""

    round: int
    exchanges: NotRequired[int | None]
    loss: NotRequired[float | None]
    step_kl: NotRequired[float | None]
    refused: NotRequired[int | None]


class Refused(TypedDict):
    """One line of events.jsonl with event "refused"."""

    reason: str
    round: NotRequired[int | None]
    party: NotRequired[str | None]


class Bin(TypedDict):
    """One bin of a calibration plot."""

    low: float
    high: float
    predicted: float
    observed: float
    count: int


class Party(TypedDict):
    """One participant."""

    name: str
    records: NotRequired[int | None]
    positive_fraction: NotRequired[float | None]


class Posterior(msgspec.Struct, frozen=True):
    """Location and scale of each coordinate of θ."""

    names: list[str]
    mean: list[float]
    sd: list[float]


class Topic(TypedDict):
    """One topic: its number, share of all words, top words and their probabilities."""

    number: int
    share: float
    words: list[str]
    chances: list[float]


class ModelFacts(msgspec.Struct, frozen=True):
    """Kind of model."""

    kind: str
    dimension: int
    output: str = "other"


class Data(msgspec.Struct, frozen=True):
    """Source and preparation of the records."""

    source: str | None = None
    preparation: str | None = None
    target: str | None = None
    notes: list[str] = []


class Site(TypedDict):
    """One quantity of the model on its natural scale."""

    mean: float
    sd: float
    low: float
    high: float
    real: NotRequired[bool]


class Intervals(msgspec.Struct, frozen=True):
    """Level of the intervals, and a warning about them."""

    level: float = 0.95
    warning: str | None = None


class GuaranteeFacts(msgspec.Struct, frozen=True):
    """A privacy guarantee."""

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    trust: str
    caveat: str | None = None


class PartyTerms(TypedDict):
    """Privacy terms of one party."""

    name: str
    epsilon: float
    delta: float
    noise_sd: NotRequired[float | None]
    noise_multiplier: NotRequired[float | None]
    clip: NotRequired[float | None]
    answers: NotRequired[int | None]
    releases: NotRequired[int | None]


class Privacy(msgspec.Struct, frozen=True):
    """Privacy of the run, and what is not covered."""

    private: bool
    statement: str = ""
    guarantee: GuaranteeFacts | None = None
    accountant: str | None = None
    aggregation: str | None = None
    parties: list[PartyTerms] = []
    not_covered: list[str] = []


class Caution(TypedDict):
    """One reason not to rely on the numbers."""

    kind: str
    text: str


class ClippedShare(TypedDict):
    """Share of clipped units in a simulation, and the setting that clips them."""

    biases: bool
    share: float
    setting: str
    statement: str


class Result(msgspec.Struct, frozen=True):
    """Contents of result.json. `Any` marks values that are shown unchanged."""

    schema: str
    name: str
    model: ModelFacts
    posterior: Posterior
    intervals: Intervals = Intervals()
    sites: dict[str, Site] = {}
    not_evaluated: dict[str, str] = {}
    seed: int | None = None
    engine: Any = None
    family: Any = None
    method: Any = None
    schedule: Any = None
    rounds: int | None = None
    exchanges: int | None = None
    refused: int | None = None
    converged: bool | None = None
    why: str = ""
    cautions: list[Caution] = []
    clipped: ClippedShare | None = None
    metrics: dict[str, dict[str, float | None] | None] = {}
    calibration: dict[str, list[Bin] | None] = {}
    kl_to_exact: float | None = None
    kl_to_reference: float | None = None
    reference: Any = None
    timing: dict[str, float | None] = {}
    compilations: Any = None
    parties: list[Party] = []
    data: Data = Data()
    privacy: Privacy | None = None
    true_values: dict[str, float] | None = None
    topics: list[Topic] = []


@dataclass(frozen=True, kw_only=True)
class Run:
    """Input of a report."""

    directory: Path
    config: str
    result: Result
    rounds: list[Round]
    refused: list[Refused]

    @property
    def rows(self) -> list[Shown]:
        """Rows of tables and figures: a model's sites, or its coefficients."""
        if self.result.sites:
            return [Shown(name, **site) for name, site in self.result.sites.items()]
        posterior = self.result.posterior
        columns = zip(posterior.names, posterior.mean, posterior.sd, strict=True)
        return [Shown(n, m, s, m - NORMAL_95 * s, m + NORMAL_95 * s) for n, m, s in columns]


def load_run(directory: Path) -> Run:
    """Load the run in `directory`, or raise a `DataError` that names the faulty file."""
    directory = Path(directory)
    public = directory / "public"
    path = public / "result.json"
    result = _decode(_read(path), Result, path)
    if result.schema != SCHEMA:
        raise DataError(
            f"{path}: schema {result.schema!r}, this version reads {SCHEMA!r}; "
            "make the report with the version of tacit that made the run"
        )
    names, mean, sd = result.posterior.names, result.posterior.mean, result.posterior.sd
    if not len(names) == len(mean) == len(sd):
        raise DataError(
            f"{path}: posterior has {len(names)} names, {len(mean)} means and {len(sd)} sds, "
            f"which must be equal; {AGAIN}"
        )
    if not all(value > 0 for value in sd):
        raise DataError(f"{path}: a posterior sd is {min(sd)}, it must be > 0; {AGAIN}")
    rounds, refused = _events(public / "events.jsonl")
    return Run(
        directory=directory,
        config=_read(public / "config.toml"),
        result=result,
        rounds=rounds,
        refused=refused,
    )


def _events(path: Path) -> tuple[list[Round], list[Refused]]:
    """Rounds in order, and refusals. If a resumed run has a round twice, the last one counts."""
    rounds: dict[int, Round] = {}
    refused: list[Refused] = []
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        event = _decode(line, dict[str, Any], where).get("event")
        if event == "round":
            row = _decode(line, Round, where)
            rounds[row["round"]] = row
        elif event == "refused":
            refused.append(_decode(line, Refused, where))
    return [rounds[number] for number in sorted(rounds)], refused


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {AGAIN}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); {AGAIN}") from error


def _decode(text: str, kind: type[T], where: Path | str) -> T:
    try:
        return msgspec.json.decode(text, type=prepare(kind))
    except msgspec.DecodeError as error:
        raise DataError(f"{where}: {error}; {AGAIN}") from error

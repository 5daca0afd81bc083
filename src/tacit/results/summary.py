"""The schema of result.json: structs that runs, servers and fits write and all commands read.

`tacit run`, `tacit serve` and `Fit.save` write a `Result`; `tacit show`, `tacit compare`, `tacit
report` and `tacit.load` read one. `Round` and `Refusal` are lines of events.jsonl. A missing key,
or a value of another type, raises an error that names the file and the key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tacit.data.schema.columns import ColumnConfig
from tacit.errors import DataError
from tacit.support.public_files import EVENTS, RESULT
from tacit.support.storage import write_text
from tacit.support.type_info import prepare

SCHEMA = "tacit/result/2"
PARTY_SCHEMA = "tacit/party-result/2"
AT_PARTY = "party"
"""`engine` of a result that a party of a live federation received."""
AGAIN = "run it again with `tacit run`, or give the directory of a finished run"

T = TypeVar("T")
Metrics = dict[str, float | None]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of the parts of a result."""


class ModelFacts(Part, frozen=True, kw_only=True):
    """The fitted model, with its constructor arguments if they have a JSON form."""

    kind: str
    dimension: int
    output: str
    settings: dict[str, Any] | None = None
    prior: str | None = None
    """Description of the prior of a regression."""


class PosteriorTable(Part, frozen=True, kw_only=True):
    """Mean and sd of each coordinate of θ; empty if there are too many coordinates to list."""

    family: str
    names: list[str]
    mean: list[float]
    sd: list[float]

    def __post_init__(self) -> None:
        sizes = len(self.names), len(self.mean), len(self.sd)
        if len(set(sizes)) > 1:
            raise ValueError("posterior has {} names, {} means and {} sds".format(*sizes))
        if not all(value > 0 for value in self.sd):
            raise ValueError(f"a posterior sd is {min(self.sd)}; it must be > 0")


class Intervals(Part, frozen=True, kw_only=True):
    """The level of the intervals, and known errors of the intervals."""

    level: float = 0.95
    warning: str | None = None


class Site(Part, frozen=True, kw_only=True):
    """A latent site of the model, on its original (constrained) scale."""

    mean: float
    sd: float
    low: float
    high: float
    real: bool = True
    """True if the site can be positive or negative."""


class Coefficient(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A coefficient of a regression in the unit of its column (`tacit.results.coefficients`)."""

    term: str
    """Description for users: "age", "smoking: current vs never"."""
    name: str
    """The coordinate of θ."""
    unit: str | None = None
    """The change of the column whose effect is reported, as text ("10 years"); None if the column
    has no unit.
    """
    mean: float
    sd: float
    low: float
    high: float
    learned: float | None = None
    """1 − (posterior sd / prior sd)²; None if the prior has no sd."""
    true_value: float | None = None
    """For generated records: the true value."""


class Topic(Part, frozen=True, kw_only=True):
    """A topic: its index in q, its share of all words, its top words and their probabilities."""

    number: int
    share: float
    words: list[str]
    chances: list[float]


class ModelTable(Part, frozen=True, kw_only=True):
    """A table of the model, such as its clusters; cells are text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class CautionNote(Part, frozen=True, kw_only=True):
    """A reason why the numbers may be unreliable."""

    kind: str
    text: str


class ClippedShare(Part, frozen=True, kw_only=True):
    """Share of units whose contribution was clipped, measured in a simulation or computed from a
    released noisy count.
    """

    biases: bool
    share: float
    setting: str
    statement: str
    noise_sd: float | None = None
    """Standard deviation of the noise if the share comes from a private (charged) count."""


class CalibrationBin(Part, frozen=True, kw_only=True):
    """The held-out records whose predicted probability is in [low, high)."""

    low: float
    high: float
    predicted: float
    observed: float
    count: int


class PartyRow(Part, frozen=True, kw_only=True):
    """One party. Values that the guarantee does not cover are None in the public part of a run."""

    name: str
    records: int | None = None
    positive_fraction: float | None = None


class DataFacts(Part, frozen=True, kw_only=True):
    """Source and scaling of the records. Only people who may see the records may see `notes` and
    `outside`.
    """

    source: str | None = None
    outcome: str | None = None
    scaling: str | None = None
    columns: list[dict[str, Any]] | None = None
    """The public schema of the columns, as in the [columns] table of a study file, including
    facts read from the records if that was allowed (levels, centres and scales).
    """
    positive: str | None = None
    """The level of the outcome that is y = 1."""
    levels: list[str] = []
    """The levels of a categorical outcome."""
    keep: list[str] = []
    """Columns that the model uses besides x."""
    frames: str | None = None
    """Library of the data frames that the user passed, "pandas" or "pyarrow"; None for other
    inputs.
    """
    notes: list[str] = []
    outside: dict[str, float] = {}
    """Share of the values of a column that are outside the declared bounds."""


class GuaranteeFacts(Part, frozen=True, kw_only=True):
    """ε and δ with their unit, adjacency and trust."""

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    trust: str
    caveat: str | None = None


class PartyTerms(Part, frozen=True, kw_only=True):
    """Privacy cost of one party's answers."""

    name: str
    epsilon: float
    delta: float
    clip: float | None = None
    noise_sd: float | None = None
    noise_multiplier: float | None = None
    answers: int | None = None
    releases: int | None = None


class Attacker(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The guarantee against one kind of attacker, for the party with the weakest guarantee."""

    attacker: str
    sees: str
    epsilon: float | None = None
    """ε against this attacker; None if no useful bound can be proved."""
    remark: str = ""


class LedgerFacts(Part, frozen=True, kw_only=True):
    """Totals in the ledger after a private run."""

    path: str
    run: str
    epsilon_spent: float
    receipt: Any = None
    before: float = 0.0
    """ε that earlier fits on the same records had spent."""
    delta: float | None = None
    """δ of `before` and `epsilon_spent`; None if it is the δ of the budgets."""
    unit: str | None = None
    """Unit of `before` and `epsilon_spent`, if it is not the unit of this run."""
    adjacency: str | None = None
    """Adjacency of `before` and `epsilon_spent`, if it is not the adjacency of this run."""
    budget: float | None = None
    """Total ε that may be spent on the records, if a budget is set."""

    @property
    def other_terms(self) -> str:
        """Text with the unit and adjacency of `before` and `epsilon_spent`, and the reason, if they
        are not those of the run; otherwise "".
        """
        if self.adjacency is None:
            return ""
        return (
            f" per {self.unit} under {self.adjacency}, because earlier charges do not count for "
            "the unit and adjacency of this fit"
        )


class PrivacyFacts(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The guarantee of a run, and a list of what it does not cover."""

    private: bool
    """True if a guarantee holds; False without privacy, or if the seed of the noise is known."""
    statement: str
    guarantee: GuaranteeFacts | None = None
    accountant: str | None = None
    aggregation: str | None = None
    parties: list[PartyTerms] = []
    attackers: list[Attacker] = []
    not_covered: list[str] = []
    ledger: LedgerFacts | None = None


class VerdictFacts(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a run converged, and all reasons not to trust its numbers."""

    converged: bool | None
    """True if the run converged; None at a party, which has no information about the rounds."""
    why: str
    learned: list[float] | None
    """1 − (posterior sd / prior sd)² of each coefficient; None if the prior has no sd."""
    cautions: list[CautionNote]
    clipped: ClippedShare | None = None
    local_cautions: list[CautionNote] = []
    """Cautions of a private run with exact numbers of the records, which the guarantee does not
    cover.
    """

    @property
    def every_caution(self) -> list[CautionNote]:
        """`cautions` and `local_cautions`."""
        return [*self.cautions, *self.local_cautions]


class Result(
    VerdictFacts, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag=SCHEMA
):
    """Content of result.json of a run, a server or a saved fit."""

    name: str
    seed: int
    engine: str
    version: str | None = None
    """The version of tacit that made the result; `date` is the day (UTC)."""
    date: str | None = None
    run: str | None = None
    """Id of the run of a live federation; `configuration` is the digest of the agreed file."""
    configuration: str | None = None
    diagnostics: dict[str, Any] = {}
    """Numbers on which the verdict is based (`tacit.results.diagnostics`); empty with privacy."""
    model: ModelFacts
    method: str
    schedule: str
    rounds: int
    finished: str | None
    """Reason why the run ended."""
    exchanges: int
    refused: int
    last_change: float | None = None
    """Change of q in the last round, in nats (KL)."""
    left_out: dict[str, Any] = {}
    """Parties excluded by a live server, with the bound that their update broke."""
    posterior: PosteriorTable
    intervals: Intervals
    coefficients: list[Coefficient] = []
    """Coefficients of a regression in the units of its columns. `posterior` has those of the scaled
    columns x.
    """
    sites: dict[str, Site] = {}
    topics: list[Topic] = []
    tables: list[ModelTable] = []
    """Clusters of a mixture or components of a factor model, in the units of the columns."""
    true_values: dict[str, float] = {}
    metrics: dict[str, Metrics | None]
    """Metrics on the training records ("training") and on the held-out records ("held_out")."""
    party_metrics: dict[str, Metrics] = {}
    """Metrics on the held-out records of each party, by party. If no records are held out, a run
    without privacy has metrics on all records of each party instead.
    """
    calibration: dict[str, list[CalibrationBin]] = {}
    not_evaluated: dict[str, str] = {}
    """Computations that failed after training, with the reasons."""
    kl_to_exact: float | None = None
    kl_to_reference: float | None = None
    reference: dict[str, Any] | None = None
    parties: list[PartyRow]
    data: DataFacts
    privacy: PrivacyFacts
    timing: dict[str, float] = {}
    compilations: int | None = None
    cluster: dict[str, Any] = {}
    """Nodes, actors, compilations and memory of the Ray engine; empty for other engines."""


class PartyResult(
    VerdictFacts,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="schema",
    tag=PARTY_SCHEMA,
):
    """Content of result.json of a party of a live federation. A party has no information about the
    rounds.
    """

    name: str
    party: str
    run: str | None
    configuration: str
    privacy: str
    intervals: Intervals
    posterior: PosteriorTable
    coefficients: list[Coefficient] = []
    model: ModelFacts | None = None
    data: DataFacts | None = None
    guarantee: PrivacyFacts | None = None
    """The guarantee of the federation against each attacker, and a list of what it does not cover.
    """


class PartyEvaluation(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Content of evaluation.json of a party: measurements on its records, which stay at the
    party.
    """

    answers: int
    stopped: dict[str, Any] | None
    sent_bytes: int
    received_bytes: int
    metrics: dict[str, Metrics | None]
    ledger: LedgerFacts | None = None
    not_evaluated: dict[str, str] = {}
    cautions: list[CautionNote] = []
    """Cautions with exact numbers of the party's records."""


class Round(Part, frozen=True, kw_only=True):
    """A line of events.jsonl with event "round"; further keys are ignored."""

    round: int
    exchanges: int | None = None
    negative_elbo: float | None = None
    """Negative ELBO at the start of the round; None in a private run."""
    last_change: float | None = None
    refused: int | None = None


class Refusal(Part, frozen=True, kw_only=True):
    """A line of events.jsonl with event "refused"."""

    reason: str
    round: int | None = None
    party: str | None = None


def declared_columns(data: DataFacts) -> list[ColumnConfig] | None:
    """Return the public schema of the columns; None for plain arrays and documents."""
    if data.columns is None:
        return None
    return msgspec.convert(data.columns, prepare(list[ColumnConfig]))


def builtins_of(result: Part) -> dict[str, Any]:
    """Convert a result to JSON types, for `--json` and files."""
    return msgspec.to_builtins(result)


def write_result(path: Path, result: Part) -> None:
    """Write a result as JSON, durably. A number that is not finite is refused."""
    write_text(path, json.dumps(builtins_of(result), indent=1, allow_nan=False))


def public_of(path: Path) -> Path:
    """Return the folder with the public files: the public part of a run directory, or `path`
    itself.
    """
    return path / "public" if (path / "public").is_dir() else path


def read_any_result(folder: Path) -> Result | PartyResult:
    """Read result.json of a run, a server or a party, or raise a `DataError` that names the file
    and the key.
    """
    path = folder / RESULT
    if decode(read_text(path), dict[str, Any], path).get("schema") == PARTY_SCHEMA:
        return read_part(path, PartyResult)
    return read_result(folder)


def read_result(folder: Path) -> Result:
    """Read result.json of a folder, or raise a `DataError` that names the file and the key."""
    path = folder / RESULT
    text = read_text(path)
    found = decode(text, dict[str, Any], path).get("schema")
    if found != SCHEMA:
        raise DataError(
            f"{path}: schema {found!r}, but this version of tacit reads {SCHEMA!r}; read it with "
            "the version of tacit that wrote it, or run again"
        )
    return decode(text, Result, path)


def read_events(folder: Path) -> tuple[list[Round], list[Refusal]]:
    """Return the rounds in order, and the refusals. If a resumed run has repeated a round, the last
    line of this round counts.
    """
    path = folder / EVENTS
    rounds: dict[int, Round] = {}
    refused: list[Refusal] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        event = decode(line, dict[str, Any], where).get("event")
        if event == "round":
            row = decode(line, Round, where)
            rounds[row.round] = row
        elif event == "refused":
            refused.append(decode(line, Refusal, where))
    return [rounds[number] for number in sorted(rounds)], refused


def read_text(path: Path) -> str:
    """Return the text of a file of a run, or raise a `DataError` that says what to do."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {AGAIN}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); {AGAIN}") from error


def read_part(path: Path, kind: type[T]) -> T:
    """Read a JSON file as the struct `kind`, or raise a `DataError`."""
    return decode(read_text(path), kind, path)


def decode(text: str, kind: type[T], where: Path | str) -> T:
    """Decode JSON as this type, or raise a `DataError` that names the position of the error."""
    try:
        return msgspec.json.decode(text, type=prepare(kind))
    except msgspec.DecodeError as error:
        raise DataError(f"{where}: {error}; {AGAIN}") from error

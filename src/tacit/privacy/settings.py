"""Privacy settings, shared by the TOML file and the Python API.

The settings are read and validated without importing an array library.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from tacit.errors import ConfigError, TacitError
from tacit.privacy.events import Adjacency
from tacit.privacy.guarantee import Aggregation, Unit
from tacit.privacy.secure_sums import SecureSums, Thresholds
from tacit.support.tables import Table
from tacit.support.validation import MAX_SEED, check_fields, choose_from

AccountantName = Literal["pld", "rdp", "moments", "strong"]
RUN_DIRECTORY = "run-directory"


class PartyPrivacy(Table, frozen=True, kw_only=True):
    """Privacy settings of one party that replace those of the run; None keeps the setting of the
    run.
    """

    place: ClassVar[str] = "privacy.parties"

    epsilon: float | None = None
    """ε for this party's records."""
    delta: float | None = None
    """δ for this party's records."""
    noise_multiplier: float | None = None
    """Noise standard deviation divided by the clip, given instead of epsilon."""
    clip: float | None = None
    """Norm to which the contributions of this party's units are clipped."""
    records: int | None = None
    """Public number of records, for method.clip_per_record; never compared with the data."""


class Privacy(Table, frozen=True, kw_only=True):
    """The privacy guarantee requested for every party's records.

    Give either `epsilon`, from which the noise is calculated, or `noise_multiplier` (standard
    deviation of the noise divided by the clip), from which ε is calculated. `unit` is what is
    protected. `adjacency` says how neighbouring data sets differ: one unit is added or removed, or
    one unit is replaced. With `aggregation` "secure" or "trusted", the noise is divided among the
    parties. In a secure sum the server learns only the sum. With "trusted" the server sees each
    message and must be trusted.
    """

    place: ClassVar[str] = "privacy"
    renamed: ClassVar[Mapping[str, str]] = {
        "noise_seed": "insecure_noise_seed",
        "relation": "adjacency",
    }
    renamed_values: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "adjacency": {"substitute": "replace-one", "add-or-remove": "add-or-remove-one"}
    }

    epsilon: float | None = None
    """ε of the guarantee; smaller is more private."""
    delta: float = 1e-5
    """δ of the guarantee. Choose it below 1/(number of records); 0 requests pure ε."""
    noise_multiplier: float | None = None
    """Noise standard deviation divided by the clip, given instead of epsilon."""
    unit: Unit = "record"
    """Protected unit: a record, all records of a person, or a whole party."""
    adjacency: Adjacency = "replace-one"
    """Neighbouring data sets: one unit replaced, or one unit added or removed."""
    aggregation: Aggregation = "plain"
    """Who adds the noise. "plain": each party adds all of the noise that protects its records.
    "secure": each party adds a share of the noise, and the server sees only the sum over the
    parties. "trusted": each party adds a share, and the server sees every message. "server": the
    server adds the noise.
    """
    secure: SecureSums = SecureSums()
    """Thresholds of secure sums."""
    accountant: AccountantName = "pld"
    """Accountant that computes ε of all releases together, at δ."""
    insecure_noise_seed: int | None = None
    """None draws noise and batches from the operating system's entropy. A number makes the run
    repeatable but not private: anyone who knows it can subtract the noise.
    """
    ledger: str | None = None
    """Ledger file to which this and later runs on the same records are charged. "run-directory":
    one inside the run directory, for records that are generated from a seed. "none": no ledger, in
    `tacit.fit` and estimators.
    """
    parties: dict[str, PartyPrivacy] = msgspec.field(default_factory=dict)
    """Settings of single parties; the keys are the names of the parties."""

    def __post_init__(self) -> None:
        if isinstance(self.secure, dict):
            msgspec.structs.force_setattr(self, "secure", _as_secure(self.secure))
        check_fields(self, "privacy")
        parties = {name: _as_party(name, own) for name, own in self.parties.items()}
        msgspec.structs.force_setattr(self, "parties", parties)
        super().__post_init__()

    def faults(self) -> Iterator[str | TacitError]:
        if not 0 <= self.delta < 1:
            yield _delta_fault("privacy", self.delta)
        if self.insecure_noise_seed is not None and not 0 <= self.insecure_noise_seed <= MAX_SEED:
            yield (
                f"privacy.insecure_noise_seed = {self.insecure_noise_seed}; it must be in 0 … 2³² "
                "− 1"
            )
        for name, party in self.parties.items():
            key = f'privacy.parties."{name}"'
            yield from _target_faults(key, party.epsilon, party.noise_multiplier, needed=False)
            if party.delta is not None and not 0 <= party.delta < 1:
                yield _delta_fault(key, party.delta)
            elif party.delta is not None and (party.delta == 0) != (self.delta == 0):
                yield (
                    f"{key}.delta = {party.delta} with privacy.delta = {self.delta}; all parties "
                    "use the same kind of noise: set both to 0 or neither"
                )
            if party.clip is not None and not 0 < party.clip < math.inf:
                yield f"{key}.clip = {party.clip}; a norm bound is a finite number > 0"
            if party.records is not None and party.records < 1:
                yield f"{key}.records = {party.records}; it must be at least 1"
        yield from _target_faults("privacy", self.epsilon, self.noise_multiplier, needed=True)
        if self.aggregation != "secure" and self.secure != SecureSums():
            yield (
                f"privacy.secure with privacy.aggregation = {self.aggregation!r}; its thresholds "
                "apply only to aggregation = 'secure': set that, or leave the table out"
            )
        own = [
            f'privacy.parties."{name}".{key}'
            for name, party in self.parties.items()
            for key in ("clip", "records")
            if getattr(party, key) is not None
        ]
        if self.aggregation == "secure" and own:
            yield (
                f"{own[0]} with privacy.aggregation = 'secure'; in a secure sum "
                "all parties must use the same clip: leave it out and set method.clip"
            )

    def thresholds(self, parties: int) -> Thresholds | None:
        """Return the thresholds of secure sums among this many parties.

        The result is None if `aggregation` is not "secure".

        Parameters
        ----------
        parties
            Number of parties.
        """
        return self.secure.among(parties) if self.aggregation == "secure" else None

    def of(self, party: str) -> tuple[float | None, float | None, float]:
        """Return (ε, noise multiplier, δ) of a party. Either ε or the noise multiplier is None.

        Parameters
        ----------
        party
            Name of the party.
        """
        own = self.parties.get(party)
        if own is None:
            return self.epsilon, self.noise_multiplier, self.delta
        delta = self.delta if own.delta is None else own.delta
        if own.epsilon is None and own.noise_multiplier is None:
            return self.epsilon, self.noise_multiplier, delta
        return own.epsilon, own.noise_multiplier, delta


def _as_party(name: str, own: PartyPrivacy | dict[str, Any]) -> PartyPrivacy:
    """Convert one party's settings from a dictionary."""
    if isinstance(own, PartyPrivacy):
        return own
    known = PartyPrivacy.__struct_fields__
    if not isinstance(own, dict):
        raise ConfigError(
            f"privacy.parties[{name!r}] = {own!r}; give a dictionary such as {{'epsilon': 0.5}}"
        )
    for key in own:
        if key not in known:
            advice = choose_from(key, known)
            raise ConfigError(f"privacy.parties[{name!r}] has the key {key!r}; {advice}")
    return PartyPrivacy(**own)


def _as_secure(own: dict[str, Any]) -> SecureSums:
    """Convert a dictionary to the settings of secure sums."""
    known = SecureSums.__struct_fields__
    for key in own:
        if key not in known:
            raise ConfigError(f"privacy.secure has the key {key!r}; {choose_from(key, known)}")
    return SecureSums(**own)


def check_clip(value: float, key: str) -> float:
    """Return `value` if it is a valid norm bound; otherwise raise an error that names `key`."""
    if not 0 < value < math.inf:
        raise ConfigError(f"{key} = {value}; a norm bound is a finite number > 0")
    return value


def _target_faults(
    key: str, epsilon: float | None, noise_multiplier: float | None, *, needed: bool
) -> Iterator[str]:
    if epsilon is not None and noise_multiplier is not None:
        yield (
            f"{key}.epsilon = {epsilon} and {key}.noise_multiplier = {noise_multiplier}; give "
            "only one: each determines the other"
        )
    if epsilon is None and noise_multiplier is None and needed:
        yield (
            f"{key} has neither epsilon nor noise_multiplier; give one, e.g. epsilon = 1.0, or set "
            'privacy = "none" to train without'
        )
    if epsilon is not None and not 0 < epsilon < math.inf:
        yield (
            f"{key}.epsilon = {epsilon}; it must be a finite number > 0, because 0 would need "
            'infinite noise; to train without privacy set privacy = "none"'
        )
    if noise_multiplier is not None and not 0 < noise_multiplier < math.inf:
        yield (
            f"{key}.noise_multiplier = {noise_multiplier}; without noise there is no guarantee: it "
            'must be a finite number > 0; to train without privacy set privacy = "none"'
        )


def _delta_fault(key: str, delta: float) -> str:
    return (
        f"{key}.delta = {delta}; it must be in [0, 1), and below 1/n for a meaningful guarantee; 0 "
        "is pure ε"
    )

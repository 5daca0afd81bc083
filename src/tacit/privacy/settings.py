"""What a user asks for: one structure for the TOML file and for the notebook.

No array library is needed to read or to refuse it.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from tacit.errors import ConfigError
from tacit.privacy.events import Relation
from tacit.privacy.guarantee import Aggregation, Unit
from tacit.support.validation import check_fields, choose_from

AccountantName = Literal["pld", "rdp", "moments", "strong"]
MAX_SEED = 2**32 - 1
RUN_DIRECTORY = "run-directory"


class PartyPrivacy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one party differs from the rest of the run."""

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, "privacy.parties")


class Privacy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The guarantee that every party wants for its own records.

    Either `epsilon` is given and the noise is calibrated to it, or `noise_multiplier` (noise sd
    over clip) is given and ε follows. `unit` is what is protected, `relation` what it is compared
    with: a data set without it, or with another in its place. "trusted" aggregation has the parties
    share the noise, so that only a server that is trusted with single messages may add them up.
    """

    epsilon: float | None = None
    delta: float = 1e-5
    noise_multiplier: float | None = None
    unit: Unit = "record"
    relation: Relation = "substitute"
    aggregation: Aggregation = "plain"
    accountant: AccountantName = "pld"
    noise_seed: int | None = None
    """None draws noise and batches from the operating system's entropy. A number makes the run
    repeatable and, because whoever knows it can subtract the noise, not private."""
    ledger: str | None = None
    """The file that this and later runs on the same records are charged to. "run-directory": one in
    the run directory, for records that are generated from a seed."""
    parties: dict[str, PartyPrivacy] = {}

    def __post_init__(self) -> None:
        check_fields(self, "privacy")
        parties = {name: _as_party(name, own) for name, own in self.parties.items()}
        msgspec.structs.force_setattr(self, "parties", parties)
        # What may be missing comes last: without a bad epsilon, a bad delta is found all the same.
        _check_delta("privacy", self.delta)
        if self.noise_seed is not None and not 0 <= self.noise_seed <= MAX_SEED:
            raise ConfigError(f"privacy.noise_seed = {self.noise_seed}; it must be in 0 … 2³² − 1")
        for name, party in self.parties.items():
            key = f'privacy.parties."{name}"'
            _check_target(key, party.epsilon, party.noise_multiplier, needed=False)
            if party.delta is not None:
                _check_delta(key, party.delta)
            if party.clip is not None:
                check_clip(party.clip, f"{key}.clip")
        _check_target("privacy", self.epsilon, self.noise_multiplier, needed=True)

    def of(self, party: str) -> tuple[float | None, float | None, float]:
        """(ε, noise multiplier, δ) that a party asks for; exactly one of the first two is given."""
        own = self.parties.get(party)
        if own is None:
            return self.epsilon, self.noise_multiplier, self.delta
        delta = self.delta if own.delta is None else own.delta
        if own.epsilon is None and own.noise_multiplier is None:
            return self.epsilon, self.noise_multiplier, delta
        return own.epsilon, own.noise_multiplier, delta


def _as_party(name: str, own: PartyPrivacy | dict[str, Any]) -> PartyPrivacy:
    """The settings of one party, which a user writes as a dictionary."""
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


def check_clip(value: float, key: str) -> float:
    """The value, if it can be a norm bound."""
    if not 0 < value < math.inf:
        raise ConfigError(f"{key} = {value}; a norm bound is a finite number > 0")
    return value


def _check_target(
    key: str, epsilon: float | None, noise_multiplier: float | None, *, needed: bool
) -> None:
    if epsilon is not None and noise_multiplier is not None:
        raise ConfigError(
            f"{key}.epsilon = {epsilon} and {key}.noise_multiplier = {noise_multiplier}; one "
            "follows from the other: give one"
        )
    if epsilon is None and noise_multiplier is None and needed:
        raise ConfigError(
            f"{key} has neither epsilon nor noise_multiplier; give one, e.g. epsilon = 1.0, or say "
            'privacy = "none" to train without'
        )
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise ConfigError(
            f"{key}.epsilon = {epsilon}; it must be a finite number > 0 (no noise is finite at 0); "
            'to train without privacy say privacy = "none"'
        )
    if noise_multiplier is not None and not 0 < noise_multiplier < math.inf:
        raise ConfigError(
            f"{key}.noise_multiplier = {noise_multiplier}; without noise there is no guarantee: it "
            'must be a finite number > 0; to train without privacy say privacy = "none"'
        )


def _check_delta(key: str, delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(
            f"{key}.delta = {delta}; it must be in (0, 1), and below 1/n for a meaningful guarantee"
        )

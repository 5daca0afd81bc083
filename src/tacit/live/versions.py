"""Versions of the agreed file, by which parties are added to a running federation.

A new version takes effect once every party of the run has approved it and the new parties have
requested to join. Until then the run follows the old version. Server and parties keep a copy of
every version that they have followed or approved, because the agreed file may already contain a
newer one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tacit.errors import ConfigError, DataError
from tacit.live.config import Agreed, Federation, read_agreed
from tacit.plan.calibrate import Settled
from tacit.plan.plan import Plan
from tacit.support.storage import write_text

COPIES = "versions"
"""Name of the folder of copies in a state directory, with one file per digest."""
MAY_CHANGE = ("version", "parties", "records")
NEW_RUN = "start a new run instead"


@dataclass(frozen=True)
class Proposal:
    """A version of the agreed file that is not in force yet, and the server's plan for it."""

    agreed: Agreed
    plan: Plan

    @property
    def version(self) -> int:
        """Number of the version."""
        return self.agreed.federation.version


def keep_copy(state: Path, agreed: Agreed) -> None:
    """Copy the agreed file into the state directory, under its digest."""
    path = _copy(state, agreed.digest)
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_text(path, agreed.path.read_text(encoding="utf-8"))
    if read_agreed(agreed.path, copy=path).digest != agreed.digest:
        path.unlink()
        raise ConfigError(f"{agreed.path} was changed just now; repeat the command")


def has_copy(state: Path, digest: str) -> bool:
    """True if the state directory has a copy of the version with this digest."""
    return _copy(state, digest).exists()


def copied(state: Path, digest: str, agreed: Agreed) -> Agreed:
    """Return the version with this digest: `agreed` itself, or a predecessor from its local
    copy.
    """
    if digest == agreed.digest:
        return agreed
    found = read_agreed(agreed.path, copy=_copy(state, digest))
    found = msgspec.structs.replace(found, earlier=agreed.earlier)
    if found.digest != digest:
        raise DataError(
            f"{_copy(state, digest)} has digest {found.digest[:12]}…, not {digest[:12]}…: the "
            "model's program or the vocabulary next to the agreed file has changed; restore it"
        )
    return found


def _copy(state: Path, digest: str) -> Path:
    return state / COPIES / f"{digest}.toml"


def check_successor(old: Federation, new: Federation) -> None:
    """Refuse a version that does more than add parties to the version that a run follows."""
    number = f"version = {new.version}"
    if new.version <= old.version:
        raise ConfigError(
            f"{number}; the run follows version {old.version}, and a new version has a higher "
            f"number: set version = {old.version + 1}"
        )
    gone = [name for name in old.parties if name not in new.parties]
    if gone:
        raise ConfigError(
            f"{number} leaves out {', '.join(map(repr, gone))}; a version adds parties and removes "
            "none: keep all names in parties (a party can leave with tacit join --leave)"
        )
    if new.parties[: len(old.parties)] != old.parties:
        raise ConfigError(
            f"{number} puts parties in another order; add the new ones at the end of parties"
        )
    if new.parties == old.parties:
        raise ConfigError(
            f"{number} adds no party; add the name of a new party at the end of parties"
        )
    changed = [
        key
        for key in Federation.__struct_fields__
        if key not in MAY_CHANGE and _compared(old, key, old) != _compared(new, key, old)
    ]
    if changed:
        raise ConfigError(
            f"{number} also changes {', '.join(changed)}; during a run only "
            f"{', '.join(MAY_CHANGE)} may change: restore the other keys, or {NEW_RUN}"
        )
    if old.private is not None and old.private.aggregation == "secure":
        raise ConfigError(
            f"{number} adds a party, but no party can be added to a run with privacy.aggregation = "
            "'secure', because all parties exchange keys for secure sums before the first round; "
            f"{NEW_RUN}"
        )
    if old.data.source == "synthetic-cohort":
        raise ConfigError(
            f"{number} adds a party, but no party can be added to a run with data.source = "
            "'synthetic-cohort', because the records of every party depend on the number of "
            f"parties; {NEW_RUN}"
        )


def _compared(one: Federation, key: str, old: Federation) -> Any:
    """Return the setting `key` of `one`, without privacy settings of parties missing in `old`."""
    value = getattr(one, key)
    if key == "privacy" and one.private is not None:
        own = {name: each for name, each in one.private.parties.items() if name in old.parties}
        return msgspec.structs.replace(one.private, parties=own)
    return value


def check_same_terms(before: Plan, after: Plan) -> None:
    """Raise an error if the run could not continue or would charge differently under `after`."""
    if after.method.kind != before.method.kind:
        raise ConfigError(
            f"with the new parties the method would be {after.method.kind!r} instead of "
            f"{before.method.kind!r}; {NEW_RUN}, or one with a given method.kind"
        )
    method, kind = after.method, f"method.kind = {after.method.kind!r}"
    if not _same_arrays(before.prior, after.prior):
        raise ConfigError(
            "the posterior's parameters or prior depend on the number of parties, so that a "
            f"running federation cannot grow; {NEW_RUN}"
        )
    for name, old in before.settled.items():
        changed = _changed(old, after.settled[name])
        if changed:
            raise ConfigError(
                f"with the new parties, {changed} would change for {name!r}, which would "
                "change the party's releases or charges, but the approved terms hold for the whole "
                f"run; {NEW_RUN}"
            )
    if method.memory(after.model, after.family) is not None:
        raise ConfigError(
            f"{kind} keeps a memory at each party, which needs all parties from the first round "
            f"on; {NEW_RUN}"
        )
    if after.settled and len(method.stage_table(after.schedule.rounds)) > 1:
        raise ConfigError(
            f"{kind} releases different sums in different rounds, and a party that joins later "
            f"would be missing from the first sums; {NEW_RUN}"
        )
    rules = after.rules
    shared = after.settled and not rules.own_factors
    if shared and (rules.order != "synchronous" or rules.quorum is not None):
        raise ConfigError(
            f"{kind} divides the noisy sum equally among the parties, so a party can be added only "
            "with schedule.kind = 'synchronous' and no quorum, but this run has schedule.kind = "
            f"{rules.order!r} and quorum = {rules.quorum}; {NEW_RUN}"
        )


def _changed(old: Settled, new: Settled) -> str:
    """Describe the first privacy term that differs, with both values; return "" if none differs."""
    for key, words in (
        ("shares", "the number of parties that share the noise"),
        ("noise_sd", "the noise"),
        ("clip", "the clip"),
        ("visits", "the number of replies"),
    ):
        if getattr(old, key) != getattr(new, key):
            return f"{words} ({getattr(old, key):.4g} → {getattr(new, key):.4g})"
    if (old.answers, old.guarantee) != (new.answers, new.guarantee):
        return "the lattice of the releases or the guarantee (both depend on the key records)"
    return ""


def _same_arrays(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(
        np.array_equal(value, two[name]) for name, value in one.items()
    )

"""Audit of a configuration on synthetic records that follow its public schema."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from tacit.auditing.audit import DRAWS, Audit, Finding, Progress, audit
from tacit.data import (
    DataConfig,
    Federation,
    load_federation,
    public_records,
    public_schema,
    synthetic_federation,
)
from tacit.data.config import CORPORA
from tacit.errors import ConfigError
from tacit.methods import PrivateMethod
from tacit.plan.calibrate import LargeDeltaWarning
from tacit.plan.plan import Plan
from tacit.run.build import make_model
from tacit.run.config import Config
from tacit.run.directory import public_part
from tacit.run.run import Prepared, check_private, plan_for, run
from tacit.run.tune.outcomes import outcome_of
from tacit.testing.neighbours import neighbours_of
from tacit.testing.releases import counted

RECORDS_PER_PARTY = 100
_TRIES = (1, 10, 100)
"""Factors by which the number of records is increased if a method refuses a plan."""


def audit_configuration(
    config: Config,
    *,
    records: int | None = None,
    minutes: float = 2.0,
    draws: int = DRAWS,
    progress: Progress | None = None,
    seed: int = 0,
) -> Audit:
    """Audit a private configuration; no real record is read and nothing is charged.

    Parameters
    ----------
    config
        The configuration.
    records
        Number of synthetic records of all parties together; by default at most 100 per party, or
        more if the method needs more.
    minutes
        Time after which drawing stops.
    draws
        Number of draws per release.
    progress
        Called with a line of text before each step.
    seed
        Seed of the synthetic records, neighbours and canaries.
    """
    if config.private is None:
        raise ConfigError(
            'privacy = "none"; only a private study has an ε to audit: add a [privacy] table'
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LargeDeltaWarning)  # sizes are synthetic
        federation, plan = _planned(config, records, seed)
        assert isinstance(plan.method, PrivateMethod)
        tell = progress or (lambda _: None)
        started = time.monotonic()
        found = audit(plan, draws=draws, seconds=60.0 * minutes, progress=tell, seed=seed)
        tell("the public files of two neighbouring runs")
        files = compare_files(config, federation, plan, seed)
    return replace(found, findings=(*found.findings, files), seconds=time.monotonic() - started)


def _planned(config: Config, records: int | None, seed: int) -> tuple[Federation, Plan]:
    assert config.private is not None
    secret = msgspec.structs.replace(config.private, insecure_noise_seed=None, ledger=None)
    # Unconfirmed bounds and levels are accepted, because no real record is read.
    columns = tuple(msgspec.structs.replace(one, draft=False) for one in config.data.columns)
    data = msgspec.structs.replace(config.data, columns=columns)
    config = msgspec.structs.replace(config, privacy=secret, data=data)
    parties = config.partition.parties
    known = public_records(config.data)
    count = records or min(known or RECORDS_PER_PARTY * parties, RECORDS_PER_PARTY * parties)
    last: ConfigError | None = None
    for factor in _TRIES if records is None else _TRIES[:1]:
        federation = synthetic(config, count * factor, seed)
        model = make_model(config, federation)
        try:
            return federation, plan_for(config, model, federation.parties, any_noise=True)
        except ConfigError as refused:  # e.g. too few records for this sampling rate
            last = refused
    assert last is not None
    raise last


def synthetic(config: Config, records: int, seed: int) -> Federation:
    """Return synthetic records of all parties, drawn from the public schema and the model's prior.

    Documents come from the source "synthetic-topics", whose vocabulary is small: the noise of a
    release does not depend on the number of words.
    """
    if config.data.source in CORPORA:
        data = DataConfig(source="synthetic-topics", records=records, held_out=0.0)
        balanced = msgspec.structs.replace(config.partition, kind="balanced")
        return load_federation(data, balanced, seed)
    sites = config.partition.parties if config.partition.kind == "source" else None
    schema = public_schema(config.data, sites=sites)
    check_private(config, schema)
    return synthetic_federation(
        msgspec.structs.replace(config.data, balance=False),
        config.partition,
        records=records,
        test=0,
        outcome=outcome_of(make_model(config, schema)),
        seed=seed,
    )


def compare_files(config: Config, federation: Federation, plan: Plan, seed: int) -> Finding:
    """Check that the files in public/ depend on the records only through the releases.

    Two runs on neighbouring records are compared, in which every mechanism returns the same values.
    A file that differs between these runs contains something that was not charged.
    """
    assert plan.privacy is not None
    party = next(iter(plan.parties))
    group = neighbours_of(
        plan.parties[party], plan.privacy.unit, plan.privacy.adjacency, np.random.default_rng(seed)
    )[0]
    seeded = msgspec.structs.replace(plan.privacy, insecure_noise_seed=seed + 1, ledger=None)
    simulated = msgspec.structs.replace(config, privacy=seeded)
    found = []
    with tempfile.TemporaryDirectory() as folder, counted():
        for number, records in enumerate((group[0], group[len(group) // 2])):
            own = {**plan.parties, party: records}
            there = replace(federation, parties={**federation.parties, party: records})
            prepared = Prepared(simulated, there, replace(plan, parties=own, privacy=seeded), 0.0)
            out = Path(folder) / f"run-{number}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run(simulated, out, prepared=prepared)
            found.append(_contents(public_part(out)))
    different = sorted(
        name for name in found[0].keys() | found[1].keys()
        if found[0].get(name) != found[1].get(name)
    )  # fmt: skip
    return Finding(
        kind="files",
        what="public/ of two neighbouring runs",
        claim=0.0,
        bound=float("inf") if different else 0.0,
        confidence=1.0,
        note=f"files that differ although all releases are equal: {', '.join(different)}"
        if different else f"{len(found[0])} files, all equal if all releases are equal",
    )  # fmt: skip


def _contents(folder: Path) -> Mapping[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }

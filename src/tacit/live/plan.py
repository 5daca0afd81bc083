"""Make the server's plan and a party's plan from the agreed file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np

from tacit.data import Federation as Records_
from tacit.data import load_party, public_schema
from tacit.errors import DataError
from tacit.expfam import Natural
from tacit.live.config import Agreed, PartySetup, model_file
from tacit.models.settings import NumPyroSettings
from tacit.plan.checks import Live
from tacit.plan.plan import Plan, make_plan
from tacit.results.compose import public_facts
from tacit.run.build import make_method, make_model, make_schedule
from tacit.run.config import Config, Continues
from tacit.run.continued import (
    Earlier,
    check_same_columns,
    check_same_guarantee,
    check_same_model,
    read_earlier,
)
from tacit.run.run import check_private


def server_plan(agreed: Agreed) -> Plan:
    """Return the server's plan, which uses no records."""
    federation = agreed.federation
    config = _located(federation.as_config(), agreed.path.parent)
    schema = public_schema(config.data, sites=len(federation.parties))
    return _plan(agreed, config, schema, {name: {} for name in federation.parties})


def party_plan(setup: PartySetup, name: str) -> tuple[Plan, Records_]:
    """Return one party's plan and its records."""
    federation = setup.agreed.federation
    config = _located(federation.as_config(setup.data), setup.agreed.path.parent)
    loaded = load_party(config.data, name, federation.seed, sites=len(federation.parties))
    parties = {other: {} for other in federation.parties} | {name: loaded.parties[name]}
    public = _located(federation.as_config(), setup.agreed.path.parent).data
    schema = public_schema(public, sites=len(federation.parties))
    return _plan(setup.agreed, config, schema, parties), loaded


def _plan(agreed: Agreed, config: Config, schema: Records_, parties: dict) -> Plan:
    """Make a plan whose model depends only on the public schema, not on records."""
    federation = agreed.federation
    check_private(config, schema)
    earlier = read_continued(agreed)
    plan = make_plan(
        make_model(config, schema),
        parties,
        family=federation.posterior,
        method=make_method(config),
        schedule=make_schedule(config),
        seed=federation.seed,
        batch_parties=False,
        privacy=federation.private,
        live=Live(
            total_units=federation.records or 0,
            quorum=federation.quorum,
            divide_out=federation.on_leave == "divide-out",
        ),
        earlier=None if earlier is None else earlier.natural,
    )
    if earlier is not None:
        check_same_columns(earlier, public_facts(federation.data, len(federation.parties)))
        check_same_model(earlier, plan)
        check_same_guarantee(earlier, plan)
    return plan


def read_continued(agreed: Agreed) -> Earlier | None:
    """Read the earlier run that the federation continues, from the state directory of that run.

    The result is None if the federation does not continue a run, or if only the agreed file is
    given, as in `tacit check federation.toml`.
    """
    continues = agreed.federation.continues
    if continues is None or agreed.earlier is None:
        return None
    earlier = read_earlier(Continues(run=str(agreed.earlier)))
    found = posterior_digest(earlier.natural)
    if found != continues.posterior:
        raise DataError(
            f"the posterior in {agreed.earlier} has the digest {found[:12]}…, but the federation "
            f"continues the run {continues.run}, and the posterior of this run has the digest "
            f"{continues.posterior[:12]}…; set `earlier` to the state directory of the run "
            f"{continues.run}"
        )
    return earlier


def posterior_digest(natural: Natural) -> str:
    """Return the SHA-256 of natural parameters; server and parties get the same value."""
    state = hashlib.sha256()
    for name in sorted(natural):
        value = np.ascontiguousarray(natural[name], "<f8")
        state.update(f"{name}{value.shape}".encode() + value.tobytes())
    return state.hexdigest()


def _located(config: Config, base: Path) -> Config:
    """Resolve the paths of model file and vocabulary relative to the agreed file."""
    replace = msgspec.structs.replace
    if config.data.vocabulary is not None:
        words = str(base / config.data.vocabulary)
        config = replace(config, data=replace(config.data, vocabulary=words))
    place = model_file(config.model)
    if not place.endswith(".py"):
        return config
    assert isinstance(config.model, NumPyroSettings)
    function = f"{base / place}{config.model.function.removeprefix(place)}"
    return replace(config, model=replace(config.model, function=function))

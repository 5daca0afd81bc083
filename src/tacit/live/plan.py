"""Make the server's plan and a party's plan from the agreed file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tacit.data import Federation as Records_
from tacit.data import load_party, public_schema
from tacit.live.config import Agreed, PartySetup, model_file
from tacit.models.settings import NumPyroSettings
from tacit.plan.checks import Live
from tacit.plan.plan import Plan, make_plan
from tacit.run.build import make_method, make_model, make_schedule
from tacit.run.config import Config
from tacit.run.run import check_private


def server_plan(agreed: Agreed) -> Plan:
    """The server's plan, without records."""
    federation = agreed.federation
    config = _located(federation.as_config(), agreed.path.parent)
    schema = public_schema(config.data, sites=len(federation.parties))
    return _plan(agreed, config, schema, {name: {} for name in federation.parties})


def party_plan(setup: PartySetup, name: str) -> tuple[Plan, Records_]:
    """One party's plan, and its records."""
    federation = setup.agreed.federation
    config = _located(federation.as_config(setup.data), setup.agreed.path.parent)
    loaded = load_party(config.data, name, federation.seed, sites=len(federation.parties))
    parties = {other: {} for other in federation.parties} | {name: loaded.parties[name]}
    public = _located(federation.as_config(), setup.agreed.path.parent).data
    schema = public_schema(public, sites=len(federation.parties))
    return _plan(setup.agreed, config, schema, parties), loaded


def _plan(agreed: Agreed, config: Config, schema: Records_, parties: dict) -> Plan:
    """Plan with a model built from the public schema, so that it is the same everywhere."""
    federation = agreed.federation
    check_private(config, schema)
    return make_plan(
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
    )


def _located(config: Config, base: Path) -> Config:
    """Resolve the paths of model program and vocabulary relative to the agreed file."""
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

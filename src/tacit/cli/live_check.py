"""`tacit check` and `tacit explain` of the files of a live federation."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Literal

from tacit.errors import ConfigError, TacitError
from tacit.live.config import (
    PartySetup,
    ServerSetup,
    kind_of,
    read_agreed,
    read_party,
    read_server,
)
from tacit.live.settings import parse_address


def check_live(path: Path, overrides: list[str] | None, seed: int | None) -> None:
    """Run `tacit check` on a federation, server or party file."""
    kind = _refuse_for_agreed(path, overrides, seed)
    from tacit.cli.show.agreement import show_agreed
    from tacit.live.plan import server_plan

    if kind == "federation":
        agreed = read_agreed(path)
        show_agreed(agreed, server_plan(agreed))
    elif kind == "server":
        _check_server(read_server(path, tuple(overrides or ())))
    else:
        _check_party(read_party(path, tuple(overrides or ())), path)


def live_plan(path: Path, overrides: list[str] | None, seed: int | None) -> Any:
    """Return the plan of a federation, server or party file, for `tacit explain`."""
    kind = _refuse_for_agreed(path, overrides, seed)
    from tacit.live.join import prepare_party
    from tacit.live.plan import server_plan

    if kind == "party":
        return prepare_party(read_party(path, tuple(overrides or ()))).plan
    if kind == "server":
        return server_plan(read_server(path, tuple(overrides or ())).agreed)
    return server_plan(read_agreed(path))


def _refuse_for_agreed(
    path: Path, overrides: list[str] | None, seed: int | None
) -> Literal["server", "party", "federation"]:
    kind = kind_of(path)
    assert kind != "run"
    if seed is not None:
        raise ConfigError(
            f"--seed {seed} cannot be combined with {path}, because the seed is part of the agreed "
            "file: leave --seed out"
        )
    if overrides and kind == "federation":
        raise ConfigError(
            f"--set {overrides[0]} cannot be combined with {path}, because all parties must have "
            "the same agreed file: leave --set out, or edit the file"
        )
    return kind


def _check_server(setup: ServerSetup) -> None:
    from tacit.cli.show.agreement import show_server_check
    from tacit.cli.show.live import say
    from tacit.live.plan import server_plan
    from tacit.live.serve import version_in_force
    from tacit.live.server.membership import load_roster, roster_digest
    from tacit.live.state_dir import in_use
    from tacit.live.transport.tls import server_context

    server_context(setup.own.serve.credentials(setup.base))
    plan = server_plan(setup.agreed)
    roster, running = setup.state / "roster", in_use(setup.state)
    state = f"{setup.state}: new, a run would start from the prior"
    if roster.exists():
        following = version_in_force(setup)
        found = load_roster(roster, roster_digest(roster) or "")
        state = f"{setup.state}: {found.run}, which {len(found.members)} parties have joined"
        if following.digest != setup.agreed.digest:
            old, new = following.federation.version, setup.agreed.federation.version
            state += f"; it follows version {old}, and version {new} waits for approvals"
    trouble = _not_free(setup.own.serve.listen)
    address = setup.own.serve.listen + (
        " (this server is running)" if running else " (free)" if trouble is None else " (IN USE)"
    )
    show_server_check(setup, plan, address, state)
    if running:
        say("the server is running; see tacit status")
    elif trouble is not None:
        raise trouble
    else:
        say(
            "valid: tacit serve would "
            + ("continue that run" if roster.exists() else "begin a run")
            + ". Nothing was written or sent."
        )


def _not_free(listen: str) -> ConfigError | None:
    host, port = parse_address(listen, "serve.listen")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return ConfigError(
            f"serve.listen = {listen!r}: {error.strerror}; choose another address or port"
        )
    return None


def _check_party(setup: PartySetup, path: Path) -> None:
    from tacit.cli.show.agreement import show_party_check
    from tacit.cli.show.live import say
    from tacit.live.approval import followed_version, require_approval
    from tacit.live.join import check_budget, prepare_party
    from tacit.live.transport.tls import client_context

    client_context(setup.own.join.credentials(setup.base))
    ready = prepare_party(followed_version(setup))
    troubles: list[TacitError] = []
    approval = f"{setup.agreed.digest[:12]}…, the current file"
    try:
        require_approval(setup)
    except ConfigError as error:
        approval = "MISSING"
        troubles.append(error)
    budget = "not needed: the run is not private"
    if ready.plan.settled:
        asked = ready.plan.settled[ready.name].guarantee
        budget = f"this run needs ε = {asked.epsilon:.4g} at δ = {asked.delta:g}"
        try:
            spent = check_budget(ready)
            if spent is None:
                budget += "; a simulation, charged in its own state directory"
            else:
                budget += (
                    f"; {spent.epsilon or 0.0:.4g} is spent of {spent.budget.epsilon:g} "
                    f"in {ready.ledger_path}"
                )
        except TacitError as error:
            budget += "; NOT ENOUGH BUDGET"
            troubles.append(error)
    show_party_check(ready, approval, budget)
    for trouble in troubles[1:]:
        say(f"also: {trouble}")
    if troubles:
        raise troubles[0]
    say(f"valid: tacit join {path} would take part. Nothing was sent or spent.")

"""`tacit status` and `tacit server`: state of a server or party, and commands to a server."""

from __future__ import annotations

import json
import secrets
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import typer

from tacit.errors import ConfigError, DataError
from tacit.live.config import (
    ServerSetup,
    kind_of,
    read_party,
    read_server,
)

LOG_LINES = 10


def status_command(path: Path, *, as_json: bool) -> None:
    """Implement `tacit status`."""
    state, ledger, role = _place(path)
    from tacit.live.state_dir import in_use

    if role == "server":
        status = _server_status(state)
        status["running"] = in_use(state)
    else:
        status = _party_status(state, ledger)
    if as_json:
        print(json.dumps(status, indent=1))
        return
    from tacit.cli.show.live import show_party_status, show_server_status

    if role == "server":
        show_server_status(status, running=status["running"])
    else:
        show_party_status(status)


def start_command(path: Path) -> None:
    """Implement `tacit server start`."""
    setup = read_server(path)
    typer.echo("start: " + _give(setup, "start"))


def readmit_command(path: Path, party: str) -> None:
    """Implement `tacit server readmit`."""
    setup = read_server(path)
    names = setup.agreed.federation.parties
    if party not in names:
        raise ConfigError(f"party {party!r} is unknown; the parties are {', '.join(names[:20])}")
    told = _give(setup, f"readmit-{secrets.token_hex(4)}", {"party": party})
    typer.echo(f"readmit {party}: {told}")


def propose_command(path: Path) -> None:
    """Implement `tacit server propose`."""
    setup = read_server(path)
    from tacit.live.serve import read_proposal, version_in_force
    from tacit.live.server.status import CONTROL

    following = version_in_force(setup)
    if not (setup.state / CONTROL).is_dir() or following.digest == setup.agreed.digest:
        raise ConfigError(
            f"{setup.agreed.path} is version {setup.agreed.federation.version}, which the run "
            "already uses; there is nothing to propose"
        )
    proposal = read_proposal(setup, following)
    told = _give(setup, "propose")
    known = following.federation.parties
    added = [name for name in proposal.agreed.federation.parties if name not in known]
    typer.echo(
        f"propose version {proposal.version}, which adds {', '.join(added)}: {told}\n"
        f"digest: {proposal.agreed.digest}\n"
        "it takes effect once every party has approved it (tacit approve) and the new parties have "
        "asked to join; tacit status shows which parties are missing"
    )


def stop_command(path: Path, *, return_in: float | None, reason: str, for_good: bool) -> None:
    """Implement `tacit server stop`."""
    if return_in is not None and (for_good or not 0 < return_in < float("inf")):
        raise ConfigError(
            f"--return-in {return_in:g}{' --for-good' if for_good else ''}; give a number of "
            "seconds > 0, or --for-good alone"
        )
    setup = read_server(path)
    from tacit.live.state_dir import in_use

    if not in_use(setup.state):
        raise ConfigError(f"no server is running in {setup.state}; there is nothing to stop")
    back = None if for_good else return_in or setup.own.serve.restart_delay_s
    _give(setup, "close", {"reason": reason, "return_in_s": back})
    told = "will not reconnect" if back is None else f"will reconnect in {back:g} s"
    typer.echo(f"stop: sent to the server; parties {told}")


def _give(setup: ServerSetup, name: str, body: dict[str, Any] | None = None) -> str:
    from tacit.live.server.status import give_command
    from tacit.live.state_dir import in_use

    give_command(setup.state, name, body or {})
    return "sent" if in_use(setup.state) else "stored until the server is started"


def _place(path: Path) -> tuple[Path, Path | None, Literal["server", "party"]]:
    """Return the state directory, the ledger (None if not named), and "server" or "party"."""
    if path.is_dir():
        if (path / "roster").exists() or (path / "status.json").exists():
            return path, None, "server"
        if any((path / name).exists() for name in ("approved.json", "party", "log.jsonl")):
            return path, None, "party"
        raise DataError(
            f"{path} is not the state directory of a server or a party; give the directory that "
            "is set as state in server.toml or party.toml"
        )
    kind = kind_of(path)
    if kind == "server":
        return read_server(path).state, None, "server"
    if kind == "party":
        setup = read_party(path)
        if setup.agreed.federation.private is None:
            return setup.state, None, "party"
        from tacit.privacy.ledger.paths import LEDGER_NAME, own_ledger

        named = setup.own.ledger
        ledger = own_ledger() if named is None else setup.base / Path(named).expanduser()
        if setup.agreed.federation.private.insecure_noise_seed is not None:
            ledger = setup.state / LEDGER_NAME
        return setup.state, ledger, "party"
    raise ConfigError(
        f"{path} is neither a server's nor a party's file, so it has no state; give a server.toml, "
        "a party.toml or a state directory"
    )


def _server_status(state: Path) -> dict[str, Any]:
    path = state / "status.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist; no server has run here; start one: tacit serve"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); start the server again") from None


def _party_status(state: Path, ledger_path: Path | None) -> dict[str, Any]:
    from tacit.live.approval import approved_versions
    from tacit.live.join import run_in_ledger
    from tacit.live.state_dir import in_use
    from tacit.party.store import PartyStore

    versions = approved_versions(state)
    approved = versions[-1] if versions else None
    followed = PartyStore.digest_in(state / "party")
    store = PartyStore(state / "party", str(followed if followed in versions else approved or ""))
    log: deque[dict[str, Any]] = deque(maxlen=LOG_LINES)
    with suppress(OSError), (state / "log.jsonl").open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError):
                log.append(json.loads(line))
    answers, ledger = store.visits, None
    if ledger_path is not None and ledger_path.exists():
        answers, ledger = _charged(
            ledger_path, run_in_ledger(versions[0] if versions else "", store.run or "")
        )
    return {
        "state": str(state),
        "running": in_use(state),
        "approved": approved,
        "run": store.run,
        "answers": answers,
        "finished": store.result is not None,
        "ledger": ledger,
        "log": list(log),
    }


def _charged(path: Path, run: str) -> tuple[int, dict[str, Any] | None]:
    """Return the number of answers charged to a run, and the spending on the run's records."""
    from tacit.privacy.ledger.ledger import Ledger

    with Ledger(path) as ledger:
        charges = ledger.charges(run)
        if not charges:
            return 0, None
        spent = ledger.spent(charges[-1].dataset)
    limit = spent.budget
    body = {
        "path": str(path),
        "epsilon": spent.epsilon,
        "budget": None if limit is None else limit.epsilon,
        "terms": ""
        if limit is None
        else f"δ = {limit.delta:g}, per {limit.unit}, {limit.adjacency}",
    }
    return len({charge.request for charge in charges}), body

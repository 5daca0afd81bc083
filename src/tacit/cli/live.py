"""Implementation of `tacit serve`, `join`, `approve`, `status` and `server`."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
from collections import deque
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

import typer

from tacit.errors import ConfigError, DataError, PeerError, TacitError
from tacit.live.config import (
    PartySetup,
    ServerSetup,
    kind_of,
    read_agreed,
    read_party,
    read_server,
)
from tacit.live.settings import parse_address

INTERRUPTED = 130
LOG_LINES = 10


def serve_command(path: Path, overrides: list[str] | None, *, standby: bool, as_json: bool) -> None:
    """`tacit serve`."""
    setup = read_server(path, tuple(overrides or ()))
    from tacit.cli.show.live import (
        LiveProgress,
        ServerLines,
        say,
        say_json,
        show_server_end,
    )
    from tacit.live.serve import serve
    from tacit.support.blas import one_blas_thread

    federation = setup.agreed.federation
    bar = LiveProgress(federation.name)
    lines = ServerLines(setup, bar)
    with nullcontext() if as_json else bar:
        try:
            watch = say_json if as_json else lines
            with one_blas_thread():
                result = asyncio.run(serve(setup, watch=watch, standby=standby))
        except asyncio.CancelledError as error:
            raise _cancelled(path, "serve") from error
        except KeyboardInterrupt:
            raise _stopped(
                f"stopped; start again with the same command: tacit serve {path}"
            ) from None
    if result is None:
        back = lines.return_in_s
        if not as_json and back is not None:
            say(
                f"closed; parties reconnect in {back:g} s; start again with the same command: "
                f"tacit serve {path}"
            )
        elif not as_json:
            say("closed permanently: the parties will not reconnect")
    elif as_json:
        say_json({"event": "end", "reason": result["finished"], "state": str(setup.state)})
    else:
        show_server_end(setup, result)


def join_command(path: Path, overrides: list[str] | None, *, as_json: bool) -> None:
    """`tacit join`."""
    setup = read_party(path, tuple(overrides or ()))
    from tacit.live.join import finished_run, require_approval

    require_approval(setup)  # before anything is loaded
    finished = finished_run(setup)
    if finished is not None:
        _show_finished(path, setup, finished, as_json=as_json)
        return
    from tacit.cli.show.live import (
        LiveProgress,
        PartyLines,
        say_json,
        show_party_end,
        show_party_start,
    )
    from tacit.live.join import ReadyParty, join, spent_by
    from tacit.support.blas import one_blas_thread

    federation = setup.agreed.federation
    bar = LiveProgress(federation.name)
    seen: list[ReadyParty] = []
    signals: list[int] = []

    def prepared(ready: ReadyParty) -> None:
        seen.append(ready)
        bar.rounds = ready.plan.schedule.rounds
        if not as_json:
            show_party_start(ready, spent_by(ready))

    async def until_stopped() -> dict[str, Any]:
        _leave_on_signal(signals, quiet=as_json)
        return await join(setup, say_json if as_json else PartyLines(bar), prepared)

    with nullcontext() if as_json else bar:
        try:
            with one_blas_thread():
                result = asyncio.run(until_stopped())
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not signals:
                raise _cancelled(path, "join") from error
            raise _stopped(
                f"left for now; join again with the same command: tacit join {path}"
            ) from None
    if as_json:
        say_json({"event": "end", "run": result["run"], "state": str(setup.state)})
    else:
        show_party_end(seen[0], result, spent_by(seen[0]))


def _show_finished(path: Path, setup: PartySetup, finished: Any, *, as_json: bool) -> None:
    """Show a result that is already here; nothing is sent."""
    from tacit.cli.show.live import say, say_json
    from tacit.cli.show.results import show_verdict

    if as_json:
        say_json({"event": "end", "run": finished.run, "state": str(setup.state)})
        return
    say(f"{finished.run} has ended, and this party has its result: {finished.posterior}")
    show_verdict(finished.result)
    say(f"nothing was sent; to take part in a further run: tacit approve {path}, then join again")


def leave_command(
    path: Path, overrides: list[str] | None, reason: str | None, *, yes: bool
) -> None:
    """`tacit join --leave`."""
    setup = read_party(path, tuple(overrides or ()))
    from tacit.cli.show.live import say
    from tacit.live.state_dir import held

    credentials = setup.own.join.credentials(setup.base)
    credentials.check()
    federation = setup.agreed.federation
    if not yes:
        fate = "divided out" if federation.on_leave == "divide-out" else "kept in the posterior"
        say(f"leaving {federation.name!r} permanently: it cannot be joined again; this party's")
        say(f"contribution is {fate}, and the result will not be sent here")
        if not _confirmed("leave permanently?"):
            raise ConfigError("not confirmed; this party has not left")
    with held(setup.state):
        server = asyncio.run(_leave_for_good(setup, credentials, reason))
    say(f"left permanently: {server} has acknowledged it")


async def _leave_for_good(setup: PartySetup, credentials: Any, reason: str | None) -> str:
    """Leave through the first reachable server; returns its address."""
    from tacit.live.session import Introduction, RejectedError, open_session

    join = setup.own.join
    who = Introduction(configuration=setup.agreed.digest)
    failures = []
    for server in join.servers:
        try:
            session = await open_session(
                server, credentials, who, encoding=join.encoding, rejoin=True
            )
            await session.leave(reason)
            return server
        except RejectedError:
            raise
        except PeerError as error:
            failures.append(str(error))
    raise PeerError(f"no server could be reached: {'; '.join(failures)}; try again later")


def approve_command(path: Path, *, yes: bool) -> None:
    """`tacit approve`."""
    setup = read_party(path)
    from tacit.cli.show.agreement import show_approval
    from tacit.cli.show.live import say
    from tacit.live.join import approve, approved_digest, prepare_party

    show_approval(prepare_party(setup), path)
    say("")
    if approved_digest(setup) == setup.agreed.digest:
        say("this was approved before; approving it again allows one more run")
    if not yes and not _confirmed("approve this?"):
        raise ConfigError(f"not approved; nothing was written, and tacit join {path} will refuse")
    written = approve(setup)
    say(f"approved: {written}; take part with: tacit join {path}")


def check_live(path: Path, overrides: list[str] | None, seed: int | None) -> None:
    """`tacit check` on one of the three files."""
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
    """The plan of one of the three files, for `tacit explain`."""
    kind = _refuse_for_agreed(path, overrides, seed)
    from tacit.live.join import prepare_party
    from tacit.live.plan import server_plan

    if kind == "party":
        return prepare_party(read_party(path, tuple(overrides or ()))).plan
    if kind == "server":
        return server_plan(read_server(path, tuple(overrides or ())).agreed)
    return server_plan(read_agreed(path))


def status_command(path: Path, *, as_json: bool) -> None:
    """`tacit status`."""
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
    """`tacit server start`."""
    setup = read_server(path)
    typer.echo("start: " + _give(setup, "start"))


def readmit_command(path: Path, party: str) -> None:
    """`tacit server readmit`."""
    setup = read_server(path)
    names = setup.agreed.federation.parties
    if party not in names:
        raise ConfigError(f"party {party!r} is unknown; the parties are {', '.join(names[:20])}")
    told = _give(setup, f"readmit-{secrets.token_hex(4)}", {"party": party})
    typer.echo(f"readmit {party}: {told}")


def stop_command(path: Path, *, return_in: float | None, reason: str, for_good: bool) -> None:
    """`tacit server stop`."""
    if return_in is not None and (for_good or not 0 < return_in < float("inf")):
        raise ConfigError(
            f"--return-in {return_in:g}{' --for-good' if for_good else ''}; give a number of "
            "seconds > 0, or --for-good alone"
        )
    setup = read_server(path)
    from tacit.live.state_dir import in_use

    if not in_use(setup.state):
        raise ConfigError(f"no server runs in {setup.state}; there is nothing to stop")
    back = None if for_good else return_in or setup.own.serve.restart_delay_s
    _give(setup, "close", {"reason": reason, "return_in_s": back})
    told = "will not reconnect" if back is None else f"reconnect in {back:g} s"
    typer.echo(f"stop: sent; parties {told}")


def _give(setup: ServerSetup, name: str, body: dict[str, Any] | None = None) -> str:
    """Write a command for the server; returns whether it was sent or stored."""
    from tacit.live.server.status import give_command
    from tacit.live.state_dir import in_use

    give_command(setup.state, name, body or {})
    return "sent" if in_use(setup.state) else "stored until the server runs"


def _leave_on_signal(received: list[int], *, quiet: bool) -> None:
    """The first signal leaves cleanly, the second at once; both are safe for the ledger."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def stop(number: int) -> None:
        if received:
            os._exit(INTERRUPTED)
        received.append(number)
        if not quiet:
            typer.echo(
                "leaving; a reply in progress is finished and stored (again: leave at once)",
                err=True,
            )
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(ValueError, NotImplementedError, RuntimeError):
            loop.add_signal_handler(number, stop, number)


def _cancelled(path: Path, command: str) -> TacitError:
    """Error for work that was cancelled without a signal, which is a bug."""
    return TacitError(
        f"internal: tacit {command} {path} was cancelled without a signal; nothing is lost: give "
        "the same command again, and report this with log.jsonl"
    )


def _confirmed(question: str) -> bool:
    """Ask for a yes at the terminal; interruption or no terminal counts as no."""
    try:
        return typer.confirm(question)
    except typer.Abort:
        return False


def _stopped(words: str) -> typer.Exit:
    typer.echo(words, err=True)
    return typer.Exit(INTERRUPTED)


def _refuse_for_agreed(
    path: Path, overrides: list[str] | None, seed: int | None
) -> Literal["server", "party", "federation"]:
    kind = kind_of(path)
    assert kind != "run"
    if seed is not None:
        raise ConfigError(f"--seed {seed} with {path}; the seed is part of the agreed file")
    if overrides and kind == "federation":
        raise ConfigError(
            f"--set {overrides[0]} with {path}; agreed settings cannot be overridden: edit the file"
        )
    return kind


def _check_server(setup: ServerSetup) -> None:
    from tacit.cli.show.agreement import show_server_check
    from tacit.cli.show.live import say
    from tacit.live.plan import server_plan
    from tacit.live.server.membership import load_roster
    from tacit.live.state_dir import in_use
    from tacit.live.transport.tls import server_context

    server_context(setup.own.serve.credentials(setup.base))
    plan = server_plan(setup.agreed)
    roster, running = setup.state / "roster", in_use(setup.state)
    state = f"{setup.state}: new, a run would start from the prior"
    if roster.exists():
        found = load_roster(roster, setup.agreed.digest)
        state = f"{setup.state}: {found.run}, which {len(found.members)} parties have joined"
    trouble = _not_free(setup.own.serve.listen)
    address = setup.own.serve.listen + (
        " (this server runs now)" if running else " (free)" if trouble is None else " (IN USE)"
    )
    show_server_check(setup, plan, address, state)
    if running:
        say("the server runs now; see tacit status")
    elif trouble is not None:
        raise trouble
    else:
        say(
            "configuration is valid: tacit serve would "
            + ("continue that run" if roster.exists() else "start a run")
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
    from tacit.live.join import check_budget, prepare_party, require_approval
    from tacit.live.transport.tls import client_context

    client_context(setup.own.join.credentials(setup.base))
    ready = prepare_party(setup)
    troubles: list[TacitError] = []
    approval = f"{setup.agreed.digest[:12]}…, what the file says now"
    try:
        require_approval(setup)
    except ConfigError as error:
        approval = "MISSING"
        troubles.append(error)
    budget = "not needed: not private"
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
    say(f"configuration is valid: tacit join {path} would take part. Nothing was sent or spent.")


def _place(path: Path) -> tuple[Path, Path | None, Literal["server", "party"]]:
    """State directory, ledger if a file names it, and whose they are."""
    if path.is_dir():
        if (path / "roster").exists() or (path / "status.json").exists():
            return path, None, "server"
        if any((path / name).exists() for name in ("approved.json", "party", "log.jsonl")):
            return path, None, "party"
        raise DataError(
            f"{path} is not a state directory; give the one in server.toml or party.toml"
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
    raise ConfigError(f"{path} is neither a server's nor a party's file; it has no state")


def _server_status(state: Path) -> dict[str, Any]:
    path = state / "status.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist; no server has run here: start one with tacit serve"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); start the server again") from None


def _party_status(state: Path, ledger_path: Path | None) -> dict[str, Any]:
    from tacit.live.join import run_in_ledger
    from tacit.live.state_dir import in_use
    from tacit.party.store import PartyStore

    approved = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        approved = str(json.loads((state / "approved.json").read_text())["configuration"])
    store = PartyStore(state / "party", approved or "")
    log: deque[dict[str, Any]] = deque(maxlen=LOG_LINES)
    with suppress(OSError), (state / "log.jsonl").open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError):
                log.append(json.loads(line))
    answers, ledger = store.visits, None
    if ledger_path is not None and ledger_path.exists():
        answers, ledger = _charged(ledger_path, run_in_ledger(approved or "", store.run or ""))
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
    """Number of charged replies of a run, and the total spending on its records."""
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

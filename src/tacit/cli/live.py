"""Implementation of `tacit serve`, `join` and `approve`."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import typer

from tacit.errors import ConfigError, PeerError, TacitError
from tacit.live.config import (
    PartySetup,
    read_party,
    read_server,
)

INTERRUPTED = 130


def serve_command(path: Path, overrides: list[str] | None, *, standby: bool, as_json: bool) -> None:
    """Implement `tacit serve`."""
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
        say_json({"event": "end", "reason": result.finished, "state": str(setup.state)})
    else:
        show_server_end(setup, result)


def join_command(path: Path, overrides: list[str] | None, *, as_json: bool) -> None:
    """Implement `tacit join`."""
    setup = file = read_party(path, tuple(overrides or ()))
    from tacit.live.approval import followed_version, require_approval
    from tacit.live.join import finished_run

    require_approval(setup)  # before anything is loaded
    setup = followed_version(setup)
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
    from tacit.live.join import PartyEnd, ReadyParty, join, spent_by
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

    async def until_stopped() -> PartyEnd:
        _leave_on_signal(signals, quiet=as_json)
        return await join(file, say_json if as_json else PartyLines(bar), prepared)

    with nullcontext() if as_json else bar:
        try:
            with one_blas_thread():
                end = asyncio.run(until_stopped())
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not signals:
                raise _cancelled(path, "join") from error
            raise _stopped(
                f"left for now; join again with the same command: tacit join {path}"
            ) from None
    if as_json:
        say_json({"event": "end", "run": end.result.run, "state": str(setup.state)})
    else:
        show_party_end(seen[0], end, spent_by(seen[0]))


def _show_finished(path: Path, setup: PartySetup, finished: Any, *, as_json: bool) -> None:
    """Show a result that already exists on this machine; nothing is sent."""
    from tacit.cli.show.live import say, say_json
    from tacit.cli.show.results import show_verdict

    if as_json:
        say_json({"event": "end", "run": finished.run, "state": str(setup.state)})
        return
    say(f"{finished.run} has ended, and this party has its result: {finished.posterior}")
    show_verdict(finished.end.result)
    say(f"nothing was sent; to take part in a further run: tacit approve {path}, then join again")


def leave_command(
    path: Path, overrides: list[str] | None, reason: str | None, *, yes: bool
) -> None:
    """Implement `tacit join --leave`."""
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
    """Leave permanently through the first reachable server; returns its address."""
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
    """Implement `tacit approve`."""
    setup = read_party(path)
    from tacit.cli.show.agreement import show_approval, show_version
    from tacit.cli.show.live import say
    from tacit.live.approval import approved_digest
    from tacit.live.join import added_parties, approve, prepare_party

    added = added_parties(setup)
    if added is not None:
        show_version(prepare_party(setup), added)
    else:
        show_approval(prepare_party(setup), path)
    say("")
    if approved_digest(setup) == setup.agreed.digest and added is None:
        say("this file was approved before; approving it again allows one more run")
    if not yes and not _confirmed("approve this?"):
        raise ConfigError(f"not approved; nothing was written, and tacit join {path} will refuse")
    written = approve(setup)
    if added is not None:
        say(f"approved: {written}; tacit join sends it to the server while the run continues")
        return
    say(f"approved: {written}; take part with: tacit join {path}")


def _leave_on_signal(received: list[int], *, quiet: bool) -> None:
    """Leave cleanly on the first signal and at once on the second; both are safe for the ledger."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def stop(number: int) -> None:
        if received:
            os._exit(INTERRUPTED)
        received.append(number)
        if not quiet:
            typer.echo(
                "leaving; a reply in progress is finished and stored (repeat to leave at once)",
                err=True,
            )
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(ValueError, NotImplementedError, RuntimeError):
            loop.add_signal_handler(number, stop, number)


def _cancelled(path: Path, command: str) -> TacitError:
    """Return the error for work that was cancelled without a signal, which is a bug."""
    return TacitError(
        f"internal: tacit {command} {path} was cancelled without a signal; nothing is lost: give "
        "the same command again, and report this with log.jsonl"
    )


def _confirmed(question: str) -> bool:
    """Ask for confirmation at the terminal; an interruption or a missing terminal counts as no."""
    try:
        return typer.confirm(question)
    except typer.Abort:
        return False


def _stopped(words: str) -> typer.Exit:
    typer.echo(words, err=True)
    return typer.Exit(INTERRUPTED)

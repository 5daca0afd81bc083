"""`tacit.connect` and `tacit.serve`: both ends of a live federation, without asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.expfam import Family, Natural
from tacit.live.protocol.codec import Encoding
from tacit.live.session import AsyncSession, Introduction, Turn, open_session
from tacit.live.transport.tls import Credentials

if TYPE_CHECKING:  # a party that brings its own computation needs no data frames
    from tacit.fitting.result import Fit


class Session:
    """A party's connection to a server, with blocking methods; `connect` opens it."""

    def __init__(self, runner: asyncio.Runner, session: AsyncSession) -> None:
        self._runner, self._session = runner, session
        self._open = True

    @property
    def final_posterior(self) -> Natural | None:
        """The final posterior; None until `wait_for_posterior` has returned None."""
        return self._session.final_posterior

    @property
    def run(self) -> str:
        """Id of the joined run."""
        return self._session.run

    def wait_for_posterior(self) -> Turn | None:
        """Wait for the next request for an update and return it; None at the end of training."""
        return self._runner.run(self._session.wait_for_posterior())

    def send_update(self, turn: Turn, posterior: Natural, loss: float | None = None) -> None:
        """Answer the request `turn` with the local posterior qₘ; this method applies the damping.

        Parameters
        ----------
        turn
            The request that `wait_for_posterior` returned.
        posterior
            Natural parameters of the local posterior.
        loss
            Negative expected log-likelihood at the posterior of the request, if it may be shared.
        """
        self._runner.run(self._session.send_update(turn, posterior, loss))

    def leave(self, reason: str | None = None, expected_absence_s: float | None = None) -> None:
        """Leave the run before its end; permanently if `expected_absence_s` is None.

        Parameters
        ----------
        reason
            Reason that is sent to the server.
        expected_absence_s
            Seconds until this party returns.
        """
        self._runner.run(self._session.leave(reason, expected_absence_s))

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        if self._open:
            self._open = False
            try:
                self._runner.run(self._session.close())
            finally:
                self._runner.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    server: str,
    *,
    certificate: str | Path,
    key: str | Path,
    authority: str | Path,
    revoked: str | Path | None = None,
    data_size: int = 0,
    encoding: Encoding = "msgpack",
    family: Family | None = None,
    configuration: str | None = None,
    rejoin: bool = False,
) -> Session:
    """Join a live federation with your own training loop.

    The caller computes the updates. tacit keeps no ledger and adds no noise.

    Parameters
    ----------
    server
        Address of the server, "host:port".
    certificate, key
        This party's certificate and its private key (`tacit certs party`).
    authority
        The certificate of the federation's authority.
    revoked
        The list of revoked certificates, to check the server's certificate against.
    data_size
        Number of records to report to the server; 0 reports none.
    encoding
        "msgpack", "cbor" or "json"; "bincode" and "bincode-fixint" for a server that implements
        only the protocol of the thesis (docs/protocol.md).
    family
        Posterior family; natural parameters with other names or shapes are refused.
    configuration
        Digest of the agreed file. A server with a different file is refused.
    rejoin
        True after a connection was lost.

    Returns
    -------
    Session
        The open connection, a context manager.

    Examples
    --------
    ::

        with tacit.connect("host:7443", certificate=…, key=…, authority=…) as session:
            while (turn := session.wait_for_posterior()) is not None:
                session.send_update(turn, my_posterior(turn.cavity))
    """
    return _in_own_loop(connect_async(
        server, certificate=certificate, key=key, authority=authority, revoked=revoked,
        data_size=data_size, encoding=encoding, family=family, configuration=configuration,
        rejoin=rejoin,
    ))  # fmt: skip


def _in_own_loop(joining: Coroutine[Any, Any, AsyncSession]) -> Session:
    runner = asyncio.Runner()
    try:
        return Session(runner, runner.run(joining))
    except BaseException:
        runner.close()
        raise


async def connect_async(
    server: str,
    *,
    certificate: str | Path,
    key: str | Path,
    authority: str | Path,
    revoked: str | Path | None = None,
    data_size: int = 0,
    encoding: Encoding = "msgpack",
    family: Family | None = None,
    configuration: str | None = None,
    rejoin: bool = False,
) -> AsyncSession:
    """Join a live federation from asyncio; the parameters are those of `connect`."""
    credentials = Credentials(
        Path(certificate), Path(key), Path(authority), None if revoked is None else Path(revoked)
    )
    introduction = Introduction(data_size=data_size, configuration=configuration, family=family)
    return await open_session(server, credentials, introduction, encoding=encoding, rejoin=rejoin)


def serve(
    config: str | Path,
    *,
    standby: bool = False,
    ready: Callable[[int], None] | None = None,
    callback: Callable[[Any], None] | None = None,
) -> Fit | None:
    """Serve a live federation until its end, as `tacit serve` does.

    The call blocks, even in a notebook. Ctrl-C or SIGTERM stop the server, which first tells the
    parties when to reconnect; the same call continues the run.

    Parameters
    ----------
    config
        The server's TOML file.
    standby
        Wait until the server that uses the same state directory has stopped, then take over.
    ready
        A function that is called with the port once the server listens.
    callback
        A function that is called with the log of every update.

    Returns
    -------
    Fit or None
        The result, which is also written to the state directory; None if the server was stopped
        before the end.
    """
    from tacit.fitting.fit import load
    from tacit.live.config import read_server
    from tacit.live.serve import serve as serve_async
    from tacit.support.blas import one_blas_thread

    setup = read_server(Path(config))
    with one_blas_thread():
        result = _blocking(
            lambda: serve_async(setup, observe=callback, ready=ready, standby=standby)
        )
    return None if result is None else load(setup.state)


def _blocking(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine to its end; in a separate thread if an event loop already runs, as in a
    notebook.

    In that case an interrupt cancels the work, and is raised once the work has ended.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    loop = asyncio.new_event_loop()
    task = loop.create_task(work())

    def to_the_end() -> None:
        with contextlib.suppress(BaseException):  # `task` stores it
            loop.run_until_complete(task)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=to_the_end, name="tacit.serve")
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    return task.result()

"""`AsyncSession` for code without asyncio."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tacit.expfam import Family, Natural
from tacit.live.protocol.codec import Encoding
from tacit.live.session import AsyncSession, Introduction, Turn, open_session
from tacit.live.transport.tls import Credentials


class Session:
    """A party's connection, one call at a time. Made by `connect`; a context manager."""

    def __init__(self, runner: asyncio.Runner, session: AsyncSession) -> None:
        self._runner, self._session = runner, session
        self._open = True

    @property
    def final_posterior(self) -> Natural | None:
        """The result, once `wait_for_posterior` has returned None."""
        return self._session.final_posterior

    @property
    def run(self) -> str:
        """The name of the run that was joined."""
        return self._session.run

    def wait_for_posterior(self) -> Turn | None:
        """The next turn, or None at the end of training."""
        return self._runner.run(self._session.wait_for_posterior())

    def send_update(self, turn: Turn, posterior: Natural, loss: float | None = None) -> None:
        """Answer a turn with the local posterior qₘ; damping is seen to here."""
        self._runner.run(self._session.send_update(turn, posterior, loss))

    def leave(self, reason: str | None = None, expected_absence_s: float | None = None) -> None:
        """Go before the end; without `expected_absence_s`, for good."""
        self._runner.run(self._session.leave(reason, expected_absence_s))

    def close(self) -> None:
        """Hang up; may be called again."""
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


def connect(server: str, **options: Any) -> Session:
    """Join a live federation with a training loop of one's own; the options of `connect_async`.

    with tacit.connect("host:7443", certificate=…, key=…, authority=…) as session:
        while (turn := session.wait_for_posterior()) is not None:
            session.send_update(turn, my_posterior(turn.cavity))
    """
    runner = asyncio.Runner()
    try:
        return Session(runner, runner.run(connect_async(server, **options)))
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
    """Join a live federation from asyncio.

    `data_size` 0 tells nothing. With `family`, natural parameters of another form are refused.
    What is sent is what the caller computes: no ledger is kept and no noise is added here.
    """
    credentials = Credentials(
        Path(certificate), Path(key), Path(authority), None if revoked is None else Path(revoked)
    )
    introduction = Introduction(data_size=data_size, configuration=configuration, family=family)
    return await open_session(server, credentials, introduction, encoding=encoding, rejoin=rejoin)

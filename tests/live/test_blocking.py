"""A training loop of one's own, with and without asyncio."""

import asyncio

import harness
import numpy as np
import pytest

import tacit
from tacit.errors import PeerError
from tacit.live.client import connect_async


def options(federation, name):
    files = federation.pki.of(name)
    return {"certificate": files.certificate, "key": files.key, "authority": files.authority}


def local_posterior(turn, records):
    """cavity × likelihood of a normal mean with sd 1: what `Exact` would answer."""
    n, total = len(records), float(np.sum(records))
    return {
        "linear": turn.cavity["linear"] + total,
        "quadratic": turn.cavity["quadratic"] - 0.5 * n,
    }


def exact(names):
    """Mean and precision of the posterior under a standard normal prior."""
    values = np.concatenate([harness.RECORDS[name] for name in names])
    return values.sum() / (1 + len(values)), 1 + len(values)


def check(final, names):
    mean, precision = exact(names)
    assert -2 * final["quadratic"].item() == pytest.approx(precision, rel=1e-12)
    assert final["linear"].item() / precision == pytest.approx(mean, rel=1e-12)


def test_a_loop_without_asyncio_takes_part(federation):
    finals = {}

    def train(name, address):
        with tacit.connect(address, **options(federation, name)) as session:
            while (turn := session.wait_for_posterior()) is not None:
                session.send_update(turn, local_posterior(turn, harness.RECORDS[name]))
            finals[name] = session.final_posterior

    async def main():
        async with federation.serving() as running:
            threads = [
                asyncio.to_thread(train, name, running.address) for name in federation.parties
            ]
            await asyncio.gather(*threads)
            assert await running.over() == "finished"
            return running.posterior

    result = asyncio.run(main())
    check(result, federation.parties)
    for final in finals.values():
        np.testing.assert_equal(final, result)


def test_a_loop_with_asyncio_takes_part_and_may_leave_and_return(federation):
    async def train(name, address):
        session = await connect_async(address, **options(federation, name))
        turn = await session.wait_for_posterior()
        await session.leave("a short break", expected_absence_s=1.0)
        session = await connect_async(address, rejoin=True, **options(federation, name))
        again = await session.wait_for_posterior()
        assert (again.request, again.version) == (turn.request, turn.version)
        while again is not None:
            posterior = local_posterior(again, harness.RECORDS[name])
            await session.send_update(again, posterior, loss=1.0)
            again = await session.wait_for_posterior()
        return session.final_posterior

    async def main():
        async with federation.serving() as running:
            work = [train(name, running.address) for name in federation.parties]
            finals = await asyncio.gather(*work)
            assert await running.over() == "finished"
            return finals

    for final in asyncio.run(main()):
        check(final, federation.parties)


def test_a_server_that_is_not_there_is_one_line(federation):
    with pytest.raises(PeerError, match=r"127\.0\.0\.1:1 cannot be reached"):
        tacit.connect("127.0.0.1:1", **options(federation, "north"))

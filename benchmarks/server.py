"""The server's part of a round, on paper and simulated: a sum, its memory, and a tree instead.

On paper a round of M parties whose messages have n numbers takes fixed + M·(each + n·number)
seconds and M·(record + n·copies·8) bytes at its peak. The constants come from the smaller sizes;
the largest, which was not fitted, says how good the paper is. A tree has one inner server for
every BRANCH parties, which keeps their factors and passes one sum on; its root is the flat server
with as many parties as there are branches.
"""

from __future__ import annotations

import resource
import time
from typing import Any

from benchmarks.common import Row, in_child

FITTED = ((10_000, 2), (10_000, 200), (10_000, 2_000), (30_000, 2), (30_000, 200))
LARGEST = (100_000, 200)
BRANCH = 1_000
ROUNDS = 3


def rows() -> list[Row]:
    seen = {size: in_child("server", *size) for size in (*FITTED, LARGEST)}
    time_of = _fit({size: seen[size]["step_s"] for size in FITTED})
    bytes_of = _fit({size: seen[size]["memory_mb"] for size in FITTED})
    parties, numbers = LARGEST
    largest = seen[LARGEST]
    tree = in_child("server", parties, numbers, BRANCH)
    return [
        Row(name="server", what="a party's part of a round", unit="us", value=1e6 * time_of[0],
            note=f"+ {1e9 * time_of[1]:.1f} ns a number"),
        Row(name="server", what="memory of a party", unit="kB", value=1e3 * bytes_of[0],
            note=f"+ {1e6 * bytes_of[1]:.1f} bytes a number"),
        Row(name="server", what="100,000 parties, 200 numbers: a round", unit="s",
            value=largest["step_s"],
            note=f"on paper {_paper(time_of, *LARGEST):.2f} s"),
        Row(name="server", what="... distance from the paper", unit="", at_most=0.3,
            value=abs(largest["step_s"] / _paper(time_of, *LARGEST) - 1.0)),
        Row(name="server", what="100,000 parties, 200 numbers: memory", unit="MB",
            value=largest["memory_mb"], note=f"on paper {_paper(bytes_of, *LARGEST):.0f} MB"),
        Row(name="server", what="... distance from the paper", unit="", at_most=0.3,
            value=abs(largest["memory_mb"] / _paper(bytes_of, *LARGEST) - 1.0)),
        Row(name="server", what="... as a tree: the root's round", unit="s", value=tree["root_s"],
            note=f"a branch of {BRANCH:,} takes {tree['branch_s']:.3f} s"),
        Row(name="server", what="... as a tree: distance of q from the flat sum", unit="",
            at_most=1e-9, value=tree["apart"]),
    ]  # fmt: skip


def _fit(found: dict[tuple[int, int], float]) -> tuple[float, float]:
    """each and number of M·(each + n·number), least squares of relative errors."""
    import numpy as np

    size = np.array(list(found), dtype=float)
    took = np.array(list(found.values()))
    design = np.stack([size[:, 0] / took, size[:, 0] * size[:, 1] / took], axis=1)
    each, number = np.linalg.lstsq(design, np.ones(len(took)), rcond=None)[0]
    return float(each), float(number)


def _paper(constants: tuple[float, float], parties: int, numbers: int) -> float:
    return parties * (constants[0] + numbers * constants[1])


def child(parties: str, numbers: str, branch: str = "0") -> dict[str, Any]:
    if int(branch):
        return _tree(int(parties), int(numbers) // 2, int(branch))
    _Server(1, 1).round()  # what is imported is nobody's part
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = _Server(int(parties), int(numbers) // 2)
    took = min(run.round() for _ in range(ROUNDS))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"step_s": took, "memory_mb": (after - before) / 1024}


class _Server:
    """A synchronous server whose parties answer with small made-up updates."""

    def __init__(self, parties: int, dimension: int) -> None:
        import numpy as np

        from tacit.expfam import MeanFieldGaussian
        from tacit.server.schedule import Synchronous
        from tacit.server.state import Rules, initial_state
        from tacit.server.step import begin

        family = MeanFieldGaussian(dimension)
        self.rules = Rules(
            family=family,
            schedule=Synchronous(rounds=ROUNDS + 1, damping=1.0, tolerance=0.0),
            parties=tuple(f"party-{i}" for i in range(parties)),
            seed=0,
            prior=family.natural(mean=np.zeros(dimension), sd=np.ones(dimension)),
        )
        self.state = begin(self.rules, initial_state(self.rules))

    def round(self, deltas: Any = None) -> float:
        """CPU seconds of making the requests and taking all replies."""
        from tacit.server.messages import Reply
        from tacit.server.state import open_requests
        from tacit.server.step import step_together

        started = time.process_time()
        requests = open_requests(self.state)
        asked = time.process_time() - started
        deltas = self.made_up(len(requests)) if deltas is None else deltas
        replies = [
            Reply(one.id, one.party, one.version, delta, None)
            for one, delta in zip(requests, deltas, strict=True)
        ]
        started = time.process_time()
        self.state, _ = step_together(self.rules, self.state, replies)
        return asked + time.process_time() - started

    def made_up(self, count: int) -> list[dict[str, Any]]:
        import numpy as np

        rng = np.random.default_rng(self.state.round)
        shape = (count, len(self.state.q["linear"]))
        linear, quadratic = 1e-3 * rng.normal(size=shape), np.full(shape, -1e-3)
        return [{"linear": linear[i], "quadratic": quadratic[i]} for i in range(count)]


def _tree(parties: int, dimension: int, branch: int) -> dict[str, Any]:
    """One round, flat and as a tree whose branches each pass the change of their own q on."""
    import numpy as np

    from tacit.pvi import divide

    flat = _Server(parties, dimension)
    deltas = flat.made_up(parties)
    flat.round(deltas)
    changes, branch_s = [], []
    for start in range(0, parties, branch):
        inner = _Server(len(deltas[start : start + branch]), dimension)
        before = inner.state.q
        branch_s.append(inner.round(deltas[start : start + branch]))
        changes.append(divide(inner.state.q, before))
    root = _Server(len(changes), dimension)
    root_s = root.round(changes)
    apart = max(
        float(np.max(np.abs(root.state.q[k] - flat.state.q[k]) / np.abs(flat.state.q[k]).max()))
        for k in root.state.q
    )
    return {"root_s": root_s, "branch_s": min(branch_s), "apart": apart}

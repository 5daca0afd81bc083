"""Bytes of messages and checkpoints of a private run: python -m benchmarks.sizes.

examples/adult-private.toml, private scoring in a seeded simulation. For 10 and 200
parties: the reply to a request of each stage as a CBOR message, the request, and the checkpoint's
file at the end of the run.
"""

from __future__ import annotations

import tempfile
import tomllib
from pathlib import Path
from typing import Any

from tacit.engines.execute import carry_out
from tacit.engines.in_process import InProcess
from tacit.live.protocol import messages as m
from tacit.live.protocol.arrays import pack
from tacit.live.protocol.codec import encode
from tacit.run.config import parse_config
from tacit.run.run import prepare
from tacit.server.checkpoint import Checkpoint

EXAMPLE = Path(__file__).parents[1] / "examples" / "adult-private.toml"
MOST_REPLY = 2_000
MOST_CHECKPOINT = {10: 3e6, 200: 40e6}


def measured(parties: int) -> dict[str, Any]:
    """Bytes of the largest reply and request of each stage, and of the checkpoint."""
    raw = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    raw["partition"]["parties"] = parties
    plan = prepare(parse_config(raw)).plan
    sizes: dict[str, int] = {}

    class Measuring(InProcess):
        def answer(self, requests: Any) -> Any:
            replies = super().answer(requests)
            for request, reply in zip(requests, replies, strict=True):
                sent = m.UpdatedLikelihood(
                    delta=pack(reply.released, "cbor"), loss=None, request=reply.id,
                    factor_version=reply.version,
                )  # fmt: skip
                asked = m.SelectedForTraining(
                    current_posterior=None if request.q is None else pack(request.q, "cbor"),
                    request=request.id, visit=request.visit, factor_version=request.version,
                    stage=request.stage, public=pack(request.public, "cbor"),
                )  # fmt: skip
                for what, message in (("reply", sent), ("request", asked)):
                    name = f"{what}, {request.stage}"
                    sizes[name] = max(sizes.get(name, 0), len(encode(message, "cbor")))
            return replies

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.sqlite"
        checkpoint = Checkpoint(path, digest="sizes")
        carry_out(plan, engine=Measuring, checkpoint=checkpoint)
        checkpoint.close()
        sizes["checkpoint"] = sum(one.stat().st_size for one in Path(folder).iterdir())
    return sizes


def main() -> int:
    """Print a line for each size; exit code 1 if one is too large."""
    bad = 0
    for parties, most in MOST_CHECKPOINT.items():
        for name, size in measured(parties).items():
            limit = most if name == "checkpoint" else MOST_REPLY if name == "reply, score" else None
            bad += limit is not None and size > limit
            told = "" if limit is None else f"  at most {limit:,.0f}"
            print(f"{parties:4d} parties  {name:16s} {size:12,d} bytes{told}")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Secure sums over the wire: the same posterior, and nothing but sums at the server."""

import asyncio

import pytest
from wire_harness import BINARY, Fed, assert_same_bits, run_all

from tacit.engines.execute import carry_out

NAMES = ("hospital-1", "hospital-2", "hospital-3")
SEEDED = {"epsilon": 4.0, "delta": 1e-4, "insecure_noise_seed": 5, "aggregation": "secure"}
PRIVATE = {
    **BINARY,
    "model": {"kind": "logistic"},
    "records": 72,
    "privacy": SEEDED,
    "method": {"kind": "dp-scoring"},
    "schedule": {"kind": "synchronous", "rounds": 4},
}
pytestmark = pytest.mark.usefixtures("shared_models")


def federation(folder, names=NAMES, **agreed):
    fed = Fed(folder, names, {**PRIVATE, **agreed}, encodings=("json", "cbor", "msgpack"))
    fed.approve()
    return fed


def test_a_run_of_sums(tmp_path):
    fed = federation(tmp_path)
    results = asyncio.run(run_all(fed, within_s=100))
    outcome = carry_out(fed.alone())
    assert_same_bits(fed.state().result, outcome.state.result)
    assert results[0].privacy.aggregation == "secure"

"""server.toml and party.toml: all faults at once, durations, and keys of earlier versions."""

import pytest

from tacit.errors import ConfigError
from tacit.live.config import PartyFile, ServerFile
from tacit.support.table_reader import read_table

FILES = {"certificate": "a.pem", "key": "a.key", "authority": "ca.pem", "state": "state"}


def faults(raw, kind):
    with pytest.raises(ConfigError) as caught:
        read_table(raw, kind)
    return [str(caught.value), *map(str, caught.value.also)]


def test_all_faults_of_a_server_are_reported():
    own = {**FILES, "listen": "here", "linger_s": 3, "restart_delay": "soon", "heartbeat_s": 0}
    found = faults({"federation": "f.toml", "serve": own, "join": {}}, ServerFile)
    for part in (
        "join = {} is not a known key",
        "serve.linger_s = 3 is not a known key; did you mean keep_result_for?",
        "serve.heartbeat_s = 0; it must be a number of at least 0.1",
        "serve.listen = 'here'; write host:port",
        'serve.restart_delay = "soon"; write a positive number and a unit (s, min, h, d)',
    ):
        assert sum(line.startswith(part) for line in found) == 1, (part, found)
    assert len(found) == 5


def test_all_faults_of_a_party_are_reported():
    own = {"servers": ["a"], "record_count": "all", "retry_for": "0s", "minimum_parties": 0}
    found = faults({"federation": "f.toml", "join": own}, PartyFile)
    missing = [line for line in found if line.endswith("is missing; add it")]
    assert len(missing) == 4, found
    assert 'join.record_count = "all" is not a known key; did you mean report_records?' in found
    assert "join.minimum_parties = 0; it must be a whole number of at least 1" in found


def test_durations_are_seconds_inside():
    own = {**FILES, "restart_delay": "2min", "keep_result_for": "1.5h"}
    serve = read_table({"federation": "f.toml", "serve": own}, ServerFile).serve
    assert (serve.restart_delay_s, serve.keep_result_for_s) == (120.0, 5400.0)
    join = {**FILES, "servers": ["localhost:7443"]}
    assert read_table({"federation": "f", "join": join}, PartyFile).join.retry_for_s == 3600.0

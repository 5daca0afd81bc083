"""Tables of methods: every key reaches its method, and further kinds need one line."""

import sys
from importlib.metadata import EntryPoint

import pytest

from tacit.errors import ConfigError
from tacit.methods.natural.method import NaturalVI
from tacit.methods.settings import METHOD_SETTINGS, MethodSettings
from tacit.run.config import parse_config, resolved_toml
from tacit.support import tables
from tacit.support.validation import Count

GOOD = {"privacy": "none", "data": {"source": "adult"}}
EXTRA = {"whiten", "whiten_bound"}


class StepsSettings(MethodSettings, frozen=True, kw_only=True, tag="steps"):
    """A kind of another package."""

    builds = "tacit.methods.natural.method:NaturalVI"
    steps: Count = 3
    """Steps per round."""


@pytest.mark.parametrize("kind", [kind for kind in METHOD_SETTINGS if kind != "auto"])
def test_the_keys_of_a_kind_are_arguments_of_its_method(kind):
    method = METHOD_SETTINGS[kind].method()
    assert method.kind == kind
    assert set(METHOD_SETTINGS.keys(kind)) - EXTRA <= set(method.__dataclass_fields__)
    assert parse_config({**GOOD, "method": {"kind": kind}}).method.make() == method()


@pytest.mark.parametrize("way", ["registered", "installed"])
def test_a_further_kind_takes_one_line(way, monkeypatch):
    monkeypatch.setattr(METHOD_SETTINGS, "_places", dict(METHOD_SETTINGS._places))
    if way == "registered":
        METHOD_SETTINGS.register(StepsSettings)
    else:
        monkeypatch.setitem(sys.modules, "another", sys.modules[__name__])
        entry = EntryPoint("steps", "another:StepsSettings", "tacit.methods")
        lost = EntryPoint("lost", "absent_package:Lost", "tacit.methods")
        monkeypatch.setattr(tables, "entry_points", lambda **_: (entry, lost))
        with pytest.raises(ConfigError, match="absent_package:Lost cannot be loaded"):
            parse_config({**GOOD, "method": {"kind": "lost"}})
    config = parse_config({**GOOD, "method": {"kind": "steps", "steps": 2}})
    assert config.method.make() == NaturalVI(steps=2)
    assert 'kind = "steps"' in resolved_toml(config)
    with pytest.raises(ConfigError, match=r'clip = 1\.0 is not a key of kind = "steps" ') as caught:
        parse_config({**GOOD, "method": {"kind": "steps", "clip": 1.0, "steps": 0}})
    assert len(caught.value.also) == 1

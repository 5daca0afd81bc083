"""Tables of methods: every key reaches its method, and further kinds need one line."""

import re
import sys
from dataclasses import fields
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
FIXED = {"clip", "clip_end", "noise_end", "dtype"}
"""Arguments that some private methods have but do not accept other values of."""


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


@pytest.mark.parametrize("kind", [kind for kind in METHOD_SETTINGS if kind != "auto"])
def test_the_documented_arguments_of_a_method_are_keys_of_its_kind(kind):
    method = METHOD_SETTINGS[kind].method()
    listed = (method.__doc__ or "").partition("Parameters")[2]
    named = re.findall(r"^ {4}(\w[\w, ]*)$", listed, re.M)
    documented = {name for line in named for name in line.split(", ")}
    arguments = {one.name for one in fields(method) if one.init and not one.name.startswith("_")}
    assert documented <= arguments
    keys = set(METHOD_SETTINGS.keys(kind))
    assert documented - keys in (set(), FIXED)


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

"""Kinds of models: what a [model] table may name, and what is built from it."""

import subprocess
import sys

import msgspec
import numpy as np
import pytest

from tacit.errors import ConfigError
from tacit.models import GeneralisedLinear, ModelSchema, ModelSettings, PriorSettings, registry
from tacit.models.registry import (
    SHIPPED,
    build_model,
    model_class,
    model_kinds,
    register,
    settings_class,
)
from tacit.support.table_reader import read_table

SCHEMA = ModelSchema(names=("intercept", "a"), output="bernoulli", outcome="yes")


class ProbeSettings(PriorSettings, frozen=True, tag="probe"):
    """A table of its own."""

    width: float = 2.0


class Probe(GeneralisedLinear):
    """y ~ Bernoulli(sigmoid(width·x·θ))."""

    kind = "probe"
    output = "bernoulli"
    Settings = ProbeSettings
    serves = ("bernoulli",)

    def __init__(self, names, *, width, prior_sd):
        super().__init__(names, 0.0, prior_sd)
        self.width = width

    @classmethod
    def build(cls, settings, schema):
        return cls(schema.names, width=settings.width, prior_sd=settings.prior_sd)

    def pointwise(self, eta, y):
        return y * self.width * eta - np.logaddexp(self.width * eta, 0.0)

    def inverse_link(self, eta):
        return 1.0 / (1.0 + np.exp(-self.width * eta))


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    return register(Probe)


@pytest.mark.parametrize("kind", [kind for kind in SHIPPED if kind != "numpyro"])
def test_a_shipped_kind_has_one_class_and_one_table(kind):
    model = model_class(kind)
    assert model.kind == kind
    assert model.Settings is settings_class(kind)
    required = {"dispersion": 2.0} if kind == "negative-binomial" else {}
    assert msgspec.to_builtins(settings_class(kind)(**required))["kind"] == kind


def test_tables_of_all_shipped_kinds_load_no_array_library():
    code = (
        "import sys; from tacit.models.registry import SHIPPED, settings_class; "
        "[settings_class(kind) for kind in SHIPPED]; "
        "assert not {'numpy', 'jax', 'numpyro'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("registered")
def test_a_registered_model_is_named_read_and_built():
    assert model_kinds()[-1] == "probe"
    table = msgspec.convert({"kind": "probe", "width": 3}, settings_class("probe"))
    built = build_model("probe", table, SCHEMA)
    assert isinstance(built, Probe)
    assert built.width == 3.0
    assert built is build_model("probe", table, SCHEMA)


def test_an_installed_package_brings_its_models(tmp_path, monkeypatch):
    information = tmp_path / "extra-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        f"[tacit.models]\nprobe = {__name__}:Probe\nother = {__name__}:Probe\nlost = nowhere:X\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert {"probe", "other", "lost"} <= set(model_kinds())
    assert model_class("probe").__name__ == "Probe"
    with pytest.raises(ConfigError, match="is registered as model kind 'other', but its kind"):
        model_class("other")
    with pytest.raises(ConfigError, match="nowhere:X cannot be loaded"):
        model_class("lost")


def test_an_unknown_kind_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"model\.kind = 'logistik'; did you mean 'logistic'"):
        model_class("logistik")


def test_a_kind_of_tacit_is_not_registered_again():
    class Logistic(Probe):
        kind = "logistic"

    with pytest.raises(ConfigError, match="'logistic' is reserved by tacit"):
        register(Logistic)


def test_a_table_with_another_tag_is_refused(monkeypatch):
    class Other(Probe):
        kind = "other"

    with pytest.raises(ConfigError, match="its Settings tag is 'probe'"):
        register(Other)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"kind": "logistic", "prior_sd": 0.0}, "model.prior_sd = 0.0; it must be a number in"),
        ({"kind": "linear", "noise_sd": -1.0}, "model.noise_sd = -1.0; it must be a number in"),
        ({"kind": "linear", "prior_mean": float("nan")}, "model.prior_mean = nan"),
        ({"kind": "poisson", "max_count": 0.5}, "model.max_count = 0.5"),
        ({"kind": "neural-network", "hidden": 0}, "model.hidden = 0; it must be a whole number of"),
    ],
)
def test_a_table_checks_its_numbers(table, words):
    with pytest.raises(ConfigError, match=words):
        read_table(table, ModelSettings, "model")
    keys = {key: value for key, value in table.items() if key != "kind"}
    with pytest.raises(ConfigError, match=words):
        settings_class(table["kind"])(**keys)


def test_models_that_do_not_start_at_random_are_one_object_for_all_seeds():
    table = settings_class("logistic")()
    one = build_model("logistic", table, SCHEMA)
    assert one is build_model("logistic", table, SCHEMA.with_seed(7))
    network = msgspec.convert(
        {"kind": "neural-network", "hidden": 2}, settings_class("neural-network")
    )
    first = build_model("neural-network", network, SCHEMA)
    assert first is not build_model("neural-network", network, SCHEMA.with_seed(7))

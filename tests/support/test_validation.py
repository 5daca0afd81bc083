"""Settings are refused where they are made: one line with the value and what is allowed."""

# pyright: reportArgumentType=false

import re

import numpy as np
import pytest

from tacit.errors import ConfigError
from tacit.methods import (
    DPSGD,
    GradientVI,
    Hybrid,
    NaturalVI,
    PrivateScoring,
    PrivateStatistics,
    PrivateUpdate,
    Whitened,
)
from tacit.privacy.settings import Privacy
from tacit.server.schedule import Asynchronous, Damping, PowerDamping, Sequential, Synchronous

WRONG = {
    "adjacency": (
        lambda: Privacy(epsilon=1.0, adjacency="replace"),
        "privacy.adjacency = 'replace'",
    ),
    "unit": (lambda: Privacy(epsilon=1.0, unit="records"), "did you mean 'record'?"),
    "aggregation": (lambda: Privacy(epsilon=1.0, aggregation="secret"), "did you mean 'secure'?"),
    "accountant": (lambda: Privacy(epsilon=1.0, accountant="PLD"), "privacy.accountant = 'PLD'"),
    "epsilon, text": (lambda: Privacy(epsilon="1"), "privacy.epsilon = '1'; it must be a number"),
    "epsilon, true": (lambda: Privacy(epsilon=True), "privacy.epsilon = True"),
    "epsilon, array": (lambda: Privacy(epsilon=np.ones(2)), "privacy.epsilon = array"),
    "delta": (lambda: Privacy(epsilon=1.0, delta=None), "privacy.delta = None"),
    "noise": (lambda: Privacy(noise_multiplier="2"), "privacy.noise_multiplier = '2'"),
    "seed": (
        lambda: Privacy(epsilon=1.0, insecure_noise_seed=1.5),
        "privacy.insecure_noise_seed = 1.5",
    ),
    "ledger": (lambda: Privacy(epsilon=1.0, ledger=3), "privacy.ledger = 3"),
    "parties": (lambda: Privacy(epsilon=1.0, parties=["a"]), "privacy.parties = ['a']"),
    "a party": (lambda: Privacy(epsilon=1.0, parties={"a": 2.0}), "privacy.parties['a'] = 2.0"),
    "a party's clip": (
        lambda: Privacy(epsilon=1.0, parties={"a": {"clip": "1"}}),
        "privacy.parties.clip = '1'",
    ),
    "a party's key": (
        lambda: Privacy(epsilon=1.0, parties={"a": {"epsilom": 1.0}}),
        "privacy.parties['a'] has the key 'epsilom'; did you mean 'epsilon'?",
    ),
    "rounds": (lambda: Synchronous(rounds="3"), "schedule.rounds = '3'; it must be a whole"),
    "rounds, 2.5": (lambda: Sequential(rounds=2.5), "schedule.rounds = 2.5"),
    "rounds, true": (lambda: Asynchronous(rounds=True), "schedule.rounds = True"),
    "damping": (lambda: Synchronous(damping="slow"), "schedule.damping = 'slow'"),
    "some parties": (lambda: Synchronous(parties_per_round=1.5), "schedule.parties_per_round"),
    "tolerance": (lambda: Synchronous(tolerance="1e-3"), "schedule.tolerance = '1e-3'"),
    "damping rounds": (lambda: Damping(start=1.0, end=0.5, rounds=2.5), "schedule.damping.rounds"),
    "power": (lambda: PowerDamping(offset="1", decay=0.6), "schedule.damping.offset = '1'"),
    "dpsgd steps": (lambda: DPSGD(steps="2"), "method.steps = '2'"),
    "dpsgd sampling": (lambda: DPSGD(sampling="poison"), "did you mean 'poisson'?"),
    "dpsgd precision": (lambda: DPSGD(precision="isotrop"), "did you mean 'isotropic'?"),
    "dpsgd clip": (lambda: DPSGD(clip="1"), "method.clip = '1'"),
    "update form": (lambda: PrivateUpdate(form="rollback"), "did you mean 'roll-back'?"),
    "update shards": (lambda: PrivateUpdate(shards=1.5), "method.shards = 1.5"),
    "update objective": (lambda: PrivateUpdate(objective="mean"), "method.objective = 'mean'"),
    "statistics repair": (lambda: PrivateStatistics(repair="trim"), "method.repair = 'trim'"),
    "statistics once": (lambda: PrivateStatistics(one_shot="yes"), "method.one_shot = 'yes'"),
    "hybrid share": (lambda: Hybrid(statistics_share="half"), "method.statistics_share = 'half'"),
    "scoring prior": (
        lambda: PrivateScoring(empirical_bayes="yes"),
        "method.empirical_bayes = 'yes'",
    ),
    "whitened": (lambda: Whitened(inner="dp-sgd", share=0.1, bound=1.0), "inner"),
    "natural steps": (lambda: NaturalVI(steps="1"), "method.steps = '1'"),
    "gradient steps": (lambda: GradientVI(steps=2.5), "method.steps = 2.5"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_setting_is_one_line_where_it_is_written(what):
    make, said = WRONG[what]
    with pytest.raises(ConfigError, match=re.escape(said)) as found:
        make()
    assert "\n" not in str(found.value)
    assert found.value.exit_code == 2


def test_numbers_of_numpy_are_numbers():
    assert Privacy(epsilon=np.float64(1.0), delta=np.float32(1e-5)).epsilon == 1.0
    assert Synchronous(rounds=np.int64(3)).rounds == 3
    assert Synchronous(rounds=None).rounds == 20
    assert DPSGD(clip=1).clip == 1

"""The low bits of a release: an attack that floating-point noise does not survive.

fl(A + sd·√2·erfinv(u)) with u on a grid reaches only some floating-point numbers. An attacker who
knows that the sum is A or B looks which of the two can have led to the five numbers of a message.
"""

import ast
import inspect
import math
import os
from pathlib import Path

import numpy as np
from scipy.special import erf, erfinv
from scipy.stats import binom

import tacit
from tacit.privacy.accounting import epsilon
from tacit.privacy.bounded import clip_units
from tacit.privacy.lattice import draw_each
from tacit.privacy.mechanisms import Gaussian

NUMBERS, TRIALS = 5, 400
CLIP, SD = 1.0, 48.0
GRID = 2.0**-52
FIRST = CLIP * np.array([0.3, -0.2, 0.1, 0.7, 0.5])
FIRST *= (1 - 1e-6) / np.linalg.norm(FIRST)
SECOND = -FIRST


def floating_point(rng, total):
    """The mechanism of most libraries, and of the versions before lattices."""
    u = -1.0 + GRID * rng.integers(1, 2**53, NUMBERS)
    return total + SD * (math.sqrt(2.0) * erfinv(u))


def reachable(released, total):
    """How many of the numbers floating-point noise can have made of this sum."""
    near = np.rint((erf((released - total) / SD / math.sqrt(2.0)) + 1.0) / GRID)
    u = -1.0 + GRID * (near[:, None] + np.arange(-12, 13))
    u = np.clip(u, -1.0 + GRID, 1.0 - GRID)
    made = total[:, None] + SD * (math.sqrt(2.0) * erfinv(u))
    return int(np.sum(np.any(made == released[:, None], axis=1)))


def told_apart(release):
    """How often the sum that reaches more of the numbers is the right one; ties are guessed."""
    rng, right = np.random.default_rng(7), 0
    for trial in range(TRIALS):
        truth = trial % 2
        found = release((FIRST, SECOND)[truth], trial)
        scores = [reachable(found, total) for total in (FIRST, SECOND)]
        guess = rng.integers(2) if scores[0] == scores[1] else int(scores[1] > scores[0])
        right += guess == truth
    return right


def test_the_attack_breaks_floating_point_noise_and_not_the_lattice():
    mechanism = Gaussian(noise_sd=SD)
    noise = draw_each([os.urandom(32) for _ in range(TRIALS)], NUMBERS)
    event = mechanism.release(noise[0], clip_units(FIRST[None], CLIP)).event
    claimed = epsilon([event], 1e-3, "replace-one")
    assert claimed < 0.11

    def on_lattice(total, trial):
        bounded = clip_units(np.asarray(total)[None], CLIP)
        return np.asarray(mechanism.release(noise[trial], bounded).value)

    rng = np.random.default_rng(3)
    assert told_apart(lambda total, _: floating_point(rng, total)) > 0.97 * TRIALS
    right = told_apart(on_lattice)
    allowed = (math.exp(claimed) + 1e-3) / (1.0 + math.exp(claimed))
    assert binom.sf(right - 1, TRIALS, allowed) > 1e-6, f"{right} of {TRIALS} were told apart"


NORMAL = {"normal", "standard_normal", "erfinv", "erf_inv", "truncated_normal", "gauss"}
RELEASING = ("privacy", "party", "server", "live", "engines", "methods", "sklearn")
NOT_NOISE = {
    "methods/dpsgd/method.py",  # θ of a gradient, from a public key
    "methods/gradient.py",  # the same, without privacy
    "methods/natural/adapt.py",  # the server's draws of a proposal, without privacy
    "methods/natural/chains.py",  # the server's momenta, without privacy
    "methods/natural/effects.py",  # the server's draws of q, without privacy
    "methods/natural/scale_prior.py",  # the server's draws of q, without privacy
    "methods/natural/solver.py",  # the server's points near the median of the prior
    "methods/natural/split.py",  # the server's evaluation points
    "methods/natural/subspace.py",  # the server's directions, without privacy
    "methods/natural/wide_root.py",  # the server's random vectors, without privacy
    "methods/scores/prior.py",  # the server's draws of the prior
    "privacy/audit/low_bits.py",  # the attack
}


def test_no_release_draws_floating_point_noise():
    """Whatever sums, charges, sends or combines releases has no source of Gaussian floats."""
    root = Path(inspect.getfile(tacit)).parent
    found = set()
    for path in sorted(root.rglob("*.py")):
        where = path.relative_to(root)
        if where.parts[0] not in RELEASING:
            continue
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names |= {
            alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        if names & NORMAL:
            found.add(where.as_posix())
    assert found <= NOT_NOISE, f"floating-point noise in {sorted(found - NOT_NOISE)}"
    text = (root / "methods" / "dpsgd" / "method.py").read_text("utf-8")
    assert text.count("random.normal(") == text.count("random.normal(public") == 1

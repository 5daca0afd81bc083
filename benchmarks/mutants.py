"""Does a test fail when a privacy mechanism is wrong? Wrong mechanisms, one at a time.

    python -m benchmarks.mutants [--only TEXT] [--list]

Each mutant is one change of one source file that would make a guarantee false: noise too small, a
clip that does not bind, a charge that is too low or too late. The source is copied, changed and put
before the installed package, and the tests that are named for it are run. A mutant that they pass
has survived: something that privacy rests on is not tested. Exit code 1 if any survived, 2 if a
text to change is not in its file any more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
METHODS = "tests/methods/test_private_methods.py"
CHECK = METHODS + "::test_no_unit_moves_a_release_further_than_is_charged"
EXTREME = "tests/methods/test_extreme_norms.py"
SETTLE = "tests/plan/test_calibrate.py"
CHARGING = "tests/party/test_charge.py"
SAMPLER = "tests/privacy/test_lattice.py"
LATTICE_EVENTS = "tests/privacy/accounting/test_lattice_events.py"
LATTICE = "privacy/lattice.py"
PLANS = "tests/privacy/ledger/test_plans.py"
RECORDS = "tests/privacy/ledger/test_records.py"


class Mutant(NamedTuple):
    """`old` stands once in the file and becomes `new`; `tests` must fail then."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


def case(*names: str) -> tuple[str, ...]:
    """Cases of the check that every private method goes through."""
    return tuple(f"{CHECK}[{name}]" for name in names)


MECHANISMS, BOUNDED = "privacy/mechanisms.py", "privacy/bounded.py"
UPDATE, STATISTICS = "methods/update/method.py", "methods/statistics/method.py"
DPSGD, SCORING, WHITENED = (
    "methods/dpsgd/method.py",
    "methods/scoring/method.py",
    "methods/whitening.py",
)
SUMMED = "methods/summed.py"
SETTLING, PARTY = "plan/calibrate.py", "party/compute.py"
HALF = ("noise_sd=task.terms.noise_sds[0]", "noise_sd=0.5 * task.terms.noise_sds[0]")

MUTANTS = (
    Mutant(
        "half of the noise in the mechanism", MECHANISMS,
        "astype(jnp.int64) + own", "astype(jnp.int64) + own // 2",
        case("statistics"),
    ),
    Mutant(
        "a share of the noise is s/M instead of s/√M", MECHANISMS,
        "noise_sd / jnp.sqrt(parties), parties)", "noise_sd / parties, parties)",
        case("statistics, shared noise"),
    ),
    Mutant(
        "one noise for all coordinates of a leaf", MECHANISMS,
        "jnp.reshape(noise[start : start + leaf.size], leaf.shape)",
        "jnp.broadcast_to(noise[start], leaf.shape)", case("dpsgd, fixed precision"),
    ),
    Mutant("half of the noise in dpsgd", DPSGD, *HALF, case("dp-sgd")),
    Mutant("half of the noise in an update", UPDATE, *HALF, case("update")),
    Mutant(
        "half of the noise in statistics", STATISTICS,
        "noise_sd, lattice = task.terms", "noise_sd, lattice = 0.5 * task.terms",
        case("statistics"),
    ),
    Mutant("half of the noise in scoring", SUMMED, *HALF, case("scoring")),
    Mutant("half of the noise in a second moment", WHITENED, *HALF, case("whitened dpsgd")),
    Mutant(
        "half of the server's noise on updates", "plan/plan.py",
        "name: draws.draw(math.prod(shape)).reshape(shape)",
        "name: draws.draw(math.prod(shape)).reshape(shape) // 2",
        (METHODS + "::test_the_server_adds_one_whole_noise_to_updates",),
    ),
    Mutant(
        "half of the server's noise on counts", "plan/plan.py",
        "name: draws.draw(math.prod(shape)).reshape(shape)",
        "name: draws.draw(math.prod(shape)).reshape(shape) // 2",
        (METHODS + "::test_the_server_adds_one_whole_noise_to_counts",),
    ),
    Mutant(
        "the server's noise is left out", "server/step.py",
        "([] if noise is None else [noise])", "[]",
        (METHODS + "::test_the_server_adds_one_whole_noise_to_updates",),
    ),
    Mutant(
        "noise from a narrower table", LATTICE,
        "chance = np.exp(-0.5 * place", "chance = np.exp(-0.6 * place",
        (SAMPLER,),
    ),
    Mutant(
        "a sign bit that is also a bit of u", LATTICE,
        "negative = (first & np.uint64(1)).astype(bool)",
        "negative = (first >> np.uint64(63)).astype(bool)",
        (SAMPLER,),
    ),
    Mutant(
        "minus zero is kept", LATTICE,
        "taken = (gap < 0) & ~(negative & (size == 0))", "taken = gap < 0",
        (SAMPLER,),
    ),
    Mutant(
        "close calls are decided by floats", LATTICE,
        "unclear |= np.abs(gap) <= ENCLOSURE", "unclear |= False",
        (SAMPLER,),
    ),
    Mutant(
        "a forked process draws the same noise", LATTICE,
        "if os.getpid() != self._process:", "if False:",
        (SAMPLER,),
    ),
    Mutant(
        "rounding of the integers is free", "privacy/events.py",
        "integers = moved / step + math.sqrt(self.numbers)", "integers = moved / step",
        (LATTICE_EVENTS,),
    ),
    Mutant(
        "rounding of long sums is free", "privacy/events.py",
        "return 2.0 * self.units * (self.units + 3.0) * 2.0**-53 * clip", "return 0.0",
        (LATTICE_EVENTS,),
    ),
    Mutant(
        "discrete noise counts as continuous noise", "privacy/events.py",
        "integers / math.sqrt(parameter**2 - KERNEL**2)", "integers / (1.1 * parameter)",
        (LATTICE_EVENTS,),
    ),
    Mutant(
        "records are not projected before they are added up", "methods/scoring/party.py",
        "z = scale * (x - centre) - along @ bend", "z = scale * (x - centre)",
        ("tests/methods/test_scoring.py::"
         "test_every_record_is_projected_before_its_norm_is_taken",),
    ),
    Mutant(
        "rows of persons are one long sum", BOUNDED,
        "BLOCK_ROWS = LEAST_UNITS // 2", "BLOCK_ROWS = 1 << 40", ("tests/privacy/test_bounded.py",),
    ),
    Mutant(
        "noise without replacement depends on the number of records", SETTLING,
        "        sized = shape._replace(units=ANY_UNITS)\n",
        "        sized = shape\n", (SETTLE,),
    ),
    Mutant(
        "arrays of any length where it is secret", "arrays.py",
        "return -(-rows // BLOCK_ROWS) * BLOCK_ROWS", "return rows",
        ("tests/methods/test_private_rows.py",),
    ),
    Mutant(
        "a reply of floats is taken", "server/requests.py",
        "    if integers is not None:\n", "    if False:\n",
        ("tests/server/test_lattice.py",),
    ),
    Mutant(
        "what is sent is not compared with what was charged", MECHANISMS,
        "if actual != paid:", "if False:", (CHARGING, "tests/privacy/test_mechanisms.py"),
    ),
    Mutant(
        "no clip", BOUNDED,
        "scale = jnp.minimum(1.0, limit / jnp.where(sound & (norms > 0), norms, 1.0))",
        "scale = jnp.ones_like(norms) * limit / limit", case("dp-sgd"),
    ),
    Mutant(
        "a norm bound instead of the norm", BOUNDED,
        "norms = jnp.where(norm_bound > norms, norm_bound, norms)", "norms = norm_bound",
        ("tests/privacy/test_bounded.py",),
    ),
    Mutant(
        "written-down norms in float32", BOUNDED,
        "wide = [leaf.astype(jnp.float64) for leaf in flat]", "wide = flat",
        ("tests/privacy/test_bounded.py",),
    ),
    Mutant(
        "closed-form norms in float32 are let in", BOUNDED,
        "if norms.dtype != jnp.float64:",
        "if False:", (EXTREME + "::test_norms_in_single_precision_are_refused",),
    ),
    Mutant(
        "a network's norm in float32", "models/bnn.py",
        "inner = xp.where(active, xp.square(outer * largest), 0.0)",
        "inner = xp.where(active, xp.square(w2).astype(np.float64) * largest**2, 0.0)",
        (EXTREME + "::test_a_wide_network_far_from_its_records_is_clipped",),
    ),
    Mutant(
        "a network's clip trusts its labels", "models/bnn.py",
        "most = xp.maximum(most, xp.maximum(probability, 1.0 - probability))",
        "most = xp.maximum(probability, 1.0 - probability)",
        (EXTREME + "::test_a_label_that_is_neither_0_nor_1_is_clipped_by_its_own_gradient",),
    ),
    Mutant(
        "norm and sum are computed apart", "arrays.py",
        "    leaves = jax.tree.leaves(values)\n",
        "    return values\n    leaves = jax.tree.leaves(values)\n",
        (EXTREME + "::test_no_q_escapes_the_clip_of_a_belief_network[float64]",),
    ),
    Mutant(
        "a row inside of a person is a unit", BOUNDED,
        "norms = jnp.sum(norms, axis=1)", "norms = jnp.max(norms, axis=1)",
        ("tests/methods/test_whitened.py",),
    ),
    Mutant(
        "√2 of the off-diagonals dropped", BOUNDED,
        "np.where(rows == columns, 1.0, math.sqrt(2.0))", "np.where(rows == columns, 1.0, 1.0)",
        ("tests/methods/test_whitened.py::test_packing_keeps_the_norm_and_can_be_undone",),
    ),
    Mutant(
        "√2 of nonnegative sums dropped", "privacy/events.py",
        "(math.sqrt(2.0) if self.nonnegative else 2.0)", "(1.0 if self.nonnegative else 2.0)",
        case("scoring"),
    ),
    Mutant(
        "C for 2C under substitution", "privacy/events.py",
        "(math.sqrt(2.0) if self.nonnegative else 2.0)",
        "(math.sqrt(2.0) if self.nonnegative else 1.0)",
        case("dp-sgd"),
    ),
    Mutant(
        "2C inside of a shard is C", UPDATE,
        'return self.unit == "party" or self.adjacency == "replace-one"', "return True",
        case("update, added"),
    ),
    Mutant(
        "statistics declared nonnegative", STATISTICS,
        "return replace(self, _nonnegative=model.nonnegative_statistics)",
        "return replace(self, _nonnegative=True)", case("statistics"),
    ),
    Mutant(
        "a score declared nonnegative", SCORING,
        "return stage != SCORE", "return True", case("scoring"),
    ),
    Mutant(
        "scores clipped at twice the clip", "methods/scoring/party.py",
        "clip_sum(clip * most * length, clip", "clip_sum(0.5 * clip * most * length, clip",
        case("scoring"),
    ),
    Mutant(
        "the counts of levels are free", "methods/scoring/party.py",
        "square += jnp.square(row_norms(parts[:1]))", "square = square",
        case("scoring"),
    ),
    Mutant(
        "the adaptive clip's count is free", "methods/adaptive.py",
        'return clip * (1.0 + half if norm == "l1" else math.sqrt(1.0 + half**2))', "return clip",
        case("dpsgd, adaptive"),
    ),
    Mutant(
        "the information is free", "models/glm/base.py",
        'norms = norms + jnp.square(reach["information"] * most.astype(jnp.float64))',
        "norms = norms + 0.0", case("dp-sgd"),
    ),
    Mutant(
        "a belief network's norm without its precision", "models/belief/statistics.py",
        "xp.sqrt(gradient + self.balance**2 * precision)", "xp.sqrt(gradient)",
        (EXTREME + "::test_no_q_escapes_the_clip_of_a_belief_network[float64]",),
    ),
    Mutant(
        "documents' norms halved", "models/lda/estep.py",
        "return np.sqrt(inner.sum(axis=1))", "return 0.5 * np.sqrt(inner.sum(axis=1))",
        ("tests/sklearn/test_private.py",),
    ),
    Mutant(
        "a person is a record", "methods/private.py",
        '    if unit == "record":\n        return Arranged',
        '    if unit != "party":\n        return Arranged',
        case("dpsgd, persons"),
    ),
    Mutant(
        "batches are larger than accounted for", "privacy/sampling.py",
        "jnp.floor(rate * 2.0**32)", "jnp.floor(1.3 * rate * 2.0**32)",
        ("tests/privacy/test_sampling.py",),
    ),
    Mutant(
        "the rate is rounded up", "privacy/sampling.py",
        "jnp.floor(rate * 2.0**32)", "jnp.ceil(rate * 2.0**32)",
        ("tests/privacy/test_sampling.py",),
    ),
    Mutant(
        "half of the rate is charged", "methods/batches.py",
        "return Poisson(rate=self.rate)", "return Poisson(rate=0.5 * self.rate)",
        case("dpsgd, poisson"),
    ),
    Mutant(
        "one step is charged instead of all", DPSGD,
        "count=self.steps, sampling", "count=1, sampling", case("dpsgd, several steps"),
    ),
    Mutant(
        "a visit too few is composed", SETTLING,
        "counts.get(once, 0) + event.count * each",
        "counts.get(once, 0) + event.count * max(1, each - 1)",
        (SETTLE,),
    ),
    Mutant(
        "calibration ignores the adjacency", SETTLING,
        "target, delta, privacy.adjacency, events", 'target, delta, "add-or-remove-one", events',
        (SETTLE,),
    ),
    Mutant(
        "ε ignores the adjacency", SETTLING,
        "_together(answers, visits), delta, privacy.adjacency,",
        '_together(answers, visits), delta, "add-or-remove-one",',
        (SETTLE,),
    ),
    Mutant(
        "a party's own clip is not charged", SETTLING,
        'return check_clip(own.clip, "clip")', "return method.party_clip(party, own.records)",
        (SETTLE,),
    ),
    Mutant(
        "a party's own δ is ignored", "privacy/settings.py",
        "delta = self.delta if own.delta is None else own.delta", "delta = self.delta", (SETTLE,),
    ),
    Mutant(
        "shared noise is that of the most modest party", SETTLING,
        "dict.fromkeys(noise, max(noise.values()))", "dict.fromkeys(noise, min(noise.values()))",
        (SETTLE,),
    ),
    Mutant(
        "the run's ε is the smallest of the parties'", "plan/plan.py",
        "epsilon=max(one.epsilon for one in each)", "epsilon=min(one.epsilon for one in each)",
        (METHODS + "::test_the_guarantee_of_a_run_is_that_of_its_weakest_party",),
    ),
    Mutant(
        "real noise from the run's seed", PARTY,
        "secrets = [secret_key() if key is None else key for key in keys]",
        "secrets = [seeded_key(agreement.seed, r.party, r.visit) for r in requests]",
        case("statistics"),
    ),
    Mutant(
        "nothing is charged", "party/charge.py",
        "            self.ledger.open_many(releases, budget_required=self.budget_required, "
        "plans=self.plans)\n            if releases\n            else ([], [])\n",
        "            [None] * len(releases), []\n",
        (CHARGING,),
    ),
    Mutant(
        "charged after the answer is computed", "party/agent.py",
        '        with span("charge", requests=len(requests)):\n'
        "            opened = self.open(requests)\n        replies = opened.known\n"
        "        if opened.new:\n"
        '            with span("compute", requests=len(opened.new)):\n'
        "                updates = self.computer.compute(opened.new, opened.keys)\n",
        "        updates = self.computer.compute(requests, {})\n"
        "        opened = self.open(requests)\n        replies = opened.known\n"
        "        if opened.new:\n",
        (CHARGING,),
    ),
    Mutant(
        "a request that was paid for may ask for another release", "privacy/ledger/ledger.py",
        "            for release in releases:\n"
        "                check_same_release(state, release)\n",
        "",
        (CHARGING, "tests/privacy/ledger/test_replies.py"),
    ),
    Mutant(
        "ledger: an unfinished run counts by its charges alone", "privacy/ledger/exposure.py",
        "return _together([*self.by_run.values(), *self.reserved.values()])",
        "return self.paid",
        (PLANS,),
    ),
    Mutant(
        "ledger: a closed run's plan is forgotten", "privacy/ledger/cost.py",
        "return max(self._filtered(part, budget) for part in parts)",
        "return self._filtered(parts[0], budget)",
        (PLANS,),
    ),
    Mutant(
        "ledger: a closed run is charged", "privacy/ledger/ledger.py",
        "        check_open(state, wanted)\n",
        "",
        (PLANS,),
    ),
    Mutant(
        "ledger: a plan for later charges is not compared", "privacy/ledger/ledger.py",
        "for one in (*wanted, *plans)",
        "for one in wanted",
        (PLANS,),
    ),
    Mutant(
        "ledger: a resumed run is not compared with the budget", "run/run.py",
        "        check_room_of(prepared, out, book, resume=resume, inside=inside)\n",
        "        if not resume:\n"
        "            check_room_of(prepared, out, book, resume=resume, inside=inside)\n",
        ("tests/run/test_private_run.py::"
         "test_a_resumed_run_is_compared_with_the_budget_before_it_spends_more",),
    ),
    Mutant(
        "ledger: a party column makes other records", "privacy/ledger/records.py",
        "for constant in less]",
        "for constant in less[:0]]",
        (RECORDS,),
    ),
    Mutant(
        "ledger: equal rows at several parties are found once", "privacy/ledger/overlap.py",
        "every = self._shared.keys() | self._undivided(rows)",
        "every = self._shared.keys()",
        (RECORDS,),
    ),
    Mutant(
        "ledger: an estimator charges nothing", "sklearn/topics.py",
        "yield None if charged is None else charged.charging",
        "yield None",
        ("tests/sklearn/test_lda.py::test_without_a_ledger_the_users_own_is_charged",),
    ),
    Mutant(
        "the budget is not asked", "privacy/ledger/ledger.py",
        "            for budget in exposure.budgets(group):\n"
        "                self._accountant.require_budget(\n",
        "            for budget in ():\n"
        "                self._accountant.require_budget(\n",
        ("tests/privacy/ledger/test_charge.py",),
    ),
)  # fmt: skip


def main() -> int:
    """Run the mutants and print one line for each."""
    parser = argparse.ArgumentParser(description="wrong mechanisms that the tests must catch")
    parser.add_argument("--only", default="", help="mutants whose name contains this text")
    parser.add_argument("--list", action="store_true", help="names, and whether they apply")
    options = parser.parse_args()
    chosen = [one for one in MUTANTS if options.only in one.name]
    stale = [one for one in chosen if _text(one).count(one.old) != 1]
    for one in stale:
        print(f"stale     {one.name}: the text to change is not once in {one.path}")
    if options.list or stale:
        print(f"{len(chosen)} mutants, {len(stale)} stale")
        return 2 if stale else 0
    survived = 0
    for one in chosen:
        started = time.perf_counter()
        caught = _caught(one)
        survived += not caught
        took = time.perf_counter() - started
        print(f"{'caught' if caught else 'SURVIVED':<9} {one.name} ({took:.0f} s)", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} caught")
    return 1 if survived else 0


def _text(mutant: Mutant) -> str:
    return (SOURCE / "tacit" / mutant.path).read_text()


def _caught(mutant: Mutant) -> bool:
    with tempfile.TemporaryDirectory() as temporary:
        copied = Path(temporary) / "src"
        shutil.copytree(SOURCE, copied, ignore=shutil.ignore_patterns("__pycache__"))
        changed = _text(mutant).replace(mutant.old, mutant.new)
        (copied / "tacit" / mutant.path).write_text(changed)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(copied)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 1):  # the tests themselves did not run
        raise SystemExit(
            f"{mutant.name}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}"
        )
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())

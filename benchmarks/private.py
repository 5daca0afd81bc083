"""What privacy costs: noisy steps against Opacus, private runs against others, calibration.

Opacus is no part of this project's environment. TACIT_PEERS_PYTHON names an interpreter that has
`requirements-peers.txt`; without one its rows are left out and said to be. It runs in a process of
its own (`opacus_peer.py`), pinned to the same core with one thread.

A step of ours takes E_q by quadrature (or a draw of the weights of a network), clips with a label-
agnostic bound, and moves a mean and a precision a weight; Opacus moves one number a weight, except
where "mean-field" is said. Ours includes all of `carry_out`: checks, server, averaging.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import EXAMPLE, ROOT, Row, adult, cpu_s, in_child, median_cpu_s

INPUTS, BATCH, REPEATS = 109, 200, 7
RECORDS = (2_442, 10_000)
HIDDEN = {"logistic": 0, "network of 50": 50}
STEPS = {"logistic": (2000, 300), "network of 50": (300, 100)}
"""Of ours and of Opacus, in one measurement."""
AT_MOST = {"logistic": 1 / 25, "network of 50": 1 / 10}
PEERS = "TACIT_PEERS_PYTHON"
WAYS = {
    "loader": "as users write it",
    "gather": "batches gathered by hand",
    "mean-field": "the same, mean-field",
}
PRIVATE = ROOT / "examples" / "adult-private.toml"
ROUNDS = 20
CALIBRATED = {"Poisson .05, 1,000 steps": (0.05, 1000), "no sampling, 20 releases": (1.0, 20)}


def rows() -> list[Row]:
    return [*_steps(), *_federation(), *_calibration()]


def child(which: str, *arguments: str) -> dict[str, Any]:
    return {"steps": _our_steps, "federation": _our_federation, "calibrate": _our_calibration}[
        which
    ](*arguments)


# Steps against Opacus.


def _steps() -> list[Row]:
    found: list[Row] = []
    python = peers("torch", "opacus")
    if python is None:
        found.append(
            Row(name="private", what="Opacus: skipped", value=0.0, unit="",
                note=f"set {PEERS} to a Python with benchmarks/requirements-peers.txt")
        )  # fmt: skip
    for model, (ours, theirs) in STEPS.items():
        for records in RECORDS:
            mine = in_child("private", "steps", model, records, ours)["step_s"]
            found.append(
                Row(name="private", what=f"DPSGD {model}, {BATCH} of {records}: CPU of a step",
                    unit="us", value=1e6 * mine, note=f"{1 / mine:.0f} steps a CPU second")
            )  # fmt: skip
            if python is None:
                continue
            peer = _opacus(python, records, HIDDEN[model], theirs)
            for way, how in WAYS.items():
                step = peer["step_s"][way]
                target = AT_MOST[model] if way == "loader" and records == RECORDS[0] else None
                found.append(
                    Row(name="private", what=f"... / Opacus {peer['opacus']}, {how}",
                        unit="ratio", value=mine / step, at_most=target,
                        note=f"{step / mine:.1f} times as fast; {1e6 * step:.0f} us a step")
                )  # fmt: skip
    return found


def peers(*modules: str) -> str | None:
    """An interpreter with these modules: the one that is named, or this one if it has them."""
    asked = os.environ.get(PEERS)
    if asked is not None:
        return asked
    here = all(importlib.util.find_spec(name) for name in modules)
    return sys.executable if here else None


def _opacus(python: str, records: int, hidden: int, steps: int) -> dict[str, Any]:
    script = Path(__file__).with_name("opacus_peer.py")
    numbers = (records, INPUTS, hidden, BATCH, steps, REPEATS)
    call = [python, str(script), *map(str, numbers)]
    single = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    try:
        done = subprocess.run(call, env=single, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RuntimeError(f"{PEERS} = {python}: {error}") from error
    if done.returncode != 0:
        raise RuntimeError(f"{script.name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _our_steps(kind: str, records: str, steps: str) -> dict[str, Any]:
    import numpy as np

    from tacit.engines.execute import carry_out
    from tacit.methods import DPSGD
    from tacit.models import LogisticRegression, NeuralNetwork
    from tacit.plan.plan import make_plan
    from tacit.privacy.settings import Privacy
    from tacit.server.schedule import Synchronous

    rng, n = np.random.default_rng(0), int(records)
    party = {
        "x": rng.normal(size=(n, INPUTS)).astype(np.float32),
        "y": (rng.random(n) < 0.3).astype(np.float32),
    }
    names = tuple(f"x{i}" for i in range(INPUTS))
    hidden = HIDDEN[kind]
    plan = make_plan(
        NeuralNetwork(names, hidden=hidden) if hidden else LogisticRegression(names),
        {"all": party},
        method=DPSGD(steps=int(steps), sampling_rate=BATCH / n),
        schedule=Synchronous(rounds=1),
        privacy=Privacy(noise_multiplier=1.0, delta=1e-6),
    )
    carry_out(plan)
    return {"step_s": median_cpu_s(lambda: carry_out(plan), REPEATS) / int(steps)}


# A federation with and without privacy.


def _federation() -> list[Row]:
    seen = in_child("private", "federation")
    if "skipped" in seen:
        return [
            Row(name="private", what="Adult: skipped", value=0.0, unit="", note=seen["skipped"])
        ]
    private, bare = seen["private"], seen["bare"]
    found = [
        Row(name="private", what=f"Adult, {ROUNDS} rounds of DPSGD: CPU, warm", unit="s",
            value=private, note="in process, no ledger"),
        Row(name="private", what="... / the same steps, no clipping, noise or check", unit="ratio",
            value=private / bare, at_most=1.5, note=f"{bare:.3f} s; the same arithmetic"),
    ]  # fmt: skip
    for how, seconds in seen["others"].items():
        found.append(
            Row(name="private", what=f"... / {how}", unit="ratio", value=private / seconds,
                note=f"{seconds:.3f} s; as many passes, another step")
        )  # fmt: skip
    return [
        *found,
        Row(name="private", what="Adult, with ledger and checkpoint: CPU, warm", unit="s",
            value=seen["charged"], note="carry_out as tacit.run.run calls it"),
        Row(name="private", what="... / the same steps, no clipping, noise, check or ledger",
            unit="ratio", value=seen["charged"] / seen["bare, kept"], at_most=1.5,
            note=f"{seen['bare, kept']:.3f} s, with checkpoint"),
        Row(name="private", what="tacit.run.run, DPSGD and ledger: CPU, warm", unit="s",
            value=seen["run"], note="all but reading data, calibration and compiling"),
        Row(name="private", what="... / tacit.run.run, GradientVI, 1 step a round", unit="ratio",
            value=seen["run"] / seen["run, plain"], at_most=1.5,
            note=f"{seen['run, plain']:.3f} s; as many passes, no privacy"),
    ]  # fmt: skip


def _our_federation() -> dict[str, Any]:
    import warnings

    from tacit.engines.execute import carry_out
    from tacit.methods import GradientVI, NaturalVI
    from tacit.plan.plan import make_plan
    from tacit.run.config import read_config
    from tacit.run.run import prepare

    adult()  # skips where there is none
    warnings.simplefilter("ignore")
    dpsgd = ("method.kind='dp-sgd'", f"schedule.rounds={ROUNDS}")
    prepared = prepare(read_config(PRIVATE, dpsgd))
    plan = prepared.plan
    found: dict[str, Any] = {"private": _warm(lambda: carry_out(plan)), "others": {}}
    others = {
        "GradientVI mean-field, 1 step a round": (GradientVI(steps=1), "mean-field"),
        "NaturalVI mean-field, 1 step a round": (NaturalVI(steps=1), "mean-field"),
        "NaturalVI full, 1 step a round": (NaturalVI(steps=1), "full"),
    }
    for how, (method, family) in others.items():
        other = make_plan(
            plan.model, plan.parties, family=family, method=method, schedule=_to_the_end(plan)
        )
        found["others"][how] = _warm(lambda other=other: carry_out(other))
    rounds = f"schedule.rounds={ROUNDS}"
    plain = ("method.kind='gradient-vi'", "method.steps=1", "posterior='mean-field'")
    to_the_end = ("data.held_out=0.5", "schedule.tolerance=0.0")
    found["run"], found["charged"] = _whole_run(read_config(PRIVATE, dpsgd))
    found["run, plain"], _ = _whole_run(read_config(EXAMPLE, (rounds, *plain, *to_the_end)))
    _strip()
    found["bare"] = _warm(lambda: carry_out(plan))
    found["bare, kept"] = _kept(plan)
    return found


def _to_the_end(plan: Any) -> Any:
    from tacit.server.schedule import Synchronous

    return Synchronous(rounds=plan.schedule.rounds, tolerance=0.0)


def _warm(work: Callable[[], Any]) -> float:
    work()
    return median_cpu_s(work, REPEATS)


def _kept(plan: Any) -> float:
    """CPU of `carry_out` with a checkpoint of its own each time."""
    from tacit.engines.execute import carry_out
    from tacit.server.checkpoint import Checkpoint

    seen = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Checkpoint(Path(folder) / "server.sqlite", digest="bench")
            seen.append(cpu_s(lambda kept=checkpoint: carry_out(plan, checkpoint=kept)))
            checkpoint.close()
    return statistics.median(seen)


def _whole_run(config: Any) -> tuple[float, float]:
    """CPU of `tacit.run.run` and of `carry_out` in it, data and compiled code at hand.

    A run makes a model of its own and would compile for it every time.
    """
    import tacit.run.run

    prepare, carry_out = tacit.run.run.prepare, tacit.run.run.carry_out
    prepared, inside = prepare(config), []

    def timed(*arguments: Any, **named: Any) -> Any:
        outcome = []
        inside.append(cpu_s(lambda: outcome.append(carry_out(*arguments, **named))))
        return outcome[0]

    def once() -> None:
        with tempfile.TemporaryDirectory() as folder:
            tacit.run.run(config, Path(folder) / "run")

    tacit.run.run.prepare, tacit.run.run.carry_out = lambda _: prepared, timed
    try:
        whole = _warm(once)
    finally:
        tacit.run.run.prepare, tacit.run.run.carry_out = prepare, carry_out
    return whole, statistics.median(inside[1:])


def _strip() -> None:
    """Take clipping, noise and the check of costs out of DPSGD, for this process: the rest stays.

    XLA drops the norms when nobody asks for them.
    """
    import jax.numpy as jnp

    import tacit.party.compute
    from tacit.privacy import bounded, mechanisms

    cost, whole = mechanisms.Cost, mechanisms.Drawn()

    def weights(norms: Any, _: Any, mask: Any) -> Any:
        return mask.astype(norms.dtype)

    def release(self: Any, _: Any, value: Any, drawn: Any = whole) -> Any:
        import jax

        sd = jnp.asarray(self.noise_sd, jnp.float64)
        step = sd * jnp.ldexp(1.0, -jnp.asarray(self.lattice.bits))
        zero = jnp.zeros((), int)
        spent = cost(jnp.asarray(value.clip, jnp.float64), sd, drawn, zero > 0, *(zero,) * 4)
        whole_numbers = jax.tree.map(lambda leaf: jnp.rint(leaf / step).astype(int), value.value)
        return mechanisms.Release(value.value, spent, whole_numbers)

    bounded.clip_weights = weights
    mechanisms.Gaussian.release = release
    tacit.party.compute.check_released = lambda *_: None
    tacit.party.compute.compiled.cache_clear()


# Calibration.


def _calibration() -> list[Row]:
    found = []
    for what, (rate, count) in CALIBRATED.items():
        seen = in_child("private", "calibrate", rate, count)
        found += [
            Row(name="private", what=f"calibrate, {what}: CPU of a fresh process", unit="s",
                value=seen["process_s"], at_most=2.0,
                note=f"with imports; the call {seen['cold_s']:.3f} s; noise {seen['noise']:.4g}"),
            Row(name="private", what="... warm, another target", unit="s", value=seen["warm_s"],
                at_most=2.0),
        ]  # fmt: skip
    return found


def _our_calibration(rate: str, count: str) -> dict[str, Any]:
    import time

    from tacit.privacy.accounting import calibrate
    from tacit.privacy.events import GaussianEvent, Poisson

    sampling = Poisson(rate=float(rate)) if float(rate) < 1 else None

    def events(noise: float) -> list[GaussianEvent]:
        return [GaussianEvent(clip=1.0, noise_sd=noise, count=int(count), sampling=sampling)]

    noise: list[float] = []
    targets = iter((1.0, 0.9, 1.1, 1.2))  # the answer to the same question would be remembered

    def work() -> None:
        noise.append(calibrate(next(targets), 1e-5, "replace-one", events))

    cold = cpu_s(work)
    process = time.process_time()
    warm = median_cpu_s(work, 3)
    return {"process_s": process, "cold_s": cold, "warm_s": warm, "noise": noise[0]}

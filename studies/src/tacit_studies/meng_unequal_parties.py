"""Unequal parties whose unit is a whole party (MEng §5.1), with the library itself.

Half of the parties have nine times the records of the others, so that their updates are nine times
as long (MEng 4.9 and 4.10). The rule C = ½ρ of §4.3.2 assumes that every party has ρ records. These
ways to choose the clip are compared:

* one clip for all parties: ½ of the smallest, mean or largest number of records;
* one clip per party: ½ of its declared number of records (`method.clip_per_record`);
* a clip that follows the median norm of the updates (`method.adaptive`);
* a clip relative to q (`log-precision`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.engines.execute import carry_out
from tacit.expfam import MeanFieldGaussian
from tacit.methods import PrivateUpdate
from tacit.models import LinearRegression
from tacit.plan.plan import make_plan
from tacit.privacy.settings import PartyPrivacy, Privacy
from tacit.results import exact_posterior
from tacit.server.schedule import Synchronous
from tacit_studies.meng_kernel import PRIOR_SD
from tacit_studies.meng_points import Context
from tacit_studies.tables import Table

SIZES = (10, 90)
EACH = 10
PER_RECORD = 0.5
ROUNDS, DAMPING = 40, 0.1
EPSILON, DELTA = 10.0, 1e-5
MODEL = LinearRegression(("x",), noise_sd=1.0, prior_sd=PRIOR_SD)
SMALL, LARGE = (PER_RECORD * size for size in SIZES)
VARIANTS: dict[str, dict[str, Any]] = {
    f"C = {SMALL:g}, ½ of the smallest number of records": {"clip": SMALL},
    f"C = {(SMALL + LARGE) / 2:g}, ½ of the mean number of records": {"clip": (SMALL + LARGE) / 2},
    f"C = {LARGE:g}, ½ of the largest number of records": {"clip": LARGE},
    "½ of each party's declared number of records": {"clip_per_record": PER_RECORD},
    f"the median update, from C = {SMALL:g}": {"clip": SMALL, "adaptive": 0.5},
    "log-precision, C = 0.1": {"clip": 0.1, "form": "log-precision"},
}


def unequal_parties(seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Ten small and ten large parties of y = θx + noise, θ from the prior."""
    rng = np.random.default_rng([seed, 0x10])
    theta, made = PRIOR_SD * rng.normal(), {}
    for index, size in enumerate(np.repeat(SIZES, EACH)):
        x = rng.normal(size=(size, 1))
        made[f"party-{index}"] = {"x": x, "y": theta * x[:, 0] + rng.normal(size=size)}
    return made


def party_kl(seed: int, aggregation: str, options: dict[str, Any]) -> tuple[float, float]:
    """KL(q ‖ exact) of one run, and the largest ε of a party."""
    parties = unequal_parties(seed)
    declared = {name: PartyPrivacy(records=len(one["y"])) for name, one in parties.items()}
    privacy = Privacy(
        epsilon=EPSILON, delta=DELTA, unit="party", adjacency="add-or-remove-one",
        aggregation=aggregation,  # pyright: ignore[reportArgumentType]
        insecure_noise_seed=seed, parties=declared if "clip_per_record" in options else {},
    )  # fmt: skip
    plan = make_plan(
        MODEL, parties, method=PrivateUpdate(shards=1, **options), privacy=privacy, seed=seed,
        schedule=Synchronous(rounds=ROUNDS, damping=DAMPING),
    )  # fmt: skip
    found = carry_out(plan).posterior
    mean, covariance = exact_posterior(MODEL, parties.values())
    family = MeanFieldGaussian(1)
    exact = family.natural(mean=mean, sd=np.sqrt(np.diagonal(covariance)))
    assert plan.guarantee is not None
    return float(family.kl(found.natural, exact)), plan.guarantee.epsilon


def unequal_parties_table(context: Context) -> Table:
    """KL for every way to choose the clip, without and with a trusted aggregator."""
    seeds = 2 if context.quick else 10
    rows = []
    for aggregation, words in (("plain", "none"), ("trusted", "the aggregator")):
        for label, options in VARIANTS.items():
            found = [party_kl(context.seed + k, aggregation, options) for k in range(seeds)]
            values = np.percentile([kl for kl, _ in found], (10, 50, 90))
            rows.append((words, label, *map(float, values), max(one for _, one in found)))
    note = (
        f"{EACH} parties of {SIZES[0]} records and {EACH} of {SIZES[1]}, x ~ N(0, 1), σ_e = 1; "
        f"unit: party, add-or-remove-one, ({EPSILON:g}, 1e−5), {ROUNDS} rounds with damping "
        f"{DAMPING:g}, by the library's `dp-updates` (roll-back except in the last row); {seeds} "
        "seeds. Numbers of records are declared, hence public; ε is the largest over the parties."
    )
    columns = ("trusted", "clip", "KL 10 %", "KL median", "KL 90 %", "ε")
    return Table(
        name="unequal-parties", title="Unequal parties, unit: party", columns=columns, rows=rows,
        note=note, digits=dict.fromkeys(columns[2:], 3),
    )  # fmt: skip

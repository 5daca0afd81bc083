"""Unequal parties: one clip for all parties, or one per party from its declared scale.

Half of the parties have an x that is `SCALE` times larger, and fewer records. Statistics are
released once; the unit is a record. The clip of a party is C times a power of its declared scale of
x, which is public. Its noise is proportional to its clip, so that all parties have the same ε. In a
configuration this is `[privacy.parties."name"] clip = …`.
"""

from __future__ import annotations

import numpy as np

from tacit.privacy.accounting import calibrate
from tacit.privacy.events import GaussianEvent
from tacit_studies.meng_claims import DELTA
from tacit_studies.meng_kernel import PRIOR_SD, divergence, proper
from tacit_studies.meng_points import Context
from tacit_studies.tables import Table

SCALE = 5.0
SIZES = (40, 10)
EACH = 10
SEEDS = 2000
CLIPS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


def _records(seed: int, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (x², xy)/σ_e² as (seeds, parties, records, 2), and each party's scale of x.

    Parties with fewer records than the largest are padded with zeros.
    """
    rng = np.random.default_rng([seed, 0x0E])
    scales = np.repeat([1.0, SCALE], EACH)
    present = np.arange(max(SIZES)) < np.repeat(SIZES, EACH)[:, None]
    shape = (seeds, *present.shape)
    theta = rng.normal(size=(seeds, 1, 1)) * PRIOR_SD
    x = rng.normal(size=shape) * scales[:, None]
    y = theta * x + rng.normal(size=shape)
    return np.stack([x * x, x * y], axis=-1) * present[..., None], scales


def unequal_kl(seed: int, seeds: int, clip: float, noise: float, power: float) -> np.ndarray:
    """KL(q ‖ exact) of every seed; a party's clip is `clip` · scaleᵖ, with p = `power`."""
    pairs, scales = _records(seed, seeds)
    clips = clip * scales**power
    size = np.linalg.norm(pairs, axis=-1, keepdims=True)
    cut = pairs * np.minimum(1.0, clips[:, None, None] / np.maximum(size, 1e-300))
    rng = np.random.default_rng([seed, 0x0F])
    shaken = cut.sum(axis=2) + noise * clips[:, None] * rng.normal(size=(seeds, len(clips), 2))
    prior = np.array([PRIOR_SD**-2, 0.0])
    return divergence(proper(prior + shaken.sum(axis=1)), prior + pairs.sum(axis=(1, 2)))


def unequal_table(context: Context) -> Table:
    """KL with one clip for all parties, and with clips by scale; C is chosen on other records."""
    seeds, rows = SEEDS // 5 if context.quick else SEEDS, []
    for target in (1.0, 3.0, 10.0):
        noise = calibrate(
            target, DELTA, "add-or-remove-one", lambda z: [GaussianEvent(clip=1.0, noise_sd=z)]
        )
        for label, power in (("C for all", 0.0), ("C × scale", 1.0), ("C × scale²", 2.0)):
            tried = [
                float(np.median(unequal_kl(context.seed + 1, seeds, clip, noise, power)))
                for clip in CLIPS
            ]
            best = CLIPS[int(np.argmin(tried))]
            kl = unequal_kl(context.seed, seeds, best, noise, power)
            rows.append((target, label, best, *map(float, np.percentile(kl, (10, 50, 90)))))
    note = (
        f"{EACH} parties of {SIZES[0]} records with x ~ N(0, 1) and {EACH} of {SIZES[1]} with "
        f"x ~ N(0, {SCALE:g}²), σ_e = 1; statistics released once; unit: record, "
        f"add-or-remove-one, "
        f"δ = 1e−5, no trusted party; {seeds:,} seeds, C chosen on other records."
    )
    columns = ("ε", "clip", "C", "KL 10 %", "KL median", "KL 90 %")
    return Table(
        name="unequal", title="Unequal parties", columns=columns, rows=rows, note=note,
        digits=dict.fromkeys(columns[3:], 3),
    )  # fmt: skip

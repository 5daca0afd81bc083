"""The [method] table of `PrivateUpdate`."""

from __future__ import annotations

from typing import Literal

from tacit.methods.settings import WhitenedSettings
from tacit.support.validation import Count, Fraction, FromZeroToOne, Positive, UpToOne


class PrivateUpdateSettings(WhitenedSettings, frozen=True, kw_only=True, tag="dp-updates"):
    """Releases the clipped, noisy change of each party's natural parameters, once per round."""

    builds = "tacit.methods.update.method:PrivateUpdate"
    shards: Count | None = None
    """Number of shards into which a party's records are split; by default one per two records."""
    shard_rows: Count | None = None
    """Largest number of records in one of several shards, if the number of records is secret; by
    default 64.
    """
    objective: Literal["averaged", "virtual"] | None = None
    """Objective of each shard: "virtual" treats it like a separate party, and "averaged" gives its
    records the weight of all records of the party.
    """
    precision_weight: Positive | None = None
    """Weight that multiplies the change of the precision before clipping, with form = "even"."""
    steps: Count | None = None
    """Natural-gradient steps of each shard."""
    step_size: UpToOne | None = None
    """Length of the natural-gradient steps."""
    optimiser: Literal["natural", "adam"] | None = None
    """Steps of each shard; by default natural-gradient steps where the model supports them."""
    adam_steps: Count | None = None
    """Adam steps of each shard, with optimiser = "adam" or without natural-gradient steps."""
    adam_rate: Positive | None = None
    """Learning rate of the Adam steps."""
    adam_draws: Count | None = None
    """Number of draws of the parameters for each gradient of the Adam steps."""
    adam_epsilon: Positive | None = None
    """Adam's ε. If it is far larger than the gradients, a step is proportional to the gradient."""
    average_last: FromZeroToOne | None = None
    """Share of the rounds, at the end of the run, over which the server averages the posterior."""
    form: Literal["even", "roll-back", "server-factor", "log-precision"] | None = None
    """Coordinates in which the change is clipped, and the handling of an improper result."""
    sampling_rate: UpToOne | None = None
    """With privacy.unit = "party": probability that a party takes part in a round."""
    adaptive: Fraction | None = None
    """Adapt the clip to this quantile of the contributions' norms; by default the clip is fixed."""
    clip_per_record: Positive | None = None
    """With privacy.unit = "party": clip of a party divided by its declared number of records."""

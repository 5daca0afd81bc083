"""The [method] tables of `ExpectedStatistics`, `PrivateStatistics` and `Hybrid`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from tacit.methods.settings import MethodSettings, Precision, PrivateSettings
from tacit.support.validation import Count, Fraction, FromZeroToOne, Positive, UpToOne


class ExpectedStatisticsSettings(
    MethodSettings, frozen=True, kw_only=True, tag="expected-statistics"
):
    """Adds up expected sufficient statistics, for models with latent variables. Not private."""

    builds = "tacit.methods.statistics.method:ExpectedStatistics"
    sampling_rate: UpToOne | None = None
    """Share of the records in each round's batch; 1 uses all of them."""
    batches: Literal["poisson", "shuffled"] | None = None
    """How batches are drawn: "poisson" draws each batch independently, and "shuffled" splits the
    shuffled records into batches.
    """
    dtype: Precision | None = None
    """Floating-point type of the records."""


class PrivateStatisticsSettings(PrivateSettings, frozen=True, kw_only=True, tag="dp-statistics"):
    """Releases the noisy sum of the records' clipped expected sufficient statistics, once per
    round.
    """

    builds = "tacit.methods.statistics.method:PrivateStatistics"
    sampling_rate: UpToOne | None = None
    """Share of the records that each round samples; 1 uses all of them."""
    sampling: Literal["poisson", "without-replacement"] | None = None
    """How a batch is drawn when sampling_rate < 1."""
    precision_weight: Positive | None = None
    """Weight that multiplies second moments before clipping."""
    repair: Literal["none", "truncate"] | None = None
    """Repair of a noisy sum that has negative counts or precisions."""
    noise_aware: bool | None = None
    """True if the posterior accounts for the noise in the sums."""
    one_shot: bool | None = None
    """True: only the first round releases anything; later rounds cost nothing."""
    adaptive: Fraction | None = None
    """Adapt the clip to this quantile of the contributions' norms; by default the clip is fixed."""
    count_clipped: bool | None = None
    """True: also release, with every sum, a noisy count of the records within the clip, which is
    charged with the sum.
    """


class HybridSettings(PrivateSettings, frozen=True, kw_only=True, tag="dp-hybrid"):
    """Releases statistics in the first round, then makes DP-SGD steps."""

    builds = "tacit.methods.hybrid:Hybrid"
    statistics_share: Fraction | None = None
    """Share of the budget for the statistics."""
    precision_weight: Positive | None = None
    """Weight that multiplies second moments before the statistics are clipped."""
    gradient_clip: Positive | None = None
    """Clip of the gradients; by default the same as clip."""
    steps: Count | None = None
    """Released gradients per round."""
    sampling_rate: UpToOne | None = None
    """Share of the records that each step samples."""
    step_size: UpToOne | None = None
    """Length of the natural-gradient steps."""
    step_end: Positive | None = None
    """Step size in the last round, relative to that in the first round."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] | None = None
    """Momentum of the steps."""
    average_last: FromZeroToOne | None = None
    """Share of the rounds, at the end of the run, over which the server averages the posterior."""

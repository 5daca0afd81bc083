"""The [method] table of `DPSGD`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from tacit.methods.settings import WhitenedSettings
from tacit.support.validation import INFINITE, Count, Fraction, FromZeroToOne, Positive, UpToOne


class DPSGDSettings(WhitenedSettings, frozen=True, kw_only=True, tag="dp-sgd"):
    """DP-SGD: steps with clipped, noisy gradients, for every model with a log-likelihood."""

    builds = "tacit.methods.dpsgd.method:DPSGD"
    steps: Count | None = None
    """Released gradients per round."""
    sampling_rate: UpToOne | None = None
    """Share of the records that each step samples; 1 uses all of them."""
    sampling: Literal["poisson", "without-replacement"] | None = None
    """How a batch is drawn when sampling_rate < 1."""
    optimiser: Literal["natural", "adam", "sgd"] | None = None
    """Steps by the natural gradient, or by Adam or plain SGD on mean and log-sd."""
    step_size: UpToOne | None = None
    """Length of the natural-gradient steps, or learning rate of Adam or SGD."""
    step_end: Positive | None = None
    """Step size in the last round, relative to that in the first round."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] | None = None
    """Momentum of the steps; beta1 of Adam."""
    precision: Literal["isotropic", "per-coordinate", "log-sd", "fixed"] | None = None
    """Information about the curvature that is released besides the gradient."""
    precision_weight: Positive | None = None
    """Weight that multiplies the released information about the curvature before clipping."""
    adaptive: Fraction | None = None
    """Adapt the clip to this quantile of the contributions' norms; by default the clip is fixed."""
    max_noise: Annotated[float, Meta(gt=0, extra=INFINITE)] | None = None
    """Bound on how far the noise of the whole run may move the mean."""
    label_agnostic: bool | None = None
    """True: the clip of a record ignores its label, which keeps the score unbiased."""
    average_last: FromZeroToOne | None = None
    """Share of the rounds, at the end of the run, over which the server averages the posterior."""

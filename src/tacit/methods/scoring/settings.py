"""The [method] table of `PrivateScoring`."""

from __future__ import annotations

from tacit.methods.settings import MethodSettings


class PrivateScoringSettings(MethodSettings, frozen=True, kw_only=True, tag="dp-scoring"):
    """Releases noisy counts, one second moment and scores; the default for generalised linear
    models.
    """

    builds = "tacit.methods.scoring.method:PrivateScoring"
    empirical_bayes: bool | None = None
    """True: learn the scales of the prior. By default they are learned if model.prior_sd is not
    set.
    """

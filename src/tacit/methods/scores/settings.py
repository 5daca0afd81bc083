"""The [method] table of `PrivateScores`."""

from __future__ import annotations

from tacit.methods.settings import MethodSettings


class PrivateScoresSettings(MethodSettings, frozen=True, kw_only=True, tag="dp-scores"):
    """Releases centred clipped scores, for any model with up to 100 parameters that can simulate
    outcomes.
    """

    builds = "tacit.methods.scores.method:PrivateScores"

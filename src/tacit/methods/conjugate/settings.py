"""The [method] tables of `ConjugateStages` and `PrivateConjugateStages`."""

from __future__ import annotations

from tacit.methods.settings import MethodSettings


class ConjugateSettings(MethodSettings, frozen=True, kw_only=True, tag="conjugate"):
    """Adds up expected statistics of the records in several stages, for mixtures and factor models.
    Not private.
    """

    builds = "tacit.methods.conjugate.method:ConjugateStages"


class PrivateConjugateSettings(MethodSettings, frozen=True, kw_only=True, tag="dp-conjugate"):
    """Releases clipped, noisy sums of expected statistics in several stages, for mixtures and
    factor models.
    """

    builds = "tacit.methods.conjugate.method:PrivateConjugateStages"

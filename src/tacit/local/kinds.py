"""The local methods by the name that a configuration has for them."""

from __future__ import annotations

from tacit.local.base import LocalMethod
from tacit.local.dpsgd import DPSGD
from tacit.local.exact import Exact
from tacit.local.gradient import GradientVI
from tacit.local.hybrid import Hybrid
from tacit.local.natural import NaturalVI
from tacit.local.scoring import PrivateScoring
from tacit.local.statistics import ExpectedStatistics, PrivateStatistics
from tacit.local.update import PrivateUpdate

METHODS: dict[str, type[LocalMethod]] = {
    method.kind: method
    for method in (
        Exact,
        NaturalVI,
        GradientVI,
        ExpectedStatistics,
        DPSGD,
        PrivateScoring,
        PrivateUpdate,
        PrivateStatistics,
        Hybrid,
    )
}

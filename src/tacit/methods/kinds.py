"""The local methods by the name that a configuration has for them."""

from __future__ import annotations

from tacit.methods.base import LocalMethod
from tacit.methods.dpsgd.method import DPSGD
from tacit.methods.exact import Exact
from tacit.methods.gradient import GradientVI
from tacit.methods.hybrid import Hybrid
from tacit.methods.natural import NaturalVI
from tacit.methods.scoring.method import PrivateScoring
from tacit.methods.statistics.method import ExpectedStatistics, PrivateStatistics
from tacit.methods.update.method import PrivateUpdate

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

"""Local methods: how a party answers a round."""

from tacit.local.base import Answer, Arranged, LocalMethod, Task
from tacit.local.choose import choose_method
from tacit.local.dpsgd import DPSGD
from tacit.local.exact import Exact
from tacit.local.gradient import GradientVI
from tacit.local.hybrid import Hybrid
from tacit.local.natural import NaturalVI
from tacit.local.private import PrivateMethod, Terms
from tacit.local.scoring import PrivateScoring
from tacit.local.statistics import ExpectedStatistics, PrivateStatistics
from tacit.local.update import PrivateUpdate
from tacit.local.whitened import Whitened

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


__all__ = [
    "DPSGD",
    "METHODS",
    "Answer",
    "Arranged",
    "Exact",
    "ExpectedStatistics",
    "GradientVI",
    "Hybrid",
    "LocalMethod",
    "NaturalVI",
    "PrivateMethod",
    "PrivateScoring",
    "PrivateStatistics",
    "PrivateUpdate",
    "Task",
    "Terms",
    "Whitened",
    "choose_method",
]

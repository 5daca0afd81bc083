"""Local methods: how a party answers a round."""

from tacit.local.base import Answer, Arranged, LocalMethod, Task
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
from tacit.models import ConjugateGaussian, GeneralisedLinear, Model

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


def choose_method(model: Model, *, private: bool = False) -> LocalMethod:
    """What method.kind = 'auto' means: closed form, else natural gradients, else Adam.

    With privacy it is noisy gradients. A model that has expected statistics and no gradients
    answers with those.
    """
    if not model.traceable:
        return PrivateStatistics() if private else ExpectedStatistics()
    if private:
        return DPSGD()
    if isinstance(model, ConjugateGaussian):
        return Exact()
    if isinstance(model, GeneralisedLinear):
        return NaturalVI()
    return GradientVI()


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

"""Local methods: how a party answers a round."""

from tacit.errors import ConfigError
from tacit.expfam import MeanFieldGaussian
from tacit.local.base import Answer, Arranged, LocalMethod, Task
from tacit.local.dpsgd import DPSGD
from tacit.local.exact import Exact
from tacit.local.gradient import GradientVI
from tacit.local.hybrid import Hybrid
from tacit.local.natural import NaturalVI
from tacit.local.private import PrivateMethod, Terms
from tacit.local.scoring import PrivateScoring
from tacit.local.statistics import PrivateStatistics
from tacit.local.update import PrivateUpdate
from tacit.local.whitened import Whitened
from tacit.models import ConjugateGaussian, GeneralisedLinear, Model
from tacit.privacy.guarantee import Unit
from tacit.schedule import Schedule

METHODS: dict[str, type[LocalMethod]] = {
    method.kind: method
    for method in (
        Exact,
        NaturalVI,
        GradientVI,
        DPSGD,
        PrivateScoring,
        PrivateUpdate,
        PrivateStatistics,
        Hybrid,
    )
}


def choose_method(model: Model) -> LocalMethod:
    """What method.kind = 'auto' means: closed form, else natural gradients, else Adam."""
    if isinstance(model, ConjugateGaussian):
        return Exact()
    if isinstance(model, GeneralisedLinear):
        return NaturalVI()
    return GradientVI()


def choose_private(
    model: Model, unit: Unit, schedule: Schedule, parties: int
) -> tuple[PrivateMethod, str]:
    """What method.kind = 'auto' means with privacy, and why: scores if they will do, or DP-SGD."""
    scoring = PrivateScoring(unit=unit)
    try:
        scoring.check_unit()
        scoring.check(model, MeanFieldGaussian(model.dimension))
        scoring.check_schedule(schedule, parties)
    except ConfigError as refusal:
        return DPSGD(), f"not private-scoring: {refusal}"
    return scoring, (
        f"{model.kind!r} is a generalised linear model: its scores and curvature tell more at the "
        "same ε than noisy gradient steps"
    )


__all__ = [
    "DPSGD",
    "METHODS",
    "Answer",
    "Arranged",
    "Exact",
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
    "choose_private",
]

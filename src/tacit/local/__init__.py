"""Local methods: how a party answers a round."""

from tacit.local.base import Answer, LocalMethod, Task
from tacit.local.exact import Exact
from tacit.local.gradient import GradientVI
from tacit.local.natural import NaturalVI
from tacit.models import ConjugateGaussian, GeneralisedLinear, Model

METHODS: dict[str, type[LocalMethod]] = {
    method.kind: method for method in (Exact, NaturalVI, GradientVI)
}


def choose_method(model: Model) -> LocalMethod:
    """What method.kind = 'auto' means: closed form, else natural gradients, else Adam."""
    if isinstance(model, ConjugateGaussian):
        return Exact()
    if isinstance(model, GeneralisedLinear):
        return NaturalVI()
    return GradientVI()


__all__ = [
    "METHODS",
    "Answer",
    "Exact",
    "GradientVI",
    "LocalMethod",
    "NaturalVI",
    "Task",
    "choose_method",
]

"""Every parameter of the documented API is described, in the form of NumPy's docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import textwrap

import pytest

import tacit

PACKAGES = ("datasets", "families", "methods", "models", "schedules", "sklearn", "testing")
RETURNED = (
    "tacit.results.posterior:Posterior",
    "tacit.live.client:Session",
)
"""Classes that users get from functions; their methods are part of the API."""
GIVEN = ("Fit", "Session", "Posterior", "TopicTable")
"""Classes that users do not make."""


def documented() -> dict[str, object]:
    """Functions, classes and public methods, by name."""
    found: dict[str, object] = {name: getattr(tacit, name) for name in tacit.__all__}
    for package in PACKAGES:
        module = importlib.import_module(f"tacit.{package}")
        found |= {f"{package}.{name}": getattr(module, name) for name in module.__all__}
    for place in RETURNED:
        module, _, name = place.partition(":")
        found[name] = getattr(importlib.import_module(module), name)
    methods = {}
    for name, value in found.items():
        if inspect.isclass(value) and ("." not in name or name.startswith("sklearn.")):
            methods |= {
                f"{name}.{method}": getattr(value, method)
                for method in vars(value)
                if not method.startswith("_") and inspect.isroutine(getattr(value, method))
            }
    return {name: value for name, value in (found | methods).items() if callable(value)}


def described(text: str) -> set[str]:
    """Names in the "Parameters" section of a docstring."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n-+\n|\Z)", text, re.S | re.M)
    if section is None:
        return set()
    lines = re.findall(r"^(\*{0,2}\w+(?: *, *\*{0,2}\w+)*)(?: *:.*)?$", section.group(1), re.M)
    return {name.strip(" *") for line in lines for name in line.split(",")}


def described_fields(kind: type) -> set[str]:
    """Fields of a class with a string below them, as Sphinx reads it, in its bases too."""
    found = set()
    for one in kind.__mro__:
        if not one.__module__.startswith("tacit."):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0].body  # pyright: ignore
        for line, below in itertools.pairwise(body):
            if isinstance(line, ast.AnnAssign) and isinstance(below, ast.Expr):
                found.add(ast.unparse(line.target))
    return found


def parameters(value: object) -> list[str]:
    """Names that a caller may give; none for what is not called by users."""
    if inspect.isabstract(value) or (inspect.isclass(value) and issubclass(value, BaseException)):
        return []
    if inspect.isclass(value) and value.__name__ in GIVEN:
        return []
    try:
        signature = inspect.signature(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return []
    return [name for name in signature.parameters if name != "self" and not name.startswith("_")]


DOCUMENTED = documented()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_parameter_is_described(name):
    value = DOCUMENTED[name]
    found = described(inspect.getdoc(value) or "")
    if inspect.isclass(value):
        found |= described_fields(value)
    missing = set(parameters(value)) - found
    assert not missing, f"{name}: no description of {', '.join(sorted(missing))}"

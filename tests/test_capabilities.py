"""Outside of tacit.models nothing asks for a concrete model: a new one is a file of its own."""

import ast
from pathlib import Path

import pytest

import tacit
from tacit.models import ModelSchema
from tacit.models.capabilities import abilities
from tacit.models.registry import SHIPPED, build_model, settings_class

SOURCE = Path(tacit.__file__).parent
ABSTRACT = {
    "Model",
    "GaussianPriorModel",
    "LinearPredictor",
    "GeneralisedLinear",
    "ConjugateExponential",
}
"""Base classes of models that stand for an ability."""


def concrete_models() -> set[str]:
    """The names of all classes of tacit.models that are models and no abstract base."""
    bases: dict[str, list[str]] = {}
    for path in (SOURCE / "models").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [one.id for one in node.bases if isinstance(one, ast.Name)]

    def is_model(name: str) -> bool:
        return name == "Model" or any(is_model(base) for base in bases.get(name, ()))

    return {name for name in bases if is_model(name)} - ABSTRACT


def questions_about(names: set[str], source: str) -> list[int]:
    """Lines of a source that ask whether something is one of these classes."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            asked = node.args[1:] if node.func.id in ("isinstance", "issubclass") else []
        elif isinstance(node, ast.Compare) and "type" in _called(node):
            asked = [node]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        else:
            continue
        named = {_name(one) for part in asked for one in ast.walk(part)}
        lines += [node.lineno] if named & names else []
    return lines


def _called(node: ast.AST) -> set[str]:
    calls = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
    return {_name(one) for one in calls}


def _name(node: ast.AST) -> str:
    return getattr(node, "id", None) or getattr(node, "attr", "")


def test_the_classes_are_found():
    names = concrete_models()
    assert {"LogisticRegression", "SoftmaxRegression", "NumPyroModel", "TopicModel"} <= names
    assert not names & ABSTRACT


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(model, LogisticRegression)",
        "isinstance(model, int | models.LogisticRegression)",
        "issubclass(kind, (int, LogisticRegression))",
        "type(model) is LogisticRegression",
        "match model:\n    case LogisticRegression(): pass",
    ],
)
def test_the_search_finds_every_form_of_the_question(source):
    assert questions_about({"LogisticRegression"}, source)


def test_no_concrete_model_is_asked_for_outside_of_models():
    names, found = concrete_models(), []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.is_relative_to(SOURCE / "models"):
            continue
        lines = questions_about(names, path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(SOURCE)}:{line}" for line in lines]
    assert not found, f"ask for an ability instead (tacit.models.capabilities): {found}"


def test_no_kind_of_model_is_compared_outside_of_models():
    """`model.kind == "…"` is the same question in other words; configurations name kinds."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.is_relative_to(SOURCE / "models"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Compare) or not isinstance(node.left, ast.Attribute):
                continue
            owner = _name(node.left.value)
            values = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
            if node.left.attr == "kind" and owner == "model" and values & set(SHIPPED):
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not found, f"ask for an ability or an attribute instead: {found}"


GLM = (
    "GaussianExpectations GaussianSites WhitenedExpectations InNumPy GradientNorms "
    "BoundedDerivatives Scores SimulatesOutcomes"
)


ONE_PREDICTOR = GLM.replace("InNumPy", "DiagonalExpectations InNumPy")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("logistic", ONE_PREDICTOR),
        ("softmax", GLM),
        ("poisson", f"{ONE_PREDICTOR} ImpliedVariance"),
        ("normal-mean", "ConjugateGaussian BoundedDerivatives"),
        ("neural-network", ""),
        ("topics", "TopicTables"),
    ],
)
def test_abilities_of_shipped_models(kind, expected):
    schema = ModelSchema(
        names=("intercept", "a"), output="bernoulli", y_bounds=(0.0, 9.0), levels=("u", "v")
    )
    model = build_model(kind, settings_class(kind)(), schema)
    found = [name for name in abilities(model) if name != "Simulates"]
    assert found == expected.split()

"""Transformations of columns in formulas, and bounds on their values.

An expression such as `log(age)` or `(age - 60)/10` is a function of the columns of one record.
Bounds on its values are computed from the public bounds of the columns by interval arithmetic,
without reading any record. Functions that depend on other records, such as a mean or quantiles, are
not allowed.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacit.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

Range = tuple[float, float]
STATEFUL = {
    "center": "I(x - 60)",
    "scale": "I((x - 60)/15)",
    "standardize": "I((x - 60)/15)",
    "poly": "I(x**2)",
    "bs": "I(x**2)",
    "cr": "I(x**2)",
    "cc": "I(x**2)",
    "ns": "I(x**2)",
    "cut": "a column with declared levels",
    "factor": "C(x)",
}
"""Functions of other formula languages that depend on the records, and their replacements."""


def _positive(name: str, least: float) -> Callable[[Range], None]:
    def check(given: Range) -> None:
        if not given[0] > least:
            raise ConfigError(
                f"the values in {name}(…) have the bounds [{given[0]:g}, {given[1]:g}], but they "
                f"must be above {least:g}; declare a larger lower bound (low)"
            )

    return check


def _any(given: Range) -> None:
    del given


def _not_negative(given: Range) -> None:
    if given[0] < 0:
        raise ConfigError(
            f"the values in sqrt(…) have the bounds [{given[0]:g}, {given[1]:g}], but they must "
            "not be negative; declare a larger lower bound (low)"
        )


FUNCTIONS: dict[str, tuple[Callable[[float], float], Callable[[Range], None]]] = {
    "log": (math.log, _positive("log", 0.0)),
    "log2": (math.log2, _positive("log2", 0.0)),
    "log10": (math.log10, _positive("log10", 0.0)),
    "log1p": (math.log1p, _positive("log1p", -1.0)),
    "sqrt": (math.sqrt, _not_negative),
    "exp": (math.exp, _any),
}
"""Increasing functions, each with a check of its argument's range; NumPy has them under the same
names. No array library is loaded here, so that an invalid file is refused quickly.
"""
OPERATORS = "+ - * / **"
LONGEST = 200
"""Largest length of an expression, in characters."""


@dataclass(frozen=True)
class Expression:
    """A function of the columns of one record, parsed from text."""

    text: str
    columns: tuple[str, ...]
    tree: ast.expr
    names: Mapping[str, str]
    """Column name for each identifier in `tree`."""

    def values(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the value for each record; it is NaN or infinite where a function is undefined."""
        import numpy as np

        with np.errstate(all="ignore"):
            found = _evaluate(self.tree, {key: columns[name] for key, name in self.names.items()})
        rows = len(next(iter(columns.values())))
        return np.broadcast_to(np.asarray(found, np.float64), (rows,)).copy()

    def bounds(self, ranges: Mapping[str, Range]) -> Range:
        """Return bounds on the value of the expression if each column is within its range.

        The bounds hold for all records. They may be wider than necessary if a column occurs twice.
        """
        try:
            found = _range(self.tree, {key: ranges[name] for key, name in self.names.items()})
        except ConfigError as error:
            raise ConfigError(f"{self.text}: {error}") from None
        except OverflowError:
            found = (-math.inf, math.inf)
        if not (math.isfinite(found[0]) and math.isfinite(found[1]) and found[0] < found[1]):
            raise ConfigError(
                f"{self.text} has no finite range within the bounds of {', '.join(self.columns)}; "
                "declare narrower bounds"
            )
        return found


def parse_expression(text: str) -> Expression:
    """Parse an expression; raise an error that names the first unsupported part.

    >>> parse_expression("log(age)").bounds({"age": (1.0, 100.0)})
    (0.0, 4.605170185988092)
    """
    if len(text) > LONGEST:
        raise ConfigError(f"{text[:40]}… has {len(text)} characters; use at most {LONGEST}")
    names: dict[str, str] = {}

    def hidden(found: re.Match[str]) -> str:
        names[f"_quoted{len(names)}"] = found[1]
        return f"_quoted{len(names) - 1}"

    plain = re.sub(r"`([^`]*)`", hidden, text)
    plain = re.sub(r"\b(?:np|numpy)\s*\.\s*(?=\w+\s*\()", "", plain)
    try:
        tree = ast.parse(plain.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise ConfigError(f"{text} cannot be read; write e.g. log(age) or I(age**2)") from None
    tree = _unwrapped(tree)
    found: dict[str, str] = {}
    _check(tree, text, found, names)
    if not found:
        raise ConfigError(f"{text} names no column; write e.g. log(age)")
    return Expression(text, tuple(dict.fromkeys(found.values())), tree, found)


def _unwrapped(tree: ast.expr) -> ast.expr:
    """Return the expression without an enclosing I(…), which has no effect."""
    if not isinstance(tree, ast.Call) or ast.unparse(tree.func) != "I":
        return tree
    return _unwrapped(tree.args[0]) if len(tree.args) == 1 and not tree.keywords else tree


def _check(node: ast.expr, text: str, found: dict[str, str], quoted: Mapping[str, str]) -> None:
    """Add the columns of an expression to `found`; raise an error for an unsupported part."""
    if isinstance(node, ast.Name):
        found[node.id] = quoted.get(node.id, node.id)
    elif isinstance(node, ast.Constant) and _is_number(node.value):
        return
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        _check(node.operand, text, found, quoted)
    elif isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow):
            _power(node, text)
        elif not isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            raise ConfigError(f"{text}: only {OPERATORS} are supported")
        _check(node.left, text, found, quoted)
        _check(node.right, text, found, quoted)
    elif isinstance(node, ast.Call):
        _check_call(node, text, found, quoted)
    else:
        raise ConfigError(
            f"{text}: only columns, numbers, {OPERATORS} and {', '.join(FUNCTIONS)} are supported"
        )


def _check_call(
    node: ast.Call, text: str, found: dict[str, str], quoted: Mapping[str, str]
) -> None:
    name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
    if name in STATEFUL:
        raise ConfigError(
            f"{name}(…) depends on the records of all parties, but a formula must not: use public "
            f"constants, e.g. {STATEFUL[name]}"
        )
    if name not in FUNCTIONS:
        raise ConfigError(
            f"{name}(…) is not supported; choose from {', '.join(FUNCTIONS)}, I(…) and C(column), "
            "or add the column to the records and declare its bounds"
        )
    if len(node.args) != 1 or node.keywords:
        raise ConfigError(f"{name}(…) takes one argument")
    _check(node.args[0], text, found, quoted)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _power(node: ast.BinOp, text: str) -> int:
    power = node.right.value if isinstance(node.right, ast.Constant) else None
    if not isinstance(power, int) or isinstance(power, bool) or not 2 <= power <= 9:
        raise ConfigError(f"{text}: a power must be a whole number from 2 to 9")
    return power


def _evaluate(node: ast.expr, columns: Mapping[str, np.ndarray]) -> np.ndarray | float:
    import numpy as np

    if isinstance(node, ast.Name):
        return columns[node.id]
    if isinstance(node, ast.Constant):
        return float(node.value)  # pyright: ignore[reportArgumentType]
    if isinstance(node, ast.UnaryOp):
        inner = _evaluate(node.operand, columns)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        inner = np.asarray(_evaluate(node.args[0], columns), np.float64)
        return getattr(np, node.func.id)(inner)
    assert isinstance(node, ast.BinOp)
    left, right = _evaluate(node.left, columns), _evaluate(node.right, columns)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Div):
        return np.asarray(left, np.float64) / right
    return np.asarray(left, np.float64) ** right


def _range(node: ast.expr, ranges: Mapping[str, Range]) -> Range:
    """Return a range that contains all values of the expression, computed by interval
    arithmetic.
    """
    if isinstance(node, ast.Name):
        return ranges[node.id]
    if isinstance(node, ast.Constant):
        value = float(node.value)  # pyright: ignore[reportArgumentType]
        return value, value
    if isinstance(node, ast.UnaryOp):
        low, high = _range(node.operand, ranges)
        return (-high, -low) if isinstance(node.op, ast.USub) else (low, high)
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        function, check = FUNCTIONS[node.func.id]
        inner = _range(node.args[0], ranges)
        check(inner)
        return function(inner[0]), function(inner[1])
    assert isinstance(node, ast.BinOp)
    left = _range(node.left, ranges)
    if isinstance(node.op, ast.Pow):
        power = _power(node, "")
        ends = [left[0] ** power, left[1] ** power]
        inside = [0.0] if power % 2 == 0 and left[0] < 0 < left[1] else []
        return min(*ends, *inside), max(ends)
    right = _range(node.right, ranges)
    if isinstance(node.op, ast.Add):
        return left[0] + right[0], left[1] + right[1]
    if isinstance(node.op, ast.Sub):
        return left[0] - right[1], left[1] - right[0]
    if isinstance(node.op, ast.Mult):
        return times(left, right)
    if right[0] <= 0 <= right[1]:
        raise ConfigError(
            f"the divisor may be 0, because it is in [{right[0]:g}, {right[1]:g}]; declare bounds "
            "that exclude 0"
        )
    return times(left, (1.0 / right[1], 1.0 / right[0]))


def times(left: Range, right: Range) -> Range:
    """Return the range of a product of two numbers with these ranges.

    >>> times((-1.0, 2.0), (3.0, 4.0))
    (-4.0, 8.0)
    """
    every = [a * b for a in left for b in right]
    return min(every), max(every)

"""Sizes of the library: lines without docstrings, long files and long functions.

    python -m benchmarks.size [--functions 60] [--files 400]

counts the package `tacit` alone, not studies, tests or benchmarks. A docstring is the string at the
head of a module, class or function; strings below attributes count as lines.
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import ROOT

LIBRARY = ROOT / "src" / "tacit"
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Size(NamedTuple):
    """Sizes of one file."""

    path: Path
    lines: int
    docstrings: int
    """Lines of docstrings."""
    functions: tuple[tuple[int, str], ...]
    """Length and name of each function."""


def size_of(path: Path) -> Size:
    """Sizes of one file."""
    text = path.read_text(encoding="utf-8")
    docstrings, functions = 0, []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Documented) and ast.get_docstring(node, clean=False) is not None:
            docstrings += _lines(node.body[0])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((_lines(node), node.name))
    return Size(path, len(text.splitlines()), docstrings, tuple(functions))


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=60, help="longest function")
    parser.add_argument("--files", type=int, default=400, help="longest file")
    options = parser.parse_args()
    sizes = [size_of(path) for path in sorted(LIBRARY.rglob("*.py"))]
    lines, docstrings = sum(one.lines for one in sizes), sum(one.docstrings for one in sizes)
    print(f"{len(sizes)} files, {lines:,} lines, {lines - docstrings:,} without docstrings")
    for one in sorted(sizes, key=lambda size: -size.lines):
        if one.lines > options.files:
            print(f"{one.lines:5} lines  {one.path.relative_to(ROOT)}")
    for one in sizes:
        for length, name in sorted(one.functions, reverse=True):
            if length > options.functions:
                print(f"{length:5} lines  {one.path.relative_to(ROOT)}:{name}")


if __name__ == "__main__":
    main()

"""Steps that test a store, with the contents that the store must have after each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Step = Callable[[Any], Any]
"""A function that writes to a store and returns its expected contents."""


@dataclass
class Script:
    """Named steps that write to a store, and a function that reads the store."""

    read: Callable[[Any], Any]
    steps: list[tuple[str, Step]]
    empty: Any
    """Contents of a new store."""
    adopt: Callable[[Any, str], Any] | None = None
    """Function of a store and a digest that assigns the store to another configuration and returns
    its expected contents.
    """
    inspect: Callable[[Path], None] = lambda _: None
    """Function that checks the files of the store after each step."""

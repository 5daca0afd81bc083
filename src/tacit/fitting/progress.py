"""Progress of a fit: a bar in notebooks, and in terminals on request."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from tacit.engines.execute import Observer

SHOWN_EVERY_S = 0.2
"""Seconds between two updates; a run may have thousands of short rounds."""


def in_notebook() -> bool:
    """True if the process is a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class Progress:
    """Shows the current round of a fit; `close` removes the bar.

    Parameters
    ----------
    rounds
        Largest number of rounds.
    enabled
        True, False, or None: only in notebooks.
    """

    def __init__(self, rounds: int, enabled: bool | None) -> None:
        notebook = in_notebook()
        self._rounds = rounds
        self._handle: Any = None
        self._enabled = notebook if enabled is None else enabled
        self._notebook = notebook
        self._shown_at = -math.inf

    def __enter__(self) -> Progress:
        self._show(0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None and self._notebook:
            self._handle.update(self._html(""))
        elif self._handle is not None:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def observer(self, callback: Observer | None) -> Observer | None:
        """Return a function to call after every update: it updates the bar, then calls the user's
        callback.
        """
        if not self._enabled:
            return callback

        def both(state: Any, log: Any) -> None:
            self._show(state.round)
            if callback is not None:
                callback(state, log)

        return both

    def _show(self, round_number: int) -> None:
        now = time.monotonic()
        if not self._enabled or now < self._shown_at + SHOWN_EVERY_S:
            return
        self._shown_at = now
        text = f"round {round_number} of at most {self._rounds}"
        if not self._notebook:
            self._handle = True
            sys.stderr.write(f"\rtacit: {text}")
            sys.stderr.flush()
            return
        from IPython.display import display

        bar = f'<progress value="{round_number}" max="{self._rounds}"></progress> {text}'
        if self._handle is None:
            self._handle = display(self._html(bar), display_id=True)
        else:
            self._handle.update(self._html(bar))

    @staticmethod
    def _html(text: str) -> Any:
        from IPython.display import HTML

        return HTML(text)

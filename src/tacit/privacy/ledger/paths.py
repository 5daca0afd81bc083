"""Where a user's own ledger lies when nobody says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

LEDGER_NAME = "ledger.sqlite"


def own_ledger() -> Path:
    """In $TACIT_STATE, else in the directory that the platform keeps for a program's state."""
    if os.environ.get("TACIT_STATE"):
        return Path(os.environ["TACIT_STATE"]) / LEDGER_NAME
    home = os.environ.get("XDG_STATE_HOME")
    base = Path(home) if home else Path.home() / ".local" / "state"
    return base / "tacit" / LEDGER_NAME

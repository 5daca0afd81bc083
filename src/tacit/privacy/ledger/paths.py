"""Default path of a user's ledger."""

from __future__ import annotations

import os
from pathlib import Path

LEDGER_NAME = "ledger.sqlite"


def own_ledger() -> Path:
    """Return the path of the user's ledger: in $TACIT_STATE if it is set, otherwise in the
    platform's directory for application state.
    """
    if os.environ.get("TACIT_STATE"):
        return Path(os.environ["TACIT_STATE"]) / LEDGER_NAME
    home = os.environ.get("XDG_STATE_HOME")
    base = Path(home) if home else Path.home() / ".local" / "state"
    return base / "tacit" / LEDGER_NAME

"""Check the budget of a run; errors contain the command that sets a missing budget."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tacit.errors import PrivacyBudgetError
from tacit.privacy.ledger.ledger import BudgetCheck
from tacit.run.ledger import ledger_path, own_ledger_of_run
from tacit.run.run import Prepared, check_room_of


def require_budget(
    prepared: Prepared, path: Path, out: Path, ledger: Path | None, *, resume: bool = False
) -> BudgetCheck | None:
    """Raise the error that `tacit run` would raise if a budget is missing or too small.

    Otherwise return the result of the check for the budget with the least remaining ε, or None if
    the ledger is in the run directory. Nothing is charged.
    """
    place = ledger_path(prepared.config, out, ledger)
    inside = own_ledger_of_run(prepared.config, place, out)
    with commands_for(path):
        return check_room_of(prepared, out, place, resume=resume, inside=inside)


@contextmanager
def commands_for(path: Path) -> Iterator[None]:
    """Context manager that replaces CONFIG.toml in budget errors by the path `path`."""
    try:
        yield
    except PrivacyBudgetError as error:
        message = str(error).replace("CONFIG.toml", shlex.quote(str(path)))
        raise PrivacyBudgetError(message) from error

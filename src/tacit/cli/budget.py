"""Check the budget of a run; errors contain the command that sets a missing budget."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tacit.errors import PrivacyBudgetError
from tacit.privacy.ledger.ledger import BudgetCheck
from tacit.run.ledger import check_room, ledger_path, own_ledger_of_run
from tacit.run.run import Prepared


def require_budget(
    prepared: Prepared, path: Path, out: Path, ledger: Path | None
) -> BudgetCheck | None:
    """Raise the budget error that `tacit run` would raise, or return what is left.

    Charges nothing. Returns None if the run has its own ledger.
    """
    place = ledger_path(prepared.config, out, ledger)
    inside = own_ledger_of_run(prepared.config, place, out)
    with commands_for(path):
        return check_room(prepared.plan, prepared.federation, place, inside=inside)


@contextmanager
def commands_for(path: Path) -> Iterator[None]:
    """Insert the configuration file into commands in error messages."""
    try:
        yield
    except PrivacyBudgetError as error:
        message = str(error).replace("CONFIG.toml", shlex.quote(str(path)))
        raise PrivacyBudgetError(message) from error

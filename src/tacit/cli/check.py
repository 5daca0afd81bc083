"""`tacit check` of a run: all errors that `tacit run` would report, and the plan."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tacit.cli.options import print_json
from tacit.errors import TacitError
from tacit.run.config import Config

if TYPE_CHECKING:
    from tacit.privacy.ledger.ledger import BudgetCheck

Value = TypeVar("Value")


class Faults:
    """Collects errors in the order in which a run would raise them."""

    def __init__(self) -> None:
        self.found: list[TacitError] = []

    def from_call(self, function: Callable[..., Value], *arguments: object) -> Value | None:
        """Call `function` and return its result. If it raises a `TacitError`, store the error and
        return None.
        """
        try:
            return function(*arguments)
        except TacitError as error:
            if str(error) not in map(str, self.found):
                self.found.append(error)
            return None

    def raise_first(self) -> None:
        """Raise the first error, with the others attached."""
        if self.found:
            first, *others = self.found
            first.also = (*first.also, *others)
            raise first


def check_run(
    config: Config,
    path: Path,
    out: Path,
    ledger: Path | None,
    *,
    resume: bool,
    overwrite: bool,
    as_json: bool = False,
) -> None:
    """Show the plan of a run, then raise its errors. Nothing is written or charged."""
    from tacit.cli.commands import check_directory
    from tacit.cli.show.results import show_check
    from tacit.results.check import describe
    from tacit.run.build import make_engine, make_method
    from tacit.run.run import CONFIG_CHECKS, check_resumed, prepare

    faults = Faults()
    faults.from_call(functools.partial(check_directory, out, resume=resume, overwrite=overwrite))
    usable = not faults.found
    faults.from_call(make_engine, config)
    prepared = faults.from_call(prepare, config)
    if prepared is None:  # checks that need no data
        faults.from_call(make_method, config)
        for check in CONFIG_CHECKS:
            faults.from_call(check, config)
    else:
        plan, federation, left = prepared.plan, prepared.federation, None
        found = describe(plan, federation, federation.test, source=config.data.source)
        if not as_json:
            show_check(found)
        if usable and resume:
            faults.from_call(check_resumed, prepared, out, ledger)
        if plan.settled:
            from tacit.cli.budget import require_budget

            check = functools.partial(require_budget, prepared, path, out, ledger)
            left = faults.from_call(functools.partial(check, resume=resume and usable))
        if as_json and not faults.found:
            more = {} if left is None else {"budget": msgspec.to_builtins(left)}
            print_json(found.as_dict() | more)
        elif left is not None:
            _show_left(left)
    faults.raise_first()


def _show_left(left: BudgetCheck) -> None:
    from tacit.cli.show.results import console

    limit = left.budget
    console.print(
        f"Budget: ε = {left.spent:.4g} spent so far, {left.total:.4g} of {limit.epsilon:.4g} with "
        f"this run (δ = {limit.delta:g}, per {limit.unit}, {limit.adjacency}), for the party with "
        "the smallest remaining budget.",
        highlight=False,
    )

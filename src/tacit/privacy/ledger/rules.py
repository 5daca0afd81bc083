"""What the ledger refuses and warns of, one rule a function."""

from __future__ import annotations

import warnings

from tacit.errors import PrivacyBudgetError
from tacit.privacy.ledger.charges import Ask, Reply
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.state import Budget, Charge, State


class LineageWarning(UserWarning):
    """A data set looks like the successor of one that has already been charged."""


def check_same_release(state: State, wanted: Ask) -> list[Charge]:
    """The charges of a request; refused if they were for other records or another release.

    Ids come from a server: one that uses an id again must not be handed what others paid for.
    """
    done = state.charges.get(wanted.place, [])
    if done and not wanted.same_release(done[0]):
        raise PrivacyBudgetError(
            f"request {wanted.request} of run {wanted.run} was charged for another release (entry "
            f"{done[0].seq}); a request is answered once: use a new request id"
        )
    return done


def check_same_content(charge: Charge, wanted: Ask, content: str) -> None:
    """Refuse to draw a lost answer again for anything but what it was charged for.

    The same noise under two different questions would cancel in the difference of the answers.
    """
    if wanted.content != content:
        raise PrivacyBudgetError(
            f"request {wanted.request} of run {wanted.run} was charged for another content (entry "
            f"{charge.seq}); it is answered as it was first asked, or not at all"
        )


def answerable(state: State, reply: Reply, digest: str) -> Charge | None:
    """The charge that a reply is for; None if this very reply is stored; otherwise refused."""
    place = f"request {reply.request} of run {reply.run}"
    charges = state.charges.get(reply.place)
    if not charges:
        raise PrivacyBudgetError(f"{place} was not charged; charge first")
    answer = state.answers.get(reply.place)
    if answer is None:
        return charges[-1]
    if answer.digest != digest:
        raise PrivacyBudgetError(
            f"{place} has been answered otherwise; send the stored reply (recall), not a second one"
        )
    return None


def required_budget(state: State, dataset: DatasetId) -> Budget:
    """Fail closed: what the operator has not allowed is not allowed."""
    budget = state.budget(dataset)
    if budget is not None:
        return budget
    alike = next(state.lookalikes(dataset), None)
    hint = (
        f"; it has the schema of {alike.short}, which was charged: if it continues that data"
        f" set, link it instead: tacit ledger link {dataset} {alike}"
        if alike
        else ""
    )
    raise PrivacyBudgetError(
        f"data set {dataset.short} has no privacy budget, so nothing may be released; its operator"
        f" sets one: tacit ledger budget {dataset} --epsilon E --delta D{hint}"
    )


def warn_of_lookalikes(state: State, dataset: DatasetId) -> None:
    """Say that a new budget may be for old records."""
    alike = next(state.lookalikes(dataset), None)
    if alike:
        warnings.warn(
            f"data set {dataset.short} gets a budget of its own, but has the schema of"
            f" {alike.short}, which was charged; if it holds some of the same records, link it:"
            f" tacit ledger link {dataset} {alike}",
            LineageWarning,
            stacklevel=4,  # whoever called `set_budget`
        )

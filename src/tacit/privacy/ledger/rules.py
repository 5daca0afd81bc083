"""Rules for refusing a charge or a reply, and for warnings: one function per rule."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from tacit.errors import PrivacyBudgetError
from tacit.privacy.ledger.charges import ReleaseRequest, Reply
from tacit.privacy.ledger.exposure import Exposure
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.state import Budget, Charge, State


class LineageWarning(UserWarning):
    """Warning that a data set may contain records of another data set that was charged before."""


def check_same_release(state: State, wanted: ReleaseRequest) -> list[Charge]:
    """Return the earlier charges of a request; raise an error if they were for another release.

    Request ids come from a server. If an id is used again for another request, the stored reply
    must not be sent.
    """
    done = state.charges.get(wanted.place, [])
    if done and not wanted.same_release(done[0]):
        raise PrivacyBudgetError(
            f"request {wanted.request} of run {wanted.run} was already charged for another release "
            f"(entry {done[0].seq}); use a new request id"
        )
    return done


def check_open(state: State, wanted: Iterable[ReleaseRequest]) -> None:
    """Raise an error if one of the releases belongs to a closed run."""
    for release in wanted:
        reason = state.closed(release.run, release.dataset.content)
        if reason is not None:
            raise PrivacyBudgetError(
                f"run {release.run} was closed ({reason}) and cannot be charged; start a new run"
            )


def check_same_content(charge: Charge, wanted: ReleaseRequest, content: str) -> None:
    """Raise an error if the content of a repeated request differs from the content that was
    charged.

    The same noise in two different replies would cancel in their difference.
    """
    if wanted.content != content:
        raise PrivacyBudgetError(
            f"request {wanted.request} of run {wanted.run} was already charged with different "
            f"content (entry {charge.seq}); repeat it with that content, or use a new request id"
        )


def answerable(state: State, reply: Reply, digest: str) -> Charge | None:
    """Return the charge to which a reply belongs; None if the same reply is already stored.

    An error is raised if the request was not charged, or already has a different reply.
    """
    place = f"request {reply.request} of run {reply.run}"
    charges = state.charges.get(reply.place)
    if not charges:
        raise PrivacyBudgetError(
            f"{place} was not charged; charge the request before you store its reply"
        )
    answer = state.answers.get(reply.place)
    if answer is None:
        return charges[-1]
    if answer.digest != digest:
        raise PrivacyBudgetError(
            f"{place} already has a different reply; send the stored reply (Ledger.recall)"
        )
    return None


def required_budget(exposure: Exposure, dataset: DatasetId) -> Budget:
    """Return the budget of a data set, which may be inherited from data sets that contain all its
    records.

    An error is raised if there is no budget.
    """
    budget = exposure.budget(dataset)
    if budget is not None:
        return budget
    alike = next(exposure.state.lookalikes(dataset), None)
    shared = shared_records(exposure, dataset)
    hint = (
        f"; it {shared}: charges to these also count: set a budget that covers both"
        if shared
        else f"; it has the schema of {alike.short}, which was charged: if it continues that data"
        f" set, link it instead: tacit ledger link {dataset} {alike}"
        if alike
        else ""
    )
    raise PrivacyBudgetError(
        f"data set {dataset.short} has no privacy budget, so nothing may be released; set"
        f" one: tacit ledger budget {dataset} --epsilon E --delta D{hint}"
    )


def shared_records(exposure: Exposure, dataset: DatasetId) -> str:
    """Return a part of a message that names the data sets that share records with this one.

    The text is empty if there are no such data sets.
    """
    others = exposure.overlaps.others(dataset.content)
    if not others:
        return ""
    size = exposure.overlaps.size(dataset.content) or 0
    said = [
        f"{'all or some' if count is None else f'{count:,} of {size:,}'} records with {other[:8]}"
        for other, count in others.items()
    ]
    more = f" and {len(said) - 3} more data sets" if len(said) > 3 else ""
    return f"shares {', '.join(said[:3])}{more}"


def warn_of_lookalikes(exposure: Exposure, dataset: DatasetId) -> None:
    """Warn if a data set with a new budget contains, or may contain, records that were charged
    before.
    """
    state, shared = exposure.state, shared_records(exposure, dataset)
    charged = any(state.paid_by_run(one) for one in exposure.overlaps.others(dataset.content))
    if shared and charged:
        warnings.warn(
            f"data set {dataset.short} {shared}; charges to those data sets also count for"
            f" {dataset.short}, and their budgets apply to it as well",
            LineageWarning,
            stacklevel=4,
        )
        return
    alike = next(state.lookalikes(dataset), None)
    if alike and not shared:
        warnings.warn(
            f"data set {dataset.short} gets a separate budget, but has the schema of"
            f" {alike.short}, which was charged; if it holds some of the same records, link it:"
            f" tacit ledger link {dataset} {alike}",
            LineageWarning,
            stacklevel=4,  # the caller of `set_budget`
        )

"""Replies of one party for many alternative data sets, computed by the party's own code.

The conformance suite of private methods and the audit compare these replies. Inside the contexts of
`tacit.testing.releases`, every reply also contains the exact sums and the released values of its
mechanisms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import tacit.party.compute as party_side
from tacit.expfam import Natural
from tacit.models import Records
from tacit.party.compute import Update
from tacit.plan.agreement import Agreement
from tacit.plan.calibrate import Settled
from tacit.plan.plan import Plan, first_factors
from tacit.privacy.events import Adjacency
from tacit.server.combine import Shared
from tacit.server.messages import Request
from tacit.server.state import initial_state


class DataSets:
    """Several alternative data sets of one party, for which the replies are computed in one call.

    Parameters
    ----------
    plan
        The plan of a private run.
    party
        Name of the party.
    sets
        Alternative records of the party.
    rows
        All data sets are padded to the same number of rows, which is at least this number. Data
        sets of equal shape use the same compiled program.
    """

    def __init__(
        self, plan: Plan, party: str, sets: Sequence[Records], rows: int | None = None
    ) -> None:
        distinct = {id(one): one for one in sets}
        arranged = {
            key: plan.method.arrange(party, one, plan.seed) for key, one in distinct.items()
        }
        axis = plan.method.variable_axis
        self.rows = max(rows or 0, *(one.weights.shape[axis] for one in arranged.values()))
        self.plan, self.party, self.count = plan, party, len(sets)
        chosen = [arranged[id(one)] for one in sets]
        self._stack = party_side.stack_records(chosen, self.rows, plan.method)

    def answer(
        self,
        question: Shared,
        visit: int,
        memories: Sequence[Natural | None],
        insecure_noise_seed: int | None = None,
        settled: Settled | None = None,
    ) -> list[Update]:
        """Return the replies of all data sets to the same request.

        Without a noise seed, the noise of different replies is independent; with a seed, it is the
        same. `settled` replaces the party's clip and noise, for example by wrong ones.
        """
        plan = self.plan
        agreement = Agreement(plan.model, plan.family, plan.method, plan.seed, insecure_noise_seed)
        request = _request(plan, self.party, visit, question)
        terms = plan.settled[self.party] if settled is None else settled
        return party_side.answer_many(
            agreement,
            *self._stack,
            [request] * self.count,
            [terms] * self.count,
            list(memories),
        )


def _request(plan: Plan, party: str, visit: int, question: Shared) -> Request:
    stage = plan.method.stage_at(visit)
    return Request(
        "check",
        party,
        visit,
        visit,
        question.q if stage.needs_q else None,
        plan.family.zero() if stage.needs_factor else None,
        1.0,
        initial=visit == 0,
        stage=stage.name,
        public=question.public,
    )


def first_question(plan: Plan, visit: int) -> Shared:
    """Return the initial q and public arrays of zeros, for a request of the stage of this visit."""
    shapes = plan.method.public_shapes(plan.model, plan.family, plan.method.stage_at(visit).name)
    public = {name: np.zeros(shape) for name, shape in shapes.items()}
    return Shared(initial_state(plan.rules, first_factors(plan)).q, public)


def furthest_pair(sums: np.ndarray, adjacency: Adjacency) -> tuple[int, int]:
    """Return the indices of the two neighbouring data sets with the largest distance between their
    sums.

    Row i of `sums` is the clipped sum of data set i. Under replace-one adjacency, every two of the
    data sets are neighbours. Under add-or-remove-one adjacency, only the first data set is a
    neighbour of the others, so that the first index is 0. If the distance between two sums is NaN,
    the indices of this pair are returned.
    """
    best, found = -1.0, (0, 0)
    for place in range(len(sums) if adjacency == "replace-one" else 1):
        far = np.linalg.norm(sums - sums[place], axis=1)
        if np.isnan(far).any():
            return place, int(far.argmax())
        if far.max() > best:
            best, found = float(far.max()), (place, int(far.argmax()))
    return found

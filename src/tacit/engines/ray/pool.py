"""Warm actors, each started anew on whatever node is left when it is lost.

An answer is waited for by the call that asked for it. When its actor or its node is gone, the same
call with the same arguments is made of the actor's successor; what a lost actor may have computed
is never read by anybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tacit.engines.ray.cluster import import_ray
from tacit.errors import PeerError, TacitError

MOST_LOSSES = 5
"""How many actors may be lost over one call: more are no accident."""


class LostError(PeerError):
    """Actor after actor was lost over `call`."""

    def __init__(self, message: str, call: Call) -> None:
        super().__init__(message)
        self.call = call


@dataclass(eq=False)
class Call:
    """Something asked of an actor; `ref` is where its answer will be."""

    place: int
    method: str
    arguments: tuple[Any, ...]
    generation: int
    ref: Any
    losses: int = 0


def share(value: Any) -> Any:
    """A value put once, for any number of calls that name the reference."""
    return import_ray().put(value)


class Pool:
    """Actors of one class, each with arguments of its own, by their place."""

    def __init__(
        self,
        kind: type,
        arguments: Sequence[tuple[Any, ...]],
        *,
        most_losses: int = MOST_LOSSES,
    ) -> None:
        """`arguments` that are large should be references (`share`): they are kept."""
        self._ray = import_ray()
        self._most_losses = most_losses
        # No core is reserved: a successor must find a place when a node is gone.
        self._kind = self._ray.remote(num_cpus=0, max_restarts=0)(kind)
        self._arguments = list(arguments)
        self._node_of: dict[int, str] = {}
        self._actors = [self._start(place) for place in range(len(self._arguments))]
        self._generations = [0] * len(self._actors)
        self.lost = 0

    def __len__(self) -> int:
        return len(self._actors)

    def call(self, place: int, method: str, *arguments: Any) -> Call:
        """Ask one actor; returns at once."""
        ref = getattr(self._actors[place], method).remote(*arguments)
        return Call(place, method, arguments, self._generations[place], ref)

    def first(self, calls: Sequence[Call]) -> tuple[Call, Any]:
        """A call that is answered, the one asked first if there are several, and its answer."""
        while True:
            refs = [call.ref for call in calls]
            self._ray.wait(refs, num_returns=1)
            # Ray names any that is ready; in the order of asking nobody has to wait for ever.
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
            call = next(call for call in calls if call.ref in ready)
            answered, value = self._take(call)
            if answered:
                return call, value

    def result(self, call: Call) -> Any:
        """The answer of one call."""
        while True:
            answered, value = self._take(call)
            if answered:
                return value

    def each(self, method: str, *arguments: Any) -> list[Any]:
        """The answers of all actors to the same question."""
        calls = [self.call(place, method, *arguments) for place in range(len(self))]
        return [self.result(call) for call in calls]

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor)

    def _take(self, call: Call) -> tuple[bool, Any]:
        errors = self._ray.exceptions
        try:
            return True, self._ray.get(call.ref)
        except errors.RayTaskError as error:
            # What is wrong with a party is said in its own words, not in Ray's.
            if isinstance(error.cause, TacitError):
                raise error.cause from None
            raise
        except (
            errors.RayActorError,
            errors.ActorUnschedulableError,
            errors.ObjectLostError,
        ) as error:
            call.losses += 1
            if call.losses > self._most_losses:
                reason = " ".join(str(error).split())[:200]
                raise LostError(
                    f"{call.losses} processes were lost over one call ({reason}); if memory is "
                    "short use fewer actors or more nodes, then go on with --resume",
                    call,
                ) from None
            self._again(call)
            return False, None

    def renew(self, place: int) -> None:
        """Start the successor of an actor; one that only seemed lost must not go on."""
        self._ray.kill(self._actors[place])
        self._actors[place] = self._start(place)
        self._generations[place] += 1
        self.lost += 1

    def _start(self, place: int) -> Any:
        """On the node that has the fewest actors a core; if it turns out to be gone, on another."""
        self._node_of.pop(place, None)
        here = Counter(self._node_of.values())
        cores = {
            node["NodeID"]: node["Resources"].get("CPU", 0.5)
            for node in self._ray.nodes()
            if node["Alive"]
        }
        best = min(cores, key=lambda node: ((here[node] + 1) / cores[node], node))
        self._node_of[place] = best
        near = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        kind = self._kind.options(scheduling_strategy=near(best, soft=False))
        return kind.remote(*self._arguments[place])

    def _again(self, call: Call) -> None:
        if call.generation == self._generations[call.place]:
            self.renew(call.place)
        call.generation = self._generations[call.place]
        call.ref = getattr(self._actors[call.place], call.method).remote(*call.arguments)

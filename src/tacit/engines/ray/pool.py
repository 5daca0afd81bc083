"""A pool of actors that are restarted on another node when lost.

If an actor or its node is lost, its call is repeated with the same arguments on its successor.
Results of a lost actor are never read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tacit.engines.ray.cluster import import_ray
from tacit.errors import PeerError, TacitError

MAX_LOSSES = 5
"""Largest number of actors lost in one call before giving up."""


class LostError(PeerError):
    """Too many actors were lost during `call`."""

    def __init__(self, message: str, call: Call) -> None:
        super().__init__(message)
        self.call = call


@dataclass(eq=False)
class Call:
    """A call to an actor; `ref` is the reference of its result."""

    place: int
    method: str
    arguments: tuple[Any, ...]
    generation: int
    ref: Any
    losses: int = 0


def share(value: Any) -> Any:
    """Store a value once and return a reference to it that many calls can use."""
    return import_ray().put(value)


class Pool:
    """Actors of one class, each started with its own arguments and addressed by index."""

    def __init__(
        self,
        kind: type,
        arguments: Sequence[tuple[Any, ...]],
        *,
        max_losses: int = MAX_LOSSES,
    ) -> None:
        """Start the actors. Pass large `arguments` as references (`share`)."""
        self._ray = import_ray()
        self._max_losses = max_losses
        # Reserve no core: a successor must fit on the remaining nodes.
        self._kind = self._ray.remote(num_cpus=0, max_restarts=0)(kind)
        self._arguments = list(arguments)
        self._node_of: dict[int, str] = {}
        self._actors = [self._start(place) for place in range(len(self._arguments))]
        self._generations = [0] * len(self._actors)
        self.lost = 0

    def __len__(self) -> int:
        return len(self._actors)

    def call(self, place: int, method: str, *arguments: Any) -> Call:
        """Call one actor; returns at once."""
        ref = getattr(self._actors[place], method).remote(*arguments)
        return Call(place, method, arguments, self._generations[place], ref)

    def first(self, calls: Sequence[Call]) -> tuple[Call, Any]:
        """Wait until one of the calls has finished; return that call and its result."""
        while True:
            refs = [call.ref for call in calls]
            self._ray.wait(refs, num_returns=1)
            # Ray returns any finished call; the order of calls avoids starvation.
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
            call = next(call for call in calls if call.ref in ready)
            answered, value = self._take(call)
            if answered:
                return call, value

    def result(self, call: Call) -> Any:
        """Wait for one call and return its result."""
        while True:
            answered, value = self._take(call)
            if answered:
                return value

    def each(self, method: str, *arguments: Any) -> list[Any]:
        """Make the same call on all actors and return the results."""
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
            # Raise the party's own error, not Ray's wrapper.
            if isinstance(error.cause, TacitError):
                raise error.cause from None
            raise
        except (
            errors.RayActorError,
            errors.ActorUnschedulableError,
            errors.ObjectLostError,
        ) as error:
            call.losses += 1
            if call.losses > self._max_losses:
                reason = " ".join(str(error).split())[:200]
                raise LostError(
                    f"{call.losses} processes were lost during one call ({reason}); if memory is "
                    "short, use fewer actors or more nodes, then continue with --resume",
                    call,
                ) from None
            self._again(call)
            return False, None

    def renew(self, place: int) -> None:
        """Replace the actor at index `place` by a new one; the old process is killed if it still
        runs.
        """
        self._ray.kill(self._actors[place])
        self._actors[place] = self._start(place)
        self._generations[place] += 1
        self.lost += 1

    def _start(self, place: int) -> Any:
        """Start an actor on the node with the fewest actors per core."""
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

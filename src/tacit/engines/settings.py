"""The [engine] table of a configuration: one struct per kind. No array library is needed.

To add an engine, subclass `EngineSettings` and register it: by an entry point of the group
"tacit.engines" in its package, or with `ENGINE_SETTINGS.register` for one process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from tacit.support.tables import Kinds, Table
from tacit.support.validation import Count

if TYPE_CHECKING:
    from tacit.engines.driver import Driver


class EngineSettings(Table, frozen=True, kw_only=True, tag_field="kind"):
    """Where the parties' updates are computed; the keys depend on `kind`."""

    place: ClassVar[str] = "engine"
    batch_parties: bool = True
    """False: compute each party's update alone. The result is identical to that over a network, but
    slower.
    """

    @property
    def kind(self) -> str:
        """Value of the key `kind` in the [engine] table."""
        return str(self.__struct_config__.tag)

    def make(self) -> Callable[..., Driver]:
        """Return the engine with these settings; raise an error if a package is missing."""
        raise NotImplementedError


class InProcessSettings(EngineSettings, frozen=True, kw_only=True, tag="in-process"):
    """Computes the updates of all parties in this process. The only key is `kind`."""

    def make(self) -> Callable[..., Driver]:
        from tacit.engines.in_process import InProcess

        return InProcess


class RaySettings(EngineSettings, frozen=True, kw_only=True, tag="ray"):
    """Computes the updates on the actors of one organisation's Ray cluster (docs/scale.md)."""

    address: str | None = None
    """A running cluster, HOST:PORT; by default a cluster is started on this machine."""
    actors: Count | None = None
    """Number of processes that hold parties; by default one per core of the cluster."""
    clock: Literal["simulated", "wall"] = "simulated"
    """With an asynchronous schedule: "simulated" applies replies in the seeded order of the
    in-process engine, so that a run is repeatable; "wall" applies them as they arrive."""

    def make(self) -> Callable[..., Driver]:
        from tacit.engines.ray import RayEngine, import_ray

        import_ray(own=self.address is None)
        return functools.partial(
            RayEngine,
            address=self.address,
            actors=self.actors,
            wall_clock=self.clock == "wall",
        )


ENGINE_SETTINGS: Kinds[EngineSettings] = Kinds(
    EngineSettings,
    {
        "in-process": "tacit.engines.settings:InProcessSettings",
        "ray": "tacit.engines.settings:RaySettings",
    },
    default="in-process",
    group="tacit.engines",
)

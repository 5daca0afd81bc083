"""Whether every machine of a cluster sees the same files."""

from __future__ import annotations

import platform
import secrets
from pathlib import Path

from tacit.engines.ray.cluster import import_ray
from tacit.errors import ConfigError

BOOT = Path("/proc/sys/kernel/random/boot_id")


def check_folder(folder: Path, *, one_machine: bool) -> None:
    """Refuse a folder that some node does not reach, wherever an actor may be started again.

    With `one_machine`, nodes must also be on this very machine: SQLite's locks are not to be
    trusted across machines, and a ledger that two of them write at once may lose a charge.
    """
    ray = import_ray()
    mark, secret = folder / ".reach", secrets.token_hex(16)
    mark.write_text(secret, encoding="utf-8")
    probe = ray.remote(num_cpus=0)(look)
    near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        asked = [
            probe.options(scheduling_strategy=near(node["NodeID"], soft=False)).remote(str(mark))
            for node in nodes
        ]
        for node, (seen, machine) in zip(nodes, ray.get(asked), strict=True):
            where = f"node {node['NodeManagerAddress']} ({node['NodeManagerHostname']})"
            if seen != secret:
                raise ConfigError(
                    f"{where} does not reach {folder}; use a folder that all nodes share, or start "
                    "the cluster on this machine alone"
                )
            if one_machine and machine != this_machine():
                raise ConfigError(
                    f"{where} is another machine than that of the ledger in {folder}; runs that "
                    "are charged to it must stay on its machine: use --engine local, or simulate "
                    "with privacy.insecure_noise_seed"
                )
    finally:
        mark.unlink()


def look(mark: str) -> tuple[str | None, str]:
    """What a file says on this node, and which machine this is."""
    try:
        return Path(mark).read_text(encoding="utf-8"), this_machine()
    except OSError:
        return None, this_machine()


def this_machine() -> str:
    """A name that two machines do not share, containers on one of them aside."""
    return BOOT.read_text(encoding="utf-8").strip() if BOOT.exists() else platform.node()

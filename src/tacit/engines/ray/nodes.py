"""Check that every machine of a cluster sees the same files."""

from __future__ import annotations

import platform
import secrets
from pathlib import Path

from tacit.engines.ray.cluster import import_ray
from tacit.errors import ConfigError

BOOT = Path("/proc/sys/kernel/random/boot_id")


def check_folder(folder: Path, *, one_machine: bool) -> None:
    """Refuse a folder that some node of the cluster cannot access.

    With `one_machine`, all nodes must be on this machine: SQLite's locks are not reliable across
    machines, and a ledger written by two of them could lose a charge.
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
                    f"{where} cannot read {folder}; use a folder that all nodes share, or start "
                    "the cluster on this machine only"
                )
            if one_machine and machine != this_machine():
                raise ConfigError(
                    f"{where} is not the machine of the ledger in {folder}; charged runs must "
                    "stay on that machine: use --engine local, or simulate "
                    "with privacy.insecure_noise_seed"
                )
    finally:
        mark.unlink()


def look(mark: str) -> tuple[str | None, str]:
    """Return the content of a file (None if this node cannot read it), and the machine's id."""
    try:
        return Path(mark).read_text(encoding="utf-8"), this_machine()
    except OSError:
        return None, this_machine()


def this_machine() -> str:
    """Return a unique id of this machine, which is the same in all of its containers."""
    return BOOT.read_text(encoding="utf-8").strip() if BOOT.exists() else platform.node()

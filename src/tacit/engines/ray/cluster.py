"""Connect to a running Ray cluster, or start a private one.

By default Ray sends usage statistics, binds its ports to every network interface, and runs code for
anyone who reaches them. Here no statistics are sent, a private cluster listens on loopback only and
requires a secret token of this process, and no dashboard is started.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tacit.errors import ConfigError, PeerError

OBJECT_STORE_BYTES = 1 << 30
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a GPU warning
}
LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable of Ray for systems with interactive firewalls; the value 0 makes Ray bind
all ports to 127.0.0.1 on any system.
"""


@dataclass(frozen=True)
class Cluster:
    """Number of cores and nodes of a Ray cluster, and whether it was started for this run."""

    cores: int
    nodes: int
    own: bool
    """True if it was started for this run and ends with it."""


def import_ray(*, own: bool = False) -> Any:
    """Import ray with telemetry switched off.

    If this process will start the cluster (`own`), ray is also restricted to this machine and gets
    an access token.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    if own and "ray" not in sys.modules:  # both are read when ray is imported
        os.environ.setdefault(LOOPBACK_ONLY, "0")
        if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
            # A token of this process only; none is written to the home directory.
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError:
        ray = None
    if not hasattr(ray, "init"):  # a folder called ray imports as an empty package
        raise ConfigError(
            "the Ray engine needs the package ray, which is not installed: pip install "
            "'tacit[ray]', or leave --engine ray (engine.kind = \"ray\") out"
        )
    return ray


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[Cluster]:
    """Context manager that connects to a cluster. An existing connection of this process is reused
    and stays open.
    """
    ray = import_ray(own=address is None)
    if address is not None and not re.fullmatch(r".+:\d+", address):
        raise ConfigError(f"engine.address = {address!r}; write HOST:PORT of a cluster's head")
    if ray.is_initialized():
        if address not in (None, ray.get_runtime_context().gcs_address):
            raise ConfigError(
                f"engine.address = {address!r}, but this process is connected to "
                f"{ray.get_runtime_context().gcs_address}; call ray.shutdown() first"
            )
        yield _cluster(ray, own=False)
        return
    if address is None:
        _start(ray)
    else:
        _join(ray, address)
    try:
        yield _cluster(ray, own=address is None)
    finally:
        ray.shutdown()


def _start(ray: Any) -> None:
    if os.environ.get(LOOPBACK_ONLY) != "0":
        raise ConfigError(
            "ray was imported before tacit could restrict it to this machine; set "
            f"{LOOPBACK_ONLY}=0 in the environment before ray is imported, or call ray.init "
            "yourself"
        )
    with warnings.catch_warnings():
        # JAX warns about fork; Ray's forks exec another program at once.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
        ray.init(
            address="local",
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
        )


def _join(ray: Any, address: str) -> None:
    host = address.rpartition(":")[0]
    try:
        ray.init(
            address=address,
            configure_logging=False,
            log_to_driver=False,
            # With several nodes on one machine, this process belongs to the head.
            _node_ip_address=host if host.startswith("127.") else None,
        )
    except (ConnectionError, TimeoutError, RuntimeError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:200]
        raise PeerError(
            f"no Ray cluster at {address} ({reason}); start one with ray start --head, and give "
            "this process its token in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        ) from None


def _cluster(ray: Any, *, own: bool) -> Cluster:
    cores = int(ray.cluster_resources().get("CPU", 1))
    alive = sum(bool(node["Alive"]) for node in ray.nodes())
    return Cluster(max(1, cores), alive, own)

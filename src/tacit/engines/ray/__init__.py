"""Many machines of one organisation: the only place that imports ray.

Importing this package needs no ray; using it does, and says what to install.
"""

from tacit.engines.ray.cluster import Cluster, connected, import_ray
from tacit.engines.ray.engine import RayEngine
from tacit.engines.ray.nodes import check_folder
from tacit.engines.ray.pool import LostError, Pool, share
from tacit.engines.ray.runner import Runner

__all__ = ["Cluster", "LostError", "Pool", "RayEngine", "Runner", "check_folder", "connected"]
__all__ += ["import_ray", "share"]

"""The Ray engine, for many machines of one organisation.

Only this package imports ray, on first use; if ray is missing, the error names the extra to
install.
"""

from tacit.engines.ray.cluster import Cluster, connected, import_ray
from tacit.engines.ray.engine import RayEngine
from tacit.engines.ray.nodes import check_folder
from tacit.engines.ray.pool import LostError, Pool, share
from tacit.engines.ray.runner import Runner

__all__ = ["Cluster", "LostError", "Pool", "RayEngine", "Runner", "check_folder", "connected"]
__all__ += ["import_ray", "share"]

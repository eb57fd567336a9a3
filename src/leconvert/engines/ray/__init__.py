"""Workers on the nodes of a Ray cluster.

Ray itself is imported in two places alone: by `leconvert.engines.ray.driver`, in a process of its
own, and never by whoever converts. So a cluster that hangs, or ends its drivers as Ray does when it
loses its head, takes nobody with it.
"""

from leconvert.engines.ray.driver import RayOptions
from leconvert.engines.ray.engine import RayEngine

__all__ = ["RayEngine", "RayOptions"]

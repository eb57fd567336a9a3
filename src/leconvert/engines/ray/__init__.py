"""Workers on the nodes of a Ray cluster.

Ray itself is imported in two places alone: by `leconvert.engines.ray.cluster`, in a process of its
own, and never by whoever converts. So a cluster that hangs, or ends its drivers as Ray does when it
loses its head, takes nobody with it.
"""

from leconvert.engines.ray.engine import RayEngine
from leconvert.engines.ray.options import RayOptions

__all__ = ["RayEngine", "RayOptions"]

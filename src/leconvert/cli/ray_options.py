"""Options of the commands that hand workers to Ray, spelled and explained once."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from leconvert.errors import UsageError

if TYPE_CHECKING:
    from leconvert.engines import RayOptions

__all__ = ["add_ray_options", "ray_options", "refuse_ray_options"]

_NAMES = ("ray-address", "ray-resource", "ray-runtime-env", "ray-ship-package")


def add_ray_options(parser: argparse.ArgumentParser) -> None:
    """Add what workers ask Ray for, besides what they ask SLURM for too."""
    group = parser.add_argument_group("Ray")
    group.add_argument(
        "--ray-address", metavar="ADDRESS",
        help="HOST:PORT of the cluster, or local to start one on this machine (default: "
        "$RAY_ADDRESS, or the cluster of this machine)",
    )  # fmt: skip
    group.add_argument(
        "--ray-resource", action="append", metavar="NAME=N",
        help="a custom resource that a worker takes; may be given again",
    )  # fmt: skip
    group.add_argument(
        "--ray-runtime-env", metavar="JSON", help="the runtime environment of workers"
    )
    group.add_argument(
        "--ray-ship-package", action="store_true", help="send leconvert to nodes that lack it"
    )


def ray_options(options: argparse.Namespace) -> RayOptions:
    """Return what workers ask Ray for.

    Raises:
        UsageError: A number, a size, a resource or a runtime environment makes no sense.
    """
    from leconvert.engines import RayOptions

    return RayOptions(
        address=options.ray_address or "auto",
        workers=None if options.num_workers == "auto" else options.num_workers,
        nodes=options.nodes,
        workers_per_node=options.workers_per_node,
        cpus_per_task=1 if options.cpus_per_task is None else options.cpus_per_task,
        mem=options.mem,
        resources=dict(_resource(text) for text in options.ray_resource or ()),
        runtime_env=_runtime_env(options.ray_runtime_env),
        ship_package=options.ray_ship_package,
    )


def refuse_ray_options(options: argparse.Namespace) -> None:
    """Fail if Ray is told something where it starts no workers.

    Raises:
        UsageError: It is.
    """
    for name in _NAMES:
        if getattr(options, name.replace("-", "_")) and options.engine != "ray":
            raise UsageError(f"--{name} goes with --engine ray.")


def _resource(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    try:
        return name, float(amount)
    except ValueError:
        raise UsageError(
            f"--ray-resource {text} makes no sense.", next_step="Write --ray-resource NAME=1."
        ) from None


def _runtime_env(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        environment = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--ray-runtime-env is no JSON ({error}).") from error
    if not isinstance(environment, dict):
        raise UsageError(
            "--ray-runtime-env needs an object of JSON.",
            next_step="""Write --ray-runtime-env '{"env_vars": {"NAME": "VALUE"}}'.""",
        )
    return environment

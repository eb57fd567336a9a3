"""What the machine must have before a cluster can be built: root and four Debian packages."""

from __future__ import annotations

import lab_kit
from lab_kit import LabError, find_program, install, require_root

__all__ = ["missing_packages", "program", "require"]

_PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "setpriv": "util-linux",
}


def program(name: str) -> str:
    """Return the path of a daemon or a command.

    Raises:
        LabError: It is not installed.
    """
    found = find_program(name)
    if found is None:
        raise LabError(f"There is no {name} here: install the package {_PACKAGES[name]}.")
    return found


def missing_packages() -> list[str]:
    """Return the Debian packages whose programs are not on this machine, sorted."""
    return lab_kit.missing_packages(_PACKAGES)


def require() -> None:
    """Install what is missing, or say in one sentence why there can be no cluster here.

    Raises:
        LabError: Not root, or a package cannot be installed.
    """
    require_root("SLURM's daemons start jobs for others")
    if missing := missing_packages():
        install(missing)

"""What the machine must have before a cluster can be built: root and four Debian packages."""

from __future__ import annotations

import os
import shutil

from every_lab.errors import LabError
from every_lab.packages import SEARCHED, install

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
    found = shutil.which(name, path=SEARCHED)
    if found is None:
        raise LabError(f"There is no {name} here: install the package {_PACKAGES[name]}.")
    return found


def missing_packages() -> list[str]:
    """Return the Debian packages whose programs are not on this machine, sorted."""
    return sorted(
        {package for name, package in _PACKAGES.items() if not shutil.which(name, path=SEARCHED)}
    )


def require() -> None:
    """Install what is missing, or say in one sentence why there can be no cluster here.

    Raises:
        LabError: Not root, or a package cannot be installed.
    """
    if os.geteuid() != 0:
        raise LabError("SLURM's daemons start jobs for others: run the lab as root.")
    if missing := missing_packages():
        install(missing)

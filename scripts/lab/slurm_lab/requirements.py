"""What the machine must have before a cluster can be built: root and four Debian packages."""

from __future__ import annotations

import os
import shutil
import subprocess

from slurm_lab.errors import ClusterError

__all__ = ["missing_packages", "program", "require"]

_SEARCHED = os.pathsep.join((os.defpath, "/usr/local/sbin", "/usr/sbin", "/sbin"))
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
        ClusterError: It is not installed.
    """
    found = shutil.which(name, path=_SEARCHED)
    if found is None:
        raise ClusterError(f"There is no {name} here: install the package {_PACKAGES[name]}.")
    return found


def missing_packages() -> list[str]:
    """Return the Debian packages whose programs are not on this machine, sorted."""
    return sorted(
        {package for name, package in _PACKAGES.items() if not shutil.which(name, path=_SEARCHED)}
    )


def require() -> None:
    """Install what is missing, or say in one sentence why there can be no cluster here.

    Raises:
        ClusterError: Not root, or a package cannot be installed.
    """
    if os.geteuid() != 0:
        raise ClusterError("SLURM's daemons start jobs for others: run the lab as root.")
    missing = missing_packages()
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"Install {' '.join(missing)} first: this machine has no apt-get.")
    # RUNLEVEL keeps the packages' own services from being started on this machine.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        subprocess.run(["apt-get", "update", "-qq"], env=environment, check=False)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise ClusterError(f"apt-get could not install {' '.join(missing)}: {last[0]}")

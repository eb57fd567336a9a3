"""Installs the Debian packages that a lab lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from every_lab.errors import LabError

__all__ = ["SEARCHED", "install"]

SEARCHED = os.pathsep.join((os.defpath, "/usr/local/sbin", "/usr/sbin", "/sbin"))
"""Where programs are looked for that only root runs."""


def install(packages: Sequence[str]) -> None:
    """Install packages; asks for nothing and starts none of their services.

    Raises:
        LabError: There is no apt-get here, or it fails.
    """
    if shutil.which("apt-get") is None:
        raise LabError(f"Install {' '.join(packages)} first: this machine has no apt-get.")
    # RUNLEVEL keeps the packages' own services from being started on this machine.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        subprocess.run(["apt-get", "update", "-qq"], env=environment, check=False)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise LabError(f"apt-get could not install {' '.join(packages)}: {last[0]}")

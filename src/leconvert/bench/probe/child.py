"""The probe in a process of its own, so that a conversion's memory and threads do not count."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from leconvert.support.errors import ProbeError


def probe_result(root: Path, *, duration_s: float, seed: int = 0) -> dict[str, Any]:
    """Measure how fast a v3.0 dataset loads through ``EpisodeStream``.

    Returns:
        The probe's document, as ``docs/formats/probe-result.schema.json`` describes it.
    """
    with tempfile.TemporaryDirectory(prefix="leconvert-probe-") as folder:
        ended = subprocess.run(
            [
                sys.executable, "-P", "-m", "leconvert", "probe", "run", "--json",
                f"--root={root}", f"--duration-s={duration_s}", f"--seed={seed}",
                f"--out-dir={folder}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
    try:
        document: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        document = {}
    if "samples_per_s" not in document:
        said = document.get("message") or (ended.stderr.strip().splitlines() or ["no word"])[-1]
        raise ProbeError(
            f"{root} could not be measured: {said}",
            path=str(root),
            next_step=document.get("next_step")
            or f"Try `leconvert probe run --root {shlex.quote(str(root))}`.",
        )
    return document

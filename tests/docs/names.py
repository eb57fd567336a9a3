"""What the Python of some pages takes for granted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["NAMES"]


def _engines() -> dict[str, Any]:
    from leconvert.run.engines.local import LocalEngine

    return {"DATASET": Path("DATASET"), "RESULT": Path("by-my-engine"), "MyEngine": LocalEngine}


def _hub() -> dict[str, Any]:
    return {"work_dir": Path("outline-work").resolve()}


def _loading() -> dict[str, Any]:
    import torch

    return {
        "torch": torch,
        "epochs": 1,
        "policy": len,
        "url": "my_dataset",
        "node": 0,
        "local_rank": 0,
    }


def _resampling() -> dict[str, Any]:
    import torch

    times = torch.arange(8, dtype=torch.float64).repeat(2, 1) / 30
    turn = torch.nn.functional.normalize(torch.randn(2, 8, 4), dim=-1)
    return {
        "times": times,
        "action": torch.randn(2, 8, 7),
        "pose": torch.cat([torch.randn(2, 8, 3), turn], dim=-1),
        "lengths": torch.tensor([8, 5]),
    }


NAMES: dict[str, Callable[[], dict[str, Any]]] = {
    "docs/engines.md": _engines,
    "docs/hub.md": _hub,
    "docs/loading.md": _loading,
    "docs/resampling.md": _resampling,
}

"""Run ``leconvert probe train-lerobot`` without the policy's own work, and note its samples.

    python lerobot_trained.py FOLDER ARGUMENTS OF lerobot-train

Each rank writes the numbers of the frames of every step, and what a picture holds, to a file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lerobot.scripts import lerobot_train

from leconvert.cli.main import main

seen: list[dict[str, Any]] = []


def note(
    tracker: Any, _: Any, batch: Any, *others: Any, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Stand where the policy would be updated."""
    pictures = batch["observation.images.top"]
    seen.append(
        {
            "index": batch["index"].tolist(),
            "dtype": str(pictures.dtype),
            "mean": float(pictures.mean()),
            "action": list(batch["action"].shape),
        }
    )
    tracker.loss = 0.0
    return tracker, {}


if __name__ == "__main__":
    lerobot_train.update_policy = note
    code = main(["probe", "train-lerobot", "--", *sys.argv[2:]])
    from accelerate.state import PartialState

    path = Path(sys.argv[1]) / f"rank-{PartialState().process_index}.json"
    path.write_text(json.dumps(seen))
    sys.exit(code)

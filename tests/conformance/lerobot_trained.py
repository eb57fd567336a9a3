"""Run ``leconvert probe train-lerobot``, and note its samples.

    python lerobot_trained.py FOLDER WORK OPTIONS -- ARGUMENTS OF lerobot-train

Each rank writes the numbers of the frames of every step, and what a picture holds, to a file. With
WORK ``none`` the policy's own work is left out, with ``all`` it is done, and its loss is noted too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lerobot.scripts import lerobot_train

from leconvert.cli.main import main

seen: list[dict[str, Any]] = []
update_policy = lerobot_train.update_policy
# Later the arguments are LeRobot's.
folder, work, *arguments = sys.argv[1:]


def note(
    tracker: Any, policy: Any, batch: Any, *others: Any, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Stand where the policy is updated."""
    pictures = batch["observation.images.top"]
    seen.append(
        {
            "index": batch["index"].tolist(),
            "dtype": str(pictures.dtype),
            "mean": float(pictures.mean()),
            "action": list(batch["action"].shape),
        }
    )
    if work == "all":
        result = update_policy(tracker, policy, batch, *others, **options)
        seen[-1]["loss"] = float(tracker.loss.val)
        return result
    tracker.loss = 0.0
    return tracker, {}


if __name__ == "__main__":
    lerobot_train.update_policy = note
    code = main(["probe", "train-lerobot", *arguments])
    from accelerate.state import PartialState

    path = Path(folder) / f"rank-{PartialState().process_index}.json"
    path.write_text(json.dumps(seen))
    sys.exit(code)

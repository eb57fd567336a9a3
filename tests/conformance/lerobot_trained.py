"""Run ``leconvert probe train-lerobot``, and note its samples and losses.

    python lerobot_trained.py FOLDER OPTIONS -- ARGUMENTS OF lerobot-train

Each rank writes the numbers of the frames of every step, and its loss, to a file.
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
folder, *arguments = sys.argv[1:]


def note(tracker: Any, policy: Any, batch: Any, *others: Any, **options: Any) -> Any:
    """Stand where the policy is updated."""
    result = update_policy(tracker, policy, batch, *others, **options)
    seen.append({"index": batch["index"].tolist(), "loss": float(tracker.loss.val)})
    return result


if __name__ == "__main__":
    lerobot_train.update_policy = note
    code = main(["probe", "train-lerobot", *arguments])
    from accelerate.state import PartialState

    path = Path(folder) / f"rank-{PartialState().process_index}.json"
    path.write_text(json.dumps(seen))
    sys.exit(code)

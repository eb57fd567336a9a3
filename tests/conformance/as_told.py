"""Convert as a user who follows each message to the letter, and see whether LeRobot opens it."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leconvert.cli import main

__all__ = ["Ending", "convert_as_told", "why_it_does_not_load"]

_MOST_TRIES = 5
# How a conversion that met something may end: never as a bug (1).
_CODES = {0, 2, 3, 4, 5}


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended for a user who did what was said.

    Attributes:
        code: The last exit code.
        flags: What was given in the end.
        tries: How many conversions it took.
        said: What was said last, where it did not end well.
        record: The report of a conversion that ended well.
        trouble: What should not be; None where nothing was.
    """

    code: int
    flags: tuple[str, ...]
    tries: int
    said: str
    record: dict[str, Any]
    trouble: str | None = None


def convert_as_told(root: Path, result: Path) -> Ending:
    """Convert, and give the first remedy of each error until nothing more helps."""
    flags: dict[str, None] = {}
    code, tries = 0, 0

    def ending(trouble: str | None = None, *, said: str = "", **record: Any) -> Ending:
        return Ending(code, tuple(flags), tries, said, record, trouble)

    while tries < _MOST_TRIES:
        tries += 1
        words = [word for flag in flags for word in shlex.split(flag)]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["convert", "--root", str(root), "--output", str(result), "--json", *words])
        said = err.getvalue()

        if code not in _CODES or "Traceback" in said:
            return ending(f"it ended with {code}: {said[-600:]}", said=said)
        record = json.loads(out.getvalue())
        if code == 0:
            return ending(**record)
        message, next_step = record["message"], record.get("next_step") or ""
        said = f"{message} {next_step}"
        if not next_step:
            return ending(f"no next step: {message}", said=said)
        errors = [found for found in record.get("findings", ()) if found["severity"] == "error"]
        if not errors or not all(error["remedies"] for error in errors):
            return ending(said=said)
        new = [error["remedies"][0]["flag"] for error in errors]
        if set(new) <= set(flags):
            return ending(f"in a circle: {list(flags)}, then {new}", said=said)
        if f"un the command again with {' '.join(dict.fromkeys(new))};" not in next_step:
            return ending(f"the next step is not the gentlest: {next_step}", said=said)
        flags.update(dict.fromkeys(new))
    return ending(f"no end after {_MOST_TRIES} tries", said=said)


def why_it_does_not_load(
    root: Path, num_episodes: int, *, backend: str = "pyav", all_frames: bool = False
) -> str | None:
    """Load items, a batch and the features of a policy through LeRobot; None if it works.

    Args:
        root: The result.
        num_episodes: How many it is to have.
        backend: LeRobot's name of the decoder.
        all_frames: Every item instead of the first, a middle and the last one of each episode.
    """
    from lerobot.datasets import LeRobotDataset
    from lerobot.utils.feature_utils import dataset_to_policy_features
    from torch.utils.data import default_collate

    try:
        items = []
        dataset = LeRobotDataset("ours/told", root=root, video_backend=backend)
        for episode in dataset.meta.episodes:
            first, stop = episode["dataset_from_index"], episode["dataset_to_index"]
            wanted: Iterable[int] = {first, (first + stop) // 2, stop - 1}
            for index in range(first, stop) if all_frames else wanted:
                item = dataset[index]
                assert int(item["index"]) == index
                assert int(item["episode_index"]) == episode["episode_index"]
                assert isinstance(item["task"], str)
                items.append(item)
        assert dataset.meta.total_episodes == num_episodes
        default_collate(items)
        dataset_to_policy_features(dataset.meta.features)
        lacking = {*dataset.meta.camera_keys} - {*dataset.meta.stats}
        assert not lacking, f"no statistics of {lacking}, which ImageNet's may replace"
    except Exception as error:  # noqa: BLE001 - whatever LeRobot says to it
        return f"LeRobot: {type(error).__name__}: {str(error)[:300]}"
    return None

"""The log of a training: a JSON object a line, written by rank 0."""

from __future__ import annotations

import json
from pathlib import Path

from leconvert.errors import StorageError
from leconvert.workdir.durable import write_durably

__all__ = ["TrainingLog"]

_NAME = "train.jsonl"


class TrainingLog:
    """The file ``train.jsonl`` in a run's folder.

    Args:
        out_dir: The folder; made with the first line.
    """

    def __init__(self, out_dir: Path) -> None:
        self.path = out_dir / _NAME

    def append(self, **facts: float | None) -> None:
        """Write one line.

        Raises:
            StorageError: It cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as log:
                print(json.dumps(facts), file=log)
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror}.", path=str(self.path)) from error

    def rows(self) -> list[dict[str, float | None]]:
        """Return all whole lines; a crash may have left half of one at the end."""
        if not self.path.exists():
            return []
        lines = self.path.read_text("utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def forget_after(self, step: int) -> None:
        """Take out what came after a checkpoint's step, since it will come again."""
        if not self.path.exists():
            return
        kept = [row for row in self.rows() if (row["step"] or 0) <= step]
        write_durably(self.path, "".join(f"{json.dumps(row)}\n" for row in kept).encode())

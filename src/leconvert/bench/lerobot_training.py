"""LeRobot's own training program, with an `EpisodeStream` in place of its streaming dataset.

``lerobot-train`` knows two classes of datasets and makes torch's `DataLoader` of either, which
accelerate then divides among ranks. Two names are replaced while it runs. The streaming class
becomes a stream of the same dataset. The method of accelerate that takes a `DataLoader` returns a
`StreamLoader` if the dataset is a stream, which the ranks divide themselves. Everything else is
LeRobot's: options, policies, processors, checkpoints.

With ``also`` the stream is a `MixedStream` of LeRobot's dataset and others.

LeRobot's checkpoints hold the step, the batch size and the number of processes. The position of all
ranks in the order follows from these, so ``--resume=true`` continues with the sample that would
have come next, with any number of ranks.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from leconvert.dataset.formats.v3 import INFO_PATH
from leconvert.loading import EpisodeStream, MixedStream, SampleStream, StreamLoader
from leconvert.support.errors import InstallationError, UsageError
from leconvert.support.extras import install_command

_NEEDED = "lerobot[training]>=0.6.1"
# Arguments of LeRobot's class that every stream takes, with the same defaults.
_SHARED = ("delta_timestamps", "image_transforms", "tolerance_s", "return_uint8")


def train_with_lerobot(arguments: Sequence[str], *, also: Sequence[tuple[str, float]] = ()) -> None:
    """Run ``lerobot-train`` with its own arguments on an `EpisodeStream`.

    Args:
        arguments: LeRobot's arguments.
        also: Datasets to mix with LeRobot's, each with its share of the samples, between 0 and 1;
            LeRobot's dataset has the rest.

    Raises:
        UsageError: The shares leave nothing for LeRobot's dataset, or it is missing.
        InstallationError: LeRobot's training does not load.
    """
    if any(share <= 0 for _, share in also) or sum(share for _, share in also) >= 1:
        raise UsageError(
            "Each share of --also must be above 0, and all together must be below 1. The "
            "dataset of --dataset.root gets the rest."
        )
    try:
        program = importlib.import_module("lerobot.scripts.lerobot_train")
        factory = importlib.import_module("lerobot.datasets.factory")
        accelerate = importlib.import_module("accelerate")
    except ImportError as error:
        raise InstallationError(
            f"LeRobot's training program cannot be imported: {error}.",
            next_step=f"Run `{install_command(_NEEDED)}`.",
        ) from error
    run = _Run(program, also)
    prepare = accelerate.Accelerator.prepare_data_loader

    def prepare_data_loader(accelerator: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(loader.dataset, SampleStream):
            return run.make_loader(loader)
        return prepare(accelerator, loader, *args, **kwargs)

    words = ["lerobot-train", *arguments, "--dataset.streaming=true"]
    with (
        patch.object(sys, "argv", words),
        patch.object(program, "make_train_eval_datasets", run.make_datasets),
        patch.object(factory, "StreamingLeRobotDataset", run.open_stream),
        patch.object(accelerate.Accelerator, "prepare_data_loader", prepare_data_loader),
    ):
        program.main()


class _Run:
    """One training: the functions that LeRobot calls on the way."""

    def __init__(self, program: Any, also: Sequence[tuple[str, float]]) -> None:
        self._program = program
        self._also = also
        self._make_datasets = program.make_train_eval_datasets
        self._config: Any = None

    def make_datasets(self, config: Any) -> Any:
        """Make the datasets of a configuration, as LeRobot does."""
        root = config.dataset.root
        if root is not None and not (Path(root) / INFO_PATH).is_file():
            # LeRobot would download --dataset.repo_id into it, the tables first and the rest later.
            raise UsageError(
                f"{root} (--dataset.root) is not a dataset: it has no {INFO_PATH}.",
                path=str(root),
                next_step="Give the folder of a v3.0 dataset. Without --dataset.root, the "
                "dataset of --dataset.repo_id is streamed.",
            )
        if config.dataset.eval_split:
            raise UsageError(
                "--dataset.eval_split does not work with a stream.",
                next_step="Split the dataset first: leconvert split DATASET --output-dir DIR "
                "--into train=0.9,val=0.1.",
            )
        self._config = config
        return self._make_datasets(config)

    def open_stream(
        self,
        repo_id: str,
        *,
        root: str | Path | None = None,
        episodes: list[int] | None = None,
        revision: str | None = None,
        repo_type: str = "dataset",
        **given: Any,
    ) -> SampleStream:
        """Open the dataset of LeRobot's streaming class, and mix in the others."""
        from lerobot.utils.constants import HF_LEROBOT_HOME

        place = Path(root) if root is not None else Path(HF_LEROBOT_HOME) / repo_id
        is_local = root is not None or place.is_dir()
        seed = self._config.seed or 0
        # Other arguments of LeRobot's class mean nothing here.
        options = {name: given[name] for name in _SHARED if name in given}
        of_next = {name: value for name, value in given.items() if name.startswith("streaming_")}
        stream = EpisodeStream(
            place if is_local else f"hf://{repo_type}s/{repo_id}",
            revision=None if is_local or repo_type == "bucket" else revision,
            episodes=episodes,
            seed=seed,
            repeat=True,
            **options,
            **of_next,
        )
        if stream.commit is not None:
            # Checkpoints hold the options, so --resume=true reads the same commit.
            self._config.dataset.revision = stream.commit
        if not self._also:
            return stream
        rest = 1 - sum(share for _, share in self._also)
        return MixedStream([(stream, rest), *self._also], seed=seed, repeat=True, **options)

    def make_loader(self, loader: Any) -> StreamLoader:
        """Make the loader of a stream with the settings of torch's loader."""
        from torch.utils.data import default_collate

        made = StreamLoader(
            loader.dataset,
            batch_size=loader.batch_size,
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            pin_memory=loader.pin_memory,
            collate_fn=None if loader.collate_fn is default_collate else loader.collate_fn,
        )
        if self._config.resume:
            from lerobot.common.train_utils import load_training_step
            from lerobot.utils.constants import TRAINING_STATE_DIR

            checkpoint = self._config.checkpoint_path
            step = load_training_step(checkpoint / TRAINING_STATE_DIR)
            ranks = self._program.load_training_num_processes(checkpoint)
            batch_size = self._program.load_training_batch_size(checkpoint)
            made.start_at(int(step * ranks * batch_size))
        return made

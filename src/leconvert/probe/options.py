"""What a run of the probe was asked for, checked and with every default filled in."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from leconvert.errors import UsageError
from leconvert.home import lerobot_home
from leconvert.probe.measure import TimingPlan
from leconvert.probe.modes import MODES, Mode
from leconvert.probe.scenarios import SCENARIOS, SOURCES

__all__ = ["LOADERS", "Loader", "RunOptions", "dataset_place"]

Loader = Literal["map", "stream", "stream-lerobot"]

LOADERS: tuple[Loader, ...] = ("map", "stream", "stream-lerobot")
"""LeRobot's map-style dataset, our stream, and LeRobot's own streaming dataset."""

_MOST_DEFAULT_WORKERS = 4
_AT_LEAST = {
    "batch_size": 1,
    "num_workers": 0,
    "prefetch_factor": 1,
    "episode_pool_size": 1,
    "max_buffer_input_shards": 1,
    "video_decoder_cache_size": 1,
    "video_fetch_workers": 0,
    "num_batches": 1,
    "warmup_batches": 0,
    "probe_samples": 0,
    "probe_warmup": 0,
    "rank": 0,
    "world_size": 1,
    "num_partitions": 1,
    "partition_index": 0,
    "max_episodes": 1,
    "seed": 0,
    "check": 0,
}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of one run; what is None is left to the loader, or is filled by `resolved`.

    Attributes:
        root: The dataset: a folder, or a URL that fsspec opens, such as ``hf://datasets/ORG/NAME``.
        repo_id: The dataset's name on the Hub.
        data_files_root: Where ``data/`` and ``videos/`` are, if not below ``root``.
        revision: Branch, tag or commit on the Hub.
        source: A label for where the bytes come from; it changes nothing without ``no_local``.
        no_local: Read from the Hub or the bucket even where a local copy is.
        scenario: A named set-up; fills in loader, source and workers.
        loader: What is measured.
        mode: What a sample is; see `leconvert.probe.modes`.
        deltas: A JSON file of windows, instead of the mode's.
        batch_size: Samples of a batch.
        num_workers: Worker processes of the loader; 0 loads in this process.
        prefetch_factor: Batches that each worker prepares ahead.
        episode_pool_size: Episodes that ``stream`` mixes; frames that ``stream-lerobot`` buffers.
        max_buffer_input_shards: Files that ``stream-lerobot`` reads side by side, at most.
        video_decoder_cache_size: Open decoders of a worker, at most.
        video_fetch_workers: Threads of a worker that fetch and decode ahead (``stream``).
        num_batches: Batches that are timed, at most.
        warmup_batches: Batches before the timing.
        duration_s: Seconds that are timed, at least.
        probe_samples: Samples of the pass in this process, after the timing; 0 for no such pass.
        probe_warmup: Samples before those.
        device: Where batches go: ``cpu``, ``cuda`` or ``cuda:N``.
        decode_device: What decodes: ``cpu``, ``cuda`` or ``cuda:N``.
        rank: This process among those that share the dataset.
        world_size: How many share it.
        num_partitions: Nodes that share the dataset by whole files.
        partition_index: This node.
        max_episodes: Use the first so many episodes.
        seed: Of the order of samples.
        check: Samples that are compared with the map-style loader's.
        with_limit: Measure the decode limit as well.
        limit_duration_s: Seconds of each stretch of that measurement.
    """

    root: str | None = None
    repo_id: str | None = None
    data_files_root: str | None = None
    revision: str | None = None
    source: str | None = None
    no_local: bool = False
    scenario: str | None = None
    loader: Loader | None = None
    mode: Mode = "single"
    deltas: str | None = None
    batch_size: int = 16
    num_workers: int | None = None
    prefetch_factor: int = 2
    episode_pool_size: int | None = None
    max_buffer_input_shards: int | None = None
    video_decoder_cache_size: int | None = None
    video_fetch_workers: int | None = None
    num_batches: int | None = None
    warmup_batches: int = 10
    duration_s: float = 60.0
    probe_samples: int = 100
    probe_warmup: int = 10
    device: str = "cpu"
    decode_device: str = "cpu"
    rank: int | None = None
    world_size: int | None = None
    num_partitions: int = 1
    partition_index: int = 0
    max_episodes: int | None = None
    seed: int = 0
    check: int = 0
    with_limit: bool = False
    limit_duration_s: float = 5.0

    def __post_init__(self) -> None:
        if self.root is None and self.repo_id is None:
            raise UsageError(
                "No dataset is given.", next_step="Pass --root DIR|URL, or --repo-id ORG/NAME."
            )
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{_flag(name)} must be at least {least}, not {value}.")
        for name in ("duration_s", "limit_duration_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{_flag(name)} must be more than 0.")
        for name, known in (
            ("loader", LOADERS), ("mode", MODES), ("source", SOURCES), ("scenario", SCENARIOS)
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value not in known:
                raise UsageError(
                    f"There is no {name} {value}.", next_step=f"Choose among {', '.join(known)}."
                )
        for name in ("device", "decode_device"):
            if getattr(self, name).partition(":")[0] not in {"cpu", "cuda"}:
                raise UsageError(f"{_flag(name)} is cpu, cuda or cuda:N.")

        # No scenario names this loader, and none is the default.
        if self.max_buffer_input_shards is not None and self.loader != "stream-lerobot":
            raise UsageError(
                "Only the loader stream-lerobot knows --max-buffer-input-shards.",
                next_step="Leave it out, or choose --loader stream-lerobot.",
            )

    @property
    def read_from(self) -> str:
        """Where data and videos are really read from, whatever the label says.

        ``local``, ``hub`` or ``bucket``, else the scheme of the URL. Of options that are `placed`.
        """
        if self.loader == "map":  # LeRobot downloads what is on the Hub, and reads the copy
            return "local"
        place = str(self.data_files_root or self.root)
        return _label_of(place) or place.partition("://")[0]

    @property
    def timing(self) -> TimingPlan:
        """What is timed."""
        return TimingPlan(self.warmup_batches, self.duration_s, self.num_batches)

    @property
    def mode_name(self) -> str:
        """The mode as results name it: ``deltas`` where a file gave the windows."""
        return self.mode if self.deltas is None else "deltas"

    def placed(self) -> RunOptions:
        """Return these options with loader, source and root filled in.

        Raises:
            UsageError: The scenario's files cannot be found.
        """
        scenario = SCENARIOS[self.scenario] if self.scenario else None
        loader = self.loader or (scenario.loader if scenario else "stream")
        wanted = self.source or (scenario.source if scenario else None)
        if self.no_local:
            wanted = wanted or (None if self.root else "hub")
        insists = scenario is not None or self.no_local
        root = dataset_place(self.root, self.repo_id, wanted if insists else None)
        placed = replace(self, loader=loader, source=wanted or _label_of(root), root=root)
        if self.no_local and placed.read_from == "local":
            raise UsageError(
                "--no-local is given, but "
                + (
                    "the loader map reads a local copy, which it downloads."
                    if loader == "map"
                    else f"{placed.data_files_root or root} is local."
                ),
                next_step="Give --repo-id with --source hub or bucket, and the loader stream.",
            )
        return placed

    def resolved(self, *, cores: int, cameras: int, rank: int, world_size: int) -> RunOptions:
        """Return these options with workers and ranks filled in, once the dataset is known."""
        workers = self.num_workers
        if workers is None:
            scenario = SCENARIOS[self.scenario] if self.scenario else None
            workers = (
                scenario.num_workers(cores=cores, cameras=cameras)
                if scenario
                else min(cores, _MOST_DEFAULT_WORKERS)
            )
        return replace(self, num_workers=workers, rank=rank, world_size=world_size)

    def as_record(self) -> dict[str, Any]:
        """Return every option as a JSON-serialisable mapping."""
        return {**asdict(self), "mode": self.mode_name}


def dataset_place(
    root: str | None,
    repo_id: str | None,
    source: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Return the folder or URL of a dataset.

    Args:
        root: What was given; it wins.
        repo_id: Else this: the local copy where there is one, or the Hub.
        source: Where a scenario wants it from; None for the nearest.
        environment: The process's environment.

    Raises:
        UsageError: Neither is given, or the wanted copy is not on this machine.
    """
    if root is not None:
        return root if "://" in root else str(Path(root).resolve())
    if repo_id is None:
        raise UsageError("No dataset is given.", next_step="Pass --root DIR, or --repo-id NAME.")
    if source in {"bucket", "warmed_bucket"}:
        return f"hf://buckets/{repo_id}"
    folder = lerobot_home(environment) / repo_id
    if source != "hub" and folder.is_dir():
        return str(folder)
    if source == "local":
        raise UsageError(
            f"{repo_id} is not on this machine: {folder} does not exist.",
            path=str(folder),
            next_step=f"Download it first: hf download --repo-type dataset {shlex.quote(repo_id)} "
            f"--local-dir {shlex.quote(str(folder))}",
        )
    return f"hf://datasets/{repo_id}"


def _label_of(root: str) -> str | None:
    if root.startswith("hf://"):
        return "bucket" if root.startswith("hf://buckets/") else "hub"
    return None if "://" in root and not root.startswith("file://") else "local"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"

"""The options of a benchmark, checked and with every default filled in."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from leconvert.support.errors import UsageError
from leconvert.support.flags import flag, some_seconds, whole
from leconvert.support.machine import lerobot_home
from leconvert.support.text import record_without_credentials
from leconvert.support.values import dataclass
from leconvert.transfer.names import not_downloaded

if TYPE_CHECKING:
    from leconvert.loading import Method


Mode = Literal["single", "sarm", "sarm-action"]
Deltas = Mapping[str, tuple[float, ...]]

MODES: tuple[Mode, ...] = get_args(Mode)
"""The named modes; a result says ``deltas`` if a file gave the windows."""

# SARM, a reward model for long tasks, looks at eight frames that are one second apart.
_SARM_STEPS = 8
_ACTION = "action"


def mode_deltas(mode: Mode, cameras: Sequence[str], features: Sequence[str], fps: float) -> Deltas:
    """Return the window of each feature in seconds from the sample's own frame.

    Raises:
        UsageError: The mode needs a feature that the dataset lacks.
    """
    if mode == "single":
        return {}
    actions = [key for key in features if key == _ACTION or key.startswith(f"{_ACTION}.")]
    keys = [*(cameras if mode == "sarm" else ()), *actions]
    if not keys:
        raise UsageError(
            f"--mode {mode} needs a feature `action`, which this dataset does not have.",
            next_step="Choose --mode single, or give windows with --deltas FILE.",
        )
    return dict.fromkeys(keys, tuple(round(step * fps) / fps for step in range(_SARM_STEPS)))


def read_deltas(path: Path, features: Sequence[str]) -> Deltas:
    """Read windows from a JSON file: features to lists of seconds, as ``delta_timestamps``.

    Raises:
        UsageError: The file is missing or wrong, or names another feature.
    """

    def bad(what: str) -> UsageError:
        return UsageError(
            f"{path}: {what}.",
            path=str(path),
            next_step='Write {"FEATURE": [SECONDS, …], …}, for example {"action": [0, 0.1]}.',
        )

    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise bad(error.strerror or str(error)) from error
    except ValueError as error:
        raise bad(f"it is not JSON ({error})") from error
    if not isinstance(content, dict) or not content:
        raise bad("it holds no features")
    deltas: dict[str, tuple[float, ...]] = {}
    for key, seconds in content.items():
        if key not in features:
            raise bad(f"the dataset has no feature {key}; it has {', '.join(features)}")
        if not isinstance(seconds, list) or not seconds or not all(map(_is_time, seconds)):
            raise bad(f"the window of {key} is not a list of seconds")
        deltas[key] = tuple(float(second) for second in seconds)
    return deltas


def frames_per_sample(deltas: Deltas, cameras: Sequence[str]) -> int:
    """Return the number of camera frames in a sample; repeated ones at an episode's ends count."""
    return sum(len(deltas.get(camera, (0.0,))) for camera in cameras)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that one job requests; all but ``nodes`` are per node."""

    nodes: int = flag(1, "number of nodes, each with one process", "N")
    cpus: int = flag(16, "cores of each node", "N")
    mem: str = flag("64G", "memory of each node, such as 64G", "SIZE")
    time: str = flag("00:30:00", "the longest run time", "HH:MM:SS")
    gpus: int = flag(0, "GPUs of each node", "N")


Source = Literal["local", "hub", "bucket", "warmed_bucket"]

SOURCES: tuple[Source, ...] = get_args(Source)
"""The labels in a result for where its bytes came from."""

BUCKETS = frozenset({"bucket", "warmed_bucket"})
"""The labels for bytes from a bucket."""

_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named set-up of the benchmark: loader, source, nodes and cores.

    It only fills in options that the command line leaves open. Its resources are requested from a
    scheduler; ``probe run --scenario`` on this machine takes loader, source and workers from it.
    """

    name: str  # the value of ``--scenario``; it is part of the result's file name
    loader: Literal["map", "stream"]  # ``map`` or ``stream``
    source: Source  # the label of where the files are
    resources: Resources = field(default_factory=Resources)  # the resources of its job
    # Loading workers of a process. None for a core for every camera of every worker, since a
    # map-style sample decodes all cameras in parallel.
    workers: int | None = _WORKERS


SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        scenario.name: scenario
        for scenario in (
            Scenario("mmap_local", "map", "local"),
            Scenario(
                "mmap_local_maxworkers", "map", "local",
                resources=Resources(cpus=48, mem="192G"), workers=None,
            ),
            Scenario("stream_hub", "stream", "hub", resources=Resources(time="01:00:00")),
            Scenario("stream_bucket", "stream", "bucket", resources=Resources(time="01:00:00")),
            Scenario(
                "stream_bucket_2node", "stream", "bucket",
                resources=Resources(nodes=2, time="01:00:00"),
            ),
        )
    }
)  # fmt: skip
"""Every scenario by name, in the order in which `probe submit` sends them."""


def parse_scenarios(text: str) -> tuple[Scenario, ...]:
    """Return the scenarios of a list such as ``mmap_local,stream_hub``, in its order.

    Raises:
        UsageError: A scenario is unknown or named twice, or none is named.
    """
    # Hyphens are accepted, as everywhere on the command line.
    names = [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown or not names:
        said = (
            f"There is no scenario {', '.join(unknown)}." if unknown else ("No scenario is given.")
        )
        raise UsageError(said, next_step=f"Choose among {', '.join(SCENARIOS)}.")
    if len(set(names)) < len(names):
        raise UsageError(f"A scenario is named twice in {text}.")
    return tuple(SCENARIOS[name] for name in names)


Loader = Literal["map", "stream", "stream-lerobot"]

LOADERS: tuple[Loader, ...] = get_args(Loader)
"""LeRobot's map-style dataset, leconvert's stream, and LeRobot's own streaming dataset."""

_MOST_DEFAULT_WORKERS = 4
_DEVICE = re.compile(r"cpu|cuda(:\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of one run; None leaves a choice to the loader, or `resolved` fills it in."""

    root: str | None = flag(
        None,
        "the dataset's folder or URL, such as hf://datasets/ORG/NAME or "
        "hf://buckets/ORG/NAME (default: the local copy of --repo-id, otherwise the "
        "Hub)",
        "DIR|URL",
        names=("--local-root", "--root"),
    )
    repo_id: str | None = flag(None, "the dataset's name on the Hub", "ORG/NAME")
    data_files_root: str | None = flag(
        None, "the folder or URL of data/ and videos/, if they are not beside meta/", "DIR|URL"
    )
    revision: str | None = flag(None, "branch, tag or commit on the Hub", "REV")
    source: str | None = flag(
        None,
        "a label for the result: local, hub, bucket or warmed_bucket (a prewarmed bucket); without "
        "--scenario the label does not change what is read; the field read_from of the result "
        "gives the real location",
        "LABEL",
    )
    scenario: str | None = flag(
        None,
        "a named set-up, which sets loader, source and workers: mmap_local, "
        "mmap_local_maxworkers, stream_hub, stream_bucket or stream_bucket_2node",
        "NAME",
    )
    loader: Loader | None = flag(
        None, "the loader: stream (default), map or stream-lerobot", "NAME"
    )
    mode: Mode = flag(
        "single",
        "kind of a sample; single: one frame; sarm: eight frames of every camera and eight "
        "actions, one second apart; sarm-action: the eight actions, and one frame of every camera "
        "(default: single)",
        "NAME",
    )
    deltas: str | None = flag(
        None, "a JSON file with time windows: a list of seconds for each feature", "FILE"
    )
    batch_size: int = flag(16, "samples in a batch (default: 16)", "N", whole(1))
    num_workers: int | None = flag(
        None,
        "number of loading processes; 0: load in this process (default: the cores, at most 4)",
        "N",
        whole(0),
    )
    prefetch_factor: int = flag(
        2, "batches that each worker prepares ahead (default: 2)", "N", whole(1)
    )
    episode_pool_size: int | None = flag(
        None,
        "number of episodes that stream mixes, or of frames that stream-lerobot buffers",
        "N",
        whole(1),
        names=("--buffer-size", "--episode-pool-size"),
    )
    max_buffer_input_shards: int | None = flag(
        None,
        "number of files that stream-lerobot reads side by side; other loaders ignore it",
        "N",
        whole(1),
        names=("--max-num-shards", "--max-buffer-input-shards"),
    )
    video_decoder_cache_size: int | None = flag(
        None, "maximum number of open decoders in each worker", "N", whole(1)
    )
    video_fetch_workers: int | None = flag(
        None, "threads of each worker that fetch and decode ahead (only stream)", "N", whole(0)
    )
    num_batches: int | None = flag(None, "maximum number of timed batches", "N", whole(1))
    warmup_batches: int = flag(
        10, "untimed batches before the measurement (default: 10)", "N", whole(0)
    )
    duration_s: float = flag(
        60.0, "minimum seconds of the measurement (default: 60)", "S", some_seconds
    )
    probe_samples: int = flag(
        100,
        "samples of an extra pass that measures reading and decoding separately (default: 100)",
        "N",
        whole(0),
    )
    probe_warmup: int = flag(
        10, "untimed samples before --probe-samples (default: 10)", "N", whole(0)
    )
    device: str = flag("cpu", "the device for batches: cpu (default) or cuda", "DEVICE")
    decode_device: str = flag(
        "cpu",
        "the device to decode on: cpu (default), or cuda with NVDEC (only stream)",
        "DEVICE",
        names=("--video-decode-device", "--decode-device"),
    )
    rank: int | None = flag(
        None, "number of this process, counted from 0 (default: from the launcher)", "N", whole(0)
    )
    world_size: int | None = flag(
        None, "number of all processes (default: from the launcher)", "N", whole(1)
    )
    num_partitions: int = flag(
        1,
        "number of nodes that share the dataset; each file belongs to one node (default: 1)",
        "N",
        whole(1),
    )
    partition_index: int = flag(0, "number of this node, counted from 0", "I", whole(0))
    max_episodes: int | None = flag(None, "use the first N episodes only", "N", whole(1))
    tolerance_s: float = flag(
        1e-4,
        "maximum distance of windows from multiples of 1/fps, in seconds (default: 0.0001)",
        "S",
        some_seconds,
    )
    seed: int = flag(0, "seed of the sample order (default: 0)", "N", whole(0))
    check: int = flag(
        0, "compare N samples with LeRobot's map-style loader, frame by frame", "N", whole(0)
    )
    with_limit: bool = flag(
        False,
        "also measure the decode limit (default: take it from the result of `probe limit` "
        "in --out-dir)",
    )
    limit_duration_s: float = flag(
        5.0, "seconds of each measurement of --with-limit (default: 5)", "S", some_seconds
    )

    def __post_init__(self) -> None:
        if self.root is None and self.repo_id is None:
            raise UsageError(
                "No dataset is given.", next_step="Give --root DIR|URL, or --repo-id ORG/NAME."
            )
        for name, known in (
            ("loader", LOADERS), ("mode", MODES), ("source", SOURCES), ("scenario", SCENARIOS)
        ):  # fmt: skip
            _check_known(name, getattr(self, name), known)
        if not all(map(_DEVICE.fullmatch, (self.device, self.decode_device))):
            raise UsageError("--device and --decode-device must be cpu, cuda or cuda:N.")

    @property
    def read_from(self) -> str:
        """The place that data and videos are really read from, whatever the label says.

        It is ``local``, ``hub`` or ``bucket``, else the scheme of the URL. The options must be
        `placed`.
        """
        if self.loader == "map":  # LeRobot downloads from the Hub, and reads the copy
            return "local"
        place = str(self.data_files_root or self.root)
        return _label_of(place) or place.partition("://")[0]

    @property
    def mode_name(self) -> str:
        """The mode in results: ``deltas`` if a file gave the windows."""
        return self.mode if self.deltas is None else "deltas"

    def placed(self) -> RunOptions:
        """Return these options with loader, source and root filled in."""
        scenario = SCENARIOS[self.scenario] if self.scenario else None
        loader = self.loader or (scenario.loader if scenario else "stream")
        wanted = self.source or (scenario.source if scenario else None)
        of_meta = wanted if scenario else None
        if of_meta in BUCKETS and self.data_files_root is not None:
            of_meta = "hub"  # only data/ and videos/ are in the bucket
        root = dataset_place(self.root, self.repo_id, of_meta)
        return replace(self, loader=loader, source=wanted or _label_of(root), root=root)

    def resolved(self, *, cores: int, cameras: int, rank: int, world_size: int) -> RunOptions:
        """Return these options with workers and ranks filled in, once the dataset is known."""
        workers = self.num_workers
        if workers is None and self.scenario:
            workers = SCENARIOS[self.scenario].workers or max(1, cores // max(1, cameras))
        elif workers is None:
            workers = min(cores, _MOST_DEFAULT_WORKERS)
        return replace(self, num_workers=workers, rank=rank, world_size=world_size)

    def as_record(self) -> dict[str, Any]:
        """Return every option as a JSON-serialisable mapping."""
        return record_without_credentials({**asdict(self), "mode": self.mode_name})


def dataset_place(
    root: str | None,
    repo_id: str | None,
    source: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Return the folder or URL of a dataset.

    Raises:
        UsageError: No dataset is given, or the local copy does not exist.
    """
    if root is not None:
        return root if "://" in root else str(Path(root).resolve())
    if repo_id is None:
        raise UsageError("No dataset is given.", next_step="Give --root DIR, or --repo-id NAME.")
    if source in BUCKETS:
        return f"hf://buckets/{repo_id}"
    folder = lerobot_home(environment) / repo_id
    if source != "hub" and folder.is_dir():
        return str(folder)
    if source == "local":
        raise not_downloaded(repo_id, lerobot_home(environment))
    return f"hf://datasets/{repo_id}"


def _label_of(root: str) -> str | None:
    if root.startswith("hf://"):
        return "bucket" if root.startswith("hf://buckets/") else "hub"
    return None if "://" in root and not root.startswith("file://") else "local"


def _check_known(name: str, value: str | None, known: Collection[str]) -> None:
    if value is not None and value not in known:
        raise UsageError(
            f"There is no {name} {value}.", next_step=f"Choose among {', '.join(known)}."
        )


# The options of ``probe train``.


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of a training, beside those of its loader."""

    out_dir: Path = flag(
        Path("probe-train"),
        "the folder for checkpoints and the log (default: probe-train)",
        "DIR",
        Path,
    )
    steps: int = flag(
        200, "number of steps, including the steps before a resume (default: 200)", "N", int
    )
    windows: Deltas | None = None  # the stream's delta_timestamps
    learning_rate: float = flag(1e-3, "learning rate of the optimizer (default: 0.001)", "X", float)
    seed: int = 0  # seed of the weights; the stream has the seed of the order
    log_every: int = flag(10, "log every N steps (default: 10)", "N", int)
    # The last step always makes a checkpoint.
    save_every: int = flag(50, "write a checkpoint every N steps (default: 50)", "N", int)
    resume_from: str | None = flag(
        None,
        "a checkpoint to continue from; last: the newest checkpoint in --out-dir, if there is one",
        "DIR|last",
    )
    dummy: bool = flag(False, "only load data and log the speed; do not train")
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("steps", "log_every", "save_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1.")
        if not 0 <= self.learning_rate < math.inf:
            raise UsageError(f"--learning-rate must be at least 0, not {self.learning_rate}.")
        if self.dummy and self.resume_from:
            raise UsageError(
                "--resume-from does not work with --dummy, which makes no checkpoints."
            )


# The options of ``probe resample``.


ResampleMode = Literal["baseline", "batched", "compare"]
Dtype = Literal["fp32", "bf16"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)

USUAL_BATCH_SIZES = (16, 32, 64, 128)
GPU_BATCH_SIZES = (16, 64, 256, 1024, 4096)


@dataclass(frozen=True, slots=True)
class ResampleOptions:
    """The options of one run; see ``docs/resampling.md``."""

    dataset: str | None = flag(
        None,
        "use the numeric columns of this v3.0 dataset",
        "DIR|URL",
        names=("--root", "--dataset"),
    )
    hdf5: str | None = flag(None, "use this file of robomimic", "FILE")
    source_hz: float | None = flag(
        None, "samples per second of an --hdf5 file that has no rate", "X", float
    )
    revision: str | None = flag(None, "branch, tag or commit of a --dataset on the Hub", "REV")
    columns: tuple[str, ...] | None = None
    max_trajectories: int | None = flag(
        None,
        "use the first N trajectories, or make N synthetic ones (default: 512, or twice "
        "the largest batch)",
        "N",
        whole(1),
    )
    hz: float = flag(50.0, "the rate to resample to (default: 50)", "X", float)
    mode: ResampleMode = flag(
        "compare", "what to measure: baseline, batched or compare (default)", "NAME"
    )
    batch_sizes: tuple[int, ...] | None = None
    dtypes: tuple[Dtype, ...] = ("fp32",)
    devices: tuple[str, ...] = ("cpu",)
    methods: Mapping[str, Method] = field(default_factory=dict)
    num_epochs: int = flag(
        1, "passes over all trajectories in each measurement (default: 1)", "N", whole(1)
    )
    repeats: int = flag(7, "number of measurements (default: 7)", "N", whole(1))
    warmup_batches: int = flag(3, "untimed batches before the timing (default: 3)", "N", whole(1))
    preload: bool = flag(
        True, "read the trajectories during the measurement, not before", names=("--no-preload",)
    )
    seed: int = flag(0, "random seed (default: 0)", "N", whole(0))
    threads: int | None = flag(
        None, "number of threads of torch (default: torch decides)", "N", whole(1)
    )
    loaders: bool = flag(False, "also compare loaders with worker processes")
    end_to_end: bool = flag(
        False, "also train a small diffusion policy, once with each way of resampling"
    )
    num_workers: int = flag(
        2, "workers of --loaders and of --end-to-end (default: 2)", "N", whole(0)
    )
    train_epochs: int = flag(3, "passes of the training (default: 3)", "N", whole(1))

    def __post_init__(self) -> None:
        if self.dataset is not None and self.hdf5 is not None:
            raise UsageError("--dataset and --hdf5 exclude each other. Give one of them.")
        if self.columns is not None and self.dataset is None and self.hdf5 is None:
            raise UsageError("--columns works only with --dataset or --hdf5.")
        if self.source_hz is not None and self.hdf5 is None:
            raise UsageError("--source-hz works only with --hdf5.")
        for name, rate in (("--hz", self.hz), ("--source-hz", self.source_hz)):
            if rate is not None and not 0 < rate < math.inf:
                raise UsageError(f"{name} must be a number above 0, not {rate}.")
        if not self.preload and self.dataset is None and self.hdf5 is None:
            raise UsageError(
                "--no-preload works only with --dataset or --hdf5: synthetic trajectories "
                "are always in memory."
            )
        if self.batch_sizes is not None and min(self.batch_sizes, default=0) < 1:
            raise UsageError("--batch-sizes must be whole numbers of at least 1.")
        _check_known("mode", self.mode, get_args(ResampleMode))
        for dtype in self.dtypes:
            _check_known("dtype", dtype, DTYPES)
        if not all(map(_DEVICE.fullmatch, self.devices)):
            raise UsageError("--device must be cpu, cuda or cuda:N.")

    def sized(self, trajectories: int) -> ResampleOptions:
        """Return these options with batch sizes for a set with this many trajectories.

        Raises:
            UsageError: A batch is larger than the set.
        """
        if self.batch_sizes is None:
            fitting = tuple(size for size in USUAL_BATCH_SIZES if size <= trajectories)
            return replace(self, batch_sizes=fitting or (trajectories,))
        if max(self.batch_sizes) > trajectories:
            raise UsageError(
                f"--batch-sizes asks for {max(self.batch_sizes)} trajectories in a batch, but "
                f"there are only {trajectories}.",
                next_step="Choose smaller --batch-sizes, or raise --max-trajectories.",
            )
        return self

    def as_record(self) -> dict[str, Any]:
        """Return every option as a JSON-serialisable mapping."""
        return record_without_credentials(asdict(self))

"""`MixedStream`: samples of several datasets in fixed shares, as one stream.

See ``docs/loading.md`` for its use and its guarantees.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from leconvert.dataset.formats import differences_table, differing_features, v3
from leconvert.loading.metadata import PAD_SUFFIX, FeatureMeta
from leconvert.loading.order import MixedOrder, OrderBlock
from leconvert.loading.stream import EpisodeStream, Sample, SampleStream, UnreadableFrame, Workplace
from leconvert.loading.tensors import Memory, StreamFacts, TensorPlan, allocate, private_memory
from leconvert.model.values import IntArray
from leconvert.support.errors import LeconvertError, SourceError, UsageError
from leconvert.support.flags import whole_number
from leconvert.support.text import count, shown
from leconvert.support.values import dataclass

_DATASET_INDEX = "dataset_index"
_ACCEPTED = ("fps", "names", "missing")
# The window of a feature: its times, and the frames at these times.
_Steps = tuple[list[float], list[int]]
# Number of axes of one picture; a batch of pictures has more.
_PICTURE_AXES = 3


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MixtureMeta(FeatureMeta):
    """The features of a mixture's samples, under the names that LeRobot's code uses.

    Statistics describe the samples as they are mixed: each dataset counts by its share.
    """

    total_episodes: int  # in all datasets
    total_frames: int  # in all datasets


class MixedStream(SampleStream):
    """An iterable dataset over several datasets, each with a fixed share of the samples.

    Guaranteed:

    - In any 1,000 consecutive samples, the number of each dataset differs from its share by at most
      10.
    - Each dataset goes through its own epochs, one after the other. In each of them, all ranks and
      workers together yield every frame once. The samples come in the dataset's own order (see
      `EpisodeStream`), except that some come up to 256 of its samples earlier or later, also across
      the ends of its epochs.
    - All ranks and workers take turns in one order. It depends only on the seed, the weights, and
      the orders of the datasets.
    - A sample equals the sample of the dataset's own stream. Its ``dataset_index`` is the number of
      that dataset; ``index``, ``episode_index`` and ``task_index`` count within that dataset.

    An epoch has as many samples as the datasets have frames together. The end of an epoch does not
    end the epochs of the datasets.

    Args:
        datasets: Each dataset and its weight; weights are relative to each other. A dataset is an
            `EpisodeStream`, or a folder or URL from which one is made. Only this mixture may use
            these streams; it ignores their ``repeat``.
        seed: Selects which dataset has which turn, and the order in datasets given as a folder or
            URL.
        features: For each dataset, new names of its features in the mixture: OLD to NEW.
        accept: Differences to accept: ``fps`` (the mixture has the first dataset's), ``names`` of a
            feature's values, and ``missing`` features: for a dataset that lacks them they are zero,
            and ``<feature>_is_pad`` is true.
        repeat: Continue with the next epoch, without end.
        **options: Options of `EpisodeStream`, for folders and URLs.

    Raises:
        SourceError: The datasets differ; ``details`` is a table of all differences.
        UsageError: An argument is invalid, or a package is missing.
    """

    def __init__(
        self,
        datasets: Sequence[tuple[EpisodeStream | str | os.PathLike[str], float]],
        *,
        seed: int = 0,
        features: Sequence[Mapping[str, str]] | None = None,
        accept: Collection[Literal["fps", "names", "missing"]] = (),
        repeat: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        datasets = list(datasets or ())
        if not datasets:
            raise UsageError("No dataset is given.")
        if not all(isinstance(each, tuple | list) and len(each) == 2 for each in datasets):
            raise UsageError(
                "datasets takes pairs of a dataset and its weight.",
                next_step="For equal shares, give each dataset as (DATASET, 1).",
            )
        for code in accept:
            if code not in _ACCEPTED:
                raise UsageError(f"accept takes {', '.join(_ACCEPTED)}, not {code!r}.")
        places = [each for each, _ in datasets if not isinstance(each, EpisodeStream)]
        if options and not places:
            raise UsageError(
                f"{next(iter(options))} has no effect: all datasets are streams already.",
                next_step="Give it to each EpisodeStream.",
            )
        self.streams = tuple(
            each if isinstance(each, EpisodeStream) else EpisodeStream(each, seed=seed, **options)
            for each, _ in datasets
        )
        if len({id(stream) for stream in self.streams}) < len(self.streams):
            raise UsageError(
                "The same stream object is given twice.",
                next_step="Make two EpisodeStream objects.",
            )
        if len({(stream.rank, stream.world_size) for stream in self.streams}) > 1:
            raise UsageError("The streams have different ranks or numbers of ranks.")
        if features is not None and len(features) != len(self.streams):
            raise UsageError(
                f"features has {count(len(features), 'map')} of names for "
                f"{count(len(self.streams), 'dataset')}; give {{}} where nothing is renamed."
            )
        renamed = features or [{}] * len(self.streams)
        self._members = [_Member(*pair) for pair in zip(self.streams, renamed, strict=True)]
        self._check_alike(accept)
        first = self.streams[0]
        self.rank, self.world_size = first.rank, first.world_size
        self.decode_device = first.decode_device
        self.video_fetch_workers = max(stream.video_fetch_workers for stream in self.streams)
        self.repeat = repeat
        self.seed = whole_number("seed", seed)
        self.order: MixedOrder = MixedOrder(
            [stream.order for stream in self.streams],
            [weight for _, weight in datasets],
            seed=self.seed,
        )
        self.meta: MixtureMeta = self._make_meta()

    def _check_alike(self, accept: Collection[str]) -> None:
        """Refuse datasets whose samples do not fit together, with a table of all differences."""
        members = self._members
        rows: list[list[str]] = []

        def compare(name: str, values: Sequence[object]) -> bool:
            told = [str(value) for value in values]
            if len(set(told)) == 1:
                return False
            rows.append([name, *told])
            return True

        helps = []
        if "fps" not in accept and compare("fps", [f"{m.stream.fps:g}" for m in members]):
            helps.append("accept=('fps',) mixes frame rates.")
        compare("return_uint8", [member.stream.return_uint8 for member in members])
        compare("decode_device", [member.stream.decode_device for member in members])
        differing = differing_features(
            [member.features for member in members],
            with_names="names" not in accept,
            with_missing="missing" not in accept,
        )
        rows += differing
        known = {row[0] for row in differing}
        for key in {key: None for member in members for key in member.features}:
            having = [member for member in members if key in member.features]
            if shown(key) in known or not _differ(having, key):
                continue
            told = [member.told_kind(key) if member in having else "-" for member in members]
            rows.append([shown(key), *told])
        if differing:
            helps.append(
                "features=[{}, {'OLD': 'NEW'}] gives equal features the same name. "
                "accept=('missing',) pads features that a dataset does not have. accept=('names',) "
                "mixes values with different names."
            )
        if rows:
            raise SourceError(
                f"{count(len(members), 'dataset')} cannot be mixed: they differ in "
                f"{count(len(rows), 'point')}.",
                path=members[0].stream.meta.root,
                details=differences_table([member.stream.meta.root for member in members], rows),
                next_step=" ".join(helps) or "Make the streams with equal arguments.",
            )

    def _make_meta(self) -> MixtureMeta:
        features: dict[str, Mapping[str, Any]] = {}
        for member in self._members:
            features = {**member.features, **features}
        aggregate = v3.StatsAggregator(features)
        counts: dict[str, Any] = {}
        stats = [member.stats for member in self._members]
        # If one dataset lacks a statistic, it is unknown for the mixture.
        unknown = {
            key
            for member, own in zip(self._members, stats, strict=True)
            for key in member.features
            if key not in own
        }
        for share, own in zip(self.order.shares.tolist(), stats, strict=True):
            weighted = {}
            for key, values in own.items():
                if key in unknown:
                    continue
                counts[key] = counts.get(key, 0) + np.asarray(values["count"])
                weighted[key] = {**values, "count": np.array([share])}
            aggregate.update(weighted)
        total = aggregate.result()
        return MixtureMeta(
            root=", ".join(stream.meta.root for stream in self.streams),
            fps=self.streams[0].fps,
            features=features,
            stats={key: {**total[key], "count": counts[key]} for key in features if key in total},
            total_episodes=sum(stream.meta.total_episodes for stream in self.streams),
            total_frames=sum(stream.meta.total_frames for stream in self.streams),
        )

    # --- what is in it ------------------------------------------------------------------------

    @property
    def shares(self) -> tuple[float, ...]:
        """The exact share of each dataset, in steps of 1/10,000."""
        whole = self.order.shares
        return tuple((whole / whole.sum()).tolist())

    def identity(self) -> dict[str, Any]:
        """Return everything but the epoch that decides the order, as numbers and texts."""
        return {
            "mixture_seed": self.seed,
            "shares": self.order.shares.tolist(),
            "datasets": [stream.identity() for stream in self.streams],
        }

    # --- what happened ------------------------------------------------------------------------

    def facts(self) -> StreamFacts:
        """Return the work of all workers since the streams were made, or since `reset_facts`."""
        return sum((stream.facts() for stream in self.streams), StreamFacts())

    def worker_facts(self) -> list[StreamFacts]:
        """Return the same for each worker."""
        nothing = StreamFacts()
        each = (stream.worker_facts() for stream in self.streams)
        return [sum(facts, nothing) for facts in zip_longest(*each, fillvalue=nothing)]

    def reset_facts(self) -> None:
        """Set the facts of all workers to zero; call it while no worker runs."""
        for stream in self.streams:
            stream.reset_facts()

    def unreadable(self) -> list[UnreadableFrame]:
        """Return the frames that could not be decoded: the first 16 of each worker and dataset."""
        return [frame for stream in self.streams for frame in stream.unreadable()]

    # --- iteration ----------------------------------------------------------------------------

    def enter(self, worker: int) -> Workplace:
        """Return this process's workplace, without the episodes of an earlier pass."""
        workplaces = [stream.enter(worker) for stream in self.streams]
        if self._workplace is None or self._workplace.process != os.getpid():
            self._workplace = _MixedWorkplace(self._members, workplaces, self.order)
        return self._workplace


class _Member:
    """A stream of a mixture, with the mixture's names."""

    def __init__(self, stream: EpisodeStream, names: Mapping[str, str]) -> None:
        self.stream = stream
        unknown = [old for old in names if old not in stream.features]
        if unknown:
            raise UsageError(
                f"features renames {unknown[0]!r}, which {stream.meta.root} does not have.",
                path=stream.meta.root,
                next_step=f"Its features are {', '.join(sorted(stream.features))}.",
            )
        self.name_of = {key: names.get(key, key) for key in stream.features}
        taken = [*self.name_of.values(), _DATASET_INDEX, "task"]
        twice = next((name for name in taken if taken.count(name) > 1), None)
        if twice is not None:
            raise UsageError(
                f"Samples of {stream.meta.root} would have two values called {twice!r}.",
                path=stream.meta.root,
                next_step="Give a feature another name (features=...).",
            )
        self.features = {self.name_of[key]: ft for key, ft in stream.features.items()}
        meta = stream.meta
        self.cameras = {self.name_of[key] for key in meta.camera_keys}
        self.depth_cameras = {self.name_of[key] for key in meta.depth_keys}
        others = [key for key in meta.features if key not in meta.video_keys]
        # In the order of a sample's keys.
        self.keys = [self.name_of[key] for key in (*meta.video_keys, *others)]
        self.windows: dict[str, _Steps] = {}
        for key, seconds in (stream.delta_timestamps or {}).items():
            times = [float(second) for second in seconds]
            steps = [round(second * stream.fps) for second in times]
            self.windows[self.name_of[key]] = times, steps
            self.name_of[key + PAD_SUFFIX] = self.name_of[key] + PAD_SUFFIX
            self.keys.append(self.name_of[key + PAD_SUFFIX])

    @property
    def stats(self) -> dict[str, Mapping[str, Any]]:
        """Statistics of the features that have them."""
        known = self.stream.meta.stats
        return {
            self.name_of[key]: known[key]
            for key in self.stream.features
            if "mean" in known.get(key, {})
        }

    def told_kind(self, key: str) -> str:
        """Return how samples hold a feature, as a word: its window, and whether it is depth."""
        said = ["depth"] if key in self.depth_cameras else []
        if key in self.windows:
            times = self.windows[key][0]
            said.append(f"{count(len(times), 'time')} {min(times):g} to {max(times):g} s")
        return ", ".join(said) or "no window"


def _differ(members: Sequence[_Member], key: str) -> bool:
    """Return whether members with this feature differ in its windows or in being depth."""
    windows = [member.windows.get(key, (None, None)) for member in members]
    times, steps = ({str(each) for each in of_all} for of_all in zip(*windows, strict=True))
    kinds = {key in member.depth_cameras for member in members}
    return len(kinds) > 1 or (len(times) > 1 and len(steps) > 1)


# Batches of several datasets.


class _Room:
    """Memory for one part of a batch at a time: a part is copied before the next is made."""

    def __init__(self) -> None:
        self._piece = torch.empty(0, dtype=torch.uint8)

    def __call__(self, size_bytes: int) -> torch.Tensor:
        if len(self._piece) < size_bytes:
            self._piece = private_memory(size_bytes)
        return self._piece[:size_bytes]


class _Part(NamedTuple):
    """The samples of one member in a batch."""

    member: int
    rows: IntArray  # positions of its samples in the batch
    values: Sample


class _MixedWorkplace:
    """The workplaces that a process has opened, one for each dataset of a mixture.

    Each makes its samples of a batch, which are then copied to their positions. This costs one more
    copy of each picture; everything else is as for one dataset.
    """

    def __init__(
        self, members: Sequence[_Member], workplaces: Sequence[Workplace], order: MixedOrder
    ) -> None:
        self.process = os.getpid()
        self._members = members
        self._workplaces = workplaces
        self._order = order
        self._rooms = [_Room() for _ in members]
        features = {key: ft for one in members for key, ft in one.features.items()}
        self._cameras = {key for one in members for key in one.cameras}
        lacking = [key for key in features if not all(key in member.features for member in members)]
        # Keys that some member lacks, each with the feature it belongs to.
        self._padded = {key: key for key in lacking}
        self._padded |= {key + PAD_SUFFIX: key for key in lacking}
        self._no_text = {key for key in lacking if features[key]["dtype"] == "string"}
        keys = [key for member in members for key in member.keys]
        self._keys = [*dict.fromkeys([*keys, *self._padded]), "task"]
        # Empty values of the keys that some member lacks; padding has their kind.
        self._patterns: dict[str, Any] = {}

    def expect(self, episodes: list[int]) -> None:
        """Receive the next episodes of the order, to prepare them."""
        coming: list[list[int]] = [[] for _ in self._members]
        owners = self._order.members_of(episodes).tolist()
        for episode, owner in zip(episodes, owners, strict=True):
            coming[owner].append(episode - int(self._order.first_episodes[owner]))
        for workplace, mine in zip(self._workplaces, coming, strict=True):
            workplace.expect(mine)

    def make(self, block: OrderBlock, memory: Memory) -> Sample:
        """Return a batch in memory that ``memory`` provides."""
        if self._padded and not self._patterns:
            self._learn()
        owners = self._order.members_of(block.episodes)
        parts = []
        for member in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == member)
            mine = OrderBlock(*(array[rows] for array in block))
            own = mine._replace(episodes=mine.episodes - self._order.first_episodes[member])
            parts.append(_Part(member, rows, self._made_by(member, own)))
        return self._joined(parts, owners, memory)

    def clear(self) -> None:
        """Release all episodes."""
        for workplace in self._workplaces:
            workplace.clear()

    def _made_by(self, member: int, block: OrderBlock) -> Sample:
        names = self._members[member].name_of
        made = self._workplaces[member].make(block, self._rooms[member])
        return {names.get(key, key): value for key, value in made.items()}

    def _learn(self) -> None:
        """Learn the kinds of padded values once, from a sample of each member."""
        # The first frame of the first episode, which need not stay in memory.
        zero = np.zeros(1, np.int64)
        block = OrderBlock(zero, zero, zero, zero - 1)
        made = [self._made_by(member, block) for member in range(len(self._members))]
        flags = torch.empty(0, dtype=torch.bool)
        for key in self._padded:
            found = [sample[key][:0] for sample in made if key in sample]
            self._patterns[key] = found[0] if found else flags

    def _joined(self, parts: Sequence[_Part], owners: IntArray, memory: Memory) -> Sample:
        """Return the batch that consists of the parts."""
        size = len(owners)
        plans = [TensorPlan(_DATASET_INDEX, torch.int64, (size,))]
        elsewhere: dict[str, torch.Tensor] = {}
        for key in self._keys:
            found = [part.values[key] for part in parts if key in part.values]
            pattern = found[0] if found else self._patterns[key]
            if not isinstance(pattern, torch.Tensor):
                continue
            for value in found[1:]:
                if value.shape[1:] != pattern.shape[1:] or value.dtype != pattern.dtype:
                    raise LeconvertError(
                        f"{key} is {_told_kind(pattern)} in one dataset and "
                        f"{_told_kind(value)} in another. The two cannot be in one "
                        "batch.",
                        next_step="Give one of the two another name (features=...).",
                    )
            shape = (size, *self._as_stored(key, pattern).shape[1:])
            if pattern.device.type == "cpu":
                plans.append(TensorPlan(key, pattern.dtype, shape))
            else:
                elsewhere[key] = torch.empty(shape, dtype=pattern.dtype, device=pattern.device)
        tensors = allocate(plans, memory) | elsewhere
        result: Sample = {}
        for key in self._keys:
            if key not in tensors:
                result[key] = self._joined_list(key, parts, size)
                continue
            target = tensors[key]
            for part in parts:
                if key not in part.values:
                    target[torch.from_numpy(part.rows)] = self._padding(key, part.member)
                    continue
                value = self._as_stored(key, part.values[key])
                if target.device.type == "cpu":
                    # As in one stream: this needs one copy, while torch's way needs several.
                    target.numpy()[part.rows] = value.numpy()
                else:
                    target[torch.from_numpy(part.rows).to(target.device)] = value
            result[key] = target.movedim(-1, -3) if self._is_picture(key, target) else target
        tensors[_DATASET_INDEX].numpy()[:] = owners
        result[_DATASET_INDEX] = tensors[_DATASET_INDEX]
        return result

    def _joined_list(self, key: str, parts: Sequence[_Part], size: int) -> list[Any]:
        values: list[Any] = ["" if key in self._no_text else None] * size
        for part in parts:
            for row, value in zip(part.rows.tolist(), part.values.get(key, ()), strict=False):
                values[row] = value
        return values

    def _padding(self, key: str, member: int) -> int | bool:
        """Return the padding for a key of which a member has no value."""
        if key.endswith(PAD_SUFFIX):
            return self._padded[key] not in self._members[member].features
        return 0

    def _is_picture(self, key: str, value: torch.Tensor) -> bool:
        return key in self._cameras and value.ndim > _PICTURE_AXES

    def _as_stored(self, key: str, value: torch.Tensor) -> torch.Tensor:
        """Return pictures in memory order: channels last."""
        return value.movedim(-3, -1) if self._is_picture(key, value) else value


def _told_kind(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {'x'.join(map(str, value.shape[1:]))}"

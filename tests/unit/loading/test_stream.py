"""`EpisodeStream` and its loader without LeRobot: edges, damage, resuming, counting."""

from __future__ import annotations

import gc
import json
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.drift import remux
from tests.unit.loading.conftest import CAMERAS, LENGTHS, uploaded

from leconvert.api import convert
from leconvert.loading import EpisodeStream, MixedStream, StreamLoader, decoders, episodes
from leconvert.loading.decoders import open_clip
from leconvert.loading.episodes import FrameReader
from leconvert.loading.stream import default_pool_size
from leconvert.media import UnsupportedClipError, read_clip_index
from leconvert.support.errors import (
    PlanMismatchError,
    SourceChangedError,
    SourceError,
    UnreadableSourceError,
    UsageError,
)
from leconvert.support.extras import command_for_extra
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset, read_label
from leconvert.transfer import files as remote_files
from leconvert.transfer.byte_cache import BLOCK_BYTES
from leconvert.transfer.files import OpenFile

TOP, WRIST = CAMERAS
FRAMES = sum(LENGTHS)


def label_of(picture: torch.Tensor) -> tuple[int, int]:
    if picture.is_floating_point():
        picture = (picture * 255).round().to(torch.uint8)
    label = read_label(picture.permute(1, 2, 0).numpy())
    return label.episode, label.frame


def assert_shown(sample: dict[str, Any], *pictures: torch.Tensor) -> tuple[int, int]:
    """Assert that pictures are of the sample's own episode and frame, which are returned."""
    place = int(sample["episode_index"]), int(sample["frame_index"])
    assert [label_of(picture) for picture in pictures] == [place] * len(pictures)
    return place


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return [value for values in lists for value in values]


def indices(loader: StreamLoader) -> list[list[int]]:
    return [batch["index"].tolist() for batch in loader]


def damage(path: Path, start: float, stop: float) -> None:
    """Overwrite a part of a file's last box, from one share of it to another."""
    data = bytearray(path.read_bytes())
    media = data.index(b"mdat") + 4
    first, last = (media + int((len(data) - media) * share) for share in (start, stop))
    data[first:last] = b"\xff" * (last - first)
    path.write_bytes(data)


# --- samples --------------------------------------------------------------------------------------


def test_every_picture_shows_its_own_episode_and_frame(v30: Path) -> None:
    seen = {assert_shown(sample, sample[TOP], sample[WRIST]) for sample in EpisodeStream(v30)}
    assert len(seen) == FRAMES


@pytest.mark.parametrize(("workers", "fetchers"), [(0, 3), (2, 1)])
def test_a_remote_dataset_gives_the_same_batches(
    v30: Path, in_memory: str, workers: int, fetchers: int
) -> None:
    def batches(root: Any, **options: Any) -> list[dict[str, Any]]:
        stream = EpisodeStream(
            root, episode_pool_size=2, delta_timestamps={TOP: [-1 / 30, 0.0]}, **options
        )
        return list(StreamLoader(stream, batch_size=3, num_workers=workers))

    local = batches(v30)
    remote = batches(in_memory, video_fetch_workers=fetchers)
    assert len(local) == len(remote)
    for ours, theirs in zip(local, remote, strict=True):
        assert ours.keys() == theirs.keys()
        assert ours["task"] == theirs["task"]
        assert all(torch.equal(value, theirs[key]) for key, value in ours.items() if key != "task")


def test_the_files_of_a_batch_are_opened_side_by_side(
    in_memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = EpisodeStream(in_memory)
    table = stream.meta.table
    files = len(table.data.paths) + sum(len(camera.paths) for camera in table.cameras.values())
    assert len(LENGTHS) * (1 + len(CAMERAS)) > files > 2
    together = threading.Barrier(files)
    opened = remote_files.SparseFile.__init__

    def open_with_all(self: Any, *args: Any) -> None:
        opened(self, *args)
        together.wait(30)  # for a thread that opens each of the others

    monkeypatch.setattr(remote_files.SparseFile, "__init__", open_with_all)
    monkeypatch.setattr(episodes, "_URGENT_THREADS", files)
    (batch,) = stream.batches(FRAMES)
    assert len(batch["index"]) == FRAMES


def test_only_needed_bytes_are_fetched(tmp_path: Path) -> None:
    camera = CameraSpec(key=TOP, noise_amplitude=127, target_clip_bytes=400_000)
    source = make_dataset(tmp_path / "v21", DatasetSpec(episodes=8, frames=40, cameras=(camera,)))
    convert(source, output=tmp_path / "v30")
    (video,) = (tmp_path / "v30" / "videos").rglob("*.mp4")
    with uploaded(tmp_path / "v30") as url:
        alone = EpisodeStream(url, episodes=[2], cache_size_in_gb=0)
        assert sorted(label_of(sample[TOP]) for sample in alone) == [(2, n) for n in range(40)]
        shared = EpisodeStream(url, episodes=[2])
        assert len(list(shared)) == 40
    # An eighth of the video, some packets more, its index, and the tables.
    size = video.stat().st_size
    assert 0.1 < alone.facts().fetched_bytes / size < 0.3
    # In whole blocks, so that others find them.
    assert shared.facts().fetched_bytes < alone.facts().fetched_bytes + 8 * BLOCK_BYTES


def test_a_window_longer_than_the_episode_is_padded(v30: Path) -> None:
    steps = [step / 30 for step in range(-20, 21)]
    stream = EpisodeStream(v30, delta_timestamps={TOP: steps, "action": steps}, episodes=[1])
    for sample in stream:
        frame = int(sample["frame_index"])
        assert sample[TOP].shape == (41, 3, 32, 48)
        wanted = [min(max(frame + step, 0), 3) for step in range(-20, 21)]
        assert [label_of(picture)[1] for picture in sample[TOP]] == wanted
        pads = [not 0 <= frame + step <= 3 for step in range(-20, 21)]
        assert sample[f"{TOP}_is_pad"].tolist() == sample["action_is_pad"].tolist() == pads


def jitter(path: Path) -> None:
    """Write a video again with every frame off its time by some milliseconds."""
    numbers = count()

    def move(packet: Any) -> None:
        late = round((0.004 + 0.008 * (next(numbers) % 3 == 1)) / packet.time_base)
        packet.pts += late
        packet.dts += late

    remux(path, move)


@pytest.mark.parametrize("backend", ["torchcodec", "pyav"])
def test_uneven_times_give_the_right_frames_all_the_same(v30_copy: Path, backend: Any) -> None:
    for path in (v30_copy / "videos").rglob("*.mp4"):
        jitter(path)
        source = OpenFile(str(path), str(path), path.stat().st_size)
        clip = open_clip(source, keep_index=False)
        assert clip.rate is None or clip.num_frames == 1
    stream = EpisodeStream(
        v30_copy, delta_timestamps={WRIST: [-1 / 30, 0.0, 2 / 30]}, video_backend=backend
    )
    for sample in stream:
        assert_shown(sample, sample[TOP], sample[WRIST][1])


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "images", "expected"),
    [
        (300, (), 256),
        (18, ("a",), 256),
        (19, ("a",), 128),
        (60, ("a",), 64),
        (3000, ("a", "b"), 32),
        (74_000, (), 256),
        (75_000, (), 128),
    ],
)
def test_so_many_episodes_are_mixed_by_default_as_fit_into_memory(
    frames: int, images: tuple[str, ...], expected: int
) -> None:
    numbers = {"action": {"dtype": "float32", "shape": [7]}, "top": {"dtype": "video"}}
    pictures = {key: {"dtype": "image", "shape": [240, 640, 3], "names": None} for key in images}
    meta = SimpleNamespace(features=numbers | pictures)
    lengths = np.array([frames - 1, frames, frames + 1])
    assert default_pool_size(meta, lengths) == expected  # type: ignore[arg-type]


def test_the_order_does_not_depend_on_cache_threads_or_backend(v30: Path) -> None:
    def order(**options: Any) -> list[int]:
        stream = EpisodeStream(v30, episode_pool_size=3, **options)
        return [int(sample["index"]) for sample in stream]

    first = order()
    assert order(video_decoder_cache_size=1) == first
    assert order(video_fetch_workers=3) == first
    assert order(video_backend="pyav") == first
    assert order(delta_timestamps={"action": [0.0, 0.1]}) == first


@pytest.mark.parametrize("batch_size", [7, 64])
def test_an_epoch_that_is_shorter_than_a_batch_repeats_within_it(
    v30: Path, in_memory: str, batch_size: int
) -> None:
    epochs = StreamLoader(EpisodeStream(v30, episodes=[1, 2]), batch_size=1)
    expected = flat(flat(indices(epochs)) for _ in range(3 * batch_size // 5 + 1))
    for root in (v30, in_memory):
        stream = EpisodeStream(root, episodes=[1, 2], repeat=True)
        batches = islice(StreamLoader(stream, batch_size=batch_size), 3)
        assert flat(batch["index"].tolist() for batch in batches) == expected[: 3 * batch_size]


def test_iterations_under_way_side_by_side_each_give_their_own_batches(v30: Path) -> None:
    loader = StreamLoader(EpisodeStream(v30), batch_size=2, num_workers=1)
    expected = indices(StreamLoader(EpisodeStream(v30), batch_size=2))
    first = iter(loader)
    # So many that the worker sends batches in memory that it has sent before.
    found = [next(first)["index"].tolist() for _ in range(6)]
    second = iter(loader)
    next(second)
    found += [batch["index"].tolist() for batch in first]
    assert found == expected
    assert (loader.epoch, loader.state_dict()["samples"]) == (1, 2)
    other = StreamLoader(EpisodeStream(v30), batch_size=2)
    other.set_epoch(1)
    assert [batch["index"].tolist() for batch in second] == indices(other)[1:]
    assert loader.epoch == 2


def test_an_iteration_that_goes_on_does_not_disturb_where_the_next_begins(v30: Path) -> None:
    loader = StreamLoader(EpisodeStream(v30), batch_size=4)
    for _ in loader:
        loader.set_epoch(5)
    assert loader.epoch == 5


@pytest.mark.parametrize("taken", [1, 7])
def test_a_remote_stream_that_was_broken_off_holds_nothing_at_the_end_of_the_next_epoch(
    in_memory: str, taken: int
) -> None:
    stream = EpisodeStream(in_memory, video_fetch_workers=2, episode_pool_size=2)
    for number, _ in enumerate(stream, start=1):
        if number == taken:
            break
    assert sorted(int(sample["index"]) for sample in stream) == list(range(FRAMES))
    assert stream._workplace is not None
    pool = stream._workplace.pool
    assert (pool._held, pool._rows_coming, pool._frames_coming) == ({}, {}, {})
    for reader in (pool._row_reader, pool._frame_reader):
        assert (reader._held, reader._opened, reader._users) == ({}, {}, {})


def test_batches_on_every_rank_is_the_least(v30: Path) -> None:
    def make(rank: int, **options: Any) -> StreamLoader:
        stream = EpisodeStream(v30, rank=rank, world_size=5)
        return StreamLoader(stream, batch_size=2, **options)

    # 32 samples are three batches of ten, and one each for two of the ranks.
    assert sorted(len(make(rank)) for rank in range(5)) == [3, 3, 3, 4, 4]
    assert [len(indices(make(rank))) for rank in range(5)] == [len(make(rank)) for rank in range(5)]
    assert {make(rank).batches_on_every_rank() for rank in range(5)} == {3}
    assert {len(indices(make(rank, drop_last=True))) for rank in range(5)} == {3}
    loader = make(0)
    state = [loader.state_dict() for _ in zip(range(2), loader, strict=False)][-1]
    loader = next(make(rank) for rank in range(5) if len(make(rank)) == 3)
    loader.load_state_dict(state)
    assert loader.batches_on_every_rank() == len(indices(loader)) == 1


def test_nodes_under_a_launcher_lose_no_episode(v30: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("LOCAL_RANK", str(rank % 2))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        stream = EpisodeStream(v30, num_partitions=2, partition_index=rank // 2)
        assert (stream.rank, stream.world_size) == (rank % 2, 2)
        mine = [(int(sample["episode_index"]), int(sample["index"])) for sample in stream]
        assert sorted({episode for episode, _ in mine}) == stream.rank_episodes()
        seen += mine
    assert sorted({episode for episode, _ in seen}) == list(range(len(LENGTHS)))
    assert sorted(index for _, index in seen) == list(range(FRAMES))


def test_a_loader_that_accelerate_would_share_out_again_is_refused(
    v30: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class GradientState:
        active_dataloader: Any = None

    module = ModuleType("accelerate.state")
    module.GradientState = GradientState  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate.state", module)
    stream = EpisodeStream(v30, rank=0, world_size=2)
    whole = EpisodeStream(v30, rank=0, world_size=1)
    for one in (stream, whole):
        # As its loaders do: it, or a dataset around it that keeps this rank's part.
        for dataset in (one, SimpleNamespace(dataset=one)):
            GradientState.active_dataloader = SimpleNamespace(dataset=dataset)
            if one is whole:
                one.set_epoch(1)
                continue
            with pytest.raises(UsageError, match=r"frames would be lost\.$") as error:
                one.set_epoch(1)
            assert "StreamLoader(stream" in str(error.value.next_step)
    GradientState.active_dataloader = SimpleNamespace(dataset=[1, 2])
    stream.set_epoch(1)
    assert stream.epoch == 1


def test_a_stream_that_repeats_has_no_number_of_batches(v30: Path) -> None:
    loader = StreamLoader(EpisodeStream(v30, repeat=True), batch_size=2)
    with pytest.raises(TypeError):
        len(loader)
    with pytest.raises(TypeError):
        loader.batches_on_every_rank()


# --- resuming -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 1}, "the seed was 0 and is 1"),
        ({"shuffle": False}, "shuffle"),
        ({"episode_pool_size": 3}, "the pool size was 256 and is 3"),
        ({"episodes": [0, 1]}, "or the choice of episodes changed"),
    ],
)
def test_another_order_is_refused_by_name(v30: Path, changed: dict[str, Any], said: str) -> None:
    state = StreamLoader(EpisodeStream(v30), batch_size=4).state_dict()
    StreamLoader(EpisodeStream(v30), batch_size=3, drop_last=True).load_state_dict(state)
    with pytest.raises(PlanMismatchError, match=said):
        StreamLoader(EpisodeStream(v30, **changed), batch_size=4).load_state_dict(state)


def test_a_state_survives_json_and_torch_and_is_equal_on_all_ranks(
    v30: Path, tmp_path: Path
) -> None:
    loaders = [
        StreamLoader(EpisodeStream(v30, rank=rank, world_size=2), batch_size=2) for rank in range(2)
    ]
    for loader in loaders:
        next(iter(loader))
    state = loaders[0].state_dict()
    assert loaders[1].state_dict() == state
    assert json.loads(json.dumps(state)) == state
    torch.save(state, tmp_path / "dataset_state.pt")
    assert torch.load(tmp_path / "dataset_state.pt", weights_only=True) == state


def test_another_shuffle_and_foreign_states_are_refused(v30: Path) -> None:
    loader = StreamLoader(EpisodeStream(v30), batch_size=4)
    state = loader.state_dict()
    with pytest.raises(PlanMismatchError, match="NumPy"):
        loader.load_state_dict({**state, "order": "0" * 16})
    with pytest.raises(PlanMismatchError, match="not the state of a stream"):
        loader.load_state_dict({"epoch": 1})
    with pytest.raises(PlanMismatchError, match="not the state of a stream"):
        loader.load_state_dict(None)  # type: ignore[arg-type]
    for version in (1, 3, 99):
        with pytest.raises(PlanMismatchError, match="another version"):
            loader.load_state_dict({**state, "version": version})
    for damaged in ({"epoch": None}, {"epoch": -1}, {"samples": "3"}, {"samples": -1}):
        with pytest.raises(PlanMismatchError, match="not the state of a stream"):
            loader.load_state_dict({**state, **damaged})
    assert loader.state_dict() == state


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [1.5, -1, float("nan"), "2"])
def test_numbers_that_are_not_whole_are_refused_at_once(v30: Path, wrong: Any) -> None:
    stream = EpisodeStream(v30)
    loader = StreamLoader(stream, batch_size=4)
    calls: list[Callable[[], object]] = [
        lambda: EpisodeStream(v30, seed=wrong),
        lambda: EpisodeStream(v30, episode_pool_size=wrong),
        lambda: MixedStream([(v30, 1.0)], seed=wrong),
        lambda: StreamLoader(stream, batch_size=wrong),
        lambda: StreamLoader(stream, batch_size=4, num_workers=wrong),
        lambda: StreamLoader(stream, batch_size=4, num_workers=1, prefetch_factor=wrong),
        lambda: stream.batches(wrong),
        lambda: stream.set_epoch(wrong),
        lambda: loader.set_epoch(wrong),
        lambda: loader.start_at(wrong),
    ]
    for call in calls:
        with pytest.raises(UsageError):
            call()


def test_numbers_out_of_their_range_are_refused(v30: Path) -> None:
    for options in (
        {"batch_size": 0}, {"num_workers": -1}, {"num_workers": 513},
        {"num_workers": 1, "prefetch_factor": 0}, {"num_workers": 1, "timeout": -1},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            StreamLoader(EpisodeStream(v30), **{"batch_size": 1, **options})


def test_numbers_may_be_numpys(v30: Path) -> None:
    two = np.int64(2)
    stream = EpisodeStream(v30, seed=two, episode_pool_size=two, episodes=np.array([0, 1]))
    own = EpisodeStream(v30, seed=2, episode_pool_size=2, episodes=[0, 1])
    loader, of_own = StreamLoader(stream, batch_size=two), StreamLoader(own, batch_size=2)
    loader.set_epoch(two)
    of_own.set_epoch(2)
    assert indices(loader) == indices(of_own)
    assert json.loads(json.dumps(loader.state_dict())) == of_own.state_dict()
    loader.start_at(two)
    assert indices(loader)[0] == indices(StreamLoader(own, batch_size=2))[1]


def test_episodes_are_whole_numbers_in_any_collection(v30: Path) -> None:
    both: tuple[Any, ...] = ([1, 0], (each for each in (0, 1)), {0, 1}, torch.tensor([0, 1]))
    for given in both:
        assert EpisodeStream(v30, episodes=given).episode_indices == [0, 1]
    for wrong in ("01", [1.5], ["0"], [None]):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            EpisodeStream(v30, episodes=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no episode 1000"):
        EpisodeStream(v30, episodes=[10**30])


def test_a_loader_of_something_else_is_refused_with_the_way_out(v30: Path) -> None:
    with pytest.raises(UsageError, match="loads an EpisodeStream or a MixedStream") as refused:
        StreamLoader(str(v30), batch_size=4)  # type: ignore[arg-type]
    assert "EpisodeStream(dataset)" in str(refused.value.next_step)


# --- counting -------------------------------------------------------------------------------------


def test_workers_are_counted_and_summed(v30: Path) -> None:
    stream = EpisodeStream(v30, delta_timestamps={TOP: [0.0, 1 / 30]}, episode_pool_size=2)
    indices(StreamLoader(stream, batch_size=4, num_workers=2))
    facts, workers = stream.facts(), stream.worker_facts()
    assert len(workers) == 2
    assert facts.samples == sum(worker.samples for worker in workers) == FRAMES
    assert facts.frames == 3 * FRAMES
    # Each worker opens those that it has frames of.
    assert len(LENGTHS) <= facts.episodes <= 2 * len(LENGTHS)
    assert facts.cache_misses >= 2
    assert 0 < facts.hit_rate < 1
    assert facts.decode_ns > 0
    assert facts.rows_ns > 0
    stream.reset_facts()
    assert stream.facts().samples == 0
    assert stream.facts().hit_rate is None


def test_the_decoder_cache_is_bounded_and_evictions_are_counted(v30: Path) -> None:
    stream = EpisodeStream(v30, video_decoder_cache_size=2)
    for _ in stream:
        assert stream.facts().cache_size <= 2
    facts = stream.facts()
    assert facts.cache_evictions == facts.cache_misses - 2 > 0
    wide = EpisodeStream(v30)
    assert len(list(wide)) == FRAMES
    files = sum(len(camera.paths) for camera in wide.meta.table.cameras.values())
    assert wide.facts().cache_misses == wide.facts().cache_size == files
    assert wide.facts().cache_evictions == 0


# --- processes ------------------------------------------------------------------------------------


def test_what_a_stream_in_this_process_opened_goes_with_it(in_memory: str) -> None:
    gc.collect()
    descriptors = Path("/proc/self/fd")
    before = set(descriptors.iterdir())
    stream = EpisodeStream(in_memory, video_fetch_workers=1)
    next(iter(stream))
    held = [path for path in descriptors.iterdir() if path not in before and path.is_symlink()]
    assert any("memfd" in str(path.readlink()) for path in held)
    del stream
    gc.collect()
    deadline = time.monotonic() + 20
    while set(descriptors.iterdir()) != before and time.monotonic() < deadline:
        time.sleep(0.01)  # what threads had begun to fetch, they fetch
    assert set(descriptors.iterdir()) == before


def test_a_stream_that_is_gone_fetches_no_more(
    in_memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    fetched: list[int] = []
    need = FrameReader.need

    def held_up(self: FrameReader, place: int) -> int:
        fetched.append(place)
        begun.set()
        assert may_go_on.wait(20)
        return need(self, place)

    monkeypatch.setattr(FrameReader, "need", held_up)
    stream = EpisodeStream(in_memory, video_fetch_workers=1)
    next(iter(stream))
    assert begun.wait(20)
    assert stream._workplace is not None
    fetchers = stream._workplace.pool._ahead
    del stream
    gc.collect()
    may_go_on.set()
    fetchers.shutdown(wait=True)
    assert len(fetched) == 1


# --- damage ---------------------------------------------------------------------------------------


def test_what_is_no_v30_dataset_is_refused_with_the_way_out(tmp_path: Path) -> None:
    source = make_dataset(tmp_path / "old", DatasetSpec(episodes=1, frames=2, cameras=()))
    with pytest.raises(SourceError, match=r"v2\.1") as error:
        EpisodeStream(source)
    assert "leconvert convert" in str(error.value.next_step)
    with pytest.raises(UnreadableSourceError, match="not a folder"):
        EpisodeStream(tmp_path / "none")
    with pytest.raises(UnreadableSourceError, match="is missing"):
        EpisodeStream(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fps": 0}, "fps is 0"),
        ({"fps": -30}, "fps is -30"),
        ({"fps": float("nan")}, "fps is nan"),
        ({"fps": "fast"}, "fps is 'fast'"),
        ({"data_path": None}, "data_path is None"),
        ({"video_path": None}, "video_path is None"),
        ({"features": {"action": {"dtype": None}}}, "'action' has no dtype"),
        ({"features": []}, "has no features"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(
    v30_copy: Path, change: dict[str, Any], said: str
) -> None:
    path = v30_copy / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UnreadableSourceError, match=said) as error:
        EpisodeStream(v30_copy, delta_timestamps={"action": [0.0]})
    assert error.value.path == str(path)


@pytest.mark.parametrize("content", ["{broken", "[1]", '{"action": {"mean": [[1], [1, 2]]}}'])
def test_damaged_statistics_are_named(v30_copy: Path, content: str) -> None:
    path = v30_copy / "meta" / "stats.json"
    path.write_text(content)
    with pytest.raises(UnreadableSourceError, match="contains no usable statistics") as error:
        EpisodeStream(v30_copy)
    assert error.value.path == str(path)
    path.unlink()
    assert EpisodeStream(v30_copy).meta.stats == {}


def test_damaged_metadata_behind_a_url_are_named_by_it(v30_copy: Path) -> None:
    (v30_copy / "meta" / "tasks.parquet").write_bytes(b"no table")
    with uploaded(v30_copy) as url, pytest.raises(UnreadableSourceError) as error:
        EpisodeStream(url)
    assert error.value.path == f"{url}/meta/tasks.parquet"
    assert f" {url}/meta/tasks.parquet " in error.value.message


@pytest.mark.parametrize(("part", "workers"), [("data", 0), ("data", 1), ("videos", 0)])
def test_a_missing_file_is_named_also_by_a_worker(v30_copy: Path, part: str, workers: int) -> None:
    path = next((v30_copy / part).rglob("file-000.*"))
    path.unlink()
    loader = StreamLoader(EpisodeStream(v30_copy, shuffle=False), batch_size=2, num_workers=workers)
    for _ in range(2):
        with pytest.raises(UnreadableSourceError) as error:
            list(loader)
        assert error.value.message.startswith(f"{path} is missing")
        assert error.value.path == str(path)
        assert error.value.next_step
        assert loader.state_dict()["samples"] == 0


def test_the_workers_end_with_the_loader_after_an_error_too(v30_copy: Path) -> None:
    """An error that holds itself lets a later garbage collection wait 5 s for each worker."""
    next((v30_copy / "data").rglob("file-000.*")).unlink()
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        kept: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
        loader = StreamLoader(EpisodeStream(v30_copy), batch_size=2, **kept)
        with suppress(UnreadableSourceError):
            list(loader)
        del loader
        assert set(multiprocessing.active_children()) == before
    finally:
        gc.enable()


def test_rows_that_are_not_where_they_should_be_are_refused(v30_copy: Path) -> None:
    stream = EpisodeStream(v30_copy)
    stream.meta.table.data.first[:] = np.roll(stream.meta.table.data.first, 1)
    with pytest.raises(SourceError, match="does not contain episode"):
        list(stream)


@pytest.mark.parametrize("backend", ["torchcodec", "pyav"])
def test_unreadable_frames_are_raised_or_counted_and_named(v30_copy: Path, backend: Any) -> None:
    path = v30_copy / "videos" / TOP / "chunk-000" / "file-000.mp4"
    damage(path, 0.0, 1.0)
    stream = EpisodeStream(v30_copy, video_backend=backend, on_unreadable="count")
    camera = stream.meta.table.cameras[TOP]
    inside = {int(n) for n in stream.meta.table.index[camera.file == 0]}
    with pytest.raises(UnreadableSourceError, match="file-000"):
        list(EpisodeStream(v30_copy, video_backend=backend))
    samples = list(stream)
    assert len(samples) == FRAMES
    for sample in samples:
        episode = int(sample["episode_index"])
        assert label_of(sample[WRIST]) == (episode, int(sample["frame_index"]))
        if episode in inside:
            assert not sample[TOP].any()
        else:
            assert label_of(sample[TOP])[0] == episode
    lost = sum(LENGTHS[episode] for episode in inside)
    assert stream.facts().unreadable == lost
    assert stream.unreadable_by_camera() == {TOP: lost, WRIST: 0}
    named = stream.unreadable()
    assert len(named) == min(lost, 16)
    assert {(one.camera, one.path) for one in named} == {(TOP, str(path))}
    assert {one.episode_index for one in named} <= inside


@pytest.mark.parametrize("fetchers", [0, 2])
def test_a_file_that_cannot_be_fetched_is_no_unreadable_frame(
    in_memory: str, fetchers: int
) -> None:
    import fsspec

    stream = EpisodeStream(in_memory, on_unreadable="count", video_fetch_workers=fetchers)
    system, root = fsspec.core.url_to_fs(in_memory)
    system.rm(f"{root}/{stream.meta.table.cameras[WRIST].paths[0]}")
    with pytest.raises(SourceChangedError, match=f"{WRIST}.*it no longer exists"):
        list(stream)
    assert stream.unreadable_by_camera() == {TOP: 0, WRIST: 0}


@pytest.mark.parametrize("backend", ["torchcodec", "pyav"])
def test_one_damaged_frame_costs_its_group_of_pictures_only(v30_copy: Path, backend: Any) -> None:
    camera = EpisodeStream(v30_copy).meta.table.cameras[TOP]
    path = v30_copy / camera.paths[camera.file[3]]
    index = read_clip_index(path)
    hurt = int(camera.first[3]) + 4
    data = bytearray(path.read_bytes())
    begin = int(index.offsets[hurt])
    data[begin : begin + int(index.sizes[hurt])] = b"\xff" * int(index.sizes[hurt])
    path.write_bytes(data)
    stream = EpisodeStream(v30_copy, video_backend=backend, on_unreadable="count")
    for sample in stream:
        place = int(sample["episode_index"]), int(sample["frame_index"])
        if not sample[TOP].any():
            assert place[0] == 3
            assert 3 <= place[1] <= 6
        else:
            assert label_of(sample[TOP]) == place
    assert 1 <= stream.facts().unreadable <= 4
    assert all(one.episode_index == 3 for one in stream.unreadable())


def test_a_video_that_is_too_short_is_unreadable_beyond_its_end(v30_copy: Path) -> None:
    stream = EpisodeStream(v30_copy, on_unreadable="count", shuffle=False)
    camera = stream.meta.table.cameras[TOP]
    last = int(np.flatnonzero(camera.file == camera.file[-1])[-1])
    camera.first[last] += 2
    list(stream)
    lost = {(one.episode_index, one.frame_index) for one in stream.unreadable()}
    assert lost == {(last, LENGTHS[last] - 2), (last, LENGTHS[last] - 1)}


# --- what must be installed -----------------------------------------------------------------------


def test_on_the_cpu_pyav_decodes_and_torchcodec_need_not_load(
    v30: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trouble() -> str:
        asked.append(True)
        return "no FFmpeg here"

    asked: list[bool] = []
    monkeypatch.setattr(decoders, "torchcodec_trouble", trouble)
    stream = EpisodeStream(v30)
    assert stream.video_backend == "pyav"
    assert len(list(stream)) == FRAMES
    assert not asked
    with pytest.raises(UsageError, match=r"torchcodec cannot be imported: no FFmpeg here."):
        EpisodeStream(v30, video_backend="torchcodec")


def test_a_file_whose_index_is_not_read_is_left_to_torchcodec(
    v30: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(path: str, **options: Any) -> None:
        raise UnsupportedClipError("fragmented MP4", path=path)

    monkeypatch.setattr(decoders, "read_clip_index", unsupported)
    for sample in EpisodeStream(v30):
        assert_shown(sample, sample[TOP])
    monkeypatch.setattr(decoders, "torchcodec_trouble", lambda: "no FFmpeg here")
    with pytest.raises(UnreadableSourceError, match="install torchcodec to do without"):
        list(EpisodeStream(v30))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"video_backend": "vlc"}, "video_backend must be auto, torchcodec or pyav"),
        ({"decode_device": "mps"}, "cpu or cuda"),
        ({"decode_device": "cuda", "video_backend": "pyav"}, "Only torchcodec"),
        ({"on_unreadable": "ignore"}, "raise or count"),
        ({"episodes": []}, "no episode to load"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    v30: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        EpisodeStream(v30, **options)


def test_cuda_without_a_gpu_is_an_error_before_anything_is_read(
    v30: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="no GPU"):
        EpisodeStream(v30, decode_device="cuda")


def test_without_torch_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import leconvert.loading as probe\n"
        "from leconvert.support.errors import InstallationError\n"
        "try:\n    probe.EpisodeStream\n"
        "except InstallationError as error:\n    print(error.next_step)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert command_for_extra("probe") in done.stdout


def test_lerobots_next_names_stand_for_ours(in_memory: str, v30: Path) -> None:
    stream = EpisodeStream(
        v30,
        streaming_data_root=in_memory,
        streaming_episode_pool_size=2,
        streaming_decode_threads=3,
        streaming_byte_budget_gb=0,
    )

    assert (stream.episode_pool_size, stream.video_fetch_workers) == (2, 3)
    assert len(list(stream)) == FRAMES
    assert stream.facts().fetched_bytes > 0
    with pytest.raises(UsageError, match="are the same argument"):
        EpisodeStream(v30, episode_pool_size=1, streaming_episode_pool_size=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'streaming_pool'"):
        EpisodeStream(v30, streaming_pool=1)  # type: ignore[call-arg]


def test_a_program_with_a_spawned_worker_that_ends_in_the_middle_of_passes_says_nothing(
    v30: Path,
) -> None:
    program = """if True:
        import sys, fsspec
        import leconvert
        from leconvert.loading import EpisodeStream, StreamLoader
        samples = iter(EpisodeStream(sys.argv[1]))
        next(samples)
        fsspec.filesystem("memory").put(sys.argv[1], "/ended", recursive=True)
        remote = iter(EpisodeStream("memory://ended", cache_size_in_gb=0))
        next(remote)
        stream = EpisodeStream(sys.argv[1])
        expected = [batch["index"].tolist() for batch in stream.batches(4)]
        stream = EpisodeStream(sys.argv[1])
        loader = StreamLoader(
            stream, batch_size=4, num_workers=1, multiprocessing_context="spawn"
        )
        assert [batch["index"].tolist() for batch in loader] == expected
        assert stream.facts().samples == sum(map(len, expected))
        batches = iter(StreamLoader(stream, batch_size=2))
        for _ in range(3):
            next(batches)
        import torch
    """
    ended = subprocess.run(
        [sys.executable, "-c", program, v30], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")

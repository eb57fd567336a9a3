"""Passes over streams: each is the next epoch, whole, in every loader and all of its workers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.loading.conftest import Topology, global_batches
from torch.utils.data import DataLoader, default_collate, get_worker_info

from leconvert.api import convert
from leconvert.loading import EpisodeStream, MixedStream, SampleStream, StreamLoader
from leconvert.loading.tensors import PassLog
from leconvert.testing import DatasetSpec, make_dataset

LENGTHS = [5, 3, 1, 4]
FRAMES = sum(LENGTHS)
BATCH = 2
Frame = tuple[int, int, int]  # dataset, episode, frame
Make = Callable[..., SampleStream]


@pytest.fixture(scope="session")
def numbers_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few frames without pictures, so that a pass takes no time."""
    folder = tmp_path_factory.mktemp("passes")
    spec = DatasetSpec(episodes=len(LENGTHS), frames=LENGTHS, cameras=())
    convert(make_dataset(folder / "v21", spec), output=folder / "v30")
    return folder / "v30"


def one(place: Path, **options: Any) -> EpisodeStream:
    return EpisodeStream(place, episode_pool_size=2, **options)


def mixture(place: Path, **options: Any) -> MixedStream:
    return MixedStream([(place, 3), (place, 1)], episode_pool_size=2, **options)


def epoch_of(stream: SampleStream, epoch: int) -> list[Frame]:
    """Return the frames of an epoch, in the order of all ranks and workers."""
    block = stream.order.at(epoch, np.arange(stream.order.num_frames))
    datasets, episodes = np.divmod(block.episodes, len(LENGTHS))
    return list(zip(datasets.tolist(), episodes.tolist(), block.frames.tolist(), strict=True))


def chunks(frames: list[Frame]) -> list[list[Frame]]:
    return [frames[first : first + BATCH] for first in range(0, len(frames), BATCH)]


def as_torch_deals(frames: list[Frame], workers: int) -> list[list[Frame]]:
    """Return the batches of torch's own loader, which has each worker batch its own samples."""
    workers = max(1, workers)
    turns = zip_longest(*(chunks(frames[worker::workers]) for worker in range(workers)))
    return [batch for turn in turns for batch in turn if batch is not None]


def frames_of(batches: Iterable[dict[str, Any]]) -> list[list[Frame]]:
    found = []
    for batch in batches:
        episodes = batch["episode_index"].reshape(-1).tolist()
        numbers = batch["frame_index"].reshape(-1).tolist()
        datasets = batch.get("dataset_index", torch.zeros(len(episodes))).reshape(-1).tolist()
        found.append(list(zip(map(int, datasets), episodes, numbers, strict=True)))
    return found


def flat(batches: Iterable[list[Frame]]) -> list[Frame]:
    return [frame for batch in batches for frame in batch]


IN_PROCESS: dict[str, Any] = {}
FORKED = {"num_workers": 2, "multiprocessing_context": "fork"}
SPAWNED = {"num_workers": 2, "multiprocessing_context": "spawn"}
LASTING = {"persistent_workers": True}
WORKERS = {
    "in process": IN_PROCESS,
    "forked": FORKED,
    "forked, persistent": FORKED | LASTING,
    "spawned": SPAWNED,
    "spawned, persistent": SPAWNED | LASTING,
}


COMBINATIONS: list[Any] = [
    # Every loader in and out of process, and streams of both kinds.
    (one, "StreamLoader", "in process"),
    (mixture, "StreamLoader", "forked"),
    (mixture, "collate_fn", "in process"),
    (one, "DataLoader", "forked, persistent"),
    (mixture, "plain", "in process"),
    # Processes that are spawned take seconds to start; `test_stream` spawns those of one loader.
    pytest.param(one, "DataLoader", "spawned, persistent", marks=pytest.mark.slow),
    pytest.param(one, "DataLoader", "spawned", marks=pytest.mark.slow),
    pytest.param(one, "StreamLoader", "spawned", marks=pytest.mark.slow),
    pytest.param(one, "StreamLoader", "spawned, persistent", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("make", "kind", "workers"), COMBINATIONS)
def test_every_pass_is_the_next_epoch_whether_the_last_was_whole_or_broken_off(
    numbers_only: Path, make: Make, kind: str, workers: str
) -> None:
    stream = make(numbers_only)
    options = WORKERS[workers]
    loader: Any
    if kind == "plain":
        loader = stream
    elif kind == "DataLoader":
        loader = DataLoader(stream, batch_size=BATCH, **options)
    else:
        collate = default_collate if kind == "collate_fn" else None
        loader = StreamLoader(stream, batch_size=BATCH, collate_fn=collate, **options)

    def expected(epoch: int) -> list[list[Frame]]:
        frames = epoch_of(stream, epoch)
        if kind == "plain":
            return [[frame] for frame in frames]
        if kind == "DataLoader":
            return as_torch_deals(frames, options.get("num_workers", 0))
        return chunks(frames)

    # Where each pass is broken off.
    for epoch, taken in enumerate((1, 3, None, None)):
        if epoch % 2:
            torch.manual_seed(0)  # torch then draws the same number for the workers once more
        found = frames_of(islice(loader, taken))
        assert found == expected(epoch)[:taken]
        if taken is None:
            assert sorted(flat(found)) == sorted(epoch_of(stream, epoch))
    (stream if kind == "DataLoader" else loader).set_epoch(1)
    assert frames_of(islice(loader, 2)) == expected(1)[:2]
    assert frames_of(islice(loader, 2)) == expected(2)[:2]
    # A loader that is made now goes on, whoever made the passes before.
    assert StreamLoader(stream, batch_size=1).epoch == stream.epoch == 3


@pytest.mark.parametrize(("make", "options"), [(one, FORKED | LASTING), (mixture, IN_PROCESS)])
def test_a_state_goes_on_where_it_was_taken_and_the_pass_after_it_is_the_next_epoch(
    numbers_only: Path, make: Make, options: dict[str, Any]
) -> None:
    def loader() -> StreamLoader:
        return StreamLoader(make(numbers_only), batch_size=BATCH, **options)

    whole = loader()
    epochs = [chunks(epoch_of(whole.stream, epoch)) for epoch in range(4)]
    assert frames_of(islice(whole, 2)) == epochs[0][:2]
    states = [(0, 2, whole.state_dict())]  # after a pass that was broken off
    for taken, _ in enumerate(whole, 1):
        states.append((1, taken, whole.state_dict()))
    states.append((2, 0, whole.state_dict()))  # after a whole one
    for number, (epoch, taken, state) in enumerate((states[0], states[2], states[-1])):
        later = (None, 1)[number % 2]
        again = loader()
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert frames_of(islice(again, later)) == epochs[epoch][taken:][:later]
        assert frames_of(again) == epochs[epoch + 1]


def test_ranks_that_make_the_same_passes_share_an_epoch(numbers_only: Path) -> None:
    streams = [one(numbers_only, rank=rank, world_size=2) for rank in range(2)]
    loaders: Any = [DataLoader(stream, batch_size=BATCH, **FORKED) for stream in streams]
    for taken in (2, None):
        for loader in loaders:
            frames_of(islice(loader, taken))
    shares = [flat(frames_of(loader)) for loader in loaders]
    assert sorted(shares[0] + shares[1]) == sorted(epoch_of(streams[0], 2))


# An epoch has 2 batches, of a mixture 4; the last one is smaller unless the stream repeats.
@pytest.mark.parametrize(
    ("make", "before", "after", "steps", "repeat"),
    [
        (one, (8, 0, 1), (4, 0, 2), 1, False),
        (mixture, (1, 2, 8), (1, 1, 8), 5, True),
        (one, (2, 1, 4), (1, 2, 8), 1, False),
    ],
)
def test_global_batches_are_the_same_for_all_ranks_and_workers_and_after_a_state(
    numbers_only: Path, make: Make, before: Topology, after: Topology, steps: int, repeat: bool
) -> None:
    def taken(topology: Topology, state: Any = None, *, steps: int) -> tuple[Any, Any]:
        def of_rank(rank: int, ranks: int) -> SampleStream:
            return make(numbers_only, rank=rank, world_size=ranks, repeat=repeat)

        return global_batches(of_rank, topology, state, steps=steps, keys=keys)

    keys = ("episode_index", "frame_index", *(("dataset_index",) if make is mixture else ()))
    expected, _ = taken((1, 0, 8), steps=steps + 4)
    first, state = taken(before, steps=steps)
    rest, _ = taken(after, state, steps=4)
    assert first + rest == expected


def test_another_batch_size_goes_on_with_the_samples_that_are_left(numbers_only: Path) -> None:
    def taken(topology: Topology, state: Any = None, *, steps: int) -> tuple[list[Any], Any]:
        def of_rank(rank: int, ranks: int) -> SampleStream:
            return one(numbers_only, rank=rank, world_size=ranks)

        batches, state = global_batches(of_rank, topology, state, steps=steps)
        return flat(batches), state

    whole, _ = taken((1, 0, FRAMES), steps=2)
    first, state = taken((4, 0, 2), steps=1)
    rest, _ = taken((3, 0, 1), state, steps=2)
    after, _ = taken((2, 0, 5), state, steps=2)
    assert first + rest == whole[:FRAMES]
    assert first + after == whole[: FRAMES + 10]


def test_a_stream_that_repeats_goes_on_with_an_epoch_of_which_nothing_was_taken(
    numbers_only: Path,
) -> None:
    stream = one(numbers_only, repeat=True)
    loader = StreamLoader(stream, batch_size=1)
    first, second = epoch_of(stream, 0), epoch_of(stream, 1)
    assert flat(frames_of(islice(loader, FRAMES + 2))) == first + second[:2]
    assert stream.epoch == 2
    loader.set_epoch(0)
    assert flat(frames_of(islice(loader, FRAMES))) == first
    assert stream.epoch == 1
    assert flat(frames_of(islice(loader, FRAMES))) == second
    assert loader.state_dict()["epoch"] == 2


# --- workers of torch's own loader agree ----------------------------------------------------------


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An event that forked workers with number 1 wait for when they first join a pass."""
    event = multiprocessing.get_context("fork").Event()
    begin = PassLog.begin

    def late(self: PassLog) -> int:
        info = get_worker_info()
        if info is not None and info.id == 1:
            assert event.wait(60)
        return begin(self)

    monkeypatch.setattr(PassLog, "begin", late)
    yield event
    event.set()


def test_a_worker_that_comes_after_another_pass_began_joins_its_own(
    numbers_only: Path, held_up: Any
) -> None:
    stream = one(numbers_only)
    first = iter(DataLoader(stream, batch_size=BATCH, **FORKED))
    found = [next(first)]
    alone = DataLoader(stream, batch_size=BATCH, num_workers=1, multiprocessing_context="fork")
    assert frames_of(alone) == as_torch_deals(epoch_of(stream, 1), 1)
    held_up.set()
    found += list(first)
    assert frames_of(found) == as_torch_deals(epoch_of(stream, 0), 2)
    assert stream.epoch == 2


def test_a_persistent_worker_that_is_a_pass_behind_joins_both(
    numbers_only: Path, held_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = PassLog.begin

    def counted(self: PassLog) -> int:
        epoch = late(self)
        info = get_worker_info()
        if info is not None and info.id == 0 and epoch == 1:
            held_up.set()  # worker 0 is in the second pass, worker 1 not yet in the first
        return epoch

    monkeypatch.setattr(PassLog, "begin", counted)
    stream = one(numbers_only)
    loader = DataLoader(stream, batch_size=BATCH, **FORKED, **LASTING)
    next(iter(loader))
    for epoch in (1, 2):
        assert frames_of(loader) == as_torch_deals(epoch_of(stream, epoch), 2)


def test_workers_that_come_at_the_same_time_enter_one_pass(
    numbers_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = multiprocessing.get_context("fork").Barrier(2)
    enter = PassLog._enter

    def slowly(self: PassLog, number: int, drawn: int, epoch: int) -> int:
        if get_worker_info() is not None:
            together.wait(60)  # both have looked for the pass, and neither found it
        return enter(self, number, drawn, epoch)

    monkeypatch.setattr(PassLog, "_enter", slowly)
    stream = one(numbers_only)
    loader = DataLoader(stream, batch_size=BATCH, **FORKED, **LASTING)
    for epoch in range(20):  # more than the log has rows
        assert frames_of(loader) == as_torch_deals(epoch_of(stream, epoch), 2)


def _with_seed(samples: list[dict[str, Any]]) -> tuple[Any, int]:
    info = get_worker_info()
    return default_collate(samples), 0 if info is None else info.seed


def test_loading_draws_nothing_from_the_generator_of_the_training(numbers_only: Path) -> None:
    workers = 1

    def seeds() -> list[list[int]]:
        torch.manual_seed(3)
        loader = StreamLoader(
            one(numbers_only), batch_size=2, num_workers=workers, collate_fn=_with_seed
        )
        before = torch.get_rng_state()
        found = [[seed for _, seed in loader] for _ in range(2)]
        assert torch.equal(torch.get_rng_state(), before)
        return found

    first, second = seeds()
    assert [first, second] == seeds()
    assert not {*first} & {*second}

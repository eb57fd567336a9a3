"""Several datasets as one stream: shares, order, resuming, and samples that fit together."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.unit.loading.conftest import CAMERAS, LENGTHS, global_batches, uploaded

from leconvert.api import convert
from leconvert.loading import EpisodeStream, MixedStream, StreamLoader
from leconvert.loading.order import EpisodeOrder, MixedOrder
from leconvert.model.repairs import RepairOptions
from leconvert.support.errors import PlanMismatchError, SourceError, UsageError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

TOP, WRIST = CAMERAS
OTHER_LENGTHS = [5, 7, 3]
WHICH = ("dataset_index", "index")
Sample = dict[str, Any]


def make_other(folder: Path, *, fps: int = 30, repairs: RepairOptions | None = None) -> Path:
    """Make three episodes of the features that the other dataset has."""
    spec = DatasetSpec(
        episodes=len(OTHER_LENGTHS),
        frames=OTHER_LENGTHS,
        fps=fps,
        tasks=("Wipe the table",),
        cameras=tuple(CameraSpec(key=key, width=48, height=32) for key in CAMERAS),
    )
    source = make_dataset(folder / "v21", spec)
    convert(source, output=folder / "v30", repairs=repairs or RepairOptions())
    return folder / "v30"


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of the same features; do not change it."""
    return make_other(tmp_path_factory.mktemp("other"))


@pytest.fixture
def other_copy(other: Path, tmp_path: Path) -> Path:
    """That dataset, for tests that change it."""
    return Path(shutil.copytree(other, tmp_path / "other"))


def mixed(*places: Path | str, rank: int = 0, ranks: int = 1, **options: Any) -> MixedStream:
    pairs = list(zip(places, (0.7, 0.3), strict=True))
    return MixedStream(pairs, rank=rank, world_size=ranks, episode_pool_size=4, **options)


def change_features(root: Path, **changes: Any) -> None:
    """Change what a dataset says of features, or take one out."""
    info = json.loads((root / "meta/info.json").read_bytes())
    for key, change in changes.items():
        if change is None:
            if info["features"].pop(key)["dtype"] != "video":
                for path in (root / "data").glob("*/*.parquet"):
                    pq.write_table(pq.read_table(path).drop_columns(key), path)
        else:
            info["features"][key].update(change)
    (root / "meta/info.json").write_text(json.dumps(info))


# --- the order ------------------------------------------------------------------------------------


def order_of(weights: list[float], *, seed: int = 0, times: int = 1) -> MixedOrder:
    lengths = [times * np.array([30 + 7 * number, 11, 5]) for number in range(len(weights))]
    orders = [EpisodeOrder(each, seed=3, pool_size=2) for each in lengths]
    return MixedOrder(orders, weights, seed=seed)


@pytest.mark.parametrize(
    "weights", [[0.999, 0.001], [0.31, 0.29, 0.17, 0.11, 0.07, 0.05], [1] * 60]
)
def test_any_thousand_samples_have_the_shares_to_within_a_hundredth(weights: list[float]) -> None:
    order = order_of(weights)
    found = order.at(1, np.arange(25_000))
    owners = order.members_of(found.episodes)
    for member, weight in enumerate(weights):
        taken = np.cumsum(np.append(0, owners == member))
        away = np.abs(taken[1000:] - taken[:-1000] - 1000 * weight / sum(weights)).max()
        assert away <= 10, (member, away)


def test_each_member_goes_through_its_own_order_without_end() -> None:
    order = order_of([0.5, 0.2, 0.3], times=20)
    found = order.at(2, np.arange(30_000))
    before = order.members_of(order.at(0, np.arange(2 * order.num_frames)).episodes)
    owners = order.members_of(found.episodes)
    for member, own in enumerate(order._orders):
        first = int(np.count_nonzero(before == member))
        rows = np.flatnonzero(owners == member)
        expected = own.at(0, np.arange(first + len(rows) + 256))
        turns_of: dict[tuple[int, int], list[int]] = defaultdict(list)
        frames = zip(expected.episodes.tolist(), expected.frames.tolist(), strict=True)
        for turn, frame in enumerate(frames):
            turns_of[frame].append(turn)
        # By episode and where it is said to end: that is once an epoch.
        taken: dict[tuple[int, int], list[int]] = defaultdict(list)
        for turn, row in enumerate(rows.tolist(), first):
            episode = int(found.episodes[row] - order.first_episodes[member])
            frame = int(found.frames[row])
            # No more than 256 turns from where it would be.
            assert min(abs(turn - place) for place in turns_of[episode, frame]) <= 256
            last = int(found.last_numbers[row])
            assert row <= last
            taken[episode, last].append(frame)
        begun, ended = own.num_frames * 10 // 2, len(found.numbers) - own.num_frames * 10
        whole = [key for key in taken if begun < key[1] < ended]
        assert len(whole) > 3
        for episode, last in whole:
            length = int(own._lengths[episode])
            assert sorted(taken[episode, last]) == list(range(length))


def test_hosts_touch_few_episodes_but_their_own() -> None:
    ranks, of_host = 16, 2
    lengths = [np.full(800, 110), np.full(300, 130)]
    orders = [EpisodeOrder(each, seed=3, pool_size=256) for each in lengths]
    order = MixedOrder(orders, [0.7, 0.3])
    numbers = np.arange(order.num_frames)
    block = order.at(0, numbers)
    # An episode in one of its epochs.
    keys = np.stack([block.episodes, block.last_numbers])
    hosts = numbers % ranks // of_host
    touched = sum(
        len(np.unique(keys[:, hosts == host], axis=1)[0]) for host in range(ranks // of_host)
    )
    assert touched <= 1.1 * len(np.unique(keys, axis=1)[0])


def test_ranks_have_the_shares_too_and_another_seed_other_turns() -> None:
    def owners(seed: int) -> Any:
        order = order_of([1, 1], seed=seed)
        return order.members_of(order.at(0, np.arange(8000)).episodes)

    mine = owners(0)
    for ranks in (2, 4, 8):
        for rank in range(ranks):
            assert 0.4 < np.mean(mine[rank::ranks]) < 0.6
    assert (mine != owners(1)).any()


@pytest.mark.parametrize(
    ("weights", "said"),
    [([1, 0], "above 0"), ([1, float("nan")], "above 0"), ([1, 1e-6], "at least 1 of")],
)
def test_weights_that_make_no_sense_are_refused(weights: list[float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        order_of(weights)


# --- samples --------------------------------------------------------------------------------------


def test_samples_are_those_of_each_datasets_own_stream(v30: Path, other: Path) -> None:
    options: dict[str, Any] = {
        "delta_timestamps": {TOP: [-1 / 30, 0.0], "action": [0.0, 1 / 30, 2 / 30]},
        "episode_pool_size": 4,
        "seed": 5,
    }
    own = [
        {int(sample["index"]): sample for sample in EpisodeStream(place, **options)}
        for place in (v30, other)
    ]
    stream = MixedStream([(v30, 2), (other, 1)], **options)
    taken = [0, 0]
    loader = StreamLoader(stream, batch_size=7)
    for _ in range(2):
        for batch in loader:
            for place, dataset in enumerate(batch["dataset_index"].tolist()):
                expected = own[dataset][int(batch["index"][place])]
                taken[dataset] += 1
                assert batch.keys() == {*expected, "dataset_index"}
                for key, value in expected.items():
                    mine = batch[key][place]
                    assert mine == value if isinstance(value, str) else torch.equal(mine, value)
    assert sum(taken) == 2 * stream.num_frames == 2 * (sum(LENGTHS) + sum(OTHER_LENGTHS))
    assert abs(taken[0] - sum(taken) * 2 / 3) < 5
    assert stream.facts().samples == sum(taken)


def test_a_batch_is_one_piece_of_memory_and_single_samples_are_its_rows(
    v30: Path, other: Path
) -> None:
    stream = mixed(v30, other)
    (batch,) = stream.batches(47)
    pieces = {v.untyped_storage().data_ptr() for v in batch.values() if isinstance(v, torch.Tensor)}
    assert len(pieces) == 1
    assert batch[TOP].movedim(-3, -1).is_contiguous()
    stream.set_epoch(0)
    for place, sample in enumerate(stream):
        assert sample["task"] == batch["task"][place]
        assert torch.equal(sample[TOP], batch[TOP][place])


def test_pictures_are_changed_by_each_streams_own_transform(v30: Path, other: Path) -> None:
    streams = [
        EpisodeStream(place, image_transforms=lambda pictures, by=by: pictures[..., ::2, ::2] * by)
        for by, place in enumerate((v30, other))
    ]
    batch = next(iter(StreamLoader(MixedStream([(each, 1) for each in streams]), batch_size=16)))
    assert batch[TOP].shape == (16, 3, 16, 24)
    black = batch[TOP].reshape(16, -1).max(dim=1).values == 0
    assert torch.equal(black, batch["dataset_index"] == 0)


def test_a_remote_dataset_beside_a_local_one(v30: Path, other: Path) -> None:
    local, _ = global_batches(lambda *_: mixed(v30, other), (1, 0, 8), steps=8, keys=WHICH)
    with uploaded(other) as url:
        stream = mixed(v30, url)
        remote, _ = global_batches(lambda *_: stream, (1, 2, 8), steps=8, keys=WHICH)
    assert remote == local
    assert stream.streams[1].facts().fetched_bytes > 0
    assert stream.facts().episodes == sum(facts.episodes for facts in stream.worker_facts())


# --- resuming ------------------------------------------------------------------------------------


def test_a_state_is_plain_and_that_of_another_mixture_is_refused(v30: Path, other: Path) -> None:
    def loader(stream: Any) -> StreamLoader:
        return StreamLoader(stream, batch_size=4)

    alone = loader(EpisodeStream(v30))
    mixture = loader(mixed(v30, other))
    next(iter(mixture))
    state = mixture.state_dict()
    assert json.loads(json.dumps(state)) == state
    loader(mixed(v30, other)).load_state_dict(state)
    refused = {
        r"the shares .* was \[7000, 3000\] and is \[5000, 5000\]": MixedStream(
            [(v30, 1), (other, 1)], episode_pool_size=4
        ),
        "shares": MixedStream([(v30, 1), (other, 1), (other, 1)]),
        r"the dataset .*or the choice of episodes of dataset 0 changed": mixed(other, v30),
        "the seed of the mixture was 0 and is 1": mixed(v30, other, seed=1),
        "the state is from a mixture, but the stream is one dataset": EpisodeStream(v30),
    }
    for said, stream in refused.items():
        with pytest.raises(PlanMismatchError, match=said):
            loader(stream).load_state_dict(state)
    with pytest.raises(
        PlanMismatchError, match="the state is from one dataset, but the stream is a mix"
    ):
        mixture.load_state_dict(alone.state_dict())


# --- what fits together ---------------------------------------------------------------------------


@pytest.fixture
def arm(tmp_path: Path) -> Path:
    """Three episodes of another rate, with other names."""
    renamed = RepairOptions(rename_features=("observation.state=arm",))
    root = make_other(tmp_path, fps=10, repairs=renamed)
    change_features(root, action={"names": [f"joint{number}" for number in range(6)]})
    return root


def test_all_that_differs_stands_in_one_table(v30: Path, arm: Path) -> None:
    streams = (
        EpisodeStream(v30, delta_timestamps={WRIST: [0.0]}),
        EpisodeStream(arm, return_uint8=True),
    )
    with pytest.raises(SourceError, match="cannot be mixed: they differ in 6") as caught:
        MixedStream([(each, 1) for each in streams])
    lines = caught.value.details
    assert lines[:2] == (f"1: {v30}", f"2: {arm}")
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[3:]}
    assert rows.keys() == {"fps", "return_uint8", "action", "observation.state", "arm", WRIST}
    assert rows["fps"].split() == ["30", "10"]
    assert rows["return_uint8"].split() == ["False", "True"]
    assert rows["observation.state"].split() == ["float32", "6", "-"]
    assert rows["arm"].split() == ["-", "float32", "6"]
    assert "joint5" in rows["action"]
    assert re.split("  +", rows[WRIST]) == ["1 time 0 to 0 s", "no window"]
    assert "accept=('missing',)" in str(caught.value.next_step)


def test_what_is_called_alike_or_accepted_is_mixed(v30: Path, arm: Path) -> None:
    streams = [
        EpisodeStream(v30, delta_timestamps={"observation.state": [0.0, 1 / 30]}),
        EpisodeStream(arm, delta_timestamps={"arm": [0.0, 0.1]}),
    ]
    stream = MixedStream(
        [(each, 1) for each in streams],
        features=[{}, {"arm": "observation.state"}],
        accept=["fps", "names"],
    )
    own = {int(sample["index"]): sample["arm"] for sample in streams[1]}
    batch = next(iter(StreamLoader(stream, batch_size=12)))
    assert batch["observation.state"].shape == (12, 2, 6)
    assert batch["observation.state_is_pad"].shape == (12, 2)
    for place in torch.nonzero(batch["dataset_index"]).reshape(-1).tolist():
        expected = own[int(batch["index"][place])]
        assert torch.equal(batch["observation.state"][place], expected)
    assert not {"arm", "arm_is_pad"} & (batch.keys() | stream.features.keys())
    assert stream.fps == 30


@pytest.mark.parametrize("batch_size", [1, 16])
def test_what_a_dataset_lacks_is_padded_where_asked(
    v30: Path, other_copy: Path, batch_size: int
) -> None:
    change_features(other_copy, **{WRIST: None, "observation.state": None})
    streams = [
        EpisodeStream(v30, delta_timestamps={WRIST: [-1 / 30, 0.0]}),
        EpisodeStream(other_copy),
    ]
    stream = MixedStream([(each, 1) for each in streams], accept=["missing"])
    seen = set()
    for batch in StreamLoader(stream, batch_size=batch_size):
        for place, dataset in enumerate(batch["dataset_index"].tolist()):
            seen.add(dataset)
            lacks = dataset == 1
            assert batch[WRIST].shape[1:] == (2, 3, 32, 48)
            assert batch[WRIST].dtype == torch.float32
            assert bool((batch[WRIST][place] == 0).all()) == lacks
            assert bool(batch[f"{WRIST}_is_pad"][place].all()) == lacks
            assert bool((batch["observation.state"][place] == 0).all()) == lacks
            assert bool(batch["observation.state_is_pad"][place]) == lacks
            assert (batch[TOP][place] != 0).any()
    assert seen == {0, 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accept": ["all"]}, "accept takes fps, names, missing"),
        ({"features": [{}]}, "1 map of names for 2 datasets"),
        ({"features": [{"arm": "leg"}, {}]}, "'arm', which .* does not have"),
        ({"features": [{"action": "timestamp"}, {}]}, "two values called 'timestamp'"),
        ({"features": [{"action": "dataset_index"}, {}]}, "two values called 'dataset_index'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    v30: Path, other: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        mixed(v30, other, **changes)


def test_streams_that_cannot_be_of_one_mixture_are_refused(v30: Path) -> None:
    stream = EpisodeStream(v30)
    with pytest.raises(UsageError, match="given twice"):
        MixedStream([(stream, 1), (stream, 1)])
    with pytest.raises(UsageError, match="shuffle has no effect"):
        MixedStream([(stream, 1)], shuffle=False)
    with pytest.raises(UsageError, match="No dataset is given"):
        MixedStream([])
    no_pairs: list[Any] = [[stream], [v30], "ab"]
    for given in no_pairs:
        with pytest.raises(UsageError, match="pairs of a dataset and its weight"):
            MixedStream(given)
    with pytest.raises(UsageError, match="different ranks"):
        MixedStream([(stream, 1), (EpisodeStream(v30, rank=1, world_size=2), 1)])


# --- what it says of itself -----------------------------------------------------------------------


def test_statistics_are_those_of_the_samples_that_it_gives(v30: Path, other: Path) -> None:
    stream = mixed(v30, other)
    actions: list[list[float]] = [[], []]
    for place, each in enumerate(stream.streams):
        actions[place] = [sample["action"].tolist() for sample in each]
    weighted = [0.7 / len(actions[0])] * len(actions[0]) + [0.3 / len(actions[1])] * len(actions[1])
    values = np.concatenate([np.array(each) for each in actions])
    mean = np.average(values, axis=0, weights=weighted)
    deviation = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weighted))
    found = stream.meta.stats["action"]
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["std"], deviation, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["max"], values.max(axis=0), rtol=1e-6)
    assert found["count"].tolist() == [47]
    assert stream.meta.stats[TOP]["mean"].shape == (3, 1, 1)


def test_what_programs_ask_of_a_dataset(v30: Path, other: Path) -> None:
    stream = mixed(v30, other)
    assert (stream.num_frames, stream.num_episodes, stream.fps) == (47, 8, 30)
    assert stream.features.keys() == EpisodeStream(v30).features.keys()
    assert stream.meta.camera_keys == CAMERAS
    assert (stream.meta.total_frames, stream.meta.total_episodes) == (47, 8)
    assert stream.shares == (0.7, 0.3)
    assert len(stream) == 47
    assert len(StreamLoader(stream, batch_size=8, drop_last=True)) == 5

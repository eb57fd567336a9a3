"""Modes, windows and defaults are what the options say."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from leconvert.bench.probe.options import (
    RunOptions,
    dataset_place,
    frames_per_sample,
    mode_deltas,
    read_deltas,
)
from leconvert.cli.main import with_hyphens
from leconvert.cli.probe import add_run_options, run_options
from leconvert.support.errors import UsageError

CAMERAS = ("observation.images.top", "observation.images.wrist")
FEATURES = (*CAMERAS, "observation.state", "action", "timestamp")
SECONDS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)


def parsed(*arguments: str) -> RunOptions:
    parser = argparse.ArgumentParser()
    add_run_options(parser)
    return run_options(parser.parse_args([with_hyphens(argument) for argument in arguments]))


def test_sarm_looks_at_eight_seconds_of_cameras_and_action() -> None:
    deltas = mode_deltas("sarm", CAMERAS, FEATURES, 30)

    assert deltas == dict.fromkeys([*CAMERAS, "action"], SECONDS)
    assert frames_per_sample(deltas, CAMERAS) == 16


def test_sarm_action_has_windows_for_the_action_alone() -> None:
    deltas = mode_deltas("sarm-action", CAMERAS, FEATURES, 30)

    assert deltas == {"action": SECONDS}
    assert frames_per_sample(deltas, CAMERAS) == 2


def test_single_has_no_windows() -> None:
    assert mode_deltas("single", CAMERAS, FEATURES, 30) == {}
    assert frames_per_sample({}, CAMERAS) == 2


def test_steps_fall_on_frames_where_a_second_is_no_whole_number_of_them() -> None:
    deltas = mode_deltas("sarm", (), FEATURES, 29.97)

    assert [second * 29.97 for second in deltas["action"]] == pytest.approx(
        [0, 30, 60, 90, 120, 150, 180, 210], abs=1e-9
    )


def test_actions_in_parts_have_windows_too() -> None:
    assert set(mode_deltas("sarm", (), ("action.arm", "action.gripper", "actions"), 30)) == {
        "action.arm", "action.gripper"
    }  # fmt: skip


def test_a_mode_that_applies_to_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a feature `action`"):
        mode_deltas("sarm-action", CAMERAS, CAMERAS, 30)


def test_windows_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "deltas.json"
    path.write_text(json.dumps({"action": [-0.1, 0, 0.1]}))

    assert read_deltas(path, FEATURES) == {"action": (-0.1, 0.0, 0.1)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1]", "it holds no features"),
        ("{", "it is not JSON"),
        ('{"velocity": [0]}', "the dataset has no feature velocity"),
        ('{"action": []}', "the window of action is not a list of seconds"),
        ('{"action": ["now"]}', "the window of action is not a list of seconds"),
        ('{"action": [NaN]}', "the window of action is not a list of seconds"),
    ],
)
def test_a_file_of_anything_else_is_refused_with_its_name(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "deltas.json"
    path.write_text(content)

    with pytest.raises(UsageError, match=said) as refused:
        read_deltas(path, FEATURES)

    assert refused.value.path == str(path)


@pytest.mark.parametrize(
    ("spelling", "name", "value"),
    [
        ("--repo_id=a/b", "repo_id", "a/b"),
        ("--local_root=/d", "root", "/d"),
        ("--data_files_root=/e", "data_files_root", "/e"),
        ("--buffer_size=7", "episode_pool_size", 7),
        ("--episode_pool_size=7", "episode_pool_size", 7),
        ("--video_decode_device=cuda:1", "decode_device", "cuda:1"),
        ("--decode-device=cuda", "decode_device", "cuda"),
        ("--max_episodes=2", "max_episodes", 2),
        ("--loader=stream_lerobot", "loader", "stream-lerobot"),
        ("--mode=sarm_action", "mode", "sarm-action"),
        ("--scenario=mmap-local", "scenario", "mmap_local"),
        ("--duration_s=1.5", "duration_s", 1.5),
    ],
)
def test_every_accepted_spelling_sets_its_option(spelling: str, name: str, value: object) -> None:
    assert getattr(parsed("--root=/dataset", spelling), name) == value


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--batch-size=0", "--batch-size must be at least 1"),
        ("--num-workers=-1", "--num-workers must be at least 0"),
        ("--duration-s=0", "--duration-s must be more than 0"),
        ("--loader=fast", "There is no loader fast"),
        ("--mode=fast", "There is no mode fast"),
        ("--source=fast", "There is no source fast"),
        ("--scenario=fast", "There is no scenario fast"),
        ("--decode-device=tpu", "--decode-device is cpu, cuda or cuda:N"),
    ],
)
def test_options_that_make_no_sense_are_refused(argument: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parsed("--root=/dataset", argument)


@pytest.mark.parametrize("spelling", ["--max_num_shards=3", "--max-buffer-input-shards=3"])
def test_shards_to_buffer_are_for_the_one_loader_that_has_them(spelling: str) -> None:
    wanted = parsed("--root=/dataset", spelling, "--loader=stream-lerobot")
    assert wanted.max_buffer_input_shards == 3
    for loader in ((), ("--loader=map",), ("--loader=stream",), ("--scenario=mmap_local",)):
        with pytest.raises(UsageError, match="Only the loader stream-lerobot knows"):
            parsed("--root=/dataset", spelling, *loader)


def test_a_dataset_must_be_given() -> None:
    with pytest.raises(UsageError, match="No dataset is given"):
        parsed("--loader=map")


def test_a_scenario_fills_in_loader_source_and_workers() -> None:
    placed = RunOptions(root="/d", scenario="mmap_local_maxworkers").placed()

    resolved = placed.resolved(cores=48, cameras=3, rank=0, world_size=1)

    assert (resolved.loader, resolved.source, resolved.num_workers) == ("map", "local", 16)


def test_what_is_said_beats_the_scenario() -> None:
    placed = RunOptions(
        root="/d", scenario="mmap_local", loader="stream", source="hub", num_workers=0
    ).placed()

    resolved = placed.resolved(cores=48, cameras=3, rank=1, world_size=2)

    assert (resolved.loader, resolved.source, resolved.num_workers) == ("stream", "hub", 0)
    assert (resolved.rank, resolved.world_size) == (1, 2)


def test_without_anything_said_the_stream_has_at_most_four_workers() -> None:
    placed = RunOptions(root="hf://buckets/a/b").placed()

    assert (placed.loader, placed.source) == ("stream", "bucket")
    assert placed.resolved(cores=64, cameras=1, rank=0, world_size=1).num_workers == 4
    assert placed.resolved(cores=2, cameras=1, rank=0, world_size=1).num_workers == 2


@pytest.mark.parametrize(
    ("root", "label"),
    [
        ("/data/set", "local"), ("hf://datasets/a/b", "hub"), ("hf://buckets/a/b", "bucket"),
        ("s3://a/b", None),
    ],
)  # fmt: skip
def test_the_label_of_a_source_is_guessed_where_it_is_plain(root: str, label: str | None) -> None:
    assert RunOptions(root=root).placed().source == label


def test_a_name_means_the_local_copy_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "org" / "here").mkdir(parents=True)
    environment = {"HF_LEROBOT_HOME": str(tmp_path)}

    assert dataset_place(None, "org/here", None, environment) == str(tmp_path / "org" / "here")
    assert dataset_place(None, "org/there", None, environment) == "hf://datasets/org/there"
    assert dataset_place(None, "org/here", "hub", environment) == "hf://datasets/org/here"
    assert dataset_place(None, "org/here", "bucket", environment) == "hf://buckets/org/here"
    with pytest.raises(UsageError, match="is not on this machine"):
        dataset_place(None, "org/there", "local", environment)


@pytest.mark.parametrize(
    ("root", "data_files_root", "read_from"),
    [
        ("/data/set", None, "local"), ("file:///data/set", None, "local"),
        ("hf://datasets/a/b", None, "hub"), ("hf://datasets/a/b", "hf://buckets/a/b", "bucket"),
        ("hf://datasets/a/b", "/data/set", "local"), ("s3://a/b", None, "s3"),
    ],
)  # fmt: skip
def test_what_is_really_read_is_told_whatever_the_label_says(
    root: str, data_files_root: str | None, read_from: str
) -> None:
    placed = RunOptions(root=root, data_files_root=data_files_root, source="warmed_bucket").placed()
    assert (placed.source, placed.read_from) == ("warmed_bucket", read_from)


def test_a_local_copy_is_read_unless_the_url_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "here").mkdir(parents=True)
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))

    def read(*arguments: str) -> tuple[str | None, str]:
        placed = parsed("--repo-id=org/here", *arguments).placed()
        return placed.root, placed.read_from

    assert read("--source=bucket") == (str(tmp_path / "org" / "here"), "local")
    assert read("--root=hf://datasets/org/here") == ("hf://datasets/org/here", "hub")
    assert read("--root=hf://buckets/org/here") == ("hf://buckets/org/here", "bucket")

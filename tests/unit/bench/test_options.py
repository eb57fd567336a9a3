"""Modes, windows and defaults are what the options say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leconvert.bench.options import (
    ResampleOptions,
    RunOptions,
    dataset_place,
    frames_per_sample,
    mode_deltas,
    parse_scenarios,
    read_deltas,
)
from leconvert.cli.main import with_hyphens
from leconvert.cli.parser import Parser
from leconvert.cli.probe import add_run_options, run_options
from leconvert.support.errors import UsageError

CAMERAS = ("observation.images.top", "observation.images.wrist")
FEATURES = (*CAMERAS, "observation.state", "action", "timestamp")
SECONDS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)


def parsed(*arguments: str) -> RunOptions:
    parser = Parser()
    add_run_options(parser)
    return run_options(parser.parse_args([with_hyphens(argument) for argument in arguments]))


@pytest.mark.parametrize(
    ("mode", "fps", "windows", "frames"),
    [
        ("single", 30, {}, 2),
        ("sarm", 30, dict.fromkeys([*CAMERAS, "action"], SECONDS), 16),
        ("sarm-action", 30, {"action": SECONDS}, 2),
    ],
)
def test_modes_are_windows_of_a_second_a_step(
    mode: Any, fps: float, windows: dict[str, Any], frames: int
) -> None:
    deltas = mode_deltas(mode, CAMERAS, FEATURES, fps)

    assert deltas == windows
    assert frames_per_sample(deltas, CAMERAS) == frames


def test_modes_have_windows_of_whole_frames_and_of_actions_in_parts() -> None:
    deltas = mode_deltas("sarm", (), FEATURES, 29.97)

    assert [second * 29.97 for second in deltas["action"]] == pytest.approx(
        [0, 30, 60, 90, 120, 150, 180, 210], abs=1e-9
    )
    assert set(mode_deltas("sarm", (), ("action.arm", "action.gripper", "actions"), 30)) == {
        "action.arm", "action.gripper"
    }  # fmt: skip
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
        ("--max_num_shards=3", "max_buffer_input_shards", 3),
        ("--max_buffer_input_shards=3", "max_buffer_input_shards", 3),
        ("--video_decode_device=cuda:1", "decode_device", "cuda:1"),
        ("--decode-device=cuda", "decode_device", "cuda"),
        ("--max_episodes=2", "max_episodes", 2),
        ("--loader=stream_lerobot", "loader", "stream-lerobot"),
        ("--mode=sarm_action", "mode", "sarm-action"),
        ("--scenario=mmap-local", "scenario", "mmap_local"),
        ("--source=warmed-bucket", "source", "warmed_bucket"),
        ("--duration_s=1.5", "duration_s", 1.5),
    ],
)
def test_every_accepted_spelling_sets_its_option(spelling: str, name: str, value: object) -> None:
    assert getattr(parsed("--root=/dataset", spelling), name) == value


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--batch-size=0", "--batch-size takes a whole number of at least 1"),
        ("--num-workers=-1", "--num-workers takes a whole number of at least 0"),
        ("--duration-s=0", "--duration-s takes a number of seconds above 0"),
        ("--loader=fast", "There is no loader fast"),
        ("--mode=fast", "There is no mode fast"),
        ("--source=fast", "There is no source fast"),
        ("--scenario=fast", "There is no scenario fast"),
        ("--decode-device=tpu", "cuda or cuda:N"),
    ],
)
def test_options_that_make_no_sense_are_refused(argument: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parsed("--root=/dataset", argument)


def test_a_dataset_must_be_given() -> None:
    with pytest.raises(UsageError, match="No dataset is given"):
        parsed("--loader=map")


@pytest.mark.parametrize(
    ("given", "cores", "loader", "source", "workers"),
    [
        ({"scenario": "mmap_local_maxworkers"}, 48, "map", "local", 16),
        ({"scenario": "mmap_local_maxworkers"}, 8, "map", "local", 2),
        ({"scenario": "mmap_local_maxworkers"}, 2, "map", "local", 1),
        *(
            ({"scenario": name}, cores, loader, source, 4)
            for name, loader, source in (
                ("mmap_local", "map", "local"), ("stream_hub", "stream", "hub"),
                ("stream_bucket", "stream", "bucket"), ("stream_bucket_2node", "stream", "bucket"),
            )
            for cores in (2, 64)
        ),
        # What is said beats the scenario.
        ({"scenario": "mmap_local", "loader": "stream", "source": "hub", "num_workers": 0}, 48,
         "stream", "hub", 0),
        # Without anything said there are at most four workers.
        ({"root": "hf://buckets/a/b"}, 64, "stream", "bucket", 4),
        ({"root": "hf://buckets/a/b"}, 2, "stream", "bucket", 2),
    ],
)  # fmt: skip
def test_loader_source_and_workers_are_filled_in(
    given: dict[str, Any], cores: int, loader: str, source: str, workers: int
) -> None:
    placed = RunOptions(**{"root": "/d"} | given).placed()

    resolved = placed.resolved(cores=cores, cameras=3, rank=1, world_size=2)

    assert (resolved.loader, resolved.source, resolved.num_workers) == (loader, source, workers)
    assert (resolved.rank, resolved.world_size) == (1, 2)


def test_a_dataset_without_cameras_has_a_worker_a_core() -> None:
    placed = RunOptions(root="/d", scenario="mmap_local_maxworkers").placed()
    assert placed.resolved(cores=8, cameras=0, rank=0, world_size=1).num_workers == 8


def test_a_list_of_scenarios_keeps_its_order_and_takes_hyphens_and_spaces() -> None:
    named = parse_scenarios("stream-hub, mmap_local,")
    assert [scenario.name for scenario in named] == ["stream_hub", "mmap_local"]


@pytest.mark.parametrize("text", ["stream_moon", ",", "mmap_local,mmap-local"])
def test_a_list_of_scenarios_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_scenarios(text)


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
    with pytest.raises(UsageError, match="is not on this machine") as caught:
        dataset_place(None, "org/there/arm", "local", environment)
    command = f"hf download --repo-type dataset org/there --include 'arm/*' --local-dir {tmp_path}"
    assert str(caught.value.next_step).endswith(f"{command}/org/there")


def test_results_do_not_hold_the_credentials_of_a_url() -> None:
    urls = [f"ftp://me:geheim@host/{name}" for name in ("meta", "rest")]
    records = [
        RunOptions(root=urls[0], data_files_root=urls[1]).as_record(),
        ResampleOptions(dataset=urls[0]).as_record(),
    ]
    assert "geheim" not in json.dumps(records)
    assert records[0]["root"] == records[1]["dataset"] == "ftp://***@host/meta"


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


def test_a_bucket_of_data_files_has_its_metadata_in_the_repository() -> None:
    bucket = parsed("--scenario=stream_bucket", "--repo_id=lab/set")
    apart = parsed(
        "--scenario=stream_bucket", "--repo_id=lab/set", "--data_files_root=hf://buckets/lab/b"
    )

    assert bucket.placed().root == "hf://buckets/lab/set"
    placed = apart.placed()
    assert (placed.root, placed.data_files_root) == ("hf://datasets/lab/set", "hf://buckets/lab/b")
    assert (placed.source, placed.read_from) == ("bucket", "bucket")

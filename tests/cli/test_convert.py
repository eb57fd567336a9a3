"""``leconvert`` as a user meets it: results, sentences, exit codes, nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from tests.program import Leconvert
from tests.trees import digest_of, snapshot


def test_help_is_quick_and_loads_no_heavy_library() -> None:
    code = (
        "import sys, leconvert.cli\n"
        "try:\n    leconvert.cli.main(['--help'])\n"
        "except SystemExit as stop:\n    assert stop.code == 0\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "leconvert.cli.main" in loaded
    assert not {"numpy", "pyarrow", "av", "torch", "lerobot", "huggingface_hub"} & set(loaded)
    assert len([name for name in loaded if name.startswith("leconvert.")]) < 20


def test_a_conversion_loads_no_more_than_it_needs(small_source: Path, tmp_path: Path) -> None:
    code = (
        "import sys, leconvert\n"
        f"leconvert.convert({str(small_source)!r}, output={str(tmp_path / 'out')!r})\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "pyarrow" in loaded
    heavy = {"pandas", "av", "torch", "lerobot", "datasets", "huggingface_hub"}
    assert sorted(heavy & set(loaded)) == []
    # Each of ours takes milliseconds of a conversion that takes a third of a second.
    ours = [name for name in loaded if name.startswith("leconvert.")]
    assert len(ours) <= 127
    others = ("dataset.check", "run.repairing", "report", "bench", "fleet", "run.upkeep",
              "remote.push", "media.pyav", "remote.stores")  # fmt: skip
    assert not [name for name in ours if name.startswith(tuple(f"leconvert.{x}" for x in others))]
    assert not {"difflib", "getpass", "importlib.metadata"} & set(loaded)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a thread more needs a core more")
def test_no_library_starts_a_thread_but_for_a_probe() -> None:
    def threads(*arguments: str) -> int:
        code = (
            "import os, sys, leconvert.cli\n"
            "program = sys.modules['leconvert.cli.main']\n"
            f"sys.argv = ['leconvert', *{arguments!r}]\n"
            "def main(**_):\n"
            "    import leconvert.api, leconvert.cli.work\n"
            "    print(len(os.listdir('/proc/self/task')))\n"
            "    return 0\n"
            "program.main = main\n"
            "program.program()"
        )
        quiet = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=quiet
        )
        return int(ran.stdout)

    assert threads("convert", "somewhere") == 1
    assert threads("probe", "run") > 1


def test_a_conversion_beside_the_source_leaves_it_alone(
    leconvert: Leconvert, source_copy: Path, tmp_path: Path
) -> None:
    before = snapshot(source_copy)
    done = leconvert("convert", "--root", source_copy, "--output", tmp_path / "out", "--no-push")
    assert done.returncode == 0, done.stderr
    assert "5 episodes" in done.stdout
    assert str(tmp_path / "out") in done.stdout
    assert snapshot(source_copy) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "small"]
    proof = leconvert("verify", tmp_path / "out", "--source", source_copy, "--bytes")
    assert proof.returncode == 0
    assert "matches" in proof.stdout


def test_a_conversion_in_place_keeps_the_source_beside_it(
    leconvert: Leconvert, source_copy: Path, tmp_path: Path
) -> None:
    before = snapshot(source_copy)
    done = leconvert("convert", "--root", source_copy, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["output"], report["kept_source"]) == (
        str(source_copy),
        str(tmp_path / "small_old"),
    )
    assert {**snapshot(tmp_path / "small_old")} == before
    assert json.loads((source_copy / "meta/info.json").read_bytes())["codebase_version"] == "v3.0"
    again = leconvert("convert", "--root", source_copy)
    assert again.returncode == 0
    assert "There is nothing to do" in again.stdout


def test_underscores_and_the_lerobot_spelling_work(
    leconvert: Leconvert, source_copy: Path, tmp_path: Path
) -> None:
    done = leconvert(
        "convert", f"--root={source_copy}", f"--output={tmp_path / 'out'}", "--push_to_hub=false",
        "--data_file_size_in_mb=1", "--video_file_size_in_mb", "1", "--max_workers=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    info = json.loads((tmp_path / "out/meta/info.json").read_bytes())
    assert (info["data_files_size_in_mb"], info["video_files_size_in_mb"]) == (1, 1)


def test_a_repo_id_names_the_folder_below_the_lerobot_home(
    leconvert: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    import os
    import shutil

    shutil.copytree(small_source, tmp_path / "home/org/name")
    env = {
        **os.environ,
        "HF_LEROBOT_HOME": str(tmp_path / "home"),
        "HF_HUB_CACHE": str(tmp_path / "cache"),
    }
    missing = leconvert("convert", "--repo-id", "org/other", "--no-push", env=env)
    assert missing.returncode == 15
    assert "HF_HUB_OFFLINE is set, and the cache has no org/other at main." in missing.stderr
    done = leconvert("convert", "--repo-id", "org/name", "--no-push", env=env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "home/org/name_old").is_dir()


def test_several_terminals_share_one_run(
    leconvert: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    planned = leconvert(
        "plan", "--root", small_source, "--output", out, "--work-dir", work,
        "--episodes-per-batch", 1, "--json",
    )  # fmt: skip
    assert json.loads(planned.stdout)["batches"] == 5
    early = leconvert("pack", work, "--no-wait")
    assert early.returncode == 9
    assert "0 of 5 batches are done" in early.stderr
    first = leconvert("work", work, "--max-batches", 2, "--json")
    assert json.loads(first.stdout)["batches_done"] == 2
    status = json.loads(leconvert("status", work, "--json").stdout)
    assert (status["done"], status["pending"], status["packed"]) == (2, 3, False)
    assert leconvert("work", work).returncode == 0
    packed = leconvert("pack", work, "--json")
    assert json.loads(packed.stdout)["joined"] == 3
    assert json.loads(leconvert("status", work, "--json").stdout)["packed"] is True
    assert leconvert("verify", out, "--source", small_source, "--bytes").returncode == 0


@pytest.mark.parametrize("options", [[], ["--episodes-per-batch", "1", "--recompute-stats"]])
def test_a_camera_may_have_the_longest_name_of_a_folder(
    leconvert: Leconvert, tmp_path: Path, options: list[str]
) -> None:
    cameras = [CameraSpec(key=f"observation.images.{'x' * 235}{end}") for end in "ab"]
    assert {len(camera.key) for camera in cameras} == {255}
    spec = DatasetSpec(episodes=2, frames=[3, 2], cameras=tuple(cameras))
    source, out = make_dataset(tmp_path / "set", spec), tmp_path / "out"
    assert leconvert("convert", source, out, *options, "--verify", "bytes").returncode == 0
    assert leconvert("convert", out, tmp_path / "back", "--to", "v2.1").returncode == 0
    for camera in cameras:
        assert (out / "videos" / camera.key / "chunk-000/file-000.mp4").is_file()


def test_a_dry_run_writes_nothing(leconvert: Leconvert, source_copy: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    for command in ("plan", "convert"):
        shown = leconvert(command, "--root", source_copy, "--output", tmp_path / "x", "--dry-run")
        assert shown.returncode == 0, shown.stderr
        assert "Nothing was written" in shown.stdout
    assert snapshot(tmp_path) == before


def test_a_second_planner_with_other_options_is_shown_the_difference(
    leconvert: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    places = ("--root", small_source, "--output", tmp_path / "out", "--work-dir", tmp_path / "w")
    assert leconvert("plan", *places).returncode == 0
    other = leconvert("plan", *places, "--data-file-size-in-mb", 7)
    assert other.returncode == 6
    assert "data_file_size_in_mb: 100 planned, 7 now" in other.stderr
    assert leconvert("plan", *places, "--data-file-size-in-mb", 7, "--restart").returncode == 0


def test_another_library_version_refuses_unless_allowed(
    leconvert: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    work = tmp_path / "w"
    leconvert("plan", "--root", small_source, "--output", tmp_path / "out", "--work-dir", work)
    [manifest] = work.glob("runs/*/manifest.json")
    record = json.loads(manifest.read_bytes())
    record["versions"]["pyarrow"] = "1.2.3"
    manifest.write_text(json.dumps(record))
    refused = leconvert("work", work)
    assert refused.returncode == 6
    assert "pyarrow: planned with 1.2.3" in refused.stderr
    assert leconvert("work", work, "--allow-mixed-versions").returncode == 0


def test_an_existing_result_is_never_overwritten_without_a_word(
    leconvert: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    convert = ("convert", "--root", small_source, "--output", out)
    assert leconvert(*convert).returncode == 0
    before = snapshot(out)
    again = leconvert(*convert)
    assert again.returncode == 0
    assert "There is nothing to do" in again.stdout
    refused = leconvert(*convert, "--recompute-stats")
    assert refused.returncode == 5
    assert "already holds a v3.0 dataset" in refused.stderr
    assert snapshot(out) == before
    forced = leconvert(*convert, "--force-conversion")
    assert forced.returncode == 0, forced.stderr
    assert digest_of(tmp_path / "out_old") == digest_of(out)


@pytest.mark.parametrize("kind", ["file", "folder with something in it", "dangling link"])
def test_something_else_at_the_target_is_left_alone(
    leconvert: Leconvert, small_source: Path, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "dangling link":
        out.symlink_to(tmp_path / "nowhere" / "at all")
    else:
        out.mkdir()
        (out / "mine").write_text("mine")
    refused = leconvert("convert", "--root", small_source, "--output", out)
    assert refused.returncode == 5, refused.stderr
    assert "Traceback" not in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("damage", "code", "sentence"),
    [
        ("remove a clip", 3, "episode_000002.mp4 is missing"),
        ("truncate a table", 3, "episode_000001.parquet"),
        ("truncate a clip", 3, "episode_000001.mp4"),
        ("no info", 3, "is not a LeRobot dataset"),
        ("old version", 3, "codebase_version 'v1.6'"),
    ],
)
def test_a_source_that_cannot_be_converted_is_explained_and_leaves_no_trace(
    leconvert: Leconvert, source_copy: Path, tmp_path: Path, damage: str, code: int, sentence: str
) -> None:
    clips = source_copy / "videos/chunk-000/observation.images.top"
    info = source_copy / "meta/info.json"
    if damage == "remove a clip":
        (clips / "episode_000002.mp4").unlink()
    elif damage == "truncate a clip":
        clip = clips / "episode_000001.mp4"
        clip.write_bytes(clip.read_bytes()[:-50])
    elif damage == "truncate a table":
        table = source_copy / "data/chunk-000/episode_000001.parquet"
        table.write_bytes(table.read_bytes()[:-5])
    elif damage == "no info":
        info.unlink()
    else:
        info.write_text(info.read_text().replace('"v2.1"', '"v1.6"'))
    before = snapshot(tmp_path)
    refused = leconvert("convert", "--root", source_copy, "--output", tmp_path / "out")
    assert refused.returncode == code
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr
    assert snapshot(tmp_path) == before


def test_errors_are_json_when_json_was_asked_for(leconvert: Leconvert, tmp_path: Path) -> None:
    refused = leconvert("convert", "--root", tmp_path, "--output", tmp_path / "x", "--json")
    record = json.loads(refused.stdout)
    assert refused.returncode == record["exit_code"] == 3
    assert record["next_step"]


def test_the_demo_converts_and_proves_a_dataset_of_two_cameras(
    leconvert: Leconvert, tmp_path: Path
) -> None:
    done = leconvert("demo", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    assert "Verified: 295 rows and 590 camera frames of 6 episodes" in done.stdout
    assert leconvert("demo", tmp_path / "demo").returncode == 5
    quiet = leconvert("demo", tmp_path / "other", "--json")
    assert json.loads(quiet.stdout)["verified"]["ok"] is True


def test_verify_names_what_differs(leconvert: Leconvert, source_copy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    leconvert("convert", "--root", source_copy, "--output", out)
    video = out / "videos/observation.images.top/chunk-000/file-000.mp4"
    content = bytearray(video.read_bytes())
    content[-10] ^= 1
    video.write_bytes(content)
    assert leconvert("verify", out, "--source", source_copy).returncode == 0
    found = leconvert("verify", out, "--source", source_copy, "--bytes", "--json")
    assert found.returncode == 10
    [difference] = json.loads(found.stdout)["differences"]
    assert difference["episode"] == 4
    assert difference["what"] == "coded bytes from packet 14 on (SHA-256 of that packet)"


@pytest.mark.parametrize("how", [("--max-workers=1",), ("--orchestrate", "--num-workers=1")])
def test_the_peak_of_memory_is_told_of_the_command_and_of_its_workers(
    small_source: Path, leconvert: Leconvert, tmp_path: Path, how: tuple[str, ...]
) -> None:
    work, page = tmp_path / "work", tmp_path / "page.html"
    told = leconvert(
        "convert", "--root", small_source, "--output", tmp_path / "out", "--json", *how,
        "--work-dir", work, "--report", page,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    peak = json.loads(told.stdout)["peak_memory_bytes"]
    assert peak["command"] > 2**24
    assert (peak["workers"] is None) == (how == ("--max-workers=1",))
    assert peak["workers"] is None or peak["workers"] > 2**24
    status = json.loads(leconvert("status", work, "--json").stdout)
    assert status["peak_memory_bytes"] == peak["workers"] or peak["workers"] is None
    assert 2**24 < status["packer"]["peak_memory_bytes"] <= peak["command"]
    assert "memory   peak of a worker " in leconvert("status", work).stdout
    assert "Peak memory" in page.read_text()


def test_a_part_of_a_dataset_is_converted_verified_and_resumed(
    leconvert: Leconvert, source_copy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ("convert", source_copy, out, "--episodes", "0,3-4", "--exclude-task", "task 9")
    refused = leconvert(*command)
    assert refused.returncode == 2
    assert "--exclude-task: no episode lists the task task 9." in refused.stderr
    for words, said in (
        (("--episodes", "0-7"), "--episodes: the dataset has no episode 7."),
        (("--exclude-episodes", "0-4"), "No episode is left to convert."),
        (("--episodes", "0", "--exclude-episodes", "1"), "cannot be given together"),
        (("--episodes", "all"), "takes episode numbers and ranges"),
    ):
        refused = leconvert("convert", source_copy, out, *words)
        assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr
    assert list(tmp_path.iterdir()) == [source_copy]

    work = tmp_path / "work"
    command = ("convert", source_copy, out, "--work-dir", work, "--episodes", "0,3-4")
    planned = leconvert("plan", *command[1:])
    assert planned.returncode == 0, planned.stderr
    other = leconvert(*command[:-1], "0,4")
    assert other.returncode != 0
    assert "episodes: 0,3-4 planned, 0,4 now" in other.stderr
    done = leconvert(*command[:-1], "3-4,0")
    assert done.returncode == 0, done.stderr
    assert "Converted 3 episodes" in done.stdout
    assert "only episodes 0,3-4 asked for" in done.stdout
    verified = leconvert("verify", out, "--source", source_copy)
    assert verified.returncode == 0, verified.stdout
    again = leconvert("convert", source_copy, out)
    assert again.returncode != 0

"""``leconvert`` as a user meets it: results, sentences, exit codes, nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leconvert.support.machine import allowed_cores
from tests.program import Leconvert
from tests.trees import snapshot


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


@pytest.mark.skipif(allowed_cores() < 2, reason="a thread more needs a core more")
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
    leconvert_here: Leconvert, source_copy: Path, tmp_path: Path
) -> None:
    before = snapshot(source_copy)
    done = leconvert_here(
        "convert", "--root", source_copy, "--output", tmp_path / "out", "--no-push"
    )
    assert done.returncode == 0, done.stderr
    assert "5 episodes" in done.stdout
    assert str(tmp_path / "out") in done.stdout
    assert snapshot(source_copy) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "small"]
    proof = leconvert_here("verify", tmp_path / "out", "--source", source_copy, "--bytes", code=0)
    assert "matches" in proof.stdout


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
    missing = leconvert("convert", "--repo-id", "org/other", "--no-push", env=env, code=15)
    assert "HF_HUB_OFFLINE is set, but org/other at main is not in the cache." in missing.stderr
    leconvert("convert", "--repo-id", "org/name", "--no-push", env=env, code=0)
    assert (tmp_path / "home/org/name_old").is_dir()


def test_several_terminals_share_one_run(
    leconvert_here: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    planned = leconvert_here(
        "plan", "--root", small_source, "--output", out, "--work-dir", work,
        "--episodes-per-batch", 1, "--json",
    )  # fmt: skip
    assert json.loads(planned.stdout)["batches"] == 5
    early = leconvert_here("pack", work, "--no-wait", code=9)
    assert "0 of 5 batches are done" in early.stderr
    first = leconvert_here("work", work, "--max-batches", 2, "--json")
    assert json.loads(first.stdout)["batches_done"] == 2
    status = json.loads(leconvert_here("status", work, "--json").stdout)
    assert (status["done"], status["pending"], status["packed"]) == (2, 3, False)
    assert leconvert_here("work", work).returncode == 0
    packed = leconvert_here("pack", work, "--json")
    assert json.loads(packed.stdout)["joined"] == 3
    assert json.loads(leconvert_here("status", work, "--json").stdout)["packed"] is True
    assert leconvert_here("verify", out, "--source", small_source, "--bytes").returncode == 0


def test_another_library_version_refuses_unless_allowed(
    leconvert_here: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    work = tmp_path / "w"
    leconvert_here("plan", "--root", small_source, "--output", tmp_path / "out", "--work-dir", work)
    [manifest] = work.glob("runs/*/manifest.json")
    record = json.loads(manifest.read_bytes())
    record["versions"]["pyarrow"] = "1.2.3"
    manifest.write_text(json.dumps(record))
    refused = leconvert_here("work", work, code=6)
    assert "pyarrow: planned with 1.2.3" in refused.stderr
    assert leconvert_here("work", work, "--allow-mixed-versions").returncode == 0


def test_the_peak_of_memory_is_told_of_the_command_and_of_its_workers(
    small_source: Path, leconvert: Leconvert, tmp_path: Path
) -> None:
    work, page = tmp_path / "work", tmp_path / "page.html"
    told = leconvert(
        "convert", "--root", small_source, "--output", tmp_path / "out", "--json",
        "--orchestrate", "--num-workers=1", "--work-dir", work, "--report", page, code=0,
    )  # fmt: skip
    peak = json.loads(told.stdout)["peak_memory_bytes"]
    assert peak["command"] > 2**24
    assert peak["workers"] > 2**24
    status = json.loads(leconvert("status", work, "--json").stdout)
    assert status["peak_memory_bytes"] == peak["workers"]
    assert 2**24 < status["packer"]["peak_memory_bytes"] <= peak["command"]
    assert "memory   peak of a worker " in leconvert("status", work).stdout
    assert "Peak memory" in page.read_text()

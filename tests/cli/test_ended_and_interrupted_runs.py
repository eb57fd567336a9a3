"""A run whose swap failed, was cut off, or is over: what the next command makes of what is there.

Between two commands the source changes, options change, the result is removed or damaged, somebody
moves things by hand, or another run converts the same dataset. Nothing is deleted that the very
process did not compare, and every remedy that a message names is tried.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import leconvert as package
from leconvert.run.packer import run as packing
from leconvert.run.proof import VerificationReport, verify_pair
from leconvert.support import file_calls
from leconvert.testing import CameraSpec, DatasetSpec, edit_info, make_dataset
from leconvert.workdir.records import WorkDir
from leconvert.workdir.swap import old_dir
from tests.faults.faulty_files import CrashError
from tests.program import Leconvert
from tests.trees import digest_of, snapshot

NO_REPLACE, EXCHANGE = 1, 2


def make(root: Path, episodes: int) -> Path:
    camera = CameraSpec(key="observation.images.top", width=32, height=32)
    spec = DatasetSpec(
        episodes=episodes, frames=6, cameras=(camera,), extra_files={"README.md": "# x\n"}
    )
    return make_dataset(root, spec)


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("four") / "set", 4)


@pytest.fixture(scope="session")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("six") / "set", 6)


@pytest.fixture
def dataset(four: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(four, tmp_path / "set"))


@contextmanager
def failing(flags: int, *, dies: bool = False) -> Iterator[None]:
    """Let the swap's renames with these flags fail, or the process die at the first of them."""
    real = file_calls._rename

    def broken(source: Any, target: Any, found: int) -> None:
        if found != flags or Path(target).name not in {"set", "set_old", "out", "out_old"}:
            real(source, target, found)
        elif dies:
            raise CrashError
        else:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_calls, "_rename", broken)
        yield


def grow(dataset: Path, grown: Path) -> None:
    """Record two more episodes, as a robot does: files are added, tables are written anew."""
    for path in sorted(grown.rglob("*")):
        at = dataset / path.relative_to(grown)
        if path.is_file() and (path.parent.name == "meta" or not at.exists()):
            at.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, at)


def episodes_of(dataset: Path) -> tuple[str, int]:
    info = json.loads((dataset / "meta/info.json").read_bytes())
    return info["codebase_version"], info["total_episodes"]


def beside(dataset: Path) -> list[str]:
    return sorted(path.name for path in dataset.parent.iterdir())


def a_clip_of(dataset: Path) -> Path:
    return next(iter(sorted((dataset / "videos").rglob("*.mp4"))))


def remedy(done: CompletedProcess[str]) -> str:
    """Return the shell commands that the message names."""
    return next(words for words in re.findall("`([^`]*)`", done.stderr) if words.startswith("mv"))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Path, str]]:
    """What was compared with what, by what depth, in this process."""
    seen: list[tuple[Path, Path, str]] = []

    def noting(
        result: Path, sources: list[Path], *, depth: str, **options: Any
    ) -> VerificationReport:
        (source,) = sources
        seen.append((result, source, depth))
        return verify_pair(result, source, depth=depth, **options)

    monkeypatch.setattr(packing, "verify_pair", noting)
    return seen


# --- a swap that failed ---------------------------------------------------------------------------


def test_a_source_that_changed_after_a_failed_exchange_is_not_replaced(
    dataset: Path, six: Path, leconvert_here: Leconvert
) -> None:
    command = ["convert", "--root", dataset, "--delete-source"]
    with failing(EXCHANGE):
        assert leconvert_here(*command).returncode == 11
    grow(dataset, six)
    before = snapshot(dataset)
    done = leconvert_here(*command, code=4)
    assert "changed after the conversion was planned" in done.stderr
    assert snapshot(dataset) == before
    leconvert_here(*command, "--restart", code=0)
    assert episodes_of(dataset) == ("v3.0", 6)
    assert beside(dataset) == ["set"]


def test_after_a_failed_exchange_all_is_compared_again(
    dataset: Path, four: Path, leconvert_here: Leconvert, compared: list[Any]
) -> None:
    command = ["convert", "--root", dataset, "--delete-source"]
    with failing(EXCHANGE):
        assert leconvert_here(*command).returncode == 11
    compared.clear()
    [tree] = dataset.parent.glob(".set.leconvert-*.1")
    clip = a_clip_of(tree)
    status, raw = clip.stat(), bytearray(clip.read_bytes())
    raw[-1] ^= 1
    with clip.open("r+b") as file:
        file.write(raw)
    os.utime(clip, ns=(status.st_atime_ns, status.st_mtime_ns))  # nothing but its bytes tells
    leconvert_here(*command, code=10)
    assert [depth for *_, depth in compared] == ["bytes"]
    assert snapshot(dataset) == snapshot(four) | {}
    assert leconvert_here(*command, "--restart").returncode == 0
    assert beside(dataset) == ["set"]


# --- a process that died when the exchange had happened -------------------------------------------


def exchanged(dataset: Path, *, delete_source: bool = False) -> Path:
    """Convert in place, and die right after the exchange; return where the source lies."""
    with failing(NO_REPLACE, dies=True), pytest.raises(CrashError):
        package.convert(dataset, proof=package.ProofOptions(delete_source=delete_source))
    assert episodes_of(dataset)[0] == "v3.0"
    [kept] = dataset.parent.glob(".set.leconvert-*.1")
    assert episodes_of(kept)[0] == "v2.1"
    return kept


def test_a_swap_that_came_to_its_exchange_is_ended_and_compared_again(
    dataset: Path, four: Path, leconvert_here: Leconvert, compared: list[Any]
) -> None:
    exchanged(dataset, delete_source=True)
    compared.clear()
    leconvert_here("convert", "--root", dataset, "--delete-source", code=0)
    assert compared == [(dataset, dataset.with_name("set_old"), "bytes")]
    assert beside(dataset) == ["set"]
    assert verify_pair(dataset, four, depth="bytes").ok


def test_a_source_that_changed_after_the_exchange_is_never_deleted(
    dataset: Path, six: Path, leconvert_here: Leconvert
) -> None:
    grow(exchanged(dataset), six)
    command = ["convert", "--root", dataset, "--delete-source"]
    done = leconvert_here(*command, code=4)
    assert episodes_of(dataset.with_name("set_old")) == ("v2.1", 6)
    assert leconvert_here(*command).returncode == 4, (
        "the next command compares the result with its source"
    )
    subprocess.run(remedy(done), shell=True, check=True)
    leconvert_here(*command, code=0)
    assert episodes_of(dataset) == ("v3.0", 6)
    assert episodes_of(dataset.with_name("set_v30")) == ("v3.0", 4)


def test_a_damaged_result_after_the_exchange_keeps_the_source_and_says_how_to_begin_anew(
    dataset: Path, four: Path, leconvert_here: Leconvert
) -> None:
    exchanged(dataset)
    a_clip_of(dataset).unlink()
    done = leconvert_here("convert", "--root", dataset, "--delete-source", code=10)
    assert snapshot(dataset.with_name("set_old")).keys() == snapshot(four).keys()
    subprocess.run(remedy(done), shell=True, check=True)
    leconvert_here("convert", "--root", dataset, "--delete-source", code=0)
    assert verify_pair(dataset, four, depth="bytes").ok


@pytest.fixture
def replacing(dataset: Path, six: Path, tmp_path: Path, leconvert_here: Leconvert) -> list[Any]:
    """A command that replaces an earlier result; another run's swap died there after the exchange.

    The other run's work dir is ``first``, its command the same but for that.
    """
    target = tmp_path / "out"
    assert leconvert_here("convert", "--root", six, "--output", target).returncode == 0
    command = ["convert", "--root", dataset, "--output", target, "--force-conversion", "--work-dir"]
    with failing(NO_REPLACE, dies=True), pytest.raises(CrashError):
        leconvert_here(*command, tmp_path / "first")
    assert episodes_of(target) == ("v3.0", 4)
    return command


def test_a_swap_that_has_not_ended_is_ended_by_its_own_command_as_another_ones_message_says(
    dataset: Path, tmp_path: Path, replacing: list[Any], leconvert_here: Leconvert
) -> None:
    done = leconvert_here(*replacing, tmp_path / "second", code=5)
    assert f"{tmp_path / 'out'} is the result of run " in done.stderr
    assert "Run the command of that run again to finish it" in done.stderr
    leconvert_here(*replacing, tmp_path / "first", code=0)
    assert episodes_of(tmp_path / "out") == ("v3.0", 4)
    assert episodes_of(tmp_path / "out_old") == ("v3.0", 6)
    assert verify_pair(tmp_path / "out", dataset, depth="bytes").ok


def test_a_swap_whose_work_dir_is_gone_is_ended_by_hand_as_the_message_says(
    dataset: Path, tmp_path: Path, replacing: list[Any], leconvert_here: Leconvert
) -> None:
    shutil.rmtree(tmp_path / "first")
    result = digest_of(tmp_path / "out")
    done = leconvert_here(*replacing, tmp_path / "second", code=5)
    [there] = re.findall(r"give (\S+) another name", " ".join(done.stderr.split()))
    assert digest_of(tmp_path / "out") == result
    Path(there).rename(tmp_path / "other")
    leconvert_here(*replacing, tmp_path / "second", code=0)
    assert verify_pair(tmp_path / "out", dataset, depth="bytes").ok
    assert digest_of(tmp_path / "other") == result, "what stood there is kept"
    [earlier] = tmp_path.glob(".out.leconvert-*")
    assert episodes_of(earlier) == ("v3.0", 6), "and what had stood there before"


# --- a run that is over ---------------------------------------------------------------------------


@pytest.fixture
def finished(dataset: Path, tmp_path: Path, leconvert_here: Leconvert) -> list[Any]:
    """A conversion beside the source whose work dir was kept; the command."""
    command = ["convert", "--root", dataset, "--output", tmp_path / "out"]
    command += ["--work-dir", tmp_path / "work"]
    assert leconvert_here(*command).returncode == 0
    return command


def test_a_finished_run_answers_for_its_result_by_comparing_it_again(
    dataset: Path, tmp_path: Path, leconvert_here: Leconvert, finished: list[Any],
    compared: list[Any],
) -> None:  # fmt: skip
    before = snapshot(tmp_path / "out")
    assert leconvert_here(*finished).returncode == 0
    assert leconvert_here(*finished, "--no-verify").returncode == 0
    assert leconvert_here("pack", tmp_path / "work", "--verify", "bytes").returncode == 0
    depths = ("structure", "structure", "bytes")
    assert compared == [(tmp_path / "out", dataset, depth) for depth in depths]
    assert snapshot(tmp_path / "out") == before


def test_a_finished_run_whose_result_is_gone_is_done_anew(
    tmp_path: Path, leconvert_here: Leconvert, finished: list[Any]
) -> None:
    digest = digest_of(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    done = leconvert_here("pack", tmp_path / "work", code=5)
    assert "is not a v3.0 dataset any more" in done.stderr
    done = leconvert_here(*finished, code=0)
    assert "Converting again" in done.stderr
    assert digest_of(tmp_path / "out") == digest


@pytest.mark.parametrize("is_same", [True, False], ids=["as recorded", "another"])
def test_a_kept_source_is_named_to_be_put_back_if_it_is_the_one_of_the_run(
    dataset: Path, tmp_path: Path, leconvert_here: Leconvert, is_same: bool
) -> None:
    work, kept = tmp_path / "work", old_dir(dataset)
    leconvert_here("convert", dataset, "--work-dir", work, code=0)
    shutil.rmtree(dataset)
    if not is_same:
        edit_info(kept, lambda info: info.update(robot_type="another"))
    done = leconvert_here("pack", work, code=5)
    assert (f"`mv {kept} {dataset}`" in done.stderr) == is_same
    assert (f"`leconvert check {kept}`" in done.stderr) != is_same


@pytest.mark.parametrize("damage", ["removed", "added"])
def test_a_finished_run_does_not_answer_for_a_result_that_was_touched(
    tmp_path: Path, leconvert_here: Leconvert, finished: list[Any], damage: str
) -> None:
    clip = a_clip_of(tmp_path / "out")
    if damage == "removed":
        clip.unlink()
    else:
        clip.with_name("mine.mp4").write_bytes(b"mine")
    before = snapshot(tmp_path / "out")
    for command in (finished, ["pack", tmp_path / "work"]):
        done = leconvert_here(*command, code=10)
    assert "--force-conversion" in done.stderr
    assert snapshot(tmp_path / "out") == before
    leconvert_here(*finished, "--force-conversion", code=0)
    assert snapshot(tmp_path / "out_old") == before
    assert episodes_of(tmp_path / "out") == ("v3.0", 4)


def test_a_finished_run_does_not_answer_for_a_source_that_grew(
    dataset: Path, six: Path, tmp_path: Path, leconvert_here: Leconvert, finished: list[Any]
) -> None:
    grow(dataset, six)
    done = leconvert_here(*finished, code=4)
    assert "--force-conversion" in done.stderr
    assert episodes_of(tmp_path / "out") == ("v3.0", 4)
    anew = leconvert_here(*finished, "--force-conversion", code=0)
    assert episodes_of(tmp_path / "out") == ("v3.0", 6)
    compares = re.search("`leconvert (verify .*? --bytes)` compares every byte", anew.stdout)
    assert compares is not None
    leconvert_here(*shlex.split(compares[1]), code=0)
    assert episodes_of(tmp_path / "out_old") == ("v3.0", 4)


def test_a_finished_run_does_not_answer_for_other_options(
    tmp_path: Path, leconvert_here: Leconvert, finished: list[Any]
) -> None:
    finished += ["--drop-feature", "observation.images.top"]
    done = leconvert_here(*finished, code=6)
    assert "drop_feature" in done.stderr
    assert (tmp_path / "out/videos").exists()
    assert leconvert_here(*finished, "--force-conversion").returncode == 0
    assert not (tmp_path / "out/videos").exists()


def test_a_proof_of_a_finished_run_in_place_is_made_anew_before_its_source_is_deleted(
    dataset: Path, four: Path, leconvert_here: Leconvert
) -> None:
    command = ["convert", "--root", dataset, "--keep-work-dir"]
    assert leconvert_here(*command, "--verify", "bytes").returncode == 0
    a_clip_of(dataset).unlink()
    old = dataset.with_name("set_old")
    before = snapshot(old)
    for again in (command, [*command, "--delete-source"]):
        done = leconvert_here(*again, code=10)
    assert snapshot(old) == before
    subprocess.run(remedy(done), shell=True, check=True)
    assert leconvert_here(*command, "--delete-source").returncode == 0
    assert verify_pair(dataset, four, depth="bytes").ok
    assert not old.exists()


def test_a_finished_run_whose_source_the_user_removed_answers_for_a_whole_result_only(
    dataset: Path, leconvert_here: Leconvert
) -> None:
    command = ["convert", "--root", dataset, "--keep-work-dir"]
    assert leconvert_here(*command).returncode == 0
    shutil.rmtree(dataset.with_name("set_old"))
    assert leconvert_here(*command, "--delete-source").returncode == 0
    a_clip_of(dataset).unlink()
    done = leconvert_here(*command, code=10)
    assert "and its source does not exist any more" in done.stderr


def test_a_source_that_was_put_back_is_converted_again(
    dataset: Path, leconvert_here: Leconvert
) -> None:
    command = ["convert", "--root", dataset, "--keep-work-dir"]
    assert leconvert_here(*command).returncode == 0
    dataset.rename(dataset.with_name("first"))
    done = leconvert_here(*command, code=5)
    subprocess.run(remedy(done), shell=True, check=True)
    assert leconvert_here(*command).returncode == 0
    assert digest_of(dataset) == digest_of(dataset.with_name("first"))


# --- two runs of one dataset ----------------------------------------------------------------------


def test_while_one_run_swaps_another_one_of_the_same_dataset_is_refused(
    dataset: Path, tmp_path: Path, leconvert_here: Leconvert, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leconvert.cli import main
    from leconvert.run.packer import run as packing

    for name in ("one", "two"):
        work = tmp_path / name
        assert leconvert_here("plan", "--root", dataset, "--work-dir", work).returncode == 0
        assert leconvert_here("work", work).returncode == 0
    monkeypatch.setattr("leconvert.workdir.locks.BEAT_SECONDS", 0.1)  # by which the other lives
    swap = packing.swap_into_place
    codes: list[int] = []

    def with_another_one(*arguments: Any, **options: Any) -> None:
        if not codes:
            codes.append(-1)
            codes[0] = main(["pack", str(tmp_path / "two")])
        swap(*arguments, **options)

    monkeypatch.setattr(packing, "swap_into_place", with_another_one)
    assert leconvert_here("pack", tmp_path / "one").returncode == 0
    assert codes == [12]
    assert episodes_of(dataset)[0] == "v3.0"
    assert leconvert_here("pack", tmp_path / "two").returncode == 5


def test_two_conversions_of_one_dataset_that_start_together_lose_nothing(
    dataset: Path, four: Path, tmp_path: Path, leconvert_here: Leconvert
) -> None:
    command = [sys.executable, "-m", "leconvert", "convert", "--json", "--root", str(dataset)]
    processes = [
        subprocess.Popen(
            [*command, "--work-dir", str(tmp_path / name)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("one", "two")
    ]
    said = [process.communicate(timeout=120)[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes)[0] == 0, said
    # Where one began after the other had ended, it finds its command finished.
    finished = ['"already_converted"' in one for one in said]
    assert sorted(codes)[1] in {3, 4, 5, 12} or (codes == [0, 0] and sum(finished) == 1), said
    assert verify_pair(dataset, four, depth="bytes").ok
    kept = snapshot(dataset.with_name("set_old"))
    assert {name: rest[2] for name, rest in kept.items()} == {
        name: rest[2] for name, rest in snapshot(four).items()
    }
    lost = tmp_path / ("one" if codes[0] else "two")
    if WorkDir(lost).current_run_id() is not None:  # it may be refused before it has a plan
        assert leconvert_here("clean", lost, "--give-up").returncode == 0
    assert [name for name in beside(dataset) if name.startswith(".")] == []

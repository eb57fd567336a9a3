"""What a conversion proves before its result takes the source's place, and what becomes of that."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import leconvert
from leconvert.cli.main import main
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import ProofOptions
from leconvert.run.packer import removal
from leconvert.run.packer import run as packing
from leconvert.run.proof import Difference, VerificationReport, verify_pair
from leconvert.support import file_calls
from leconvert.support.errors import InterruptedRunError, StorageError, VerificationError
from leconvert.support.progress import SilentProgress, Stage
from tests.trees import snapshot


def old_of(dataset: Path) -> Path:
    return dataset.with_name(f"{dataset.name}_old")


def test_a_source_that_is_wholly_in_the_result_is_removed(
    source_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "--root", str(source_copy), "--delete-source", "--no-push"]) == 0
    said = capsys.readouterr().out
    assert (
        f"  removed       {old_of(source_copy)}, the source: every byte of it is in the result"
    ) in said
    assert "  checked       matches the source; every byte compared\n" in said
    assert [path.name for path in source_copy.parent.iterdir()] == ["small"]
    assert json.loads((source_copy / "meta/info.json").read_bytes())["codebase_version"] == "v3.0"


def test_a_source_with_a_stray_is_kept(
    source_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source_copy / "data/chunk-000/notes.txt").write_text("keep me")
    before = snapshot(source_copy)
    assert main(["convert", "--root", str(source_copy), "--delete-source", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kept_source"] == str(old_of(source_copy))
    assert report["removed_source"] is None
    assert report["kept_because"] == "1 file is not in the result: data/chunk-000/notes.txt"
    assert snapshot(old_of(source_copy)) == before


@pytest.mark.parametrize(
    ("repairs", "reason"),
    [
        (
            RepairOptions(drop_features=("observation.images.wrist",)),
            "features of it are not in the result: observation.images.wrist",
        ),
        (RepairOptions(on_bad_episode="drop"), "1 episode of it is not in the result"),
    ],
    ids=["a feature", "an episode"],
)
def test_a_source_that_was_left_out_in_part_is_kept(
    source_copy: Path, repairs: RepairOptions, reason: str
) -> None:
    if repairs.on_bad_episode == "drop":
        (source_copy / "data/chunk-000/episode_000001.parquet").write_bytes(b"PAR1")
    before = snapshot(source_copy)
    report = leconvert.convert(source_copy, repairs=repairs, proof=ProofOptions(delete_source=True))
    assert (report.kept_source, report.kept_because) == (old_of(source_copy), reason)
    assert snapshot(old_of(source_copy)) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--verify", "structure"], "--delete-source needs --verify bytes, not structure."),
        (["--no-verify"], "--delete-source needs --verify bytes, not none."),
        (
            ["--output", "OUT"],
            ("--delete-source works only if the result takes the place of its source"),
        ),
    ],
)
def test_deletion_with_less_than_a_proof_is_refused(
    source_copy: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    before = snapshot(source_copy.parent)
    options = [str(source_copy.parent / "out") if o == "OUT" else o for o in options]
    assert main(["convert", "--root", str(source_copy), "--delete-source", *options]) == 2
    assert message in capsys.readouterr().err
    assert snapshot(source_copy.parent) == before


@pytest.mark.parametrize("crash", ["before the commit point", "after it"])
def test_a_crashed_removal_is_finished_by_the_same_command(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise StorageError("the disk fails")

    broken = "remove_compared" if crash == "before the commit point" else "remove_tree"
    with monkeypatch.context() as patched:
        patched.setattr(packing if broken == "remove_compared" else removal, broken, fails)
        with pytest.raises(StorageError):
            leconvert.convert(source_copy, proof=ProofOptions(delete_source=True))
    assert old_of(source_copy).exists() is (broken == "remove_compared")
    report = leconvert.convert(source_copy, proof=ProofOptions(delete_source=True))
    assert report.kept_source is None
    assert [path.name for path in source_copy.parent.iterdir()] == ["small"]


@pytest.mark.parametrize("deletes", [True, False])
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole source", "half a source"])
def test_a_result_that_is_damaged_while_its_source_goes_is_found(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool, deletes: bool
) -> None:
    before = snapshot(source_copy)
    options = ProofOptions(delete_source=deletes)

    def fails(*_: object, **__: object) -> None:
        raise StorageError("the disk fails")

    with monkeypatch.context() as patched:
        patched.setattr(removal, "remove_tree", fails)
        with pytest.raises(StorageError):
            leconvert.convert(source_copy, proof=ProofOptions(delete_source=True))
    [doomed] = source_copy.parent.glob(".small_old.*removed")
    if not is_whole:
        next(doomed.rglob("*.parquet")).unlink()
    clip = next(source_copy.rglob("*.mp4"))
    content = clip.read_bytes()
    clip.write_bytes(content[: len(content) // 2])
    with pytest.raises(VerificationError) as caught:
        leconvert.convert(source_copy, proof=options)
    assert doomed.is_dir()
    if is_whole:
        assert snapshot(doomed) == before
        command = str(caught.value.next_step).split("`")[1]
        subprocess.run(command, shell=True, check=True)
        assert snapshot(source_copy) == before
        assert leconvert.convert(source_copy, proof=options).frames == 44
    else:
        clip.write_bytes(content)
        assert leconvert.convert(source_copy, proof=options).output == source_copy
        assert doomed.is_dir(), "what is left is removed by hand"


@dataclass
class Overwriting:
    """Overwrites a file in place just before a function is called, and gives it its times back."""

    file: Path
    now: bytes = b""

    def __call__(self, *_: object) -> None:
        if self.file.exists():
            times = self.file.stat()
            content = bytearray(self.file.read_bytes())
            content[content.find(b"mdat") + 5] ^= 1  # of a clip the first packet's
            with self.file.open("r+b") as file:
                file.write(content)
            os.utime(self.file, ns=(times.st_atime_ns, times.st_mtime_ns))
            self.now = bytes(content)

    def before(self, monkeypatch: pytest.MonkeyPatch, where: object, name: str) -> None:
        real = getattr(where, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if not any(".leconvert-try-" in str(argument) for argument in arguments):
                monkeypatch.undo()
                self()
            return real(*arguments, **options)

        monkeypatch.setattr(where, name, call)


@pytest.mark.parametrize("file", ["*.mp4", "README.md"])
@pytest.mark.parametrize(
    ("where", "name", "stands", "code"),
    [
        pytest.param(file_calls, "_rename", "{}", 4, id="the exchange"),
        pytest.param(packing, "remove_source", "{}_old", 4, id="the look after it"),
        pytest.param(packing, "remove_compared", "{}_old", 0, id="the removal"),
    ],
)
def test_a_source_that_is_overwritten_and_gets_its_times_back_is_never_removed(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    where: object, name: str, stands: str, code: int, file: str,
) -> None:  # fmt: skip
    (source_copy / "README.md").write_text("# The card\n")
    file = str(next(source_copy.rglob(file)).relative_to(source_copy))
    overwriting = Overwriting(source_copy.with_name(stands.format("small")) / file)
    overwriting.before(monkeypatch, where, name)
    assert main(["convert", "--root", str(source_copy), "--delete-source", "--no-push"]) == code
    said = capsys.readouterr()
    if name == "_rename":
        assert (source_copy / file).read_bytes() == overwriting.now != b""
        assert f"{source_copy} changed after the conversion was planned, in 1 place." in said.err
        assert f"{file}: changed after the comparison" in said.err
        assert not old_of(source_copy).exists()
        again = ["--restart"]
    else:
        assert (old_of(source_copy) / file).read_bytes() == overwriting.now != b""
        again = []
    if name == "remove_source":
        assert "changed after the conversion was planned" in said.err
        [helps] = re.findall("`(mv [^`]*)`", said.err)
        subprocess.run(helps, shell=True, check=True)
    if name == "remove_compared":
        assert f"its {file} was changed during the comparison" in said.out
    else:
        assert main(["convert", "--root", str(source_copy), "--delete-source", *again]) == 0
        assert not old_of(source_copy).exists()


def test_a_source_is_not_removed_for_a_result_that_was_overwritten_since(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(source_copy)
    camera = next(source_copy.rglob("*.mp4")).parent.name
    clip = f"videos/{camera}/chunk-000/file-000.mp4"
    Overwriting(source_copy / clip).before(monkeypatch, packing, "remove_compared")
    report = leconvert.convert(source_copy, proof=ProofOptions(delete_source=True))
    assert report.kept_because == f"the result's {clip} was changed during the comparison"
    assert snapshot(old_of(source_copy)) == before


def test_tables_that_an_overlay_replaced_are_not_removed_if_they_were_overwritten_since(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwriting = Overwriting(source_copy / "meta_old/episodes.jsonl")
    overwriting.before(monkeypatch, packing, "remove_compared")
    report = leconvert.convert(
        source_copy, layout=LayoutOptions(layout="overlay"), proof=ProofOptions(delete_source=True)
    )
    said = "its episodes.jsonl was changed during the comparison"
    assert report.kept_because == said
    assert overwriting.file.read_bytes() == overwriting.now != b""


def test_a_result_that_fails_stays_for_inspection_and_the_source_in_its_place(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(source_copy)
    lost = Difference("coded bytes", "videos/x.mp4", "a", "b", 3, "videos/x")

    def differs(*_: object, **__: object) -> VerificationReport:
        return VerificationReport("bytes", [lost], 3, 5, 88, 44)

    monkeypatch.setattr(packing, "verify_pair", differs)
    with pytest.raises(VerificationError) as caught:
        leconvert.convert(source_copy, proof=ProofOptions(delete_source=True))
    tree = Path(str(caught.value.path))
    assert caught.value.exit_code == 10
    assert f"does not match its source {source_copy}" in caught.value.message
    assert caught.value.details == ("videos/x.mp4, episode 3: coded bytes: expected a, found b",)
    assert f"leconvert verify {tree} --source {source_copy} --bytes." in str(caught.value.next_step)
    assert snapshot(source_copy) == before
    assert verify_pair(tree, source_copy, depth="bytes").ok
    monkeypatch.undo()
    assert leconvert.convert(source_copy).verified == "structure"


def test_a_stopped_proof_is_made_anew(source_copy: Path, tmp_path: Path) -> None:
    stop, advanced = threading.Event(), []

    class Stopping(SilentProgress):
        def stage(self, name: str, total: int, unit: str) -> Stage:
            stage = super().stage(name, total, unit)
            if name == "verify":
                advanced.clear()
                stage.advance = self._advance  # type: ignore[method-assign]
            return stage

        def _advance(self, amount: int) -> None:
            advanced.append(amount)
            if amount:
                stop.set()

    before, work = snapshot(source_copy), tmp_path / "work"
    with pytest.raises(InterruptedRunError, match="comparison was interrupted"):
        leconvert.convert(
            source_copy,
            work_dir=work,
            proof=ProofOptions(verify="bytes"),
            stop=stop,
            progress=Stopping(),
        )
    assert snapshot(source_copy) == before
    assert 0 < sum(advanced) < 3 * 44
    stop.clear()
    report = leconvert.convert(
        source_copy, work_dir=work, proof=ProofOptions(verify="bytes"), progress=Stopping()
    )
    assert report.verified == "bytes"
    assert sum(advanced) == 3 * 44


def test_pack_takes_the_same_options(
    source_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    assert main(["plan", "--root", str(source_copy), "--work-dir", str(work)]) == 0
    assert main(["work", str(work)]) == 0
    capsys.readouterr()
    assert main(["pack", str(work), "--delete-source", "--no-verify"]) == 2
    assert main(["pack", str(work), "--delete-source"]) == 0
    said = capsys.readouterr().out
    assert "every byte of it is proven to be in the result" in said
    assert said.endswith("checked       bytes compared with the source\n")
    assert not old_of(source_copy).exists()

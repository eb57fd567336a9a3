"""``leconvert report`` and ``--report``, as a user meets them."""

from __future__ import annotations

import errno
import json
from importlib import import_module
from pathlib import Path

import pytest

from leconvert.cli import main

TOKEN = "hf_" + "abcdefgh12345678"


def page_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    return text


def test_a_conversion_can_leave_a_page_beside_its_result(
    small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["convert", "--root", str(small_source), "--output", str(tmp_path / "out")]
    assert main([*arguments, "--report", "--max_workers=1"]) == 0
    assert f"report        {tmp_path / 'out.report.html'}" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.report.html"]
    text = page_of(tmp_path / "out.report.html")
    assert f"leconvert convert --root {small_source}" in text
    assert "--report --max_workers=1" in text


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ([], "Kept source</th><td><code>{}/in_old</code>"),
        (["--delete-source"], None),
        (["--output", "{}/out", "--force-conversion"], "Earlier result</th><td><code>{}/out_old<"),
    ],
)
def test_a_page_names_a_replaced_dataset_that_is_still_there(
    source_copy: Path, tmp_path: Path, flags: list[str], kept: str | None
) -> None:
    source = source_copy.rename(tmp_path / "in")
    flags = [flag.format(tmp_path) for flag in flags]
    if "--output" in flags:
        assert main(["convert", str(source), *flags[:2]]) == 0
    assert main(["convert", str(source), *flags, f"--report={tmp_path}/page.html"]) == 0
    text = page_of(tmp_path / "page.html")
    assert ("_old</code>" in text) == (kept is not None)
    assert kept is None or kept.format(tmp_path) in text


def test_a_page_that_fails_at_last_does_not_call_the_conversion_failed(
    small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def full(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(import_module("leconvert.report.page"), "replace_record", full)
    out = tmp_path / "out"
    assert main(["convert", "--root", str(small_source), "--output", str(out), "--report"]) == 11
    said = capsys.readouterr().err
    assert "The run is finished, but its report could not be written. Cannot use" in said
    command = f"leconvert report {tmp_path / '.out.leconvert-work'} -o"
    assert "Write the report with `leconvert report" in said
    monkeypatch.undo()
    assert main(["verify", str(out), "--source", str(small_source)]) == 0
    assert main([*command.split()[1:], str(tmp_path / "late.html")]) == 0
    assert "leconvert convert --root" in page_of(tmp_path / "late.html")


def test_steps_on_their_own_leave_their_commands_and_the_packer_the_page(
    small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    work, out = str(tmp_path / "work"), str(tmp_path / "out")
    plan = ["plan", "--root", str(small_source), "--output", out, "--work-dir", work]
    assert main(plan) == 0
    assert main(["work", work, "--max-idle-seconds", "5"]) == 0
    assert main(["pack", work, "--report", str(tmp_path / "p.html"), "--verify", "bytes"]) == 0
    assert f"report        {tmp_path / 'p.html'}" in capsys.readouterr().out
    text = page_of(tmp_path / "p.html")
    for command in ("leconvert plan --root", f"leconvert work {work}", f"leconvert pack {work}"):
        assert command in text
    assert main(["report", work, "-o", str(tmp_path / "r.html"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(tmp_path / "r.html")
    assert told["size_bytes"] == (tmp_path / "r.html").stat().st_size
    assert (told["state"], told["tries"], told["remarks"]) == ("finished", 3, [])
    assert main(["report", out, "-o", str(tmp_path / "alone.html")]) == 0
    assert "the report shows only the dataset" in capsys.readouterr().out


def test_no_secret_of_a_command_or_of_the_environment_is_written_anywhere(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-token-of-no-known-shape")
    arguments = ["convert", "--root", str(small_source), "--keep-work-dir", "--report"]
    for secret in ("a-token-of-no-known-shape", TOKEN):
        out = tmp_path / f"{secret}-out"
        assert main([*arguments, "--output", str(out)]) == 0
        [record] = tmp_path.glob(f".{secret}*/runs/*/invocations/*.json")
        assert secret not in record.read_text()
        commands = page_of(tmp_path / f"{secret}-out.report.html").partition('id="environment"')[2]
        assert secret not in commands


@pytest.mark.parametrize("place", ["nothing", "."])
def test_a_place_that_holds_nothing_is_refused(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", place]) == 2
    said = capsys.readouterr().err
    assert "is neither the work dir of a run nor a v3.0 dataset" in said
    assert "leconvert plan" in said
    assert list(tmp_path.iterdir()) == []

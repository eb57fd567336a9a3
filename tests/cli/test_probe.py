"""``leconvert probe`` as a user runs it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from leconvert.cli.main import main
from tests.program import Leconvert

BRIEF = (
    "--batch-size=4", "--num-workers=0", "--warmup-batches=1", "--num-batches=3",
    "--duration-s=0.5", "--probe-samples=3", "--probe-warmup=1",
)  # fmt: skip


def test_a_run_leaves_a_document_its_flattening_and_plots(
    leconvert_here: Leconvert, small_result: Path, tmp_path: Path
) -> None:
    run = leconvert_here(
        "probe", "run", "--local_root", small_result, *BRIEF, "--check=5", "--plots",
        "--num_workers=2", "--out_dir", tmp_path,
    )  # fmt: skip

    assert run.returncode == 0, run.stderr
    stem = "probe-stream-single-b4-w2-cpu-r0of1"
    document = json.loads((tmp_path / f"{stem}.json").read_bytes())
    assert document["format"] == "leconvert/probe"
    assert document["check"]["wrong_frames"] == 0
    with (tmp_path / f"{stem}.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["samples_per_s"]) == document["samples_per_s"]
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".csv", ".png"}
    assert "decoded camera frames/s" in run.stdout
    assert "check        5 samples: 0 wrong and 0 unreadable frames" in run.stdout


def test_results_are_summarized_with_their_limit(
    leconvert_here: Leconvert, small_result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leconvert.bench.decoding.allowed_cores", lambda: 1)
    limit = leconvert_here(
        "probe", "limit", "--root", small_result, "--duration-s=0.1", "--out-dir", tmp_path
    )  # fmt: skip
    run = leconvert_here(
        "probe", "run", "--root", small_result, *BRIEF, "--json", "--out-dir", tmp_path
    )
    summary = leconvert_here("probe", "summarize", tmp_path)

    assert limit.returncode == 0, limit.stderr
    assert [line.split()[0] for line in limit.stdout.splitlines()][:3] == [
        "access", "sequential", "random"
    ]  # fmt: skip
    assert json.loads(run.stdout)["limit"]["origin"] == "limit-cpu-p1.json"
    assert summary.returncode == 0, summary.stderr
    assert "stream single b4 w0 cpu" in summary.stdout
    with (tmp_path / "summary.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["pct_of_limit"]) > 0
    assert (tmp_path / "summary-limit.png").exists()


def test_no_sample_is_an_error_with_a_code_and_no_result(
    leconvert_here: Leconvert, small_result: Path, tmp_path: Path
) -> None:
    run = leconvert_here(
        "probe", "run", "--root", small_result, *BRIEF, "--rank=9999", "--world-size=10000",
        "--json", "--out-dir", tmp_path / "none",
    )  # fmt: skip

    assert run.returncode == json.loads(run.stdout)["exit_code"] == 14
    assert "has no frames" in run.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", ["run", "limit", "resample"])
def test_a_place_that_no_result_can_be_written_to_is_refused_before_the_measurement(
    small_result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], command: str,
) -> None:  # fmt: skip
    def measured(*_args: object, **_options: object) -> None:
        raise AssertionError("measured")

    measures = {"run": "run_probe", "limit": "run_limit", "resample": "run_resample"}[command]
    monkeypatch.setattr(f"leconvert.bench.{measures}", measured)
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        words = ["probe", command, "--root", str(small_result), "--out-dir", str(tmp_path / place)]
        assert main(words) == 11
        assert f"Cannot use {tmp_path / 'file'}: a part of this path" in capsys.readouterr().err


@pytest.mark.parametrize("loader", ["stream", "map"])
def test_nodes_share_the_episodes_of_a_dataset_of_one_file(
    leconvert_here: Leconvert, small_result: Path, tmp_path: Path, loader: str
) -> None:
    run = leconvert_here(
        "probe", "run", "--root", small_result, *BRIEF, "--loader", loader, "--num-partitions=2",
        "--partition-index=1", "--source=hub", "--out-dir", tmp_path,
    )  # fmt: skip
    none = leconvert_here(
        "probe", "run", "--root", small_result, *BRIEF, "--loader", loader, "--num-partitions=99",
        "--partition-index=98", "--json",
    )  # fmt: skip

    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[0] == "read from    local, labelled hub"
    (path,) = tmp_path.glob("*.json")
    document = json.loads(path.read_bytes())
    assert 0 < document["loaded_episodes"] < document["dataset"]["episodes"]
    assert (document["read_from"], document["options"]["source"]) == ("local", "hub")
    assert none.returncode == json.loads(none.stdout)["exit_code"] == 2
    assert "Partition 98 of 99 would have no episodes" in none.stderr

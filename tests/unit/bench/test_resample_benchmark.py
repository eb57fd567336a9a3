"""The benchmark measures what it says, on both sides the same."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from tests.unit.bench.schema_checker import violations
from torch.utils.data import DataLoader

from leconvert.bench.environment import GpuUse
from leconvert.bench.options import ResampleOptions
from leconvert.bench.pipelines import Pipeline, measure_batch_size, ratios
from leconvert.bench.resampling import (
    SyntheticSet,
    everything,
    open_loader,
    paths_of,
    run_resample,
    set_epoch,
)
from leconvert.cli.main import main
from leconvert.loading import LENGTHS, ResampledBatches, ResampledDataset
from leconvert.loading.trajectories import Hdf5Set, methods_for, preload
from leconvert.support.errors import ProbeError, UsageError

PATHS = ["baseline", "batched", "table"]
BRIEF = {"max_trajectories": 12, "batch_sizes": (4,), "repeats": 2, "warmup_batches": 2}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    options = ResampleOptions(
        **BRIEF, dtypes=("fp32", "bf16"), loaders=True, end_to_end=True, num_workers=0,  # type: ignore[arg-type]
        train_epochs=2, methods={"action[6]": "previous"},
    )  # fmt: skip
    return run_resample(options)


def test_every_way_is_measured_and_held_against_numpy(document: dict[str, Any]) -> None:
    assert violations(document) == []
    results = {(row["way"], row["dtype"]): row for row in document["results"]}
    assert set(results) == {
        ("baseline", "fp32"), ("batched", "fp32"), ("table", "fp32"), ("batched", "bf16"),
        ("table", "bf16"),
    }  # fmt: skip
    for (way, dtype), row in results.items():
        assert 0 <= row["max_abs_error"] <= (1e-5 if dtype == "fp32" else 0.03)
        assert row["trajectories"] == 12
        stages = {name for name, ms in row["stages_ms"].items() if ms is not None}
        if way == "baseline":
            assert stages == {"resample", "collate"}
        else:
            cast = {"copy_in"} if (way, dtype) == ("batched", "bf16") else set()
            assert stages == {"pack", "kernel"} | cast
        assert row["gpu_use_pct"] is None
    assert {row["way"] for row in document["speedups"]} == {"batched", "table"}
    assert len(document["speedups"]) == 4
    assert document["gpu"] is None
    assert [row["path"] for row in document["loaders"]] == PATHS


def test_all_data_paths_teach_the_policy_the_same(document: dict[str, Any]) -> None:
    rows = document["end_to_end"]
    baseline = rows[0]

    assert [row["path"] for row in rows] == PATHS
    for row in rows:
        assert row["steps"] == 6
        for key in ("first_epoch_loss", "last_epoch_loss"):
            assert row[key] == pytest.approx(baseline[key], rel=1e-3)
        assert row["total_s"] == pytest.approx(row["data_s"] + row["model_s"])
        assert row["data_pct"] == pytest.approx(100 * row["data_s"] / row["total_s"])
        assert row["gpu_use_pct"] is None
    assert baseline["speedup"] is None
    assert rows[2]["speedup"] == pytest.approx(baseline["total_s"] / rows[2]["total_s"])


def test_a_mode_measures_its_own_paths_alone() -> None:
    task = ResampledBatches(preload(SyntheticSet(count=4)), {}, 50.0)
    apart = ResampledBatches(SyntheticSet(count=4), {}, 50.0)

    assert paths_of("compare", task, 0) == PATHS
    assert paths_of("compare", task, 2) == ["baseline", "batched"]
    assert paths_of("baseline", task, 0) == ["baseline"]
    assert paths_of("batched", task, 0) == ["batched", "table"]
    assert paths_of("batched", apart, 0) == ["batched"]


class _Scripted(Pipeline):
    """A way that takes as long as it is told, and notes what it was given."""

    def __init__(self, name: str, stages: dict[str, float], value: float) -> None:
        self.name, self.dtype, self.device = name, "fp32", "cpu"
        self.stages, self.value = stages, value
        self.given: list[list[int]] = []

    def run(self, places: Sequence[int]) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        self.given.append(list(places))
        return dict(self.stages), {"x": torch.full((len(places), 1, 1), self.value)}


def test_ratios_and_rates_follow_from_the_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "leconvert.bench.pipelines._exact",
        lambda _task, places: {"x": torch.zeros((len(places), 1, 1))},
    )
    slow = _Scripted("baseline", {"resample": 0.06, "collate": 0.02}, 0.0)
    fast = _Scripted(
        "batched", {"pack": 0.005, "copy_in": 0.003, "kernel": 0.01, "copy_out": 0.002},
        0.25,
    )  # fmt: skip
    done: list[int] = []
    stage = SimpleNamespace(advance=done.append)

    rows = measure_batch_size(
        [slow, fast], ResampledBatches(SyntheticSet(count=9), {}, 50.0),
        ResampleOptions(repeats=3, num_epochs=2, warmup_batches=1), 4, stage,  # type: ignore[arg-type]
    )  # fmt: skip
    (ratio,) = ratios(rows)

    assert sum(done) == 3
    assert slow.given == fast.given
    assert len(slow.given) == 1 + 3 * 2 * 2
    assert rows[1]["trajectories_per_s"] == pytest.approx(4 / 0.02)
    assert rows[1]["kernel_trajectories_per_s"] == pytest.approx(4 / 0.01)
    assert rows[1]["without_copies_trajectories_per_s"] == pytest.approx(4 / 0.015)
    assert rows[1]["ms_per_batch"] == pytest.approx(20)
    assert (rows[0]["max_abs_error"], rows[1]["max_abs_error"]) == (0.0, 0.25)
    assert ratio["with_packing"] == pytest.approx(4)
    assert ratio["kernel"] == pytest.approx(6)
    assert ratio["without_copies"] == pytest.approx(0.08 / 0.015)


def test_workers_give_the_same_batches_in_the_same_order() -> None:
    source = preload(SyntheticSet(count=7, seed=2))
    methods = methods_for(source, {})
    task = ResampledBatches(source, methods, 20.0)
    batches = {}
    for path in paths_of("compare", task, 1):
        loader = open_loader(path, ResampleOptions(seed=4), task, 3, 1)
        set_epoch(loader, 1)
        batches[path] = list(loader)

    assert len(batches["baseline"]) == 2
    for one, *others in zip(*batches.values(), strict=True):
        for other in others:
            assert torch.equal(one[LENGTHS], other[LENGTHS])
            assert torch.allclose(one["action"].float(), other["action"], atol=1e-5)


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_dataset_class_gives_torch_batches_of_one_rate(tmp_path: Path, in_memory: bool) -> None:
    path = tmp_path / "set.h5"
    random = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        for number, length in enumerate((40, 7, 90, 3, 55)):
            motion = np.cumsum(random.normal(size=(length, 7)), axis=0)
            file[f"data/demo_{number}/actions"] = motion.astype(np.float32)
    made = Hdf5Set(path, source_hz=30)
    dataset = ResampledDataset(
        *(path,), hz=20, source_hz=30, methods={"action[6]": "nearest"}, in_memory=in_memory
    )

    loader = DataLoader(dataset, batch_size=2, num_workers=1, collate_fn=ResampledDataset.collate)
    batches = list(loader)

    assert [len(batch[LENGTHS]) for batch in batches] == [2, 2, 1]
    for number in range(5):
        alone, one = dataset[number], made.load(number)
        targets = one.targets(20)
        batch, row = batches[number // 2], number % 2
        count = int(batch[LENGTHS][row])
        assert count == len(targets)
        assert torch.equal(batch["action"][row, :count], alone["action"])
        column = np.interp(targets, one.times, one.columns["action"][:, 0])
        assert np.allclose(alone["action"][:, 0], column, atol=1e-5)
    with pytest.raises(IndexError):
        dataset[5]
    with pytest.raises(UsageError, match="hz must be a number above 0"):
        ResampledDataset(path, hz=0)


def test_what_makes_no_sense_is_refused_before_anything_is_timed() -> None:
    for changes, match in (
        ({"hz": 0.0}, "--hz must be a number above 0"),
        ({"preload": False}, "synthetic trajectories are always in memory"),
        ({"batch_sizes": (0,)}, "--batch-sizes must be whole numbers of at least 1"),
        ({"mode": "fast"}, "There is no mode fast"),
        ({"dtypes": ("fp16",)}, "There is no dtype fp16"),
        ({"devices": ("tpu",)}, "--device must be cpu"),
        ({"dataset": "a", "hdf5": "b"}, "exclude each other"),
        ({"source_hz": 20.0}, "works only with --hdf5"),
        ({"hdf5": "a", "source_hz": -1.0}, "--source-hz must be a number above 0"),
    ):
        with pytest.raises(UsageError, match=match):
            ResampleOptions(**changes)  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match="asks for 20 trajectories in a batch, but there are only 12"
    ):
        run_resample(ResampleOptions(max_trajectories=12, batch_sizes=(20,)))
    with pytest.raises(ProbeError, match="cannot use the device cuda:99"):
        run_resample(ResampleOptions(devices=("cuda:99",)))


def test_all_asks_for_everything_and_batch_sizes_fit_the_set_and_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = everything(ResampleOptions(mode="batched"))

    assert (wanted.mode, wanted.loaders, wanted.end_to_end) == ("compare", True, True)
    assert wanted.dtypes == ("fp32", "bf16")
    assert ("cuda" in wanted.devices) == torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    wanted = everything(ResampleOptions())
    assert wanted.devices == ("cpu", "cuda")
    assert wanted.batch_sizes == (16, 64, 256, 1024, 4096)
    assert everything(ResampleOptions(dataset="a")).batch_sizes is None
    assert everything(ResampleOptions(batch_sizes=(8,))).batch_sizes == (8,)
    assert ResampleOptions().sized(40).batch_sizes == (16, 32)
    assert ResampleOptions().sized(9).batch_sizes == (9,)
    assert ResampleOptions(batch_sizes=(5,)).sized(9).batch_sizes == (5,)


def test_the_use_of_a_gpu_is_the_mean_of_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()
    seen = iter([20.0, 60.0])
    asked: list[str] = []

    def utilization(device: str) -> float:
        asked.append(device)
        try:
            return next(seen)
        except StopIteration:
            failed.set()
            raise OSError from None

    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    with GpuUse("cuda:1") as use:
        assert failed.wait(20)

    assert use.mean_pct == 40
    assert set(asked) == {"cuda:1"}
    with GpuUse("cpu") as unknown:
        pass
    assert unknown.mean_pct is None


def test_no_preload_reads_while_timing_and_a_single_mode_compares_nothing(tmp_path: Path) -> None:
    path = tmp_path / "set.h5"
    with h5py.File(path, "w") as file:
        for number in range(8):
            file[f"data/demo_{number}/actions"] = np.zeros((9, 7), np.float32)
    options: dict[str, Any] = {**BRIEF, "hdf5": str(path), "source_hz": 30.0, "preload": False}
    document = run_resample(ResampleOptions(**options, mode="batched"))

    (row,) = document["results"]
    assert violations(document) == []
    assert row["way"] == "batched"
    assert row["stages_ms"]["load"] > 0
    assert document["set"]["source"] == "hdf5"
    assert document["speedups"] == []


def test_the_command_writes_results_tables_plots_and_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        ["probe", "resample", "--all", "--max_trajectories=8", "--batch-sizes", "4", "2",
         "--repeats=1", "--num-workers=0", "--train_epochs=1", "--linear", "action[6]",
         "-o", str(tmp_path)]
    )  # fmt: skip

    said = capsys.readouterr()
    assert code == 0, said.err
    assert "Times as fast as the baseline" in said.out
    assert "Training" in said.out
    (path,) = tmp_path.glob("*.json")
    document = json.loads(path.read_bytes())
    assert violations(document) == []
    with (tmp_path / f"{path.stem}-table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(document["results"])
    assert float(rows[1]["speedup_kernel"]) == document["speedups"][0]["kernel"]
    pictures = {entry.name.removeprefix(f"{path.stem}-") for entry in tmp_path.glob("*.png")}
    assert pictures == {"throughput.png", "latency.png", "speedup.png"}
    report = path.with_suffix(".html").read_text()
    assert report.count("data:image/png;base64,") == 3
    assert 'src="http' not in report
    assert "Training a small diffusion policy" in report
    for row in document["results"]:
        assert f'<td class="num">{row["trajectories_per_s"]:.0f}</td>' in report

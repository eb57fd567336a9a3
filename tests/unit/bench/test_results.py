"""Results are files that nobody overwrites, and summaries say what they say."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from leconvert.bench.results import (
    begin_document,
    csv_text,
    flags_of,
    flattened,
    read_results,
    results_below,
    stem_of,
    summarize,
    write_document,
)
from leconvert.support.errors import UsageError

STEM = "probe-stream-single-b16-w2-cpu-r0of1"


def result(**changes: Any) -> dict[str, Any]:
    """A result of a healthy run, as far as summaries look at it."""
    options = {
        "scenario": None, "source": "local", "loader": "stream", "mode": "single",
        "batch_size": 16, "num_workers": 2, "device": "cpu", "decode_device": "cpu",
        "rank": 0, "world_size": 1,
    } | changes.pop("options", {})  # fmt: skip
    return {
        **begin_document("run"),
        "samples_per_s": 100.0,
        "decoded_frames_per_s": 300.0,
        "first_batch_latency_s": 0.3,
        "p50_batch_wait_ms": 10.0,
        "p99_batch_wait_ms": 200.0,
        "p50_sample_latency_ms": 1.0,
        "p95_sample_latency_ms": 2.0,
        "p99_sample_latency_ms": 3.0,
        "steady_window_s": 10.0,
        "batches_measured": 100,
        "peak_pss_gb": 0.5,
        "shuffle_randomness_frac": 0.8,
        "samples_per_worker": [800, 800],
        "video_decoder_cache": {"hits": 90, "misses": 10, "hit_rate": 0.9},
        "pct_of_limit": 66.0,
        "wrong_frames": None,
        "unreadable_frames": 0,
        "check": None,
        "dataset": {"root": "/d", "cameras": ["top"]},
        "host": {"name": "node"},
        "options": options,
        **changes,
    }


def test_file_names_carry_what_tells_runs_apart() -> None:
    options = result(
        options={"scenario": "stream_hub", "decode_device": "cuda:1", "device": "cuda", "rank": 3,
                 "world_size": 4}
    )  # fmt: skip
    resampled = {"mode": "compare", "hz": 50.0, "dtypes": ["fp32"], "devices": ["cpu", "cuda:0"]}

    assert stem_of(result()) == STEM
    assert stem_of(options) == "stream_hub-stream-single-b16-w2-cuda1-to-cuda-r3of4"
    limit = {"kind": "limit", "options": {"decode_device": "cuda:1", "processes": 4}}
    assert stem_of(limit) == "limit-cuda1-p4"
    resample = {"kind": "resample", "set": {"source": "hdf5"}}
    for preload, end in ((True, ""), (False, "-no-preload")):
        document = resample | {"options": resampled | {"preload": preload}}
        assert stem_of(document) == f"resample-hdf5-compare-50hz-fp32-cpu-cuda0{end}"


def test_an_older_result_is_never_overwritten(tmp_path: Path) -> None:
    paths = [path for _ in range(3) for path in write_document(result(), tmp_path / "new")]

    assert [path.name for path in paths] == [
        f"{STEM}{number}.{ending}" for number in ("", "-2", "-3") for ending in ("json", "csv")
    ]
    assert sorted(paths) == sorted((tmp_path / "new").iterdir())


def test_csv_is_the_flattening_of_json(tmp_path: Path) -> None:
    path, table = write_document(result(), tmp_path)

    with table.open() as file:
        (row,) = csv.DictReader(file)

    assert row["video_decoder_cache.hit_rate"] == "0.9"
    assert row["options.batch_size"] == "16"
    assert json.loads(row["samples_per_worker"]) == [800, 800]
    assert row["wrong_frames"] == ""
    assert list(row) == list(flattened(json.loads(path.read_bytes())))


def test_rows_of_different_kinds_share_their_columns() -> None:
    assert csv_text([{"a": 1}, {"b": {"c": 2}, "a": 3}]) == "a,b.c\n1,\n3,2\n"


def test_only_results_of_this_version_are_read(tmp_path: Path) -> None:
    write_document(result(), tmp_path / "below")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text('{"format": "something"}')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "later.json").write_text(json.dumps(result() | {"version": 2}))

    assert [path.name for path, _ in results_below(tmp_path)] == [f"{STEM}.json"]
    assert list(read_results([])) == []
    with pytest.raises(UsageError, match="is not a folder"):
        results_below(tmp_path / "missing")


def test_ranks_of_one_node_add_up_and_nodes_stay_apart() -> None:
    lines = summarize(
        [
            result(options={"rank": 0}, samples_per_s=10.0, decoded_frames_per_s=20.0),
            result(options={"rank": 0}, samples_per_s=30.0, decoded_frames_per_s=60.0),
            result(options={"rank": 1}, samples_per_s=5.0, decoded_frames_per_s=10.0),
            result(options={"rank": 2}, host={"name": "other"}, samples_per_s=7.0),
        ]
    )

    assert [(line.host, line.ranks, line.runs) for line in lines] == [
        ("node", 2, 1), ("other", 1, 1)
    ]  # fmt: skip
    assert lines[0].samples_per_s == 25.0
    assert lines[0].frames_per_s_node == 50.0
    assert lines[0].peak_pss_gb == 1.0


@pytest.mark.parametrize(
    ("options", "others"),
    [
        ({"prefetch_factor": 4}, "prefetch-factor 4"),
        ({"episode_pool_size": 8, "video_fetch_workers": 2},
         "episode-pool-size 8, video-fetch-workers 2"),
        ({"world_size": 2}, "world-size 2"),
        ({"deltas": "windows.json"}, "deltas windows.json"),
        ({"device": "cuda"}, "device cuda"),
    ],
)  # fmt: skip
def test_results_of_other_options_are_no_repeats(options: dict[str, Any], others: str) -> None:
    usual, other = summarize(
        [result(samples_per_s=100.0), result(options=options, samples_per_s=300.0)]
    )

    assert (usual.samples_per_s, usual.runs, usual.others) == (100.0, 1, "")
    assert (other.samples_per_s, other.runs, other.others) == (300.0, 1, others)
    assert other.label == f"{usual.label}, {others}"


def test_set_ups_stay_apart_and_come_in_order() -> None:
    lines = summarize(
        [result(options={"loader": loader}) for loader in ("stream", "map", "stream-lerobot")]
        + [{**begin_document("limit")}]
    )

    assert [line.loader for line in lines] == ["map", "stream", "stream-lerobot"]


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({}, ()),
        ({"video_decoder_cache": {"hit_rate": 0.1}, "p99_batch_wait_ms": 500.0}, ("thrash",)),
        ({"video_decoder_cache": {"hit_rate": 0.1}, "p99_batch_wait_ms": 300.0}, ()),
        ({"video_decoder_cache": {"hit_rate": 0.9}, "p99_batch_wait_ms": 500.0}, ()),
        ({"video_decoder_cache": None}, ()),
        ({"samples_per_worker": [1600, 0]}, ("idle workers",)),
        ({"samples_per_worker": [900, 500]}, ()),
        ({"samples_per_worker": [5]}, ()),
        ({"wrong_frames": 1}, ("wrong frames",)),
        ({"unreadable_frames": 1}, ("wrong frames",)),
    ],
)
def test_flags_say_what_a_figure_does_not(changes: dict[str, Any], flags: tuple[str, ...]) -> None:
    assert flags_of(result(**changes)) == flags


def of_ranks(*frames: float) -> list[dict[str, Any]]:
    """Results of ranks that decode so many frames a second."""
    return [
        result(decoded_frames_per_s=each, options={"rank": rank, "world_size": len(frames)})
        for rank, each in enumerate(frames)
    ]


@pytest.mark.parametrize(
    ("results", "line"),
    [
        ([result(samples_per_s=rate) for rate in (90.0, 300.0, 100.0)],
         {"samples_per_s": 100.0, "runs": 3, "ranks": 1}),
        ([result(options={"seed": seed, "duration_s": seed}) for seed in (1, 2)], {"runs": 2}),
        ([result(options={"num_partitions": 2, "partition_index": part}, samples_per_s=rate)
          for part, rate in ((0, 10.0), (1, 30.0))],
         {"samples_per_s": 40.0, "ranks": 2, "runs": 1}),
        ([result(decoded_frames_per_s=0.0, dataset={"root": "/d", "cameras": []})], {"flags": ()}),
        (of_ranks(300.0, 900.0),
         {"frames_per_s_low": 1200.0, "frames_per_s_high": 1200.0, "flags": ()}),
        *(
            ([result(options={"mode": mode}, decoded_frames_per_s=frames)], {"flags": flags})
            for mode, frames, flags in (
                ("single", 119.0, ("below target",)), ("single", 120.0, ()),
                ("sarm", 319.0, ("below target",)), ("sarm", 320.0, ()), ("sarm-action", 1.0, ()),
            )
        ),
    ],
    ids=["median of repeats", "options of the measurement", "partitions add up", "no cameras",
         "ranks of unlike speed", *(f"target {number}" for number in range(5))],
)  # fmt: skip
def test_results_of_one_set_up_are_one_line(
    results: list[dict[str, Any]], line: dict[str, Any]
) -> None:
    (found,) = summarize(results)
    assert {name: getattr(found, name) for name in line} == line


def test_repeats_that_disagree_are_marked() -> None:
    (line,) = summarize([result(decoded_frames_per_s=frames) for frames in (300.0, 310.0, 340.0)])
    (other,) = summarize([result(decoded_frames_per_s=frames) for frames in (300.0, 310.0, 380.0)])

    assert (line.frames_per_s_low, line.frames_per_s_high, line.flags) == (300.0, 340.0, ())
    assert other.flags == ("runs disagree",)
    assert "runs disagree" in other.label
    assert "runs disagree" not in line.label

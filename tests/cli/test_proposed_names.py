"""Every flag, scenario, mode and result key that was proposed for LeRobot works (docs/names.md)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from leconvert.cli.main import build_parser, with_hyphens
from leconvert.cli.probe import run_options

DOCS = Path(__file__).parents[2] / "docs"
# Flags of `probe run`, with a value that each takes; None for a switch.
FLAGS: dict[str, str | None] = {
    "--repo-id": "org/name", "--root": "/d", "--data-files-root": "/e", "--revision": "main",
    "--source": "local", "--scenario": "mmap_local", "--loader": "stream", "--mode": "single",
    "--deltas": "deltas.json", "--batch-size": "2", "--num-workers": "0", "--prefetch-factor": "2",
    "--episode-pool-size": "3", "--max-buffer-input-shards": "4", "--video-decoder-cache-size": "5",
    "--video-fetch-workers": "2", "--num-batches": "3", "--warmup-batches": "1",
    "--duration-s": "1.5", "--probe-samples": "8", "--probe-warmup": "2", "--device": "cpu",
    "--decode-device": "cpu", "--rank": "0", "--world-size": "1", "--num-partitions": "2",
    "--partition-index": "1", "--max-episodes": "2", "--seed": "3", "--check": "10",
    "--out-dir": "results", "--plots": None, "--json": None,
    "--local-root": "/d", "--buffer-size": "7", "--max-num-shards": "4",
    "--video-decode-device": "cpu",
}  # fmt: skip
# At the top of a result, or below its `options`.
KEYS = {
    "batch_size", "data_files_root", "decode_pct", "decoded_frames_per_s", "episode_pool_size",
    "fetch_pct", "first_batch_latency_s", "fps", "frames_per_s_node",
    "image_shape", "loaded_episodes", "loader", "max_buffer_input_shards", "num_cameras",
    "num_shards", "num_workers", "p50_sample_latency_ms",
    "p95_sample_latency_ms", "p99_sample_latency_ms", "peak_rss_gb", "rank", "samples_measured",
    "samples_per_s", "scenario", "shuffle_randomness_frac", "single_proc_samples_per_s",
    "steady_window_s", "total_time_s", "video_decoder_cache", "wallclock_s", "world_size",
}  # fmt: skip


def _parsed(*words: str) -> dict[str, object]:
    return vars(build_parser().parse_args([with_hyphens(word) for word in words]))


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_of_the_probe_is_taken_with_hyphens_and_with_underscores(flag: str) -> None:
    value = FLAGS[flag]
    behind = "" if value is None else f"={value}"
    said = _parsed("probe", "run", f"{flag}{behind}")
    assert said == _parsed("probe", "run", f"--{flag[2:].replace('-', '_')}{behind}")
    assert said != _parsed("probe", "run")


@pytest.mark.parametrize(
    "words",
    [
        "convert --repo-id a/b --root d --push-to-hub --data-file-size-in-mb 1 "
        "--video-file-size-in-mb 2 --force-conversion",
        "probe submit --scenarios mmap_local,stream_hub --conda_env lerobot --root d",
        "probe submit --sources local,hub --modes single,sarm --devices cpu,cuda --root d",
        "probe submit --root d --nodes 2 --mem 64G --cpus 8 --time 01:00:00 --account a "
        "--partition p --qos q --dry-run",
        "probe train --root d --dummy --steps 3 --resume-from last",
        "probe resample --loaders --end-to-end",
        "probe resample --all --hz 50 --batch-sizes 16 128 --linear a --previous b --nearest c "
        "--slerp d",
        "probe limit --root d", "probe diagnose", "probe summarize results",
    ],
)  # fmt: skip
def test_a_command_of_the_original_scripts_parses(words: str) -> None:
    program, *_ = given = words.split()
    assert _parsed(*given)["command"] == program


@pytest.mark.parametrize(
    "words",
    [
        *(f"--scenario={name}" for name in (
            "mmap_local", "mmap_local_maxworkers", "stream_hub", "stream_bucket",
            "stream_bucket_2node",
        )),
        *(f"--mode={name}" for name in ("single", "sarm", "sarm-action")),
        *(f"--loader={name}" for name in ("map", "stream", "stream-lerobot")),
        *(f"--source={name}" for name in ("hub", "bucket", "warmed_bucket", "local")),
    ],
)  # fmt: skip
def test_a_scenario_mode_loader_or_source_is_known(words: str) -> None:
    name, _, value = words.removeprefix("--").partition("=")
    options = run_options(build_parser().parse_args(["probe", "run", "--root=d", words]))
    assert getattr(options, name) == value


def test_the_schema_promises_every_key_of_a_result() -> None:
    schema = json.loads(DOCS.joinpath("formats/probe-result.schema.json").read_text("utf-8"))
    run = schema["$defs"]["run"]
    options = run["properties"]["options"]
    if "$ref" in options:
        options = schema["$defs"][options["$ref"].rpartition("/")[2]]
    assert {*run["required"], *options["required"]} >= KEYS


def test_each_name_that_the_page_calls_accepted_is_an_option_here() -> None:
    page = DOCS.joinpath("names.md").read_text("utf-8")
    accepted = {
        flag.replace("_", "-")
        for line in page.splitlines()
        if "| yes |" in line
        for flag in re.findall(r"`(--[a-z_]+)", line.partition("| yes |")[0])
    }
    known = {
        option
        for parser in build_parser().declared()
        if parser.prog.startswith("leconvert probe")
        for argument in parser.arguments()
        for option in argument.option_strings
    }
    assert len(accepted) >= 8
    assert accepted <= known

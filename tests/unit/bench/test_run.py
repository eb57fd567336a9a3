"""A run measures what it says, on small datasets and with every loader."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schema_checker import violations
from torchcodec.decoders import VideoDecoder

from leconvert.bench import decoding as verdicts
from leconvert.bench.decoding import diagnose_decoding, find_limit, run_limit
from leconvert.bench.environment import require_packages
from leconvert.bench.options import RunOptions
from leconvert.bench.results import write_document
from leconvert.bench.run import failure_of, run_probe
from leconvert.loading import decoders
from leconvert.loading.metadata import load_meta
from leconvert.support.errors import InstallationError, ProbeError, UsageError
from leconvert.support.extras import command_for_extra
from leconvert.transfer.files import files_at

BRIEF = RunOptions(
    root="/replaced", batch_size=8, num_workers=0, warmup_batches=1, num_batches=4,
    probe_samples=6, probe_warmup=2, seed=3,
)  # fmt: skip


def run(root: Path, **changes: Any) -> dict[str, Any]:
    document = run_probe(replace(BRIEF, root=str(root), **changes))
    assert violations(document) == []
    return document


@pytest.mark.parametrize(("loader", "num_workers"), [("map", 2), ("stream", 0)])
def test_every_loader_is_timed_with_and_without_workers(
    several_files: Path, loader: Any, num_workers: int
) -> None:
    result = run(several_files, loader=loader, num_workers=num_workers)

    assert result["batches_measured"] == 4
    assert result["samples_measured"] == sum(result["samples_per_worker"])
    assert len(result["samples_per_worker"]) == max(1, num_workers)
    assert all(result["samples_per_worker"])
    assert result["frames_per_worker"] == [2 * made for made in result["samples_per_worker"]]
    assert result["samples_per_s"] == result["samples_measured"] / result["steady_window_s"]
    assert result["frames_per_s_node"] == pytest.approx(2 * result["samples_per_s"])
    assert 0 < result["p50_batch_wait_ms"] <= result["p99_batch_wait_ms"]
    assert result["p50_sample_latency_ms"] <= result["p50_batch_wait_ms"]
    assert 0 < result["first_batch_latency_s"] < result["wallclock_s"] < result["total_time_s"]
    assert 0 < result["peak_pss_gb"] <= result["peak_rss_gb"]
    assert 0 < result["shuffle_randomness_frac"] <= 1
    assert result["single_proc_samples_per_s"] > 0
    assert 0 < result["decode_pct"] < 100
    assert result["fetch_pct"] + result["decode_pct"] == pytest.approx(100)
    cache = result["video_decoder_cache"]
    assert cache["misses"] > 0
    assert cache["hit_rate"] == cache["hits"] / (cache["hits"] + cache["misses"])
    assert result["loaded_episodes"] == 6
    assert result["options"]["loader"] == loader
    if loader == "stream":
        assert result["decoder"] == {"backend": "pyav", "ffmpeg": None}
    else:  # LeRobot's own
        assert result["decoder"]["backend"] == "torchcodec"
        assert result["decoder"]["ffmpeg"]["major"] > 3
    assert result["dataset"]["codec"] == "h264"
    assert result["dataset"]["gop"] == 2
    assert result["dataset"]["video_files"] > 3
    assert result["pct_of_limit"] is None
    assert result["check"] is None
    assert failure_of(result) is None


def test_the_streams_frames_are_right_in_windows_of_seconds(several_files: Path) -> None:
    result = run(several_files, loader="stream", mode="sarm", check=40, num_batches=2)

    assert result["window_frames"] == 16
    assert result["check"]["samples"] == 40
    assert result["check"]["wrong_frames"] == 0
    assert result["check"]["wrong_pad_flags"] == 0
    assert result["check"]["wrong_values"] == 0
    assert failure_of(result) is None


@pytest.mark.parametrize("loader", ["map", "stream"])
def test_windows_may_lie_as_far_from_frames_as_the_tolerance_says(
    several_files: Path, tmp_path: Path, loader: Any
) -> None:
    deltas = tmp_path / "deltas.json"
    # 30 Hz: the next frame is 0.0333 s away.
    deltas.write_text('{"observation.images.wrist": [0, 0.035], "action": [0, 0.035]}')
    with pytest.raises((UsageError, ValueError, ProbeError)):
        run(several_files, loader=loader, deltas=str(deltas))
    result = run(
        several_files, loader=loader, deltas=str(deltas), tolerance_s=0.002, max_episodes=2
    )
    assert result["loaded_episodes"] == 2
    assert (result["options"]["mode"], result["window_frames"]) == ("deltas", 3)
    assert result["options"]["tolerance_s"] == 0.002
    assert result["samples_measured"] > 0


def test_the_check_finds_what_the_released_stream_gets_wrong(several_files: Path) -> None:
    result = run(
        several_files, loader="stream-lerobot", check=60, episode_pool_size=10, num_batches=1,
        probe_samples=0,
    )  # fmt: skip

    assert result["check"]["wrong_frames"] + result["check"]["unreadable_frames"] > 10
    assert result["check"]["wrong_frames_by_camera"]["observation.images.wrist"] == 0
    failure = failure_of(result)
    assert failure.exit_code == 14
    assert any("observation.images.top" in line for line in failure.details)


def test_steps_beyond_an_episodes_end_count_its_last_frame_once(several_files: Path) -> None:
    lengths = (40, 55, 1, 30, 61, 12)
    samples = sum(lengths)
    result = run(
        several_files, mode="sarm", warmup_batches=0, num_batches=-(-samples // 8), probe_samples=0
    )

    # Eight steps of 30 frames each: one epoch of every frame, by hand.
    wanted = sum(
        len({min(frame + 30 * step, length - 1) for step in range(8)})
        for length in lengths
        for frame in range(length)
    )
    assert result["samples_measured"] == samples
    assert sum(result["frames_per_worker"]) == 2 * wanted
    assert result["window_frames_per_s"] == pytest.approx(16 * result["samples_per_s"])


def test_ranks_load_shares_of_their_own(several_files: Path) -> None:
    results = [
        run(several_files, loader=loader, rank=rank, world_size=2, probe_samples=0)
        for loader, rank in (("stream", 0), ("stream", 1), ("map", 1))
    ]

    # The episode at the cut between two ranks may be in both.
    assert results[0]["loaded_episodes"] + results[1]["loaded_episodes"] in {6, 7}
    assert [result["options"]["rank"] for result in results] == [0, 1, 1]
    assert results[2]["samples_measured"] == 32
    for loader in ("stream", "map"):
        with pytest.raises(ProbeError, match="has no frames"):
            run(several_files, loader=loader, rank=9999, world_size=10000)


def test_a_dataset_without_video_or_with_images_in_tables_is_measured_without_a_decoder(
    without_video: Path, images_in_tables: Path
) -> None:
    result = run(without_video, check=5)

    assert result["video_decoder_cache"] is None
    assert result["frames_per_s_node"] == 0
    assert result["decode_pct"] == 0
    assert result["dataset"]["codec"] is None
    assert result["check"]["samples"] == 5
    assert failure_of(result) is None
    result = run(images_in_tables, check=5)

    assert result["window_frames"] == 1
    assert result["video_decoder_cache"] is None
    assert result["check"]["wrong_frames"] == 0


def hurt(root: Path, folder: Path, wrong_bytes: int | None = None) -> tuple[Path, Path]:
    """Copy a dataset, spoil the media of one camera from their beginning; return it, its video."""
    copy = Path(shutil.copytree(root, folder / "hurt"))
    (video,) = copy.glob("videos/observation.images.wrist/*/*.mp4")
    content = bytearray(video.read_bytes())
    begin = content.index(b"mdat") + 8
    end = len(content) if wrong_bytes is None else begin + wrong_bytes
    content[begin:end] = b"\xff" * (end - begin)
    video.write_bytes(content)
    return copy, video


def test_frames_that_cannot_be_decoded_are_counted_and_named(
    several_files: Path, tmp_path: Path
) -> None:
    broken, _ = hurt(several_files, tmp_path, 2000)

    result = run(broken, check=80, num_batches=20)

    assert result["unreadable_frames"] > 0
    failure = failure_of(result)
    assert failure.exit_code == 14


def test_pictures_that_cannot_be_decoded_are_not_called_wrong(
    several_files: Path, tmp_path: Path
) -> None:
    # LeRobot decodes the sound files beside the metadata.
    broken, video = hurt(several_files, tmp_path)

    result = run(
        several_files, data_files_root=str(broken), mode="sarm", check=20, num_batches=1,
        probe_samples=0,
    )  # fmt: skip

    assert result["check"]["samples"] == 20
    assert result["check"]["unreadable_frames"] == 20
    assert result["check"]["wrong_frames"] == 0
    assert str(video) in result["check"]["named"][0]


def test_the_limit_is_found_beside_the_result(
    several_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "allowed_cores", lambda: 2)
    # Real ones are decoded in `tests/cli/test_probe.py`.
    stretches = [(9, 0.1), (9, 0.3)]
    monkeypatch.setattr(verdicts, "_decoded_by", lambda processes, *_: [stretches] * processes)
    limit = run_limit(RunOptions(root=str(several_files)))
    assert violations(limit) == []
    assert [(rate["access"], rate["processes"]) for rate in limit["rates"]] == [
        ("sequential", 1), ("random", 1), ("sequential", 2), ("random", 2)
    ]  # fmt: skip
    assert limit["limit_frames_per_s"] == limit["rates"][3]["frames_per_s"] == pytest.approx(60)
    path, _ = write_document(limit, tmp_path)
    other = {**limit, "dataset": {**limit["dataset"], "fingerprint": "another dataset's"}}
    write_document(other, tmp_path)
    options = replace(BRIEF, root=str(several_files), probe_samples=0)

    result = run_probe(options, results_dir=tmp_path)

    assert violations(result) == []
    assert result["limit"]["origin"] == path.name
    assert result["limit"]["frames_per_s"] == limit["limit_frames_per_s"]
    assert result["pct_of_limit"] == pytest.approx(
        100 * result["decoded_frames_per_s"] / limit["limit_frames_per_s"]
    )
    meta = load_meta(files_at(several_files))
    assert find_limit(tmp_path, meta, "cuda") is None
    monkeypatch.setattr(verdicts, "allowed_cores", lambda: 3)
    assert find_limit(tmp_path, meta, "cpu") is None


def test_what_loaders_and_the_limit_cannot_do_is_refused(
    several_files: Path, without_video: Path
) -> None:
    with pytest.raises(UsageError, match="partition_index must be 0 to 0, not 1"):
        run(several_files, partition_index=1)
    with pytest.raises(UsageError, match="The loader stream-lerobot always reads all episodes"):
        run(several_files, loader="stream-lerobot", max_episodes=2)
    with pytest.raises(UsageError, match="does not support --data-files-root"):
        run(several_files, loader="map", data_files_root=str(several_files))
    with pytest.raises(ProbeError, match="has no videos"):
        run_limit(RunOptions(root=str(without_video), duration_s=0.1))


@pytest.mark.parametrize("option", [{"decode_device": "cuda"}, {"device": "cuda"}])
def test_a_gpu_that_is_not_there_is_an_error_before_anything_is_timed(
    several_files: Path, option: dict[str, str]
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    said = r"can use no GPU here|cannot use the device cuda"
    with pytest.raises((UsageError, ProbeError), match=said):
        run(several_files, **option)


def test_decoding_on_a_gpu_is_measured_with_spawned_workers(several_files: Path) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU that torch and torchcodec can use")
    result = run(several_files, decode_device="cuda", num_workers=2, check=20)

    assert result["samples_per_s"] > 0
    assert result["versions"]["torchcodec"] is not None


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)

    with pytest.raises(InstallationError, match="needs torch") as refused:
        require_packages("torch")
    assert refused.value.next_step == f"Run `{command_for_extra('probe')}`."
    with pytest.raises(InstallationError, match="needs LeRobot"):
        require_packages("lerobot")


class OnCpuAlone:
    """A decoder of a torchcodec that was built for the CPU, whatever its version says."""

    decoder_of_torchcodec = VideoDecoder

    def __init__(self, path: str, *, device: str, **options: Any) -> None:
        if device != "cpu":
            raise RuntimeError(f"Unsupported device: {device} (device type: {device})")
        self._decoder = self.decoder_of_torchcodec(path, device=device, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)


@pytest.fixture
def gpu_without_decoder(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with a GPU, and a torchcodec that says it is built for it but is not."""
    import torch
    import torchcodec

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torchcodec, "__version__", "0.11.1")
    monkeypatch.setattr("torchcodec.decoders.VideoDecoder", OnCpuAlone)
    return monkeypatch


def ways_to_decode(root: Path) -> dict[str, Any]:
    from leconvert.loading import EpisodeStream

    cuda: dict[str, Any] = {"decode_device": "cuda", "probe_samples": 0}
    return {
        "run": lambda: run(root, **cuda),
        "run, unreadable frames counted": lambda: run(root, check=5, **cuda),
        "stream": lambda: next(iter(EpisodeStream(root, decode_device="cuda"))),
        "limit": lambda: run_limit(
            RunOptions(root=str(root), duration_s=0.1, decode_device="cuda"), processes=1
        ),
    }  # fmt: skip


# The processes of a limit are others, with the true torchcodec.
@pytest.mark.parametrize("way", [way for way in ways_to_decode(Path()) if way != "limit"])
def test_a_gpu_that_does_not_decode_is_no_fault_of_the_dataset(
    several_files: Path, gpu_without_decoder: pytest.MonkeyPatch, way: str
) -> None:
    with pytest.raises(UsageError, match="cannot decode on cuda: Unsupported device") as refused:
        ways_to_decode(several_files)[way]()

    assert "build for CUDA" in str(refused.value.next_step)
    assert "--decode-device cpu" in str(refused.value.next_step)


@pytest.mark.parametrize("way", ways_to_decode(Path()))
def test_a_torchcodec_built_for_the_cpu_is_refused_before_anything_is_read(
    tmp_path: Path, gpu_without_decoder: pytest.MonkeyPatch, several_files: Path, way: str
) -> None:
    gpu_without_decoder.setattr("torchcodec.__version__", "0.11.1+cpu")
    if way != "stream":
        gpu_without_decoder.setattr(decoders, "open_clip", None)

    with pytest.raises(UsageError, match=r"0\.11\.1\+cpu cannot decode on cuda"):
        ways_to_decode(several_files)[way]()
    document = diagnose_decoding(str(several_files), decode_device="cuda")
    assert not document["ok"]
    assert "cannot decode on cuda" in document["error"]["message"]


def test_a_frame_that_only_the_gpu_refuses_is_not_unreadable(
    several_files: Path, gpu_without_decoder: pytest.MonkeyPatch
) -> None:
    class FailsAtFrames(OnCpuAlone):
        def __init__(self, path: str, *, device: str, **options: Any) -> None:
            super().__init__(path, device="cpu", **options)
            self._device = device

        def __getattr__(self, name: str) -> Any:
            if name.startswith("get_frame") and self._device != "cpu":
                raise RuntimeError("NVDEC has no room")
            return super().__getattr__(name)

    gpu_without_decoder.setattr("torchcodec.decoders.VideoDecoder", FailsAtFrames)
    path = next(several_files.glob("videos/*/*/file-000.mp4"))
    clip = decoders.open_clip(files_at(path.parent).open(path.name), keep_index=True)
    decoder = decoders.open_decoder(clip, "torchcodec", device="cuda")
    for ranks in ([0], [0, 1, 2]):
        with pytest.raises(UsageError, match="NVDEC has no room"):
            list(decoder.decode(np.array(ranks)))


def test_without_a_check_a_frame_that_does_not_decode_ends_the_run(
    several_files: Path, tmp_path: Path
) -> None:
    broken, video = hurt(several_files, tmp_path)

    with pytest.raises(ProbeError, match="loader stream failed") as failed:
        run(broken, num_batches=20, probe_samples=0)
    assert str(video) in failed.value.message

"""Which videos are decoded, how they are coded, and what a diagnosis says to install."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from schema_checker import violations

from leconvert.bench import decoding as verdicts
from leconvert.bench.decoding import (
    diagnose_decoding,
    measure_limit,
    missing_pieces,
    video_facts,
    videos_to_decode,
)
from leconvert.bench.environment import FoundFfmpeg
from leconvert.bench.options import RunOptions
from leconvert.dataset.formats import Slices
from leconvert.loading.metadata import load_meta
from leconvert.support.errors import ProbeError
from leconvert.testing.encode import encode_clip
from leconvert.transfer.files import files_at


def test_videos_of_every_camera_are_decoded_spread_over_its_files(several_files: Path) -> None:
    meta = load_meta(files_at(several_files))

    all_of_them, few = videos_to_decode(meta), videos_to_decode(meta, most=4)

    tops = sorted(path for path in all_of_them if "images.top" in path)
    assert tops == sorted(meta.table.cameras["observation.images.top"].paths)
    assert len([path for path in few if "images.top" in path]) == 2
    assert len([path for path in few if "images.wrist" in path]) == 1


def test_a_dataset_of_no_episodes_has_no_video_to_decode(several_files: Path) -> None:
    meta = load_meta(files_at(several_files))
    nothing = np.empty(0, np.int64)
    cameras = {key: Slices((), nothing, nothing) for key in meta.video_keys}
    empty = replace(meta, table=replace(meta.table, cameras=cameras))

    with pytest.raises(ProbeError, match="has no videos"):
        videos_to_decode(empty)


def test_a_file_that_does_not_decode_ends_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forking = multiprocessing.get_context("fork")  # a server of forks imports torch once more
    monkeypatch.setattr(verdicts, "get_context", lambda _: forking)
    (tmp_path / "noise.mp4").write_bytes(b"\xff" * 1000)

    options = RunOptions(root=str(tmp_path), duration_s=0.1)
    with pytest.raises(ProbeError, match="A decoding process failed"):
        measure_limit(files_at(tmp_path), ["noise.mp4"], options, 1)


def test_how_a_video_is_coded_is_read_from_its_packets(several_files: Path) -> None:
    path = next(several_files.glob("videos/observation.images.top/*/file-000.mp4"))

    assert video_facts(str(path)) == {
        "codec": "h264", "gop": 2, "width": 64, "height": 48, "pixel_format": "yuv420p",
        "has_b_frames": False,
    }  # fmt: skip


def test_a_title_in_another_encoding_hides_nothing_of_how_a_video_is_coded(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    encode_clip(path, np.zeros((3, 16, 16, 3), np.uint8), fps=Fraction(30))
    path.write_bytes(path.read_bytes().replace(b"Lavf", b"M\xfcll"))
    facts = video_facts(str(path))
    assert facts is not None
    assert facts["codec"] == "h264"


def test_a_diagnosis_decodes_a_frame_and_shows_the_files_first_bytes(several_files: Path) -> None:
    found = diagnose_decoding(str(several_files))

    assert violations(found) == []
    assert found["ok"]
    assert found["video"]["shape"] == [48, 64, 3]
    assert found["video"]["first_bytes"].replace(" ", "")[8:16] == b"ftyp".hex()
    assert found["video"]["coded"]["codec"] == "h264"
    assert found["missing"] == []


def test_a_diagnosis_of_a_broken_file_says_why_and_is_not_ok(
    several_files: Path, tmp_path: Path
) -> None:
    import shutil

    broken = Path(shutil.copytree(several_files, tmp_path / "broken"))
    next(broken.glob("videos/observation.images.top/*/file-000.mp4")).write_bytes(b"<html>no")

    found = diagnose_decoding(str(broken))

    assert violations(found) == []
    assert not found["ok"]
    assert found["video"]["coded"] is None
    assert found["video"]["error"]
    assert bytes.fromhex(found["video"]["first_bytes"]) == b"<html>no"


def test_a_diagnosis_on_a_gpu_that_is_not_there_says_what_to_install(several_files: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")

    found = diagnose_decoding(str(several_files), decode_device="cuda")

    assert violations(found) == []
    assert not found["ok"]
    assert found["error"]["error"] == "UsageError"
    assert any("torch sees no GPU" in sentence for sentence in found["missing"])


@pytest.mark.parametrize("device", ["tpu", "cuda:one", "mps"])
def test_a_device_that_nobody_decodes_on_is_refused_in_a_sentence(device: str) -> None:
    found = diagnose_decoding(None, decode_device=device)

    assert violations(found) == []
    assert not found["ok"]
    assert found["error"]["message"] == f"decode_device must be cpu or cuda, not {device}."


def test_a_diagnosis_needs_no_dataset(without_video: Path) -> None:
    alone, numbers = diagnose_decoding(None), diagnose_decoding(str(without_video))

    assert violations(alone) == violations(numbers) == []
    assert alone["ok"]
    assert alone["video"] is None
    assert numbers["ok"]
    assert numbers["video"] is None


SOUND = {
    "torch": "2.7", "torchcodec": "0.11", "torchcodec_trouble": None,
    "ffmpeg": FoundFfmpeg(7, "system"), "built_for": (4, 8), "cuda": False, "wants_cuda": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"torch": None}, ["torch is not installed"]),
        ({"torchcodec": None}, ["torchcodec is not installed"]),
        ({"ffmpeg": None, "torchcodec_trouble": "x"}, ["torchcodec 0.11 finds no suitable FFmpeg"]),
        ({"torchcodec_trouble": "wrong symbol"}, ["torchcodec cannot be imported"]),
        ({"wants_cuda": True}, ["torch sees no GPU"]),
        ({"wants_cuda": True, "cuda": True}, []),
        (
            {"wants_cuda": True, "cuda": True, "torchcodec": "0.11.1+cpu"},
            ["torchcodec 0.11.1+cpu decodes only on the CPU"],
        ),
    ],
)
def test_what_is_missing_is_said_once_and_with_a_remedy(
    changes: dict[str, Any], said: list[str]
) -> None:
    missing = missing_pieces(**(SOUND | changes))

    assert [sentence.startswith(begin) for sentence, begin in zip(missing, said, strict=True)] == [
        True
    ] * len(said)

"""From the Hub and back: a real recording, converted without room for it, pushed, and loaded.

Upload by the real client, conversion by two workers within a scratch limit of a quarter of the
dataset (or its largest clip), push in one commit, download at ``v3.0`` by the real client, every
frame through LeRobot against the source's frame of the same index, every byte against the source.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import comparison
import pytest
from comparison import V21Source
from huggingface_hub import HfApi, snapshot_download
from tests.hub import WRITE_TOKEN, StandIn
from tests.hub.fixtures import api_of, hub, lone_client, pauses
from tests.recordings import each

from leconvert.cli import main
from leconvert.remote import sparse_snapshot as sparse

__all__ = ["api_of", "hub", "lone_client", "pauses"]

REPO = "tester/cr5"
_BLOCK = 4096


@pytest.fixture
def logged_in(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # the workers are processes of their own
    return hub


def charge(path: Path) -> int:
    return -(-path.stat().st_size // _BLOCK) * _BLOCK


def scratch_limit(source: Path) -> int:
    """A quarter of the dataset, or its largest clip."""
    files = [path for path in source.rglob("*") if path.is_file()]
    return max(sum(path.stat().st_size for path in files) // 4, *map(charge, files))


class Watch:
    """Looks again and again at what lies in a scratch folder, as ``du`` would.

    A look takes time, in which one file can go and another come. Only files that are still there
    after the look are added up, as they lay there together.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.most_bytes = 0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.002):
            seen: dict[tuple[Path, int], int] = {}
            for path in self._folder.rglob("files/**/*"):
                with contextlib.suppress(FileNotFoundError):
                    if path.is_file():
                        of = path.stat()
                        seen[path, of.st_ino] = of.st_blocks * 512
            there = 0
            for (path, number), size in seen.items():
                with contextlib.suppress(FileNotFoundError):
                    there += size * (path.stat().st_ino == number)
            self.most_bytes = max(self.most_bytes, there)


def round_trip(
    hub: StandIn, api: HfApi, source: Path, tmp_path: Path, how: list[str]
) -> tuple[Path, Watch, int]:
    """Upload a v2.1 dataset, convert it from there, push; return the download at ``v3.0``."""
    api.create_repo(REPO, repo_type="dataset")
    api.upload_folder(repo_id=REPO, repo_type="dataset", folder_path=source)
    old = api.repo_info(REPO, repo_type="dataset").sha
    api.create_tag(REPO, repo_type="dataset", tag="v2.1")
    limit = scratch_limit(source)
    scratch = tmp_path / "scratch"
    with Watch(scratch) as watch:
        code = main(
            [
                "convert", "--repo-id", REPO, *how,
                "--output", str(tmp_path / "out"), "--work-dir", str(tmp_path / "work"),
                "--scratch-dir", str(scratch), "--scratch-limit", str(limit),
                "--push-repo-id", REPO,
            ]
        )  # fmt: skip
    assert code == 0
    assert hub.repo(REPO).tags["v2.1"] == old
    assert hub.repo(REPO).tags["v3.0"] == hub.repo(REPO).branches["main"] != old
    loaded = snapshot_download(
        REPO, repo_type="dataset", revision="v3.0", local_dir=tmp_path / "loaded"
    )
    return Path(loaded), watch, limit


@pytest.mark.parametrize(
    "recording", each(pytest.param("cr5_5ep", marks=pytest.mark.slow)), indirect=True
)
def test_a_recording_goes_round(
    logged_in: StandIn,
    api_of: Callable[..., HfApi],
    recording: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = recording
    # Small files would be fetched once, with the plan.
    monkeypatch.setattr(sparse, "_WHOLE_TABLE_BYTES", 0)
    monkeypatch.setattr(sparse, "_WHOLE_CLIP_BYTES", 0)
    how = ["--orchestrate", "--num-workers", "2", "--episodes-per-batch", "2"]
    loaded, watch, limit = round_trip(logged_in, api_of(), source, tmp_path, how)
    assert 0 < watch.most_bytes <= limit
    assert main(["verify", str(loaded), "--source", str(source), "--bytes"]) == 0
    original = V21Source.open(source)
    comparison.assert_rows_are_the_sources(loaded, original)
    comparison.assert_packets_are_the_sources(loaded, original)
    compared = comparison.assert_every_frame_is_the_sources(
        loaded, original, "torchcodec", window=10
    )
    assert compared == sum(original.lengths)

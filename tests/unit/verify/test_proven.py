"""An interrupted verification goes on, and only where nothing changed."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import leconvert
from leconvert.errors import InterruptedRunError
from leconvert.progress import SilentProgress, Stage
from leconvert.repairs import RepairOptions
from leconvert.spread import Spread
from leconvert.verify import VerificationReport, pieces, proven, verify_pair

TOP = "videos/observation.images.top/chunk-000/file-000.mp4"

Verify = Callable[..., VerificationReport]


@pytest.fixture(scope="module")
def converted(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("converted") / "out"
    leconvert.convert(small_source, output=out)
    return out


@pytest.fixture
def result(converted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(converted, tmp_path / "out"))


class StoppedAfter(SilentProgress):
    """Stops a verification after so many pieces."""

    def __init__(self, count: int) -> None:
        self.stop = threading.Event()
        self.left = count

    def stage(self, name: str, total: int, unit: str) -> Stage:
        stage = super().stage(name, total, unit)
        stage.advance = self._advance  # type: ignore[method-assign]
        return stage

    def _advance(self, amount: int) -> None:
        if amount:
            self.left -= 1
            if not self.left:
                self.stop.set()


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The pieces that are compared: stream and first position."""
    seen: list[tuple[str, int]] = []
    real = pieces.Comparer._compare

    def compare(self: pieces.Comparer, piece: pieces.Piece):  # type: ignore[no-untyped-def]
        seen.append((piece.stream, piece.first))
        return real(self, piece)

    monkeypatch.setattr(pieces.Comparer, "_compare", compare)
    monkeypatch.setattr(pieces, "_EPISODES_A_PIECE", 2)
    monkeypatch.setattr(proven, "_SECONDS_WORTH_RECORDING", 0.0)
    return seen


def interrupt(result: Path, source: Path, folder: Path, after: int) -> None:
    progress = StoppedAfter(after)
    with pytest.raises(InterruptedRunError):
        verify_pair(
            result, source, depth="bytes", proven_in=folder, stop=progress.stop,
            progress=progress, spread=Spread(),
        )  # fmt: skip


def again(result: Path, source: Path, folder: Path, **options: object) -> VerificationReport:
    return verify_pair(
        result,
        source,
        depth="bytes",
        proven_in=folder,
        spread=Spread(),
        **options,  # type: ignore[arg-type]
    )


def test_it_goes_on_where_it_was(
    result: Path, small_source: Path, tmp_path: Path, compared: list[tuple[str, int]]
) -> None:
    folder = tmp_path / "proven"
    interrupt(result, small_source, folder, after=4)
    before = list(compared)
    assert before == [
        ("data", 0), ("data", 2), ("data", 4), ("videos/observation.images.top", 0),
    ]  # fmt: skip
    compared.clear()
    moved = result.rename(tmp_path / "adopted")  # as a packer that follows another one does
    assert again(moved, small_source, folder).ok
    assert [("data", 0), *compared][1:] == [
        ("videos/observation.images.top", 2), ("videos/observation.images.top", 4),
        ("videos/observation.images.wrist", 0), ("videos/observation.images.wrist", 2),
        ("videos/observation.images.wrist", 4),
    ]  # fmt: skip
    assert list(folder.iterdir()) == []


def test_a_piece_with_differences_is_compared_again(
    result: Path, small_source: Path, tmp_path: Path, compared: list[tuple[str, int]]
) -> None:
    content = bytearray((result / TOP).read_bytes())
    content[content.index(b"mdat") + 12] ^= 1
    (result / TOP).write_bytes(content)
    folder = tmp_path / "proven"
    interrupt(result, small_source, folder, after=5)
    compared.clear()
    (found,) = again(result, small_source, folder).differences
    assert (found.stream, found.episode) == ("videos/observation.images.top", 0)
    assert compared[0] == ("videos/observation.images.top", 0)
    assert len(compared) == 5


@pytest.mark.parametrize("change", ["source", "result", "sample", "fresh", "options"])
def test_nothing_is_taken_over_once_something_changed(
    result: Path, source_copy: Path, tmp_path: Path, compared: list[tuple[str, int]], change: str
) -> None:
    folder = tmp_path / "proven"
    interrupt(result, source_copy, folder, after=4)
    assert len(list(folder.iterdir())) == 1
    compared.clear()
    options: dict[str, object] = {}
    if change == "source":
        os.utime(source_copy / "data/chunk-000/episode_000004.parquet")
    elif change == "result":
        os.utime(result / TOP)
    elif change == "sample":
        from leconvert.verify import Sampling

        options["sampling"] = Sampling(share=0.5)
    elif change == "fresh":
        options["fresh"] = True
    else:
        again_out = tmp_path / "again"
        leconvert.convert(source_copy, output=again_out, repairs=RepairOptions(retime=True))
        result = again_out
        compared.clear()
    assert again(result, source_copy, folder, **options).ok
    assert compared[0] == ("data", 0)
    assert len(compared) == 9


def test_torn_lines_and_foreign_records_are_no_proof(
    result: Path, small_source: Path, tmp_path: Path, compared: list[tuple[str, int]]
) -> None:
    folder = tmp_path / "proven"
    interrupt(result, small_source, folder, after=3)
    (record,) = folder.iterdir()
    whole = record.read_bytes()
    assert whole.startswith(b'{"format": "leconvert/proven", "version": 1, "run_id": "')
    lines = whole.split(b"\n")
    assert lines[1:] == [
        b'["data", 0, 5, 0, 2]', b'["data", 0, 5, 2, 4]', b'["data", 0, 5, 4, 5]', b"",
    ]  # fmt: skip
    cases = {
        whole[:-3]: 7,  # the last line is torn
        b"\n".join([lines[0], lines[1] + lines[2]]): 9,  # two are glued to each other
        whole.replace(b'"version": 1', b'"version": 2'): 9,
        whole[10:]: 9,
        b"": 9,
    }
    for content, pieces_left in cases.items():
        record.write_bytes(content)
        compared.clear()
        assert again(result, small_source, folder).ok
        assert len(compared) == pieces_left
        assert not record.exists()


def test_a_folder_that_cannot_be_written_stops_nothing(
    result: Path, small_source: Path, tmp_path: Path, compared: list[tuple[str, int]]
) -> None:
    (tmp_path / "file").touch()
    assert again(result, small_source, tmp_path / "file/proven").ok
    assert len(compared) == 9


def test_a_short_verification_records_nothing(
    result: Path, small_source: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "proven"
    interrupt(result, small_source, folder, after=1)
    assert not folder.exists()


def test_records_that_nobody_went_on_with_are_forgotten(tmp_path: Path) -> None:
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    for path in (old, new):
        path.touch()
    os.utime(old, (1e9, 1e9))
    proven.ProvenPieces(tmp_path, "0" * 40)
    assert [path.name for path in tmp_path.iterdir()] == ["new.jsonl"]


def test_the_default_folder_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert proven.default_folder() == Path("/cache/leconvert/verify")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somebody")
    assert proven.default_folder() == Path("/somebody/.cache/leconvert/verify")


class TurnedClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_what_is_proven_is_written_within_a_second_and_appended(tmp_path: Path) -> None:
    clock = TurnedClock()
    record = proven.ProvenPieces(tmp_path, "0" * 40, clock=clock)
    record.flush()
    assert not record.path.exists()  # nothing to write, nothing written
    record.add(pieces.Piece("data", 0, 5, 0, 2))
    assert not record.path.exists()
    clock.seconds += 1
    record.add(pieces.Piece("data", 0, 5, 2, 4))
    assert len(record.path.read_bytes().splitlines()) == 3
    clock.seconds += 1
    record.add(pieces.Piece("data", 0, 5, 4, 5))
    head, *lines = record.path.read_bytes().splitlines()
    assert head.startswith(b'{"format": "leconvert/proven"')
    assert lines == [
        b'["data", 0, 5, 0, 2]', b'["data", 0, 5, 2, 4]', b'["data", 0, 5, 4, 5]',
    ]  # fmt: skip
    assert len(proven.ProvenPieces(tmp_path, "0" * 40, clock=clock).pieces) == 3


def test_a_file_that_is_gone_since_is_found_missing_and_not_taken_for_proven(
    result: Path, small_source: Path, tmp_path: Path, compared: list[tuple[str, int]]
) -> None:
    folder = tmp_path / "proven"
    interrupt(result, small_source, folder, after=6)
    compared.clear()
    (result / TOP).unlink()
    report = again(result, small_source, folder)
    assert [(found.what, found.path) for found in report.differences] == [
        ("file", TOP), ("readable MP4", TOP),
    ]  # fmt: skip
    assert compared[0] == ("data", 0)


def test_a_sample_passes_over_pieces_that_have_none_of_its_episodes(
    result: Path, small_source: Path, compared: list[tuple[str, int]]
) -> None:
    from leconvert.verify import Sampling

    content = bytearray((result / TOP).read_bytes())
    content[-1] ^= 1  # of the last episode
    (result / TOP).write_bytes(content)
    for seed in range(8):
        sampling = Sampling(share=0.2, seed=seed)
        chosen = sampling.episodes(5)
        assert chosen is not None
        report = verify_pair(
            result, small_source, depth="bytes", sampling=sampling, spread=Spread()
        )
        assert report.ok is not bool(chosen[4])
        assert report.episodes == 1

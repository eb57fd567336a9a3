"""The index that we read is the one that FFmpeg reads, or a clear refusal."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from clip_recipes import RECIPES, ChangedClip, MakeClip
from tests.mp4_boxes import Box, edit_list, parsed, stbl_of, top_bytes
from tests.packets import coded_packets

from leconvert.media import (
    ClipIndex,
    UnsupportedClipError,
    order_digest,
    read_clip_index,
    samples_sha256,
)
from leconvert.media import index as clip_module
from leconvert.support.errors import UnreadableSourceError


def assert_is_what_ffmpeg_sees(path: Path) -> ClipIndex:
    index = read_clip_index(path)
    packets = list(coded_packets(path))
    assert [packet.pts for packet in packets] == index.presentation_times.tolist()
    assert [packet.size for packet in packets] == index.sizes.tolist()
    assert [packet.keyframe for packet in packets] == index.keyframes.tolist()
    assert {packet.time_base for packet in packets} == {Fraction(1, index.timescale)}
    content = path.read_bytes()
    starts, stops = index.offsets.tolist(), (index.offsets + index.sizes).tolist()
    samples = [content[start:stop] for start, stop in zip(starts, stops, strict=True)]
    assert [hashlib.sha256(sample).hexdigest() for sample in samples] == [
        packet.sha256 for packet in packets
    ]
    assert samples_sha256(index) == hashlib.sha256(b"".join(samples)).hexdigest()
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (index.width, index.height) == (stream.width, stream.height)
    assert index.unindexed_bytes == 0, "muxers leave nothing over, or it is another track's"
    return index


@pytest.mark.parametrize("name", RECIPES)
def test_the_index_of_an_encoded_clip_is_what_ffmpeg_sees(name: str, make_clip: MakeClip) -> None:
    recipe = RECIPES[name]
    index = assert_is_what_ffmpeg_sees(make_clip(recipe))
    assert index.num_samples == recipe.frames
    assert sorted(index.ranks.tolist()) == list(range(recipe.frames))
    assert index.other_tracks == (("soun",) if recipe.audio else ())


def test_ranks_put_b_frames_where_they_are_shown(make_clip: MakeClip) -> None:
    index = read_clip_index(make_clip(RECIPES["x264-b-frames"]))
    assert index.ranks.tolist() != list(range(index.num_samples))
    assert (np.diff(index.presentation_times[np.argsort(index.ranks)]) > 0).all()


Change = Callable[[Box], object]


def wide(path: str) -> Change:
    return lambda top: setattr(top.find(path), "wide", True)


def without(path: str, kind: str) -> Change:
    return lambda top: top.find(path).remove(kind)


def also(kind: bytes) -> Change:
    return lambda top: top.find("moov").children.append(Box(kind))


def edits(payload: bytes) -> Change:
    return lambda top: setattr(top.find("moov/trak/edts/elst"), "payload", payload)


ONCE = 1 << 16
LATE_ENTRIES = edit_list((500, -1, ONCE), (400, 1024, ONCE))
LATE_START = edits(LATE_ENTRIES)


def counting(count: int, edit_list: bytes) -> bytes:
    return edit_list[:4] + struct.pack(">I", count) + edit_list[8:]


def two_edit_lists(*payloads: bytes) -> Change:
    lists = [Box(b"elst", payload) for payload in payloads]
    return lambda top: setattr(top.find("moov/trak/edts"), "children", lists)


def rows_of_times(*rows: tuple[int, int]) -> Change:
    payload = struct.pack(">II", 0, len(rows)) + b"".join(struct.pack(">II", *row) for row in rows)
    return lambda top: stbl_of(top).replace("stts", payload)


def wide_offsets(top: Box) -> None:
    payload = stbl_of(top).find("stco").payload
    count = struct.unpack_from(">I", payload, 4)[0]
    offsets = struct.unpack_from(f">{count}I", payload, 8)
    stbl_of(top).remove("stco")
    stbl_of(top).children.append(Box(b"co64", payload[:8] + struct.pack(f">{count}Q", *offsets)))


def index_in_front(top: Box) -> None:
    top.children.sort(key=lambda box: box.kind != b"moov")
    top.children.sort(key=lambda box: box.kind != b"ftyp")


def padding_everywhere(top: Box) -> None:
    for box in [top, *(top.find(path) for path in ("moov", "moov/trak", "moov/trak/mdia"))]:
        box.children.insert(0, Box(b"free", bytes(50)))
        box.children.append(Box(b"skip", bytes(3)))
        box.children.append(Box(b"udta", Box(b"name", b"someone").encoded()))
    stbl_of(top).children.insert(0, Box(b"free", bytes(5)))


def boxes_before_the_media(top: Box) -> None:
    top.children[1:1] = [Box(b"free", bytes(10)) for _ in range(300)]


def one_row_a_sample(top: Box) -> None:
    stbl_of(top).replace("stts", struct.pack(">II", 0, 12) + struct.pack(">II", 1, 512) * 12)


def one_chunk_a_sample(top: Box) -> None:
    stbl = stbl_of(top)
    first = struct.unpack_from(">I", stbl.find("stco").payload, 8)[0]
    sizes = struct.unpack_from(">12I", stbl.find("stsz").payload, 12)
    offsets = [first + sum(sizes[:number]) for number in range(12)]
    stbl.replace("stco", struct.pack(">II12I", 0, 12, *offsets))
    stbl.replace("stsc", struct.pack(">IIIII", 0, 1, 1, 1, 1))


def uneven_chunks(top: Box) -> None:
    one_chunk_a_sample(top)
    stbl = stbl_of(top)
    offsets = struct.unpack_from(">12I", stbl.find("stco").payload, 8)
    kept = [offsets[number] for number in (0, 5, 6, 7)]
    stbl.replace("stco", struct.pack(">II4I", 0, 4, *kept))
    stbl.replace("stsc", struct.pack(">II9I", 0, 3, 1, 5, 1, 2, 1, 1, 4, 5, 1))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(wide("mdat"), id="a wide media box"),
        pytest.param(wide("moov"), id="a wide index box"),
        wide_offsets,
        index_in_front,
        padding_everywhere,
        boxes_before_the_media,
        pytest.param(LATE_START, id="a late start"),
        pytest.param(edits(edit_list((500, 0, ONCE))), id="an edit from before the first frame"),
        pytest.param(
            edits(edit_list((500, -1, ONCE), (500, 1, ONCE))), id="such an edit behind an empty one"
        ),
        pytest.param(without("moov/trak", "edts"), id="no edit list"),
        pytest.param(edits(edit_list()), id="an empty edit list"),
        pytest.param(
            two_edit_lists(LATE_ENTRIES, edit_list()), id="an empty edit list behind another"
        ),
        pytest.param(rows_of_times((12, 512), (0, 3584)), id="a last row for no frames"),
        pytest.param(without("moov/trak", "tkhd"), id="no track header"),
        one_row_a_sample,
        one_chunk_a_sample,
        uneven_chunks,
    ],
)
def test_other_ways_to_write_the_same_clip_are_read_as_ffmpeg_does(
    change: Change, make_clip: MakeClip, changed_clip: ChangedClip
) -> None:
    plain = make_clip(RECIPES["x264-b-frames"])
    path = changed_clip(change)
    assert path.read_bytes() != plain.read_bytes()
    index = assert_is_what_ffmpeg_sees(path)
    assert samples_sha256(index) == samples_sha256(read_clip_index(plain))
    assert index.config_key == read_clip_index(plain).config_key


def test_a_file_that_grew_a_tail_after_its_index_is_still_read(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(make_clip(RECIPES["x264"]).read_bytes() + Box(b"free", bytes(99)).encoded())
    assert_is_what_ffmpeg_sees(path)


def test_a_part_of_the_samples_has_a_digest_of_its_own(
    make_clip: MakeClip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clip_module, "_READ_BYTES", 100)
    path = make_clip(RECIPES["x264"])
    index = read_clip_index(path)
    content = path.read_bytes()
    start, stop = int(index.offsets[2]), int(index.offsets[7])
    assert samples_sha256(index, 2, 7) == hashlib.sha256(content[start:stop]).hexdigest()
    assert samples_sha256(index, 3, 3) == hashlib.sha256(b"").hexdigest()


def test_sizes_keyframes_and_order_have_a_digest() -> None:
    sizes, keyframes = np.array([30, 20, 10]), np.array([True, False, False])
    digest = order_digest(sizes, keyframes, None)
    assert order_digest(sizes, keyframes, np.zeros(3, np.int32)) == digest
    others = [
        order_digest(sizes[::-1], keyframes, None),
        order_digest(sizes, ~keyframes, None),
        order_digest(sizes, keyframes, np.array([0, 1, -1], np.int32)),
        order_digest(sizes, keyframes, np.array([1, -1, 0], np.int32)),
    ]
    assert len({digest, *others}) == 5


def test_samples_of_a_file_that_became_shorter_have_no_digest(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(make_clip(RECIPES["x264-faststart"]).read_bytes())
    index = read_clip_index(path)
    os.truncate(path, index.file_size_bytes - 10)
    with pytest.raises(UnreadableSourceError, match="shorter than its index"):
        samples_sha256(index)


def test_samples_of_a_file_that_is_gone_have_no_digest(make_clip: MakeClip, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(make_clip(RECIPES["x264"]).read_bytes())
    index = read_clip_index(path)
    path.unlink()
    with pytest.raises(
        UnreadableSourceError, match=r"clip\.mp4 cannot be read: No such file"
    ) as at:
        samples_sha256(index)
    assert at.value.path == str(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (also(b"mvex"), "fragmented MP4"),
        (also(b"cmov"), "compressed or foreign index"),
        (also(b"rmra"), "compressed or foreign index"),
        (lambda top: top.find("moov").children.append(top.find("moov/trak")), "2 video tracks"),
        (lambda top: stbl_of(top).children.append(stbl_of(top).find("stts")), "two stts boxes"),
        (
            lambda top: stbl_of(top).children.append(Box(b"co64", bytes(8))),
            r"two tables of offsets \(stco and co64\)",
        ),
        (edits(edit_list((400, 1024, 2 * ONCE))), "speed"),
        (edits(edit_list((200, 1024, ONCE), (200, 4096, ONCE))), "several parts"),
        (edits(edit_list((400, 1536, ONCE))), "at the start"),
        (edits(edit_list((300, 1024, ONCE))), "at the end"),
        (edits(edit_list((0, 1024, ONCE))), "at the end"),
        (edits(edit_list((400, -1, ONCE))), "shows nothing"),
        # FFmpeg sees other times here than the tables say.
        (edits(counting(0, edit_list((200, 1024, ONCE)))), "that counts 0 of its 1 entries"),
        (edits(counting(0, LATE_ENTRIES)), "that counts 0 of its 2 entries"),
        (edits(counting(1, LATE_ENTRIES)), "that counts 1 of its 2 entries"),
        (two_edit_lists(edit_list((200, 1024, ONCE)), edit_list()), "hides frames at the end"),
        (rows_of_times((0, 3584), (12, 512)), "a row for no frames"),
        (rows_of_times((5, 512), (0, 3584), (7, 512)), "a row for no frames"),
    ],
)
def test_a_clip_that_cannot_be_joined_as_it_lies_says_why(
    change: Change, reason: str, changed_clip: ChangedClip
) -> None:
    path = changed_clip(change)
    with pytest.raises(UnsupportedClipError, match=reason) as caught:
        read_clip_index(path)
    assert re.search(reason, caught.value.reason)
    assert caught.value.path == str(path)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.reason, copy.message, copy.path) == (
        caught.value.reason,
        caught.value.message,
        str(path),
    )


def without_video(top: Box) -> None:
    payload = top.find("moov/trak/mdia/hdlr").payload
    top.find("moov/trak/mdia").replace("hdlr", payload.replace(b"vide", b"soun"))


def samples_begin_a_byte(away: int) -> Change:
    def change(top: Box) -> None:
        payload = stbl_of(top).find("stco").payload
        (start,) = struct.unpack_from(">I", payload, 8)
        stbl_of(top).replace("stco", payload[:8] + struct.pack(">I", start + away) + payload[12:])

    return change


def starts_after_ages(top: Box) -> None:
    rows = struct.pack(">QqiQqi", 2**62, -1, 1 << 16, 400, 1024, 1 << 16)
    top.find("moov/trak/edts/elst").payload = struct.pack(">II", 1 << 24, 2) + rows


def edit_list_of_tomorrow(top: Box) -> None:
    elst = top.find("moov/trak/edts/elst")
    elst.payload = b"\2" + elst.payload[1:]


def timescale_zero(top: Box) -> None:
    payload = bytearray(top.find("moov/trak/mdia/mdhd").payload)
    payload[12:16] = bytes(4)
    top.find("moov/trak/mdia").replace("mdhd", bytes(payload))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_video, "no video track"),
        (samples_begin_a_byte(1), "outside its media data"),
        (samples_begin_a_byte(-1), "outside its media data"),
        (starts_after_ages, "edit list has impossible times"),
        (edits(bytes(7)), "edit list is too short or of an unknown version"),
        (edit_list_of_tomorrow, "edit list is too short or of an unknown version"),
        (edits(edit_list((400, 1024, ONCE))[:-1]), "edit list is longer than the box"),
        (edits(edit_list((400, -2, ONCE))), "begins before its media"),
        (without("moov", "mvhd"), "it has no movie header"),
        (without("moov/trak/mdia", "mdhd"), "has no mdhd box"),
        (timescale_zero, "timescale"),
    ],
)
def test_a_broken_clip_is_refused_with_the_reason(
    change: Change, words: str, changed_clip: ChangedClip
) -> None:
    path = changed_clip(change)
    with pytest.raises(UnreadableSourceError, match=words) as caught:
        read_clip_index(path)
    assert not isinstance(caught.value, UnsupportedClipError)
    assert str(path) in str(caught.value)
    assert caught.value.next_step


def test_a_clip_cut_off_anywhere_is_refused(make_clip: MakeClip, tmp_path: Path) -> None:
    for name in ("x264", "x264-faststart"):
        content = make_clip(RECIPES[name]).read_bytes()
        path = tmp_path / "clip.mp4"
        for length in [*range(0, len(content), max(1, len(content) // 97)), len(content) - 1]:
            path.write_bytes(content[:length])
            with pytest.raises(UnreadableSourceError):
                read_clip_index(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableSourceError, match="No such file"):
        read_clip_index(tmp_path / "absent.mp4")
    with pytest.raises(UnreadableSourceError):
        read_clip_index(tmp_path)


def test_only_the_index_is_read_however_large_the_media_is(
    make_clip: MakeClip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = parsed(make_clip(RECIPES["x264"]).read_bytes())
    path = tmp_path / "clip.mp4"
    path.write_bytes(top_bytes(Box(b"", children=boxes)))
    # A hole of 8 GiB in front of the index, which no reader of everything would get past.
    media = next(box for box in boxes if box.kind == b"mdat")
    with path.open("wb") as file:
        file.write(boxes[0].encoded())
        size = 8 * 1024**3
        file.write(struct.pack(">I4sQ", 1, b"mdat", size) + media.payload)
        file.seek(len(boxes[0].encoded()) + size)
        file.write(boxes[-1].encoded())
    read_bytes = 0
    real_pread = os.pread

    def counting_pread(descriptor: int, count: int, offset: int) -> bytes:
        nonlocal read_bytes
        data = real_pread(descriptor, count, offset)
        read_bytes += len(data)
        return data

    monkeypatch.setattr(os, "pread", counting_pread)
    assert read_clip_index(path).num_samples == 12
    assert read_bytes < 128 * 1024

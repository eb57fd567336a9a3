"""Frames of a clip by rank, decoding only what they need, and images as they were stored."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from clip_recipes import QUIET_X265, RECIPES, ChangedClip, MakeClip, Recipe
from tests.mp4_boxes import Box, stbl_of
from tests.pictures import decoded_pictures

from leconvert.media import ClipIndex, decode_image, decode_shown, join_clips, pyav, read_clip_index
from leconvert.model.values import Slice
from leconvert.support.errors import UnreadableSourceError
from leconvert.testing.dataset import encode_png

Picture = np.ndarray[Any, Any]

OPEN_GROUPS = {
    "x264 open": Recipe(
        options=(("x264-params", "bframes=2:b-adapt=0:scenecut=0:keyint=6:open-gop=1"),), frames=40
    ),
    "x265 open": Recipe(
        codec="libx265",
        options=(("x265-params", f"{QUIET_X265}:bframes=3:b-adapt=0:open-gop=1:keyint=8"),),
        frames=40,
    ),
}


@pytest.mark.parametrize("name", [*RECIPES, *OPEN_GROUPS])
def test_each_rank_alone_is_the_frame_of_a_full_decode(name: str, make_clip: MakeClip) -> None:
    path = make_clip({**RECIPES, **OPEN_GROUPS}[name])
    every = decoded_pictures(path)
    assert len({picture.tobytes() for picture in every}) == len(every)
    for rank, expected in enumerate(every):
        [(found_rank, picture)] = decode_shown(path, [rank])
        assert found_rank == rank
        np.testing.assert_array_equal(picture, expected)


@pytest.mark.parametrize("name", ["x264", "x264-b-frames", "x265-b-frames", "av1", *OPEN_GROUPS])
def test_any_choice_comes_in_order_of_rank_and_once(name: str, make_clip: MakeClip) -> None:
    path = make_clip({**RECIPES, **OPEN_GROUPS}[name])
    every = decoded_pictures(path)
    rng = np.random.default_rng(1)
    for count in (2, 3, 7):
        ranks = rng.choice(len(every), count).tolist()
        chosen = list(decode_shown(path, ranks))
        assert [rank for rank, _ in chosen] == sorted(set(ranks))
        for rank, picture in chosen:
            np.testing.assert_array_equal(picture, every[rank])


@pytest.mark.parametrize("name", ["x264", "x264-b-frames-no-edit-list", "vp9", "mpeg4"])
def test_a_joined_file_gives_the_frames_of_its_clips(
    name: str, make_clip: MakeClip, tmp_path: Path
) -> None:
    recipe = RECIPES[name]
    clips = [make_clip(Recipe(**{**vars(recipe), "seed": seed, "frames": 20})) for seed in (0, 1)]
    every = [picture for clip in clips for picture in decoded_pictures(clip)]
    path = tmp_path / "joined.mp4"
    join_clips([Slice(str(clip)) for clip in clips], path, fps=recipe.fps)
    ranks = [0, 3, 19, 20, 21, 39]
    chosen = list(decode_shown(path, ranks))
    assert [rank for rank, _ in chosen] == ranks
    for rank, picture in chosen:
        np.testing.assert_array_equal(picture, every[rank])


def test_groups_without_a_chosen_frame_are_not_decoded(
    make_clip: MakeClip, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[int] = []
    real = pyav._needed_samples

    def watched(index: Any, wanted: list[int]) -> Any:
        needed = real(index, wanted)
        fed.extend(np.flatnonzero(needed).tolist())
        return needed

    monkeypatch.setattr(pyav, "_needed_samples", watched)
    path = make_clip(Recipe(frames=40, gop=4, options=(("bf", "0"),)))
    assert [rank for rank, _ in decode_shown(path, [1, 30])] == [1, 30]
    assert fed == [0, 1, 2, 3, 28, 29, 30, 31]


def test_a_leading_frame_of_an_open_group_brings_the_group_before(make_clip: MakeClip) -> None:
    from leconvert.media import read_clip_index

    index = read_clip_index(make_clip(OPEN_GROUPS["x265 open"]))
    heads = np.flatnonzero(index.keyframes)
    assert len(heads) > 2
    leading = int(index.ranks[heads[2]]) - 1
    assert int(np.flatnonzero(index.ranks == leading)[0]) > heads[2]
    needed = np.flatnonzero(pyav._needed_samples(index, [leading]))
    assert (needed.min(), needed.max()) == (heads[1], heads[3] - 1)


@pytest.mark.parametrize("container", ["mp4", "matroska"])
@pytest.mark.parametrize("rank", [-1, 12, 1000])
def test_a_frame_that_is_not_there_is_an_error(
    rank: int, container: str, make_clip: MakeClip
) -> None:
    path = make_clip(Recipe(container=container))
    with pytest.raises(UnreadableSourceError, match=f"no frame {rank}"):
        list(decode_shown(path, [0, rank]))


def test_no_ranks_open_nothing(tmp_path: Path) -> None:
    assert list(decode_shown(tmp_path / "absent.mp4", [])) == []


def coloured_clip(path: Path, matrix: int, color_range: int, pixel_format: str) -> Picture:
    """Encode flat fields without loss and say which matrix and range the YUV values are in.

    Returns:
        The YUV values of frame i, shape (4, 3).
    """
    fields = np.array([[60, 90, 170], [120, 128, 128], [200, 150, 100], [90, 200, 80]], np.uint8)
    with av.open(str(path), "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=10, options={"qp": "0"})
        stream.width = stream.height = 32
        stream.pix_fmt = pixel_format
        stream.codec_context.colorspace = matrix
        stream.codec_context.color_range = color_range
        for number, field in enumerate(fields):
            planes = np.broadcast_to(field[:, None, None], (3, 32, 32))
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(planes), format=pixel_format)
            frame.pts = number
            frame.colorspace, frame.color_range = matrix, color_range
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return fields


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize(("matrix", "red", "blue"), [(1, 0.2126, 0.0722), (5, 0.299, 0.114)])
def test_rgb_follows_the_matrix_and_range_of_the_stream(
    is_full: bool, matrix: int, red: float, blue: float, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    color_range, pixel_format = (2, "yuvj444p") if is_full else (1, "yuv444p")
    fields = coloured_clip(path, matrix, color_range, pixel_format).astype(float)
    # ITU-R BT.601 and BT.709: R' = Y' + 2 (1 - Kr) Pr, B' = Y' + 2 (1 - Kb) Pb, G' from Y'.
    luma_of = fields[:, 0] / 255 if is_full else (fields[:, 0] - 16) / 219
    chroma = (fields[:, 1:] - 128) / (255 if is_full else 224)
    r = luma_of + 2 * (1 - red) * chroma[:, 1]
    b = luma_of + 2 * (1 - blue) * chroma[:, 0]
    g = (luma_of - red * r - blue * b) / (1 - red - blue)
    expected = np.clip(np.stack([r, g, b], axis=1), 0, 1) * 255
    for rank, picture in decode_shown(path, range(4)):
        assert np.abs(picture.astype(float) - expected[rank]).max() < 2


def test_depth_clips_give_the_stored_values_of_twelve_bits(tmp_path: Path) -> None:
    path = tmp_path / "depth.mp4"
    ramp = np.arange(1024, dtype=np.uint16).reshape(32, 32)
    stored = np.stack([ramp + 600 * number for number in range(6)])
    with av.open(str(path), "w", format="mp4") as output:
        options = {"x265-params": f"{QUIET_X265}:lossless=1:bframes=0"}
        stream = output.add_stream("libx265", rate=10, options=options)
        stream.width = stream.height = 32
        stream.pix_fmt = "gray12le"
        for number, codes in enumerate(stored):
            frame = av.VideoFrame.from_ndarray(codes, format="gray12le")
            frame.pts = number
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    for rank, picture in decode_shown(path, [1, 4, 5], is_depth=True):
        assert picture.dtype == np.uint16
        np.testing.assert_array_equal(picture[..., 0], stored[rank])


def png(
    bits: int, colour: int, rows: list[bytes], width: int, *extra: tuple[bytes, bytes]
) -> bytes:
    """Put rows of raw samples into a PNG file, in whatever kind of pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, len(rows), bits, colour, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = [(b"IHDR", header), *extra, (b"IDAT", body), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, content) for kind, content in chunks)


def noise(*shape: int, high: int = 256, dtype: str = "u1") -> Picture:
    return np.random.default_rng(5).integers(0, high, shape).astype(dtype)


def test_png_colours_come_out_as_stored() -> None:
    stored = noise(21, 33, 3)
    np.testing.assert_array_equal(decode_image(encode_png(stored)), stored)
    np.testing.assert_array_equal(decode_image(memoryview(encode_png(stored))), stored)


def test_alpha_is_dropped_and_not_blended() -> None:
    stored = noise(21, 33, 4)
    picture = decode_image(png(8, 6, [row.tobytes() for row in stored], 33))
    np.testing.assert_array_equal(picture, stored[..., :3])


@pytest.mark.parametrize("channels", [1, 2])
def test_grey_is_repeated_in_three_channels(channels: int) -> None:
    stored = noise(21, 33, channels)
    rows = [row.tobytes() for row in stored]
    picture = decode_image(png(8, {1: 0, 2: 4}[channels], rows, 33))
    np.testing.assert_array_equal(picture, np.repeat(stored[..., :1], 3, axis=2))


def test_palettes_are_looked_up() -> None:
    palette, places = noise(256, 3), noise(21, 33)[..., None]
    rows = [row.tobytes() for row in places]
    picture = decode_image(png(8, 3, rows, 33, (b"PLTE", palette.tobytes())))
    np.testing.assert_array_equal(picture, palette[places[..., 0]])


@pytest.mark.parametrize(("channels", "colour"), [(3, 2), (4, 6)])
def test_colours_of_16_bits_keep_their_upper_byte(channels: int, colour: int) -> None:
    stored = noise(21, 33, channels, high=65536, dtype=">u2")
    picture = decode_image(png(16, colour, [row.tobytes() for row in stored], 33))
    np.testing.assert_array_equal(picture, (stored[..., :3] >> 8).astype(np.uint8))


def test_depth_keeps_its_bits_and_its_one_channel() -> None:
    deep = noise(21, 33, high=65536, dtype=">u2")
    rows = [row.tobytes() for row in deep]
    picture = decode_image(png(16, 0, rows, 33), is_depth=True)
    assert picture.dtype == np.uint16
    np.testing.assert_array_equal(picture, deep[..., None])
    flat = noise(21, 33)
    picture = decode_image(png(8, 0, [row.tobytes() for row in flat], 33), is_depth=True)
    assert picture.dtype == np.uint8
    np.testing.assert_array_equal(picture, flat[..., None])


def test_grey_of_16_bits_that_is_no_depth_is_refused() -> None:
    rows = [row.tobytes() for row in noise(21, 33, high=65536, dtype=">u2")]
    with pytest.raises(
        UnreadableSourceError, match="16-bit grey, but its feature is not a depth map"
    ):
        decode_image(png(16, 0, rows, 33))


def test_jpeg_is_decoded_to_its_colours() -> None:
    ramp = np.repeat(np.linspace(0, 255, 64).astype(np.uint8)[None, :, None], 48, axis=0)
    drawn = np.concatenate([ramp, 255 - ramp, np.full_like(ramp, 90)], axis=2)
    output = io.BytesIO()
    with av.open(output, "w", format="image2pipe") as container:
        stream = container.add_stream("mjpeg", rate=1, options={"qmin": "1", "qmax": "1"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        frame = av.VideoFrame.from_ndarray(drawn, format="rgb24")
        container.mux(stream.encode(frame.reformat(format="yuvj420p", dst_color_range=2)))
        container.mux(stream.encode(None))
    picture = decode_image(output.getvalue())
    assert np.abs(picture.astype(int) - drawn).mean() < 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"GIF89a" + bytes(50),
        encode_png(noise(21, 33, 3))[:60],
        encode_png(noise(21, 33, 3))[:-200],
    ],
    ids=["empty", "a playlist", "another kind", "a header alone", "cut short"],
)
def test_what_is_no_whole_image_is_an_error(data: bytes) -> None:
    with pytest.raises(UnreadableSourceError, match="image cannot be decoded"):
        decode_image(data)


def test_an_image_that_gives_no_picture_without_an_error_is_refused_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mute:
        """A decoder that swallows what it is given; FFmpeg's contract allows it."""

        thread_count = 0

        @classmethod
        def create(cls, name: str, mode: str) -> Mute:
            assert (name, mode) == ("png", "r")
            return cls()

        def decode(self, _: object) -> list[object]:
            return []

    monkeypatch.setattr(av, "CodecContext", Mute)
    with pytest.raises(UnreadableSourceError, match="decoded: it is empty or cut short"):
        decode_image(encode_png(noise(4, 4, 3)))


def grey_tiff(bits: int, content: bytes, width: int, height: int) -> bytes:
    """Put packed grey pixels into a little-endian TIFF file of one strip."""
    entries = [
        (256, 3, width),
        (257, 3, height),
        (258, 3, bits),
        (259, 3, 1),
        (262, 3, 1),
        (273, 4, 8),
        (277, 3, 1),
        (278, 3, height),
        (279, 4, len(content)),
    ]
    rows = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    front = b"II*\0" + struct.pack("<I", 8 + len(content)) + content
    return front + struct.pack("<H", len(entries)) + rows + bytes(4)


def test_a_tiff_of_16_bit_grey_is_depth_and_one_of_12_bits_is_refused_by_name() -> None:
    stored = noise(4, 8, high=65536, dtype="<u2")
    picture = decode_image(grey_tiff(16, stored.tobytes(), 8, 4), is_depth=True)
    np.testing.assert_array_equal(picture, stored[..., None])
    for is_depth in (False, True):
        with pytest.raises(UnreadableSourceError, match="its pixels are gray12le, which is not"):
            decode_image(grey_tiff(12, bytes(48), 8, 4), is_depth=is_depth)


def silenced(clip: Path, sample: int) -> bytes:
    """Put an AV1 padding unit in the place of a sample, so that it decodes to nothing."""
    index = read_clip_index(clip)
    content = bytearray(clip.read_bytes())
    start, size = int(index.offsets[sample]), int(index.sizes[sample])
    content[start : start + size] = b"\x78" + bytes(size - 2) + b"\x80"
    return bytes(content)


@pytest.mark.parametrize("rank", [2, 11])
def test_a_frame_that_decodes_to_nothing_is_missed(
    rank: int, make_clip: MakeClip, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(silenced(make_clip(RECIPES["av1"]), rank))
    assert [found for found, _ in decode_shown(path, [1])] == [1]
    for wanted in ([rank], [1, rank], [0, rank]):
        with pytest.raises(UnreadableSourceError, match=f"no frame {rank}"):
            list(decode_shown(path, wanted))


def test_a_sample_that_decodes_to_two_frames_is_refused(changed_clip: ChangedClip) -> None:
    def joined_in_pairs(top: Box) -> None:
        stbl = stbl_of(top)
        sizes = struct.unpack_from(">12I", stbl.find("stsz").payload, 12)
        pairs = [sum(sizes[at : at + 2]) for at in range(0, 12, 2)]
        stbl.replace("stsz", struct.pack(">III6I", 0, 0, 6, *pairs))
        stbl.replace("stts", struct.pack(">IIII", 0, 1, 6, 1024))
        stbl.replace("stsc", struct.pack(">IIIII", 0, 1, 1, 6, 1))
        stbl.remove("stss")

    path = changed_clip(joined_in_pairs, "av1")
    assert read_clip_index(path).num_samples == 6
    with pytest.raises(UnreadableSourceError, match="decodes at tick 0, unlike its packet") as at:
        list(decode_shown(path, [0, 1]))
    assert at.value.path == str(path)


def test_a_clip_that_is_replaced_while_it_is_opened_is_refused(
    make_clip: MakeClip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FFmpeg holds the one file, and its index is read of the other, at the same path."""
    path = tmp_path / "clip.mp4"
    options = RECIPES["x264-b-frames"].options  # so that the decoder asks for more before it gives
    long, short = (
        make_clip(Recipe(frames=12, options=options)).read_bytes(),
        make_clip(Recipe(frames=6, options=options)).read_bytes(),
    )

    def read_after(content: bytes) -> Callable[[str], ClipIndex]:
        def read(name: str) -> ClipIndex:
            path.unlink()
            path.write_bytes(content)
            return read_clip_index(name)

        return read

    path.write_bytes(long)
    monkeypatch.setattr(pyav, "read_clip_index", read_after(short))
    with pytest.raises(UnreadableSourceError, match="holds more frames than its index says"):
        list(decode_shown(path, [0, 5]))


def test_a_title_in_another_encoding_is_no_reason_to_refuse_the_frames(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    sound = make_clip(RECIPES["x264"])
    content = sound.read_bytes()
    assert content.count(b"Lavf") == 1
    path = tmp_path / "clip.mp4"
    path.write_bytes(content.replace(b"Lavf", b"M\xfcll"))
    if int(av.__version__.partition(".")[0]) < 19:  # later ones refuse it no more by themselves
        with pytest.raises(UnicodeDecodeError):
            av.open(str(path))
    [(_, expected)] = decode_shown(sound, [3])
    [(_, found)] = decode_shown(path, [3])
    np.testing.assert_array_equal(found, expected)

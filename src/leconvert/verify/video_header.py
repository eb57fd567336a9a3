"""The header of a joined video file: every byte of it follows from its samples and one clip.

What decoders go by beside the packets (decoder configuration, dimensions, edit list, durations)
stands in ``ftyp`` and ``moov``. A file's own packets give one header and no other, once the source
says how to decode them: so that header is written again and compared byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path

from leconvert import media
from leconvert.errors import UnreadableSourceError
from leconvert.verify.difference import Difference
from leconvert.verify.videos import joinable
from leconvert.workdir.trouble import raise_storage_trouble

__all__ = ["compare_header"]

# Aligned to more than any file has, episodes lie exactly where they are said to.
_WHERE_THEY_ARE = 1 << 62
_CONTAINERS = frozenset([b"moov", b"trak", b"edts", b"mdia", b"minf", b"dinf", b"stbl"])
_SHOWN_BYTES = 8
_LARGEST_GAP_BYTES = 1 << 20


def compare_header(
    root: Path, path: str, stream: str, lengths: Sequence[int], first_clip: str, fps: Fraction
) -> Iterator[Difference]:
    """Yield where a video file's header is not the one that its samples and the source demand.

    Nothing is said of a file whose samples are not as they should be: that is for
    `leconvert.verify.videos` to say.

    Args:
        root: The result.
        path: The file, relative to it.
        stream: Its stream.
        lengths: Frames of each of its episodes, in order.
        first_clip: The source clip of the first of them.
        fps: The dataset's frame rate.
    """
    try:
        index = media.read_clip_index(root / path)
    except (UnreadableSourceError, OSError) as error:
        raise_storage_trouble(error, root / path)
        return
    begins: list[int] = []
    start = 0
    samples = media.FileSamples()
    for length in lengths:
        stop = start + length
        if stop > index.num_samples:
            return
        sizes = index.sizes[start:stop]
        begins.append(int(index.offsets[start]))
        samples.add(
            sizes,
            index.keyframes[start:stop],
            index.reordering(start, stop),
            source_offset=begins[-1],
            num_bytes=int(sizes.sum()),
        )
        start = stop
    overlaps = any(
        begin + size > after
        for begin, size, after in zip(begins, samples.num_bytes, begins[1:], strict=False)
    )
    if start != index.num_samples or overlaps:
        return
    (found_clip,) = media.read_clip_indexes([first_clip])
    with joinable(found_clip, first_clip, fps) as clip:
        expected = media.build_header(
            samples,
            fps=fps,
            sample_entry=clip.sample_entry,
            geometry=clip.geometry,
            block_align=_WHERE_THEY_ARE,
        )
    if index.file_size_bytes != expected.size_bytes:
        yield Difference(
            "size of the file in bytes",
            path,
            str(expected.size_bytes),
            str(index.file_size_bytes),
            stream=stream,
        )
    with (root / path).open("rb") as file:
        found = file.read(len(expected.content))
        # Up to the first sample; no alignment asks for more than this.
        gap = file.read(min(max(0, begins[0] - len(found)), _LARGEST_GAP_BYTES))
    if found != expected.content:
        yield _first_difference(path, stream, expected.content, found)
    elif gap.strip(b"\0"):
        yield Difference(
            "padding", path, "zeros", f"other bytes after byte {len(found)}", stream=stream
        )


def _first_difference(path: str, stream: str, expected: bytes, found: bytes) -> Difference:
    """Name the first box that differs: one that is longer would shift all bytes behind it."""
    wanted, have = _boxes(expected), _boxes(found)
    for (name, content), (other, there) in zip_longest(wanted, have, fillvalue=("", b"")):
        if name != other:
            return Difference(
                f"header, box {name or other}", path, name or "no such box", other or "none",
                stream=stream,
            )  # fmt: skip
        if content != there:
            pairs = enumerate(zip(content, there, strict=False))
            shorter = min(len(content), len(there))
            at = next((at for at, (left, right) in pairs if left != right), shorter)
            shown = slice(at, at + _SHOWN_BYTES)
            return Difference(
                f"header, box {name}, byte {at}",
                path,
                content[shown].hex(" ") or "its end",
                there[shown].hex(" ") or "its end",
                stream=stream,
            )
    return Difference("header", path, f"{len(wanted)} boxes", "the same in another form")


def _boxes(header: bytes) -> list[tuple[str, bytes]]:
    """Return name and payload of the innermost boxes; names have those of the boxes around."""
    found: list[tuple[str, bytes]] = []
    open_boxes: list[tuple[str, int, int]] = [("", 0, len(header))]
    while open_boxes:
        around, position, stop = open_boxes.pop()
        if position + 8 > stop:
            continue
        kind = header[position + 4 : position + 8]
        size = int.from_bytes(header[position : position + 4], "big")
        # Of the media data, the last box, only the header is here.
        end = min(position + size, stop) if size >= 8 and kind != b"mdat" else stop
        name = f"{around}{kind.decode('latin-1')}"
        open_boxes.append((around, end, stop))
        if kind in _CONTAINERS:
            open_boxes.append((f"{name}/", position + 8, end))
        elif kind == b"mdat":
            found.append((name, header[position:end]))
        else:
            found.append((name, header[position + 8 : end]))
    return found

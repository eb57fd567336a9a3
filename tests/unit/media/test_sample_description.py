"""One decoder configuration and media in this very file, or the reason why not."""

from __future__ import annotations

import struct

import pytest
from table_bytes import laid_out, stsd, visual_entry

from leconvert.media import UnsupportedClipError
from leconvert.media.codecs import (
    check_one_configuration,
    chosen_entry,
)
from leconvert.support.errors import UnreadableSourceError

SELF_CONTAINED = 1


def chosen(
    descriptions: bytes, used: set[int] | None = None, references: bytes | None = None
) -> bytes:
    tables = {"stsd": descriptions}
    if references is not None:
        tables["dref"] = references
    return chosen_entry(laid_out(tables), used or {1})


def refused(
    descriptions: bytes, used: set[int] | None = None, references: bytes | None = None
) -> UnreadableSourceError:
    with pytest.raises(UnreadableSourceError) as caught:
        chosen(descriptions, used, references)
    assert caught.value.path == "clip.mp4"
    return caught.value


def words_of(
    descriptions: bytes, used: set[int] | None = None, references: bytes | None = None
) -> str:
    """Return why a description is refused as broken."""
    error = refused(descriptions, used, references)
    assert not isinstance(error, UnsupportedClipError)
    before = "clip.mp4 is not a readable video: "
    assert error.message.startswith(before)
    return error.message.removeprefix(before).removesuffix(".")


def reference(flags: int, extra: bytes = b"", size: int | None = None) -> bytes:
    size_bytes = 12 + len(extra) if size is None else size
    return struct.pack(">I4sI", size_bytes, b"url ", flags) + extra


def references(*entries: bytes, count: int | None = None) -> bytes:
    number = len(entries) if count is None else count
    return struct.pack(">II", 0, number) + b"".join(entries)


BTRT = struct.pack(">I4sIII", 20, b"btrt", 1, 2, 3)


def test_entries_that_differ_in_bit_rates_alone_are_one_configuration() -> None:
    entries = [visual_entry(), visual_entry(b"avc1", BTRT), visual_entry(width=65)]
    assert chosen(stsd(*entries), {1, 2}) == entries[0]
    for used in ({1, 3}, {2, 3}, {1, 2, 3}):
        error = refused(stsd(*entries), used)
        assert isinstance(error, UnsupportedClipError)
        assert error.reason == "its decoder configuration changes midway"


def test_entries_for_two_decoders_are_refused_whatever_samples_name() -> None:
    entries = [visual_entry(), visual_entry(b"avc1", BTRT), visual_entry(width=65)]
    for alike in (entries[:1], entries[:2]):
        check_one_configuration(laid_out({"stsd": stsd(*alike)}))
    for different in (entries, entries[1:]):
        with pytest.raises(UnsupportedClipError) as caught:
            check_one_configuration(laid_out({"stsd": stsd(*different)}))
        assert caught.value.reason == "its decoder configuration changes midway"
        assert caught.value.path == "clip.mp4"
    with pytest.raises(UnreadableSourceError, match="its stsd table is cut off") as broken:
        check_one_configuration(laid_out({"stsd": stsd(count=1)}))
    assert broken.value.path == "clip.mp4"


def test_encrypted_and_restricted_video_are_told_apart() -> None:
    error = refused(stsd(visual_entry(b"encv")))
    assert not isinstance(error, UnsupportedClipError)
    assert error.message == "clip.mp4 is not a readable video: its video is encrypted."
    error = refused(stsd(visual_entry(b"resv")))
    assert isinstance(error, UnsupportedClipError)
    assert error.reason == "a restricted video scheme (resv)"


def test_media_may_lie_elsewhere_for_entries_that_are_not_used() -> None:
    here, elsewhere = reference(SELF_CONTAINED), reference(0, b"other.mp4\0")
    both = references(elsewhere, here, elsewhere)
    for number, is_refused in ((1, True), (2, False), (3, True), (4, False)):
        entry = visual_entry(reference=number)
        if is_refused:
            assert words_of(stsd(entry), None, both) == "its media lies in another file"
        else:
            assert chosen(stsd(entry), None, both) == entry
    # Numbers have two bytes: this one is not 1.
    entry = visual_entry(reference=257)
    assert chosen(stsd(entry), None, both) == entry
    # The other flags say nothing of where the media lies.
    entry = visual_entry()
    assert chosen(stsd(entry), None, references(reference(3))) == entry
    words = words_of(stsd(entry), None, references(reference(2)))
    assert words == "its media lies in another file"

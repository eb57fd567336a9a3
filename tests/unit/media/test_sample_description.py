"""One decoder configuration and media in this very file, or the reason why not."""

from __future__ import annotations

import struct

import pytest
from table_bytes import laid_out, stsd, visual_entry

from leconvert.media import UnsupportedClipError
from leconvert.media.codecs import (
    IDENTITY_MATRIX,
    check_one_configuration,
    chosen_entry,
    entry_and_digest,
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


def test_the_entry_that_samples_name_is_returned_as_it_stands() -> None:
    entries = [visual_entry(width=width) for width in (64, 65, 66)]
    for number, entry in enumerate(entries, 1):
        assert chosen(stsd(*entries), {number}) == entry
    with_rates = visual_entry(b"avc1", BTRT)
    assert chosen(stsd(with_rates)) == with_rates


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


@pytest.mark.parametrize("used", [{0}, {0, 1}, {3}, {1, 3}])
def test_an_entry_that_is_not_there_is_refused(used: set[int]) -> None:
    words = words_of(stsd(visual_entry(), visual_entry()), used)
    assert words == "its frames use a sample description that is not there"


@pytest.mark.parametrize(
    "descriptions",
    [
        b"",
        bytes(7),
        stsd(count=1),
        stsd(visual_entry(), count=2),
        stsd(visual_entry(), b"\0\0\0\x08avc")[:-1],
        stsd(visual_entry(), struct.pack(">I4s", 7, b"avc1")),
        stsd(visual_entry())[:-1],
    ],
)
def test_a_table_that_ends_early_is_said_to_be_cut_off(descriptions: bytes) -> None:
    assert words_of(descriptions) == "its stsd table is cut off"


@pytest.mark.parametrize("count", [0, 65, 2**32 - 1])
def test_no_entries_or_too_many_are_refused(count: int) -> None:
    words = "it has no or implausibly many sample descriptions"
    assert words_of(stsd(*[visual_entry()] * 65, count=count)) == words
    assert words_of(stsd(count=count)) == words


def test_an_entry_without_the_fields_of_a_video_is_refused() -> None:
    whole = visual_entry()
    assert len(whole) == 86
    assert chosen(stsd(whole)) == whole
    short = struct.pack(">I", 85) + whole[4:85]
    assert words_of(stsd(short)) == "its sample description is too short"
    # The least that is a box at all: another entry may be chosen behind it.
    least = struct.pack(">I4s", 8, b"avc1")
    assert words_of(stsd(least)) == "its sample description is too short"
    assert chosen(stsd(least, whole), {2}) == whole


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


@pytest.mark.parametrize("size", [0, 11, 13, 0x40C])
def test_a_reference_that_states_another_size_is_refused_as_ffmpeg_does(size: int) -> None:
    words = words_of(stsd(visual_entry()), None, references(reference(1, size=size)))
    assert words == "its data reference is cut off"


@pytest.mark.parametrize(
    "table",
    [
        b"",
        bytes(7),
        references(count=1),
        references(reference(1), count=2),
        references(reference(1))[:-1],
        references(reference(1), reference(1))[:-1],
    ],
)
def test_a_data_reference_that_ends_early_is_said_to_be_cut_off(table: bytes) -> None:
    assert words_of(stsd(visual_entry()), None, table) == "its data reference is cut off"


def test_a_refused_entry_is_refused_again_with_the_path_of_each_clip() -> None:
    elsewhere = references(reference(0))
    for path in ("one.mp4", "two.mp4"):
        tables = laid_out({"stsd": stsd(visual_entry(b"avc1", BTRT)), "dref": elsewhere}, path)
        with pytest.raises(UnreadableSourceError, match="another file") as caught:
            entry_and_digest(tables, {1}, IDENTITY_MATRIX)
        assert caught.value.path == path

"""Which clips one decoder set-up serves: bit rates do not count, wherever they are written."""

from __future__ import annotations

import struct

import pytest
from table_bytes import visual_entry

from leconvert.media.codecs import IDENTITY_MATRIX, config_digest, entry_for_output

TURNED = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
TURNED_BACK = struct.pack(">9i", 0, -(1 << 16), 0, 1 << 16, 0, 0, 0, 0, 1 << 30)
LONG = b"\x80\x80\x80"


def box(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(payload), kind) + payload


def btrt(rate: int) -> bytes:
    return box(b"btrt", struct.pack(">III", rate, rate, rate))


def esds(
    rate: int,
    *,
    setup: bytes = b"\x05\x02\xab\xcd",
    flags: int = 0,
    before: bytes = b"",
    prefix: bytes = b"",
    tags: tuple[int, int] = (3, 4),
    object_type: int = 0x20,
) -> bytes:
    """An esds box as ISO/IEC 14496-1 has it: the rates lie in the second descriptor."""
    rates = rate.to_bytes(3, "big") + struct.pack(">II", rate, rate)
    decoder = struct.pack(">BB", object_type, 0x11) + rates + setup
    body = struct.pack(">HB", 1, flags) + before
    body += bytes([tags[1]]) + prefix + bytes([len(decoder)]) + decoder
    return box(b"esds", bytes(4) + bytes([tags[0]]) + prefix + bytes([len(body)]) + body)


def key(*children: bytes, matrix: bytes = IDENTITY_MATRIX, **fields: bytes) -> str:
    return config_digest(visual_entry(b"mp4v", *children, **fields), matrix)


@pytest.mark.parametrize("prefix", [b"", LONG[:1], LONG])
@pytest.mark.parametrize(
    ("flags", "before"),
    [
        (0, b""),
        (0x80, b"\0\7"),
        (0x40, b"\3abc"),
        (0x40, b"\0"),
        (0x20, b"\0\7"),
        (0xE0, b"\0\7\3abc\0\7"),
        (0x1F, b""),
    ],
    ids=["nothing", "dependence", "URL", "empty URL", "clock", "all of them", "priority"],
)
def test_rates_inside_a_descriptor_do_not_count_and_what_is_beside_them_does(
    flags: int, before: bytes, prefix: bytes
) -> None:
    def of(rate: int, **other: object) -> str:
        return key(esds(rate, flags=flags, before=before, prefix=prefix, **other))

    assert of(1000) == of(0xABCDEF)
    assert of(1000) != of(1000, setup=b"\x05\x02\xab\xce")
    assert of(1000) != of(1000, object_type=0x21)


def test_bit_rates_the_compressor_and_the_reference_do_not_count() -> None:
    assert key() == key(btrt(5)) == key(btrt(5), btrt(6))
    assert key(box(b"avcC", b"one"), btrt(5)) == key(btrt(7), box(b"avcC", b"one"))
    assert key(compressor=b"one") == key(compressor=b"another")
    assert key(reference=1) == key(reference=2)


def test_the_decoders_set_up_the_size_and_the_turn_count() -> None:
    keys = [
        key(),
        key(width=65),
        key(height=65),
        key(box(b"avcC", b"one")),
        key(box(b"avcC", b"two")),
        key(b"trailing"),
        key(b"\0\0\0\7bt"),
        key(matrix=TURNED),
        key(matrix=TURNED_BACK),
        config_digest(visual_entry(b"avc1"), IDENTITY_MATRIX),
    ]
    assert len(set(keys)) == len(keys)


def test_an_empty_box_of_rates_does_not_count_and_one_cut_off_does() -> None:
    assert key(box(b"btrt", b"")) == key()
    for rest in (btrt(5)[:-1], btrt(5)[:8], b"\0\0\0\0btrt", b"\0\0\0\7btrt"):
        assert key(rest) != key()


def test_the_entry_of_a_joined_file_states_no_rates_and_its_own_reference() -> None:
    kept, pixels = box(b"avcC", b"one"), box(b"pasp", bytes(8))
    given = visual_entry(b"avc1", btrt(5), kept, btrt(6), pixels, b"\0\0\0\0", reference=7)
    expected = visual_entry(b"avc1", kept, pixels, b"\0\0\0\0", reference=1)
    assert entry_for_output(given) == expected
    assert entry_for_output(visual_entry(b"avc1", kept)) == visual_entry(b"avc1", kept)
    # What is no box ends the list of boxes; it stays as it is.
    odd = b"\xff\0\0\0free" + btrt(5)
    assert entry_for_output(visual_entry(b"avc1", kept, odd)) == visual_entry(b"avc1", kept, odd)

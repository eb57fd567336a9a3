"""The compact Thrift encoding, as far as parquet footers and page headers use it.

A struct is a series of fields. Each field has a header byte: the difference to the previous field's
number in the upper half, the type in the lower. Integers are zigzag varints; byte strings and lists
carry their length. A struct ends with a zero byte.
"""

from __future__ import annotations

from collections.abc import Iterator

BOOL_TRUE, BOOL_FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST = range(1, 10)
STRUCT = 12  # parquet does not use the sets and maps between them
INTEGERS = frozenset([I16, I32, I64])

_MAX_VARINT_BYTES = 10
_MAX_DEPTH = 32
_KEPT_INTEGERS = 1 << 14


class ThriftError(ValueError):
    """Bytes that cannot be decoded. The error never leaves this package."""


class CompactReader:
    """Reads values one after another, and never past the end.

    Each read takes at least one byte or raises, so no loop over the bytes is endless. A length that
    exceeds the remaining bytes is refused.

    Args:
        data: The bytes.
        position: Index of the first byte to read.

    Attributes:
        position: The next byte to read.
    """

    __slots__ = ("_data", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self.position = position

    def byte(self) -> int:
        """Read one byte."""
        try:
            value = self._data[self.position]
        except IndexError as error:
            raise ThriftError("the bytes end too early") from error
        self.position += 1
        return value

    def unsigned(self) -> int:
        """Read a varint."""
        value = 0
        for index in range(_MAX_VARINT_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value
        raise ThriftError("an integer has more than ten bytes")

    def integer(self) -> int:
        """Read a zigzag varint."""
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)

    def take(self, size: int) -> bytes:
        """Read some bytes."""
        start = self.position
        if size > len(self._data) - start:
            raise ThriftError("the bytes end too early")
        self.position = start + size
        return self._data[start : self.position]

    def between(self, start: int) -> bytes:
        """Return the bytes from ``start`` to the position."""
        return self._data[start : self.position]

    def binary(self) -> bytes:
        """Read a byte string."""
        return self.take(self.unsigned())

    def list_header(self) -> tuple[int, int]:
        """Read the type and the number of the elements of a list."""
        header = self.byte()
        size = header >> 4
        if size == 0xF:
            size = self.unsigned()
        if size > len(self._data) - self.position:
            raise ThriftError("a list is longer than the bytes that are left")
        return header & 0xF, size

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a struct; the caller reads or skips its value."""
        number = 0
        while header := self.byte():
            before = number
            number = before + (header >> 4) if header >> 4 else self.integer()
            if number <= before:
                raise ThriftError("the fields of a struct are not in order")
            yield number, header & 0xF

    def skip(self, kind: int, depth: int = 0) -> None:
        """Skip a value."""
        if depth > _MAX_DEPTH:
            raise ThriftError("values are nested too deep")
        if kind in INTEGERS:
            self.unsigned()
        elif kind == BINARY:
            self.take(self.unsigned())
        elif kind == STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind == LIST:
            inner, size = self.list_header()
            # In a list, a truth value takes a byte of its own; in a struct it is part of the
            # header.
            inner = BYTE if inner in (BOOL_TRUE, BOOL_FALSE) else inner
            for _ in range(size):
                self.skip(inner, depth + 1)
        elif kind == DOUBLE:
            self.take(8)
        elif kind == BYTE:
            self.byte()
        elif kind not in (BOOL_TRUE, BOOL_FALSE):
            raise ThriftError(f"there is no type {kind}")


def varint(value: int) -> bytes:
    """Return an unsigned integer as a varint."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    # Places in a file mostly have three or four bytes, and row groups have dozens of places.
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value < 0x10000000:
        low, high = value & 0x7F | 0x80, value >> 14 & 0x7F | 0x80
        return bytes((low, value >> 7 & 0x7F | 0x80, high, value >> 21))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def zigzag(value: int) -> bytes:
    """Return a signed integer as a zigzag varint."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


class _Integers(dict[bytes, int]):
    """The integers of zigzag varints; footers repeat the same ones.

    Threads may share it: at worst two decode the same one. `functools.lru_cache` takes twice as
    long.
    """

    def __missing__(self, encoded: bytes) -> int:
        value = 0
        for byte in reversed(encoded):
            value = value << 7 | byte & 0x7F
        if len(self) >= _KEPT_INTEGERS:
            self.clear()
        self[encoded] = value = (value >> 1) ^ -(value & 1)
        return value


unzigzag = _Integers().__getitem__
"""Returns the integer of a complete zigzag varint."""


def field_header(kind: int, after: int = 1) -> bytes:
    """Return the begin of a field whose number is so much after the previous field's."""
    return bytes((after << 4 | kind,))


def binary(content: bytes) -> bytes:
    """Return a byte string with its length."""
    return varint(len(content)) + content


def list_header(kind: int, size: int) -> bytes:
    """Return the header of a list of ``size`` elements."""
    return bytes((size << 4 | kind,)) if size < 0xF else bytes((0xF0 | kind,)) + varint(size)

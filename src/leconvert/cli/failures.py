"""What the program says where something failed, and that saying it cannot fail."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Buffer

from leconvert.errors import FindingsError, LeconvertError, UsageError
from leconvert.workdir.secrets import without_credentials

__all__ = ["fail", "prepare_output", "unspeakable"]


def prepare_output() -> None:
    """Let nothing that is said fail: a name of any bytes, a terminal without UTF-8, no output.

    On stdout are results, and who cannot have them is told; on stderr is what goes on meanwhile,
    and a run does not end because nobody reads that any more.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever called
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if name == "stderr":
                sys.stderr = _heard_or_not(stream)


def _heard_or_not(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a stream to the same place whose writes do not fail."""
    return io.TextIOWrapper(
        io.BufferedWriter(_Unfailing(stream.fileno())),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )


class _Unfailing(io.RawIOBase):
    """A descriptor that takes whatever is written, and loses what the system refuses."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError:  # a pipe without a reader, a full disk, a terminal that was closed
            return memoryview(data).nbytes


def unspeakable(error: UnicodeEncodeError) -> LeconvertError:
    """Return what to tell where a library cannot open a path that is no UTF-8.

    In the C locale Python takes names for UTF-8 all the same (PEP 540), but not where it is told
    otherwise, nor in a locale of another encoding. Then the name may be good.
    """
    shown = ascii(error.object)[1:-1]
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8" and _is_utf_8(error.object):
        return UsageError(
            f"{shown} is UTF-8, but Python takes names for {encoding} in this locale, so that no "
            "parquet file can be opened there.",
            path=shown,
            next_step="Set PYTHONUTF8=1, then run the same command again.",
        )
    return UsageError(
        f"{shown} is no UTF-8, and no parquet file can be opened there.",
        path=shown,
        next_step="Rename it, then run the same command again.",
    )


def _is_utf_8(path: str) -> bool:
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeError:
        return False
    return True


def fail(error: LeconvertError, *, as_json: bool) -> int:
    """Tell an error on stderr, and as a record on stdout if that is asked; return its code.

    A URL that the user gave may hold a password, and both end up in logs.
    """
    if as_json:
        print(json.dumps(_public(error.as_record()), indent=2))
    print(f"leconvert: {without_credentials(error.message)}", file=sys.stderr)
    if isinstance(error, FindingsError):
        from leconvert.cli.findings import print_findings
        from leconvert.model import Finding

        print_findings([Finding.from_record(finding) for finding in error.findings])
    for line in error.details:
        print(f"  {without_credentials(line)}", file=sys.stderr)
    if error.next_step:
        print(f"  → {without_credentials(error.next_step)}", file=sys.stderr)
    return error.exit_code


def _public(value: object) -> object:
    """Return a record with secrets taken out of its texts."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, dict):
        return {key: _public(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_public(held) for held in value]
    return value

"""The plain platform on a file system that normalises names: each is listed in its parts (NFD).

A file is found by any spelling, as on the file systems of macOS. The names lie composed (NFC) on
the disk of the test. Python's functions compose the paths that they get, and take the names of
listings apart. Libraries in C, which open files themselves, find composed names alone.
"""

from __future__ import annotations

import builtins
import io
import os
import runpy
from pathlib import Path
from unicodedata import normalize

ONE_PATH = (
    "access chdir chmod lstat mkdir open readlink remove rmdir stat statvfs truncate unlink utime"
)
TWO_PATHS = "link rename replace symlink"


def composed(path):
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    return normalize("NFC", path) if isinstance(path, str) else path


def taking(real, paths):
    def call(*arguments, **options):
        arguments = [*map(composed, arguments[:paths]), *arguments[paths:]]
        for name in ("path", "src", "dst"):
            if name in options:
                options[name] = composed(options[name])
        return real(*arguments, **options)

    for those in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if real in those:
            those.add(call)
    return call


class Entry:
    """An `os.DirEntry` with a name in its parts."""

    def __init__(self, entry):
        self._entry = entry
        self.name, self.path = normalize("NFD", entry.name), normalize("NFD", entry.path)

    def __fspath__(self):
        return self.path

    def __getattr__(self, name):
        return getattr(self._entry, name)


class Listing:
    """What `os.scandir` returns."""

    def __init__(self, entries):
        self._entries = entries
        self.close = entries.close

    def __iter__(self):
        return self

    def __next__(self):
        return Entry(next(self._entries))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


listdir, scandir = os.listdir, os.scandir


def list_parts(path="."):
    return [normalize("NFD", name) for name in listdir(composed(path))]


def scan_parts(path="."):
    return Listing(scandir(composed(path)))


for number, names in enumerate((ONE_PATH, TWO_PATHS), 1):
    for name in names.split():
        setattr(os, name, taking(getattr(os, name), number))
for real, call in ((listdir, list_parts), (scandir, scan_parts)):
    if real in os.supports_fd:
        os.supports_fd.add(call)
os.listdir, os.scandir = list_parts, scan_parts
builtins.open = io.open = taking(io.open, 1)
runpy.run_path(
    str(Path(__file__).parents[1] / "python" / "sitecustomize.py"), run_name="sitecustomize"
)

"""Makes Linux a platform that offers nothing: for each process with this folder on PYTHONPATH.

What only Linux has, or macOS under another name, is not there: Python's names for it are deleted,
its C functions are not found, and leconvert finds no file below ``/proc`` and ``/sys``.
Other packages may look there: they have code of their own for each platform. A process may have 256
files open, as on macOS.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import sys

GONE = {
    os: (
        "copy_file_range eventfd fdatasync fork forkpty getxattr listxattr memfd_create "
        "MFD_CLOEXEC O_DIRECT O_NOATIME O_PATH O_TMPFILE pidfd_open posix_fadvise posix_fallocate "
        "removexattr sched_getaffinity sched_getparam sched_getscheduler sched_setaffinity "
        "sched_setparam sched_setscheduler sendfile setns setxattr splice unshare"
    ),
    fcntl: "F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW",
    mmap: "MADV_HUGEPAGE MADV_REMOVE MAP_POPULATE",
}
FUNCTIONS = frozenset({"clonefile", "mallopt", "prctl", "renameat2", "renamex_np"})
FOLDERS = ("/proc/", "/sys/")
MEMORY = "/dev/shm"  # itself: the data of tests may lie in it
CLONES = frozenset({0x40049409, 0x4020940D})
OPEN_FILES = 256
PASS_ON = sys.stdlib_module_names | {"sitecustomize"}  # who calls them asks for the file


def is_hidden(path: object) -> bool:
    """Tell whether leconvert asks for a file that such a platform has not."""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str):
        return False
    if path.rstrip("/") != MEMORY and not f"{path}/".startswith(FOLDERS):
        return False
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name not in PASS_ON or name == "__main__":
            return name in {"leconvert", "__main__"}
        frame = frame.f_back
    return False


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in {"open", "os.listdir", "os.scandir"}:
        if is_hidden(arguments[0]):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])
    elif event == "ctypes.dlsym":
        if arguments[1] in FUNCTIONS:
            raise AttributeError(arguments[1])
    elif event == "fcntl.ioctl" and arguments[1] in CLONES:
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))


def hiding(real):
    def call(path, *arguments, **options):
        if is_hidden(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return real(path, *arguments, **options)

    for those in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if real in those:
            those.add(call)
    return call


fork = os.fork  # for the tests that end processes at will; no code of leconvert asks for it

for module, names in GONE.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("lstat", "readlink", "stat"):
    setattr(os, name, hiding(getattr(os, name)))
sys.addaudithook(refuse)
resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))

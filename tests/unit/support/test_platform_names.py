"""What one platform alone has is named in two modules, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import leconvert

SOURCE = Path(leconvert.__file__).parent
MODULES = {"support/file_calls.py", "support/machine.py"}
# Names of Python and C that macOS lacks, that mean another thing there, or that only macOS has.
WORDS = (
    "copy_file_range epoll eventfd fdatasync getxattr listxattr memfd_create pidfd_open "
    "pidfd_send_signal posix_fadvise posix_fallocate prlimit removexattr sendfile setns "
    "setxattr splice unshare sched_getaffinity sched_getparam sched_getscheduler "
    "sched_setaffinity sched_setscheduler O_DIRECT O_NOATIME O_PATH O_TMPFILE F_FULLFSYNC "
    "F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW MADV_HUGEPAGE MADV_REMOVE MAP_POPULATE MFD_CLOEXEC "
    "SIGRTMIN CLOCK_BOOTTIME ioctl mallopt prctl renameat2 renamex_np clonefile "
)
NAMES = frozenset(WORDS.split())
OPTIONS = re.compile(r"POSIX_FADV_\w+|RWF_\w+|SPLICE_\w+")
TEXT = re.compile(
    r"(^|[^\w.])/(proc|sys)/|/dev/shm|machine-id|\bcgroup|FICLONE|"
    r"\b(renameat2|copy_file_range|memfd|prctl)\b"
)
SYSTEM = {("sys", "platform"), ("platform", "system")}
ANY = re.compile(
    "|".join([*NAMES, OPTIONS.pattern, TEXT.pattern, r"sys\.platform|platform\.system"])
)


def named(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what a module names of one platform alone: attributes, imports and texts."""
    text = path.read_text()
    if not ANY.search(text):
        return  # parsing it takes much longer
    tree = ast.parse(text)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if (owner, name) in SYSTEM:
                yield node.lineno, f"{owner}.{name}"
            case ast.Attribute(attr=name) | ast.alias(name=name) if (
                name in NAMES or OPTIONS.fullmatch(name)
            ):
                yield node.lineno, name
            case ast.Constant(value=str(text)) if id(node) not in docstrings and TEXT.search(text):
                yield node.lineno, text


def test_what_one_platform_alone_has_is_named_in_two_modules() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {what}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).as_posix() not in MODULES
        for line, what in named(path)
    ]
    assert found == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_the_scan_sees_what_is_there(module: str) -> None:
    assert len({what for _, what in named(SOURCE / module)}) > 8

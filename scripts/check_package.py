"""Build the wheel and the sdist, install the wheel in an empty environment, and use it there.

    python scripts/check_package.py [--keep DIR] [--python 3.13]

It fails where a file is missing from an archive or should not be in it, where the version is not
the one of ``_version.py``, or where the installed program does not convert.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["main", "trouble_in_sdist", "trouble_in_wheel"]

_ROOT = Path(__file__).resolve().parents[1]
_SECONDS = 300.0
_UV = os.environ.get("UV", "uv")  # `uv run` says which one it is


def trouble_in_wheel(names: Iterable[str]) -> list[str]:
    """Return what is wrong with the names of a wheel's files."""
    names = list(names)
    tops = {name.partition("/")[0] for name in names}
    trouble = [f"the wheel lacks {name}" for name in _missing(
        ("leconvert/py.typed", "leconvert/_version.py", "leconvert/cli/main.py"), names.__contains__
    )]  # fmt: skip
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        trouble.append("the wheel lacks the licence")
    foreign = {top for top in tops if top != "leconvert" and not top.endswith(".dist-info")}
    return trouble + [f"the wheel holds {top}" for top in sorted(foreign)]


def trouble_in_sdist(names: Iterable[str]) -> list[str]:
    """Return what is wrong with the names of an sdist's files.

    It holds what is needed to build and to read. Tests stay in the repository: they need recordings
    that are not handed out with it.
    """
    inside = {name.partition("/")[2] for name in names}
    wanted = ("src/leconvert/py.typed", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE",
              "docs/cli.md")  # fmt: skip
    trouble = [f"the sdist lacks {name}" for name in _missing(wanted, inside.__contains__)]
    tops = {name.partition("/")[0] for name in inside if name}
    return trouble + [
        f"the sdist holds {name}" for name in ("tests", "bench_logs", ".ci") if name in tops
    ]


def _missing(wanted: Iterable[str], has: Callable[[str], bool]) -> list[str]:
    return [name for name in wanted if not has(name)]


def _run(*words: object) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    if done.returncode:
        raise SystemExit(f"{words[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _version() -> str:
    namespace: dict[str, str] = {}
    exec((_ROOT / "src" / "leconvert" / "_version.py").read_text("utf-8"), namespace)
    return namespace["__version__"]


def _uses(program: Path, folder: Path) -> list[str]:
    """Return what is wrong with the installed program."""
    trouble = []
    said = _run(program, "--version").strip()
    if said != f"leconvert {_version()}":
        trouble.append(f"--version says {said!r}, _version.py {_version()!r}")
    demo = json.loads(_run(program, "demo", folder / "demo", "--json"))
    if demo["verified"] != {**demo["verified"], "ok": True, "depth": "bytes"}:
        trouble.append(f"the demo is not proven: {demo['verified']}")
    health = json.loads(_run(program, "doctor", folder, "--json"))
    if not health["ok"] or not health["packages"]:
        trouble.append(f"doctor says: {health['lacks'] or 'no packages are known'}")
    return trouble


def main() -> int:
    """Check, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", metavar="VERSION", help="of the environment (default: this)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the archives there")
    options = parser.parse_args()
    began = time.monotonic()
    with TemporaryDirectory(prefix="leconvert-package-") as temporary:
        folder = Path(temporary)
        archives = options.keep or folder / "dist"
        _run(_UV, "build", "--quiet", "--out-dir", archives)
        (wheel,) = archives.glob(f"leconvert-{_version()}-*.whl")
        sdist = archives / f"leconvert-{_version()}.tar.gz"
        trouble = trouble_in_wheel(zipfile.ZipFile(wheel).namelist())
        with tarfile.open(sdist) as opened:
            trouble += trouble_in_sdist(opened.getnames())
        python = options.python or sys.executable
        _run(_UV, "venv", "--quiet", "--no-project", "--python", python, folder / "env")
        _run(_UV, "pip", "install", "--quiet", "--python", folder / "env/bin/python", wheel)
        trouble += _uses(folder / "env/bin/leconvert", folder)
    for sentence in trouble:
        print(sentence)
    print(
        f"{wheel.name}: {'not good' if trouble else 'good'} after {time.monotonic() - began:.1f} s"
    )
    return 1 if trouble else 0


if __name__ == "__main__":
    raise SystemExit(main())

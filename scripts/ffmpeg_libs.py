"""Let torchcodec find the FFmpeg that PyAV's wheel carries.

torchcodec loads FFmpeg's shared libraries by their plain names (``libavcodec.so.61``) when it is
imported; the wheel has them under names of its own (``libavcodec-7ee0753d.so.61.19.101``). This
links plain names into a folder and prints the value for ``LD_LIBRARY_PATH``: that folder, and the
wheel's, where the libraries find what they need themselves. The loader reads the variable when a
process starts, so set it before Python does:

    export LD_LIBRARY_PATH="$(python scripts/ffmpeg_libs.py .venv/ffmpeg)"

Where the system has an FFmpeg of its own, none of this is needed.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from pathlib import Path

# The seven libraries of FFmpeg itself; the wheel brings dozens more, which need no plain name.
_LIBRARY = re.compile(
    r"(?P<name>lib(?:avcodec|avdevice|avfilter|avformat|avutil|swresample|swscale))"
    r"-[0-9a-f]+\.so\.(?P<major>\d+)[.\d]*"
)


def wheel_libraries() -> Path:
    """Return the folder of shared libraries of the installed PyAV wheel.

    Raises:
        FileNotFoundError: PyAV is not installed, or was built against the system's FFmpeg.
    """
    spec = importlib.util.find_spec("av")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("PyAV (the package `av`) is not installed")
    folder = Path(spec.origin).resolve().parent.parent / "av.libs"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} does not exist: this PyAV uses the system's FFmpeg")
    return folder


def link_plain_names(libraries: Path, links: Path) -> list[Path]:
    """Link FFmpeg's libraries to their plain names; links that are there are renewed.

    Args:
        libraries: The wheel's folder.
        links: Where the links go; created if need be.

    Returns:
        The links, sorted.

    Raises:
        FileNotFoundError: The folder holds no FFmpeg libraries.
    """
    links.mkdir(parents=True, exist_ok=True)
    made = []
    for library in sorted(libraries.iterdir()):
        match = _LIBRARY.fullmatch(library.name)
        if match is None:
            continue
        link = links / f"{match['name']}.so.{match['major']}"
        link.unlink(missing_ok=True)
        link.symlink_to(library)
        made.append(link)
    if not made:
        raise FileNotFoundError(f"{libraries} holds no FFmpeg libraries")
    return sorted(made)


def main() -> int:
    """Link and print the search path."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n", 1)[0],
        epilog='Use: export LD_LIBRARY_PATH="$(python scripts/ffmpeg_libs.py DIR)"',
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the links go")
    options = parser.parse_args()
    try:
        libraries = wheel_libraries()
        link_plain_names(libraries, options.folder)
    except OSError as error:
        print(f"ffmpeg_libs: {error}", file=sys.stderr)
        return 1
    print(f"{options.folder.resolve()}:{libraries}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Let torchcodec find the FFmpeg that PyAV's wheel carries.

Links the plain names of FFmpeg's libraries into a folder and prints the value for
``LD_LIBRARY_PATH``. The loader reads the variable when a process starts, so set it before Python
does:

    export LD_LIBRARY_PATH="$(python scripts/ffmpeg_libs.py .venv/ffmpeg)"

Where the system has an FFmpeg of its own, none of this is needed. ``leconvert probe`` does it by
itself. Runs without anything installed but PyAV: it reads the one module that it needs from this
checkout.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from leconvert.bench.environment import link_ffmpeg


def main() -> int:
    """Link and print the search path."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n", 1)[0],
        epilog='Use: export LD_LIBRARY_PATH="$(python scripts/ffmpeg_libs.py DIR)"',
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the links go")
    options = parser.parse_args()
    try:
        print(link_ffmpeg(options.folder))
    except OSError as error:
        print(f"ffmpeg_libs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

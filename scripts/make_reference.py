"""Write docs/reference from the code: commands, Python, exit codes, findings.

    python scripts/make_reference.py            # write the pages
    python scripts/make_reference.py --check    # say which are not as the code is

Run it after options, public docstrings or errors changed; a test compares the pages with the code.
The Python interface is read by griffe and never imported, so torch is not needed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reference_api import api_page
from reference_cli import cli_page
from reference_errors import errors_page
from reference_findings import findings_page

__all__ = ["FOLDER", "main", "pages"]

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/reference"


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    return {
        "cli.md": cli_page(),
        "api.md": api_page(ROOT / "src"),
        "exit-codes.md": errors_page(),
        "findings.md": findings_page(),
    }


def main() -> int:
    """Write or compare the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page is stale")
    options = parser.parse_args()
    stale = [name for name, text in pages().items() if _stored(name) != text]
    for name in stale:
        if options.check:
            print(f"{FOLDER / name} is not as the code is: run scripts/make_reference.py")
        else:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / name).write_text(pages()[name], "utf-8")
            print(f"wrote {FOLDER / name}")
    return 1 if stale and options.check else 0


def _stored(name: str) -> str | None:
    place = FOLDER / name
    return place.read_text("utf-8") if place.is_file() else None


if __name__ == "__main__":
    sys.exit(main())

"""``leconvert doctor``."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from leconvert.cli.json_option import add_json
from leconvert.errors import InstallationError, StorageError

__all__ = ["add_arguments", "run"]

_WIDTH_WITHOUT_TERMINAL = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="FOLDER",
        help="probe its file system too, as `leconvert check-fs` does",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Look, and say what is there and what is missing."""
    from leconvert.doctor import examine

    folder = None if options.folder is None else options.folder.resolve()
    if folder is not None and not folder.is_dir():
        raise StorageError(
            f"{folder} is not a folder.", path=str(folder), next_step="Name one that exists."
        )
    found = examine(folder)
    if options.json:
        print(json.dumps(found.as_record(), indent=2))
    else:
        from leconvert.cli.doctor_view import doctor_lines

        width = shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
        print("\n".join(doctor_lines(found.as_record(), width)))
    if not found.can_use_folder:
        return StorageError.exit_code
    return InstallationError.exit_code if found.lacks else 0

"""``leconvert push``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leconvert.cli.json_option import add_json
from leconvert.cli.push_options import add_push_options, push_result
from leconvert.cli.push_view import show_push
from leconvert.errors import UsageError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("result", type=Path, metavar="RESULT", help="the v3.0 dataset's folder")
    add_push_options(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and write nothing"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Push, and say what was done."""
    result = options.result.resolve()
    report = push_result(options, result, _target(options, result), dry_run=options.dry_run)
    if options.json:
        print(json.dumps(report.as_record(), indent=2))
    else:
        show_push(report)
    return 0


def _target(options: argparse.Namespace, result: Path) -> str:
    if options.push_repo_id is not None:
        return str(options.push_repo_id)
    from leconvert.hub.provenance import noted_origin

    origin = noted_origin(result)
    if origin is None:
        raise UsageError(
            f"It is not known where {result} came from.",
            path=str(result),
            next_step="Pass --push-repo-id ORG/NAME.",
        )
    return origin.repo_id

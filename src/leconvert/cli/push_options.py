"""Options of a push, and the push that they ask for; ``convert`` and ``push`` share them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.progress import progress_for
from leconvert.errors import UsageError

if TYPE_CHECKING:
    from leconvert.hub.origin import Origin
    from leconvert.hub.push_report import PushReport

__all__ = ["add_push_options", "add_push_wish", "push_result", "push_target"]


def add_push_wish(parser: argparse.ArgumentParser) -> None:
    """Add whether to push at all, and where to."""
    parser.add_argument(
        "--push-to-hub", nargs="?", const="true", metavar="BOOL",
        help="push the result (default: a source that came from the Hub is pushed back)",
    )  # fmt: skip
    parser.add_argument("--no-push", action="store_true", help="never write to the Hub")


def add_push_options(parser: argparse.ArgumentParser) -> None:
    """Add how to push."""
    group = parser.add_argument_group("push", "see docs/hub.md")
    group.add_argument(
        "--push-repo-id", metavar="ORG/NAME",
        help="push there (default: where the source came from); made if it does not exist",
    )  # fmt: skip
    group.add_argument(
        "--private", action="store_true",
        help="make the repo private, and refuse a public one (default: as the source's repo is)",
    )  # fmt: skip
    group.add_argument(
        "--branch", default="main", metavar="NAME",
        help="push to a branch, made from main if it does not exist (default: main)",
    )  # fmt: skip
    group.add_argument(
        "--create-pr", action="store_true", help="leave the result in a pull request; no tag is set"
    )
    group.add_argument(
        "--force-push", action="store_true",
        help="replace whatever the repo holds, and send the result as it is, whatever was proven",
    )  # fmt: skip
    group.add_argument("--no-card", action="store_true", help="leave README.md as it is")


def push_target(options: argparse.Namespace, origin: Origin | None) -> str | None:
    """Return the repo to push to, or None for not at all.

    Args:
        options: With the options of both functions above.
        origin: Where the source came from; None for a local one.

    Raises:
        UsageError: Options contradict each other, or a push is asked for without a repo.
    """
    wish = None if options.push_to_hub is None else options.push_to_hub.lower()
    if wish not in (None, "true", "false"):
        raise UsageError(f"--push-to-hub takes true or false, not {options.push_to_hub!r}.")
    asked = wish == "true" or options.push_repo_id is not None or options.create_pr
    refused = options.no_push or wish == "false"
    if asked and refused:
        which = "--no-push" if options.no_push else "--push-to-hub=false"
        wish_option = next(
            option
            for option, given in (
                ("--push-repo-id", options.push_repo_id is not None),
                ("--create-pr", options.create_pr),
                ("--push-to-hub", True),
            )
            if given
        )
        raise UsageError(f"{which} and {wish_option} contradict each other.")
    local = options.root is not None or options.output is not None
    if refused or (not asked and (origin is None or local)):
        return None
    found = options.push_repo_id or (origin.repo_id if origin else options.repo_id)
    if found is None:
        raise UsageError(
            "It is not said where to push to.", next_step="Pass --push-repo-id ORG/NAME."
        )
    return str(found)


def push_result(
    options: argparse.Namespace, result: Path, repo_id: str, *, dry_run: bool = False
) -> PushReport:
    """Push a result as the options say."""
    from leconvert.hub.push import push
    from leconvert.hub.push_report import PushOptions

    asked = options.push_repo_id is not None or getattr(options, "push_to_hub", None) is not None
    how = PushOptions(
        branch=options.branch,
        create_pr=options.create_pr,
        create=asked,  # where a source came from there is a repo, or a mistake
        private=options.private,
        force=options.force_push,
        card=not options.no_card,
        dry_run=dry_run,
    )
    return push(result, repo_id, how, progress=progress_for(quiet=options.json))

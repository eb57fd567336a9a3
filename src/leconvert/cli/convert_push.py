"""The push that follows a conversion, also where only the push is left to do."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from leconvert.cli.layout_options import layout_changes
from leconvert.cli.push_options import push_result, push_target
from leconvert.cli.push_view import show_push
from leconvert.cli.repair_options import repair_options
from leconvert.errors import LeconvertError

if TYPE_CHECKING:
    from leconvert.cli.places import Places
    from leconvert.conversion import ConversionReport
    from leconvert.hub.origin import Origin
    from leconvert.hub.push_report import PushReport

__all__ = ["ConvertPush"]


class ConvertPush:
    """What ``convert`` knows about its push.

    Args:
        options: The command's options.
        places: Where the source is, where it came from, and where the result will stand.

    Raises:
        UsageError: Options contradict each other.
    """

    def __init__(self, options: argparse.Namespace, places: Places) -> None:
        from leconvert.hub.origin import read_origin
        from leconvert.hub.provenance import noted_origin

        self._options = options
        self._target = places.target
        self._work_dir = places.work_dir
        self._origin: Origin | None = (
            (places.arrival.origin if places.arrival else None)
            or read_origin(places.work_dir)
            or noted_origin(places.target)  # by an earlier call: the source is gone from there
        )
        self.repo_id = push_target(options, self._origin)

    @property
    def alone_is_left(self) -> bool:
        """Whether the result is in its place already, made to be pushed by an earlier call."""
        from leconvert.hub.ownership import version_of
        from leconvert.hub.provenance import read_provenance
        from leconvert.source.info import read_info
        from leconvert.workdir.paths import WorkDir

        if self.repo_id is None:
            return False
        if WorkDir(self._work_dir).current_run_id() is not None:
            return False  # the run knows better how far it is
        try:
            is_new = version_of(read_info(self._target)).startswith("v3.")
        except LeconvertError:
            return False
        known = read_provenance(self._target)
        # With force a result that was pushed to the end is made anew; one that waits is pushed.
        return (
            is_new and known is not None and not (known.pushed and self._options.force_conversion)
        )

    def note(self, report: ConversionReport | None = None) -> None:
        """Write where the result comes from: before a conversion, and again when it is done."""
        from leconvert.hub.provenance import Provenance, write_provenance

        if self.repo_id is None:
            return
        known = Provenance.of(
            self._origin,
            layout_changes(self._options) | repair_options(self._options).as_record(),
            report.findings if report else (),
            report.repairs if report else None,
        )
        if self._target.parent.is_dir():  # else there is nothing yet that could be pushed
            write_provenance(self._target, known, run_id=report.run_id if report else "")

    def run(self) -> PushReport | None:
        """Push, if that is wanted.

        Raises:
            LeconvertError: The push failed; its next step says that the result is there.
        """
        if self.repo_id is None:
            return None
        try:
            return push_result(self._options, self._target, self.repo_id)
        except LeconvertError as error:
            again = (
                f"`leconvert push {shlex.quote(str(self._target))} "
                f"--push-repo-id {shlex.quote(self.repo_id)}`"
            )
            error.next_step = (
                f"{error.next_step or ''} The dataset is converted: {again} pushes it."
            ).strip()
            raise

    def show(self, report: PushReport | None) -> None:
        """Print what the push did, or that there was none."""
        if report is not None:
            show_push(report)
        elif not self._options.no_push:
            print("  Hub           nothing was pushed; a local dataset is pushed only on request")

    def as_record(self) -> tuple[dict[str, Any] | None, int]:
        """Push, and return the outcome for ``--json`` with an exit code."""
        try:
            report = self.run()
        except LeconvertError as error:
            return error.as_record(), error.exit_code
        return (None if report is None else report.as_record()), 0

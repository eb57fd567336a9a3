"""``leconvert repair``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.flow import make_dataset
from leconvert.cli.options import (
    VERIFY_WITHOUT_DELETE,
    add_engine_options,
    add_flags,
    add_group,
    add_report_option,
    add_target,
    controlled,
    conversion_options,
    filled,
    local_dataset,
)
from leconvert.cli.output import print_findings, show
from leconvert.cli.parser import EDITING_OPTIONS, Parser, add_output
from leconvert.cli.progress import progress_for
from leconvert.cli.sources import NamedDataset, named_places
from leconvert.model.repairs import RepairOptions
from leconvert.run.conversion import ProofOptions
from leconvert.support.errors import SourceError, UsageError
from leconvert.support.flags import flags_of
from leconvert.support.text import amount, count

if TYPE_CHECKING:
    from leconvert.run.repairing import RepairReport


# Options without use for a v3.0 dataset on this machine.
_OF_V2 = ("tasks_from", "fetch_unfit")
_WHEN = (
    "a repair changes data only with one of these options; --retime writes only the files that are "
    "wrong; each other option writes the whole dataset again, like a conversion"
)


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = EDITING_OPTIONS | {each.name for each in flags_of(RepairOptions)}
    parser.add_argument(
        "dataset", type=local_dataset, metavar="DATASET", help="the v3.0 dataset to repair"
    )
    add_target(parser, "DATASET", "DATASET_old")
    add_group(parser, RepairOptions, _WHEN, without=_OF_V2)
    add_engine_options(parser)
    add_flags(
        parser, ProofOptions, without=("force_conversion", "delete_source", "max_wait_seconds"),
        verify=VERIFY_WITHOUT_DELETE,
    )  # fmt: skip
    add_report_option(parser)
    add_output(parser, dry_run="show what would be changed; write nothing", quiet=True)
    parser.set_defaults(verify=None, keep_work_dir=False)


# Options of a run, which a repair of single files does not have.
_OF_A_RUN = ("engine", "num_workers", "max_workers", "work_dir", "verify", "report")


def run(options: argparse.Namespace) -> int:
    """Repair a dataset, and print the changes and what is left."""
    from leconvert.run.repairing import follows_from_files, repair_dataset

    dataset: Path = options.dataset.resolve()
    output: Path | None = None if options.output is None else options.output.resolve()
    asked = filled(RepairOptions, options)
    if not follows_from_files(asked):
        return _write_anew(dataset, asked, options)
    for name in _OF_A_RUN:
        if getattr(options, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} works only for a repair that writes the whole dataset again; this repair "
                "writes only the files that are wrong.",
                next_step=f"Leave {flag} out.",
            )
    with controlled(options) as control:
        report = repair_dataset(
            dataset,
            output=output,
            retime=asked.retime,
            dry_run=options.dry_run,
            stop=control.stop,
            progress=control.progress,
        )
    if not options.json:
        print_findings(report.plan.left, report.dataset)
    code = SourceError.exit_code if report.plan.errors_left else 0
    return show(options, report.as_record(), _lines(report), code)


def _write_anew(dataset: Path, asked: RepairOptions, options: argparse.Namespace) -> int:
    """Convert the dataset from v3.0 to v3.0, after a look at what this loses."""
    from leconvert.run.repairing import plan_anew

    plan = plan_anew(dataset, asked, progress=progress_for(quiet=options.json or options.quiet))
    conversion = replace(conversion_options(options), repairs=plan.options)
    bring = partial(named_places, options, [NamedDataset(dataset)])
    return make_dataset(options, conversion, bring, repairs=plan)


def _lines(report: RepairReport) -> Iterator[str]:
    plan = report.plan
    yield from plan.remarks
    errors = len(plan.errors_left)
    if not plan and errors:
        stay = f"{count(errors, 'error')} {'stays' if errors == 1 else 'stay'}"
        yield (
            f"{report.dataset} has no error that `leconvert repair` can repair without an option; "
            f"{stay}."
        )
        return
    if not plan:
        yield f"{report.dataset} has nothing to repair."
        return
    if report.was_repaired:
        yield (
            f"{report.target} is already the result of the same repair of {report.dataset}. "
            "There is nothing to do."
        )
        return
    verb = "would change" if report.dry_run else "changed"
    for line in plan.summary():
        yield f"{verb}: {line}"
    if report.dry_run:
        yield f"{count(len(plan.mended), 'finding')} of {report.dataset} would be repaired."
    else:
        bytes_said = (
            f"{amount(report.written_bytes)} written, {amount(report.copied_bytes)} copied, "
            f"{amount(report.cloned_bytes)} shared"
        )
        yield (
            f"{count(len(plan.mended), 'finding')} repaired; {bytes_said}; {report.seconds:.1f} s."
        )
        yield f"  dataset  {report.target}"
        if report.kept is not None:
            yield f"  kept     {report.kept}"
    if errors:
        yield f"{count(errors, 'error')} left; the table above says what helps."

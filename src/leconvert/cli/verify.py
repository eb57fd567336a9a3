"""``leconvert check`` and ``leconvert verify``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.main import end_on_signals
from leconvert.cli.options import controlled, local_dataset, path_or_url, works_only
from leconvert.cli.output import (
    columns,
    findings_lines,
    planned_lines,
    print_planned_findings,
    print_sentence,
    progress_for,
    show,
)
from leconvert.cli.parser import Parser, add_output, hide
from leconvert.cli.sources import dataset_root, source_at
from leconvert.support.errors import (
    SourceError,
    StorageError,
    UnreadableSourceError,
    UsageError,
    VerificationError,
)
from leconvert.support.flags import whole
from leconvert.support.text import GET_AGAIN, count, without_credentials
from leconvert.workdir.fs import is_folder
from leconvert.workdir.swap import (
    codebase_version,
    has_source_tables,
    is_converted,
    old_dir,
    overlaid_meta,
)

if TYPE_CHECKING:
    from leconvert.dataset.check.dataset import DatasetReport
    from leconvert.remote.provenance import Provenance
    from leconvert.run.proof import VerificationReport
    from leconvert.support.progress import Progress

# ``leconvert check``.


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "root",
        type=local_dataset,
        nargs="?",
        metavar="DATASET",
        help="the dataset folder itself, v2.x or v3.0, which holds meta/, data/ and videos/",
    )
    parser.add_argument(
        "--repo-id",
        metavar="ORG/NAME",
        help="check the folder $HF_LEROBOT_HOME/ORG/NAME instead of DATASET",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="end with code 3 for warnings too, not only for errors",
    )
    parser.add_argument(
        "--plan-repairs",
        action="store_true",
        help="print the command that repairs the dataset and loses the least data, and list the "
        "data that the command loses",
    )
    add_output(parser)


def run_check(options: argparse.Namespace) -> int:
    """Check one dataset, and list what is wrong with it."""
    from leconvert.dataset.check import check_dataset

    if options.root is not None and options.repo_id is not None:
        raise UsageError("Both DATASET and --repo-id are given. Give one of them.")
    if options.root is None and options.repo_id is None:
        raise UsageError(
            "No dataset is given.", next_step="Give the dataset's folder, or --repo-id ORG/NAME."
        )
    root = dataset_root(options).resolve()
    if options.plan_repairs:
        from leconvert.run.repairing import choose_repairs

        plan = choose_repairs(root, progress=progress_for(options))
        if not options.json:
            print_planned_findings(plan)
        return show(options, plan.as_record(), planned_lines(plan))
    report = check_dataset(root, progress=progress_for(options))
    failed = report.count("error") + (report.count("warning") if options.strict else 0)
    code = SourceError.exit_code if failed else 0
    show(options, report.as_record(), _check_lines(report))
    if not options.json and any(
        "leconvert repair" in (finding.remedy or "") for finding in report.findings
    ):
        command = shlex.join(["leconvert", "check", report.root, "--plan-repairs"])
        said = f"`{command}` prints one command that repairs all that can be repaired."
        print_sentence(said, margin="")
    return code


def _check_lines(report: DatasetReport) -> Iterator[str]:
    yield from findings_lines(report.findings, columns(), report.root)
    counts = ", ".join(
        count(report.count(severity), severity) for severity in ("error", "warning", "info")
    )
    yield (
        f"{report.root} ({report.version}): {counts} in {report.episodes:,} episodes, "
        f"{report.frames:,} frames, {report.files:,} files; {report.seconds:.1f} s."
    )


# `leconvert verify` refuses wrong paths. A wrong path is not a difference.


_ROLES = (
    "RESULT is the dataset that a conversion wrote. --source is the dataset that it was made from."
)


def check_places(result: Path, source: Path | str) -> None:
    """Refuse a RESULT that is not a result, and a source that is one.

    A result with missing files, even without ``meta/info.json``, is accepted: verify finds that.
    """
    for place in (result, source):
        if isinstance(place, Path) and not is_folder(place):
            raise UsageError(f"{place} is not a folder.", path=str(place), next_step=_ROLES)
    if isinstance(source, Path) and source.resolve() == overlaid_meta(result.resolve()):
        return
    converted = isinstance(source, Path) and is_converted(source)
    version = codebase_version(result)
    if has_source_tables(result) and version == "v2.0":
        swapped = " RESULT and --source seem to be exchanged." if converted else ""
        raise UsageError(
            f"{result} is a {version} dataset, not the result of a conversion.{swapped}",
            path=str(result),
            next_step=_ROLES,
        )
    if version is None and not (result / "meta").is_dir():
        raise UsageError(
            f"{result} is not a dataset: it has no meta/.", path=str(result), next_step=_ROLES
        )
    if isinstance(source, Path) and source.resolve() == result.resolve():
        kept = overlaid_meta(source) or old_dir(source)
        raise SourceError(
            f"RESULT and --source are the same dataset, {source}.",
            path=str(source),
            next_step=f"The conversion kept its source as {kept}." if kept.is_dir() else _ROLES,
        )


# The outcome of a comparison.


_DIFFERENCES_SHOWN = 50


def verification_lines(
    report: VerificationReport, result: Path, sources: Sequence[Path | str]
) -> list[str]:
    """Return the differences with their number, or what was compared."""
    if report.ok:
        named = ", ".join(
            str(source.resolve()) if isinstance(source, Path) else without_credentials(source)
            for source in sources
        )
        which = "source" if len(sources) == 1 else "sources"
        return [f"{result.resolve()} matches its {which} {named}. Compared: {_compared(report)}."]
    found = len(report.differences)
    shown = f", the first {_DIFFERENCES_SHOWN} above" if found > _DIFFERENCES_SHOWN else ""
    return [
        *map(str, report.differences[:_DIFFERENCES_SHOWN]),
        f"{count(found, 'difference')}{shown}. The result does not match its "
        f"{'source' if len(sources) == 1 else 'sources'}.",
    ]


def _compared(report: VerificationReport) -> str:
    share = "" if report.share == 1 else f"a sample of {report.share:.0%}, "
    said = (
        f"{report.depth}, {share}{report.episodes:,} episodes, {report.rows:,} rows, "
        f"{report.video_frames:,} camera frames in {report.files:,} files"
    )
    if report.pictures:
        said += f"; {report.pictures:,} pictures decoded on both sides"
    if report.samples:
        said += f"; {report.samples:,} samples loaded through LeRobot"
    return said


# ``leconvert verify``.


def _meant(words: list[str]) -> str | None:
    """Return the whole command for ``verify A B``. If only A is v2.x, A is the source."""
    result, source, *options = words if len(words) > 1 else ["-", "-"]
    if result.startswith("-") or source.startswith("-") or "--source" in options:
        return None
    if has_source_tables(Path(result)) and not has_source_tables(Path(source)):
        result, source = source, result
    command = shlex.join(["leconvert", "verify", result, "--source", source, *options])
    return f"`{command}` compares the result {result!r} with the source {source!r}."


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.advice = _meant
    parser.add_argument(
        "result",
        type=local_dataset,
        metavar="RESULT",
        help="the dataset that a conversion wrote, v3.0 or v2.1",
    )
    parser.add_argument(
        "--source",
        type=path_or_url,
        action="append",
        required=True,
        metavar="SOURCE",
        help="the dataset that RESULT was made from: a folder, or a URL such as "
        "hf://datasets/ORG/NAME@REV, which is downloaded for the comparison; give it once "
        "for each source of a merged dataset",
    )
    parser.add_argument(
        "--scratch-dir", type=Path, metavar="DIR",
        help="where to download a source (default: the system's folder for temporary files)",
    )  # fmt: skip
    depth = parser.add_mutually_exclusive_group()
    hide(depth.add_argument("--structure", dest="depth", action="store_const", const="structure"))
    depth.add_argument(
        "--bytes", dest="depth", action="store_const", const="bytes",
        help="also compare every coded video packet and every row (default: only headers, tables, "
        "times, sizes and totals)",
    )  # fmt: skip
    parser.set_defaults(depth="structure")
    parser.add_argument(
        "--sample", type=float, default=1.0, metavar="FRACTION",
        help="compare only this share of the episodes, such as 0.1, for a quick look",
    )  # fmt: skip
    parser.add_argument(
        "--decode", type=whole(0), default=0, metavar="N",
        help="also decode N random pictures of both datasets and compare their pixels",
    )  # fmt: skip
    parser.add_argument(
        "--deep", type=whole(0), default=0, metavar="N",
        help="also load N random samples with LeRobot's own dataset class; needs lerobot",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed of the random choice (default: 0)"
    )
    parser.add_argument(
        "--max-workers", type=whole(1), metavar="N",
        help="use at most N processes (default: one for each core, or one for small datasets)",
    )  # fmt: skip
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Compare, and list the differences."""
    from leconvert.run.proof import Sampling, other_sources, verify_pair

    result = options.result.resolve()
    given: list[Path | str] = options.source
    random = options.sample != 1.0 or options.decode or options.deep
    if options.seed is not None and not random:
        where = "with --sample, --decode or --deep"
        raise works_only("--seed", where, "Add one of these options")
    if options.scratch_dir is not None and all(isinstance(source, Path) for source in given):
        raise works_only("--scratch-dir", f"if the source is a URL; {given[0]} is a folder")
    for source in given:
        check_places(result, source.resolve() if isinstance(source, Path) else source)
    with controlled(options) as control, ExitStack() as fetched:
        with end_on_signals(control.stop):
            sources = [
                fetched.enter_context(source_at(source, options.scratch_dir, control))
                for source in given
            ]
        record = _record(options, result, sources, control.progress)
        try:
            report = verify_pair(
                result,
                sources,
                depth=options.depth,
                progress=control.progress,
                max_workers=options.max_workers,
                sampling=Sampling(options.sample, options.decode, options.deep, options.seed or 0),
                stop=control.stop,
            )
        except UnreadableSourceError as error:  # the usual advice is for a conversion
            error.next_step = (
                f"{GET_AGAIN}, and compare again. The result may have the only good copy: keep it."
            )
            raise
    if report.ok and record is not None:
        _note(result, record, control.progress)
    lines = verification_lines(report, options.result, given)
    code = 0 if report.ok else VerificationError.exit_code
    if not report.ok:
        lines += [
            f"The result was made from {name}. No --source has the same tables as {name} had at "
            "the time of the conversion."
            for name in other_sources(result, sources)
        ]
        lines.append(
            "  → If --source is the right dataset, convert it again into a new folder, with the "
            "same options."
        )
    return show(options, {"ok": report.ok, **asdict(report)}, lines, code)


def _record(
    options: argparse.Namespace, result: Path, sources: Sequence[Path], progress: Progress
) -> Provenance | None:
    """Return the record that lets a push trust the result; None if not everything was compared."""
    from leconvert.remote.provenance import known_origin, proven_anew

    if options.depth != "bytes" or options.sample != 1.0:
        return None
    if len(sources) > 1:
        return proven_anew(result, None, None, progress)
    stays = isinstance(options.source[0], Path)
    return proven_anew(result, known_origin(sources[0]), sources[0] if stays else None, progress)


def _note(result: Path, record: Provenance, progress: Progress) -> None:
    from leconvert.remote.provenance import write_provenance

    try:
        write_provenance(result, record)
    except StorageError as error:  # a result on a read-only disk can be verified, too
        progress.say(
            "Nothing differs. The outcome of this comparison could not be saved for a later push: "
            f"{error.message}"
        )
        return
    progress.say(
        f"The outcome of this comparison is saved beside {result}. `leconvert push` uses it as the "
        "proof that the result is right."
    )

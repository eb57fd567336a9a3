"""``leconvert probe`` and its commands."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import add_flags, filled, site
from leconvert.cli.output import progress_for, show, table
from leconvert.cli.parser import Parser, Settings, add_output, hide
from leconvert.run.engines.options import Site
from leconvert.support.errors import ProbeError, UsageError
from leconvert.support.extras import command_for_extra
from leconvert.support.flags import as_arguments, flags_of, whole
from leconvert.support.progress import NO_PROGRESS
from leconvert.support.text import amount

if TYPE_CHECKING:
    from leconvert.bench import (
        Job,
        ResampleOptions,
        RunOptions,
        StepFacts,
        SummaryLine,
        TrainReport,
    )
    from leconvert.loading import Method

_PLACES = (
    "probe:run probe:limit probe:diagnose probe:summarize probe:resample "
    "probe:submit probe:train probe:train_lerobot"
)


def add_arguments(parser: Parser) -> None:
    """Declare the commands."""
    parser.add_commands("probe_command", {"": _PLACES}, usual=_usual_command)


def _usual_command(words: Sequence[str]) -> str | None:
    """Return the command for the options of a proposed benchmark: ``--scenarios`` submits jobs."""
    return "submit" if any(word.startswith("--scenarios") for word in words) else None


def start_with_ffmpeg() -> None:
    """Start this process again with FFmpeg's libraries, if it is the program's own and lacks them.

    Commands that load a decoder begin with it.
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    started_as_module = spec is not None and spec.name == "leconvert.__main__"
    if started_as_module or sys.argv[0].endswith(("/leconvert", "\\leconvert")):
        from leconvert.bench import start_again_with_ffmpeg

        start_again_with_ffmpeg()


# Options of a measurement and of a training, which SLURM jobs also get.


_DATASET = ("repo_id", "root", "data_files_root", "revision")
# Options of a run by heading; a training has those of the loader, too.
_LOADER = (
    "batch_size", "num_workers", "prefetch_factor", "episode_pool_size", "max_buffer_input_shards",
    "video_decoder_cache_size", "video_fetch_workers", "device", "decode_device",
)  # fmt: skip
_OF_RUN = {
    "dataset": (*_DATASET, "source", "max_episodes", "num_partitions", "partition_index"),
    "what is measured": (
        "scenario", "loader", "mode", "deltas", "tolerance_s", "seed", "rank", "world_size",
    ),
    "loader": _LOADER,
    "measurement": (
        "warmup_batches", "duration_s", "num_batches", "probe_samples", "probe_warmup", "check",
        "with_limit", "limit_duration_s",
    ),
}  # fmt: skip

# Options that `--help` lists for a measurement and a training; `--help-all` lists the rest.
USUAL_OPTIONS = frozenset({
    "--batch-size", "--check", "--decode-device", "--deltas", "--duration-s",
    "--episode-pool-size", "--help", "--help-all", "--json", "--loader", "--max-episodes", "--mode",
    "--num-workers", "--out-dir", "--plots", "--repo-id", "--revision", "--root", "--scenario",
    "--seed", "--source",
})  # fmt: skip
DEFAULT_OUT_DIR = "probe-results"
"""The folder of results."""


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add every option of a run, with every accepted spelling."""
    from leconvert.bench import RunOptions

    for title, names in _OF_RUN.items():
        add_flags(parser.add_argument_group(title), RunOptions, names)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out-dir", metavar="DIR", help=f"the folder for results (default: {DEFAULT_OUT_DIR})"
    )
    group.add_argument("--plots", action="store_true", help="also draw plots; needs matplotlib")
    add_output(group)


# Other spellings of names.
_SPELLED = {
    "mode": ("_", "-"), "loader": ("_", "-"), "scenario": ("-", "_"), "source": ("-", "_"),
}  # fmt: skip


def run_options(options: argparse.Namespace) -> RunOptions:
    """Return the options of the measurement; others have the library's defaults."""
    from leconvert.bench import RunOptions

    spelled = {
        name: value.replace(*how)
        for name, how in _SPELLED.items()
        if (value := getattr(options, name, None)) is not None
    }
    return filled(RunOptions, argparse.Namespace(**{**vars(options), **spelled}))


# ``leconvert probe run``.


def add_run_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = USUAL_OPTIONS
    add_run_options(parser)


def run_run(options: argparse.Namespace) -> int:
    """Measure, write the result, and print it."""
    start_with_ffmpeg()
    from leconvert.bench import (
        check_results_dir,
        draw_plots,
        failure_of,
        require_matplotlib,
        run_probe,
        summarize,
        write_document,
    )

    wanted = run_options(options)
    if options.plots:
        require_matplotlib()
    out_dir = Path(options.out_dir or DEFAULT_OUT_DIR)
    check_results_dir(out_dir)
    document = run_probe(wanted, results_dir=out_dir, progress=progress_for(options))
    path, table_path = write_document(document, out_dir)
    if options.plots:
        draw_plots(summarize([document]), out_dir, path.stem)
    show(options, document, _measured_lines(document))
    if not options.json:
        print(f"Wrote {path} and {table_path.name}.", file=sys.stderr)
    failure = failure_of(document)
    if failure is not None:
        print(f"leconvert: {failure.message}", file=sys.stderr)
        for line in failure.details:
            print(f"  {line}", file=sys.stderr)
        return failure.exit_code
    return 0


def _measured_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the main figures of a result."""
    asked, cache = document["options"], document["video_decoder_cache"]

    def shown(key: str, pattern: str) -> str:
        value = document[key]
        return "unknown" if value is None else pattern.format(value)

    workers = f"{asked['num_workers']} workers, batches of {asked['batch_size']}"
    label = "" if asked["source"] == document["read_from"] else f", labelled {asked['source']}"
    lines = [
        f"read from    {document['read_from']}{label}",
        f"loader       {asked['loader']}, {asked['mode']}, {workers}",
        f"throughput   {document['samples_per_s']:,.1f} samples/s, "
        f"{document['frames_per_s_node']:,.0f} decoded camera frames/s",
        f"limit        {shown('pct_of_limit', '{:.0f} % of random-access decoding')}",
        f"first batch  {document['first_batch_latency_s']:.2f} s",
        f"batch wait   p50 {document['p50_batch_wait_ms']:.1f}, "
        f"p95 {document['p95_batch_wait_ms']:.1f}, p99 {document['p99_batch_wait_ms']:.1f} ms",
        f"memory       {shown('peak_pss_gb', '{:.2f} GB PSS')}, "
        f"{document['peak_rss_gb']:.2f} GB RSS",
        f"randomness   {shown('shuffle_randomness_frac', '{:.2f} distinct episodes / batch size')}",
        f"one process  {shown('single_proc_samples_per_s', '{:,.1f} samples/s')}, "
        f"{shown('fetch_pct', '{:.0f} %')} reading, {shown('decode_pct', '{:.0f} %')} decoding",
    ]
    if cache is not None and cache["hit_rate"] is not None:
        lines.append(
            f"decoders     {cache['hit_rate']:.0%} decoder-cache hits of "
            f"{cache['hits'] + cache['misses']:,} look-ups, {cache['evictions']:,} evictions"
        )
    if document["check"] is not None:
        lines.append(
            f"check        {document['check']['samples']} samples: {document['wrong_frames']} "
            f"wrong and {document['unreadable_frames']} unreadable frames"
        )
    return lines + [f"note         {note}" for note in document["notes"]]


# ``leconvert probe limit``.


def add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from leconvert.bench import RunOptions

    add_flags(
        parser,
        RunOptions,
        (*_DATASET, "duration_s", "decode_device", "seed"),
        duration_s="seconds of each of the four measurements (default: 10)",
        decode_device="decode on cpu (default) or on cuda",
        seed="seed of the random access (default: 0)",
    )
    parser.add_argument(
        "--processes",
        type=whole(1),
        metavar="N",
        help="number of decoding processes (default: the cores)",
    )
    parser.add_argument(
        "--out-dir", default=DEFAULT_OUT_DIR, metavar="DIR",
        help=f"the folder for the result (default: {DEFAULT_OUT_DIR})",
    )  # fmt: skip
    parser.set_defaults(duration_s=10.0)
    add_output(parser)


def run_limit(options: argparse.Namespace) -> int:
    """Measure, write the result, and print the rates."""
    start_with_ffmpeg()
    from leconvert.bench import check_results_dir, run_limit, write_document

    out_dir = Path(options.out_dir)
    check_results_dir(out_dir)
    document = run_limit(run_options(options), options.processes)
    path, _ = write_document(document, out_dir)
    rows = (
        (rate["access"], rate["processes"], rate["frames"], f"{rate['frames_per_s']:.0f}")
        for rate in document["rates"]
    )
    if not options.json:
        print(f"Wrote {path}.", file=sys.stderr)
    return show(options, document, table(("access", "processes", "frames", "frames/s"), rows))


# ``leconvert probe diagnose``.


def add_diagnose_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from leconvert.bench import RunOptions

    said = "the device to decode on: cpu (default) or cuda"
    add_flags(parser, RunOptions, (*_DATASET, "decode_device"), decode_device=said)
    parser.set_defaults(decode_device="cpu")
    add_output(parser)


def run_diagnose(options: argparse.Namespace) -> int:
    """Examine this machine, and print what is there and what is missing."""
    start_with_ffmpeg()
    from leconvert.bench import dataset_place, diagnose_decoding

    named = options.root is not None or options.repo_id is not None
    document = diagnose_decoding(
        dataset_place(options.root, options.repo_id) if named else None,
        data_files_root=options.data_files_root,
        revision=options.revision,
        decode_device=options.decode_device,
    )
    show(options, document, _diagnosis_lines(document))
    if document["ok"]:
        return 0
    video, failed = document["video"], document.get("error")
    why = failed["message"] if failed else (video or {}).get("error") or document["missing"][0]
    print(f"leconvert: {why}", file=sys.stderr)
    if failed and failed["next_step"]:
        print(f"  → {failed['next_step']}", file=sys.stderr)
    return ProbeError.exit_code


def _diagnosis_lines(document: Mapping[str, Any]) -> list[str]:
    versions, decoder, video = document["versions"], document["decoder"], document["video"]
    installed = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    ffmpeg = decoder["ffmpeg"]
    found = f"FFmpeg {ffmpeg['major']}, {ffmpeg['origin']}" if ffmpeg else "none that loads"
    loads = "loads" if decoder["torchcodec_loads"] else decoder["trouble"] or "missing"
    lines = [
        f"installed   {installed}",
        f"FFmpeg      {found}",
        f"torchcodec  {loads}",
        f"GPUs        {', '.join(document['gpus']) or 'none'}",
    ]
    if video is not None:
        coded = video["coded"] or {}
        lines += [
            f"video       {video['file']} ({amount(video['size_bytes'])})",
            f"bytes       {video['first_bytes']}",
            f"codec       {coded.get('codec')}, {coded.get('width')}x{coded.get('height')} "
            f"{coded.get('pixel_format')}, a keyframe every {coded.get('gop')} frames",
        ]
        lines.append(
            f"decoded     by {video['backend']}, shape {video['shape']}, "
            f"{video['seconds'] * 1000:.0f} ms with opening"
            if video["error"] is None
            else f"decoded     no: {video['error']}"
        )
    if "error" in document:
        lines.append(f"failed      {document['error']['message']}")
    return lines + [f"missing     {sentence}" for sentence in document["missing"]]


# ``leconvert probe summarize``.


_HEAD = (
    "set-up", "host", "runs", "samples/s", "frames/s", "% limit", "first s", "p99 ms", "PSS GB",
    "random", "flags",
)  # fmt: skip


def add_summarize_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="the folder with results; its subfolders are read too",
    )
    parser.add_argument("--no-plots", action="store_true", help="draw nothing")
    add_output(parser)


def run_summarize(options: argparse.Namespace) -> int:
    """Write ``summary.csv`` and the plots into the folder, and print the table."""
    from leconvert.bench import draw_plots, results_below, summarize, write_table

    documents = [document for _, document in results_below(options.folder)]
    lines = summarize(documents)
    if not lines:
        raise UsageError(
            f"The folder {options.folder} contains no results of `leconvert probe run`.",
            path=str(options.folder),
        )
    write_table([line.as_record() for line in lines], options.folder / "summary.csv")
    written = ["summary.csv"]
    if not options.no_plots and can_draw():
        written += [path.name for path in draw_plots(lines, options.folder, "summary")]
    show(options, [line.as_record() for line in lines], table(_HEAD, map(_row, lines)))
    print(f"Wrote to {options.folder}: {', '.join(written)}.", file=sys.stderr)
    return 0


def can_draw() -> bool:
    """Return whether plots can be drawn; if not, print what is missing."""
    if find_spec("matplotlib") is not None:
        return True
    print(
        f"Plots were not drawn: matplotlib is missing. `{command_for_extra('plots')}` installs it.",
        file=sys.stderr,
    )
    return False


def _row(line: SummaryLine) -> list[object]:
    return [
        line.label,
        line.host,
        line.runs,
        f"{line.samples_per_s:.1f}",
        f"{line.frames_per_s_node:.0f}",
        _shown(line.pct_of_limit, ".0f"),
        _shown(line.first_batch_latency_s, ".2f"),
        _shown(line.p99_batch_wait_ms, ".0f"),
        _shown(line.peak_pss_gb, ".2f"),
        _shown(line.shuffle_randomness_frac, ".2f"),
        ", ".join(line.flags) or "-",
    ]


def _shown(value: float | None, pattern: str) -> str:
    return "-" if value is None else format(value, pattern)


# ``leconvert probe resample``.


_METHODS = ("linear", "previous", "nearest", "slerp")
_OF_THE_MEASUREMENT = (
    "num_epochs", "repeats", "warmup_batches", "preload", "threads", "seed", "loaders",
    "end_to_end", "num_workers", "train_epochs",
)  # fmt: skip


def add_resample_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = frozenset({
        "--all", "--batch-sizes", "--columns", "--dataset", "--device", "--dtype", "--hdf5",
        "--help", "--help-all", "--hz", "--json", "--loaders", "--method", "--mode", "--out-dir",
        "--synthetic",
    })  # fmt: skip
    from leconvert.bench import ResampleOptions

    group = parser.add_argument_group("trajectories (default: the synthetic set)")
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--synthetic",
        action="store_true",
        help="use synthetic trajectories of 30 to 333 Hz and 1 to 4 s, with 7 + 14 columns",
    )
    add_flags(source, ResampleOptions, ("dataset", "hdf5"))
    add_flags(group, ResampleOptions, ("source_hz", "revision"))
    group.add_argument("--columns", nargs="+", metavar="FEATURE", help="use only these columns")
    add_flags(group, ResampleOptions, ("max_trajectories",))
    group = parser.add_argument_group("what is measured")
    add_flags(group, ResampleOptions, ("mode", "hz"))
    methods = [
        group.add_argument(
            f"--{method}", action="append", default=[], metavar="COLUMN",
            help=f"resample FEATURE, FEATURE[COLUMN] or FEATURE[START:STOP] by {method}",
        )
        for method in _METHODS
    ]  # fmt: skip
    group.add_argument(
        "--method", action=Settings, actions=methods, metavar="METHOD=COLUMN",
        help="resample COLUMN with this method; COLUMN is FEATURE, FEATURE[COLUMN] or "
            "FEATURE[START:STOP]",
    )  # fmt: skip
    hide(*methods)
    group.add_argument(
        "--dtype",
        dest="dtypes",
        nargs="+",
        metavar="DTYPE",
        help="number type: fp32 (default) or bf16",
    )
    group.add_argument(
        "--device",
        dest="devices",
        nargs="+",
        metavar="DEVICE",
        help="the device: cpu (default), cuda or cuda:N",
    )
    group.add_argument(
        "--batch-sizes", type=int, nargs="+", metavar="N",
        help="numbers of trajectories in a batch (default: 16 32 64 128)",
    )  # fmt: skip
    add_flags(group, ResampleOptions, _OF_THE_MEASUREMENT)
    group.add_argument(
        "--all", action="store_true",
        help="measure everything: both number types, a GPU if there is one, loaders and training; "
        "write a report",
    )  # fmt: skip
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o", "--out-dir", default=DEFAULT_OUT_DIR, metavar="DIR",
        help=f"the folder for results (default: {DEFAULT_OUT_DIR})",
    )  # fmt: skip
    group.add_argument("--no-plots", action="store_true", help="draw no plots and write no report")
    add_output(group)


def resample_options(options: argparse.Namespace) -> ResampleOptions:
    """Return the options of the measurement; others have the library's defaults."""
    from leconvert.bench import ResampleOptions

    methods = {
        column: cast("Method", method) for method in _METHODS for column in getattr(options, method)
    }
    return filled(ResampleOptions, options, methods=methods)


def run_resample(options: argparse.Namespace) -> int:
    """Measure, write the result, and print it."""
    from leconvert.bench import (
        check_results_dir,
        draw_resampling,
        everything,
        require_matplotlib,
        result_tables,
        run_resample,
        write_document,
    )

    wanted = resample_options(options)
    if options.all:
        wanted = everything(wanted)
    if options.all and not options.no_plots:
        require_matplotlib()
    out_dir = Path(options.out_dir)
    check_results_dir(out_dir)
    document = run_resample(wanted, progress=progress_for(options))
    paths = write_document(document, out_dir)
    path, written = paths[0], [each.name for each in paths]
    if not options.no_plots and can_draw():
        pictures = draw_resampling(document, out_dir, path.stem)
        written += [drawn.name for drawn in pictures]
        if options.all:
            from leconvert.report.page import write_resampling_report

            report = path.with_suffix(".html")
            write_resampling_report(document, report, command=_command(), pictures=pictures)
            written.append(report.name)
    told = (
        "\n".join([title, *table(head, rows)])
        for title, _, (head, *rows) in result_tables(document)
    )
    show(options, document, ["\n\n".join(told)])
    print(f"Wrote to {out_dir}: {', '.join(written)}.", file=sys.stderr)
    return 0


def _command() -> str:
    """Return the command line as it was given, with the program's plain name."""
    return shlex.join(["leconvert", *sys.argv[1:]])


# Options of the jobs.


def add_slurm_options(parser: argparse.ArgumentParser, *, named: bool) -> None:
    """Add the resources of a job, and its account."""
    from leconvert.bench import Resources

    group = parser.add_argument_group("SLURM", argument_default=argparse.SUPPRESS)
    of_one = "; with NAME= for one job; may be given several times" if named else ""
    asked = [
        group.add_argument(
            each.name, action="append", default=[], help=f"{each.help}{of_one}",
            metavar=f"[NAME=]{each.metavar}" if named else each.metavar,
        )
        for each in flags_of(Resources)
    ]  # fmt: skip
    asked += add_flags(group, Site)
    group.add_argument(
        "--slurm",
        action=Settings,
        actions=asked,
        help="a resource of a SLURM job",
    )
    # Without --submit, a training starts on GPUs of this machine.
    hide(*(each for each in asked if named or each.dest != "gpus"))
    group.add_argument(
        "--dry-run", action="store_true", default=False,
        help="print a shell script that would submit the same; submit nothing",
    )  # fmt: skip


def given_resources(options: argparse.Namespace) -> dict[str, Sequence[str]]:
    """Return the values that were given for the resources of jobs, by resource."""
    from leconvert.bench import Resources

    return {each.field: getattr(options, each.field) for each in flags_of(Resources)}


def refuse_slurm_options(options: argparse.Namespace) -> None:
    """Refuse resources if nothing is submitted."""
    for name, values in given_resources(options).items():
        if values:
            raise UsageError(f"--{name} works only with --submit.")


# ``leconvert probe submit``.


_OF_THE_MATRIX = ("source", "mode", "decode_device")


def add_submit_arguments(parser: Parser) -> None:
    """Declare the options: its own, and those of ``probe run``, which every job gets."""
    parser.usual_options = USUAL_OPTIONS | {
        "--devices", "--dry-run", "--modes", "--root-of", "--scenarios", "--slurm", "--sources",
    }  # fmt: skip
    group = parser.add_argument_group("jobs")
    group.add_argument(
        "--scenarios",
        metavar="A,B,…",
        help="the scenarios to measure, in this order (default: all)",
    )
    group.add_argument(
        "--sources", metavar="A,B,…",
        help="measure all combinations of --sources, --modes and --devices (a matrix) instead of "
        "scenarios; sources: local, hub, bucket, "
        "warmed_bucket",
    )  # fmt: skip
    group.add_argument(
        "--modes", metavar="A,B,…", help="modes of the matrix (default: the value of --mode)"
    )
    group.add_argument(
        "--devices", metavar="A,B,…",
        help="decoding devices of the matrix, cpu and cuda (default: the value of --decode-device)",
    )  # fmt: skip
    group.add_argument(
        "--root-of", action="append", default=[], metavar="SOURCE=URL",
        help="the URL or folder of the dataset for a source: local, hub, bucket or warmed_bucket "
        "(default: for local, --root; for hub, hf://datasets/REPO_ID)",
    )  # fmt: skip
    group.add_argument(
        "--no-summary", action="store_true", help="do not run `probe summarize` after the last job"
    )
    add_slurm_options(parser, named=True)
    add_run_options(parser)


def run_submit(options: argparse.Namespace) -> int:
    """Submit the chain of jobs, or print the script that would."""
    from leconvert.bench import chain_script, submit_chain

    out_dir = str(options.out_dir or DEFAULT_OUT_DIR)
    jobs = _jobs(options, out_dir)
    where, log_dir = site(options), f"{out_dir}/logs"
    if options.dry_run:
        print(chain_script(jobs, where, log_dir=log_dir), end="")
        return 0
    submitted = submit_chain(jobs, where, log_dir=log_dir)
    lines = table(("job", "name", "log"), ((job.job_id, job.name, job.log) for job in submitted))
    return show(options, {"jobs": [asdict(job) for job in submitted]}, lines)


def _jobs(options: argparse.Namespace, out_dir: str) -> tuple[Job, ...]:
    from leconvert.bench import parse_places, plan_matrix, plan_scenarios, summary_job

    places = parse_places(
        options.root_of,
        repo_id=options.repo_id,
        root=options.root,
        data_files_root=options.data_files_root,
    )
    as_matrix = any((options.sources, options.modes, options.devices))
    named = options.scenarios or options.scenario
    if as_matrix and named:
        raise UsageError(
            "Scenarios and a matrix (--sources, --modes, --devices) exclude each "
            "other. Give one of them."
        )
    # Each job has these of its own.
    own = dict.fromkeys(("scenario", *(_OF_THE_MATRIX if as_matrix else ())))
    root = options.root or next(iter(places.values()), None)
    wanted = run_options(argparse.Namespace(**{**vars(options), **own, "root": root}))
    passed_on = [f"--out-dir={out_dir}", *(["--plots"] if options.plots else [])]
    resources = given_resources(options)
    if as_matrix:
        jobs = plan_matrix(
            options.sources or options.source or "local",
            options.modes or options.mode or "single",
            options.devices or options.decode_device or "cpu",
            wanted,
            places=places,
            passed_on=passed_on,
            resources=resources,
        )
    else:
        jobs = plan_scenarios(
            named, wanted, places=places, passed_on=passed_on, resources=resources
        )
    return jobs if options.no_summary else (*jobs, summary_job(out_dir))


# ``leconvert probe train``.


_OF_TRAINING_DATA = {
    "dataset": (
        *_DATASET, "max_episodes", "mode", "deltas", "tolerance_s", "seed", "rank", "world_size",
    ),
    "loader": _LOADER,
}  # fmt: skip


def add_train_options(parser: argparse.ArgumentParser) -> None:
    """Add every option except those of the job of ``--submit``."""
    from leconvert.bench import RunOptions, TrainOptions

    said = {
        "mode": "kind of a sample: single, sarm or sarm-action, as for `leconvert probe run` "
        "(default: single)",
        "seed": "seed of the sample order and of the weights (default: 0)",
    }
    for title, names in _OF_TRAINING_DATA.items():
        add_flags(parser.add_argument_group(title), RunOptions, names, **said)
    group = parser.add_argument_group("training")
    add_flags(group, TrainOptions)
    add_output(group)


def add_train_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = USUAL_OPTIONS | {
        "--dry-run", "--dummy", "--gpus", "--resume-from", "--save-every", "--slurm", "--steps",
        "--submit",
    }  # fmt: skip
    add_train_options(parser)
    parser.add_argument("--submit", action="store_true", help="run this training as a SLURM job")
    add_slurm_options(parser, named=False)


def run_train(options: argparse.Namespace) -> int:
    """Train here, or submit a job that does."""
    # A job gets the environment of its submission: the libraries of this machine must not be in it.
    if options.submit or options.dry_run:
        return _submit(options)
    if options.gpus:
        return _start_one_a_gpu(options)
    refuse_slurm_options(options)
    start_with_ffmpeg()
    from leconvert.bench import TrainOptions, open_stream_loader, train

    wanted = run_options(options)
    with stop_on_signals() as stop:
        loader, windows = open_stream_loader(wanted)
        asked = filled(TrainOptions, options, windows=windows)
        progress = NO_PROGRESS if loader.stream.rank else progress_for(options)
        with progress.stage("train", asked.steps, "steps") as stage:
            done = 0

            def show(facts: StepFacts) -> None:
                nonlocal done
                stage.advance(facts.step - done)
                done = facts.step

            report = train(loader, asked, watch=show, stop=stop.is_set)
    if loader.stream.rank == 0:
        print(json.dumps(asdict(report), indent=2) if options.json else _told(report))
    return 0


def _start_one_a_gpu(options: argparse.Namespace) -> int:
    """Become torchrun, which starts this command once for each GPU, without ``--gpus``."""
    from leconvert.bench import Resources, TrainOptions, asked_resources, usable_gpus
    from leconvert.loading import find_rank

    gpus = asked_resources(given_resources(options), Resources()).gpus
    options.gpus = []
    refuse_slurm_options(options)
    if options.device != "cuda":
        raise UsageError("--gpus needs --device cuda.", next_step="Add --device cuda.")
    if find_rank(options.rank, options.world_size)[1] > 1:
        raise UsageError(
            "--gpus starts a process for each GPU, but this process is already one of several "
            "ranks (from torchrun, accelerate, SLURM or --world-size).",
            next_step="Leave --gpus out.",
        )
    if not 1 <= gpus <= usable_gpus():
        raise ProbeError(
            f"--gpus {gpus} is too many: torch can use {usable_gpus()} GPUs of this machine.",
            next_step="Give a smaller number, or install a CUDA build of torch.",
        )
    words = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}")
    given = as_arguments(run_options(options)) + as_arguments(filled(TrainOptions, options))
    command = ("-m", "leconvert", "probe", "train", *given, *(["--json"] if options.json else []))
    # torchrun passes signals on.
    os.execv(sys.executable, [sys.executable, *words, *command])  # noqa: S606


def _submit(options: argparse.Namespace) -> int:
    from leconvert.bench import TrainOptions, chain_script, submit_chain, training_job

    asked = filled(TrainOptions, options)
    job = training_job(run_options(options), asked, resources=given_resources(options))
    where, log_dir = site(options), f"{asked.out_dir}/logs"
    if options.dry_run:
        print(chain_script([job], where, log_dir=log_dir), end="")
        return 0
    (sent,) = submit_chain([job], where, log_dir=log_dir)
    print(json.dumps(asdict(sent), indent=2) if options.json else f"{sent.job_id} {sent.log}")
    return 0


def _told(report: TrainReport) -> str:
    ranks = "1 rank" if report.world_size == 1 else f"{report.world_size} ranks"
    by = f"on {report.device}" if report.device else "only loaded"
    begun = f"resumed from step {report.first_step}" if report.first_step else "from step 0"
    lines = [
        f"steps        {report.steps}, {begun}; {ranks}, {by}",
        f"throughput   {report.samples_per_s:,.1f} samples/s in each rank",
        f"waiting      {report.wait_pct:.0f} % of the time for data; first batch after "
        f"{report.first_batch_s:.2f} s",
    ]
    if report.loss is not None:
        lines.append(f"loss         {report.loss:.6f}")
    if report.checkpoint is not None:
        lines.append(f"checkpoint   {report.checkpoint}")
    return "\n".join(lines)


# ``leconvert probe train-lerobot``.


def add_train_lerobot_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="DATASET=SHARE",
        help="also train on this dataset (a folder or URL), with this share of all samples, such "
        "as 0.3; put it before --; may be given several times",
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="ARGUMENT",
        help="the arguments for lerobot-train, after --",
    )


def run_train_lerobot(options: argparse.Namespace) -> int:
    """Train."""
    start_with_ffmpeg()
    from leconvert.bench import train_with_lerobot

    train_with_lerobot(options.arguments, also=[_share(text) for text in options.also])
    return 0


def _share(text: str) -> tuple[str, float]:
    dataset, _, share = text.rpartition("=")
    try:
        value = float(share)
    except ValueError:
        value = math.nan
    if not dataset or not 0 < value < 1:
        raise UsageError(
            f"--also takes DATASET=SHARE with a share between 0 and 1, such as my_dataset=0.3, not "
            f"{text!r}."
        )
    return dataset, value

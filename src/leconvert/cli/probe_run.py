"""``leconvert probe run``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leconvert.cli.parser import Parser
from leconvert.cli.probe_options import (
    DEFAULT_OUT_DIR,
    USUAL_OPTIONS,
    add_run_options,
    run_options,
)
from leconvert.cli.progress import progress_for


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = USUAL_OPTIONS
    add_run_options(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, write the result, and say what it is."""
    from leconvert.bench import (
        draw_plots,
        failure_of,
        require_matplotlib,
        run_name,
        run_probe,
        summarize,
        write_document,
    )

    wanted = run_options(options)
    if options.plots:
        require_matplotlib()
    out_dir = Path(options.out_dir or DEFAULT_OUT_DIR)
    document = run_probe(wanted, results_dir=out_dir, progress=progress_for(quiet=options.json))
    path = write_document(document, out_dir, run_name(document["options"]))
    if options.plots:
        draw_plots(summarize([document]), out_dir, path.stem)
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        print("\n".join(_lines(document)))
        print(f"Written to {path} and {path.with_suffix('.csv').name}.", file=sys.stderr)
    failure = failure_of(document)
    if failure is not None:
        print(f"leconvert: {failure.message}", file=sys.stderr)
        for line in failure.details:
            print(f"  {line}", file=sys.stderr)
        return failure.exit_code
    return 0


def _lines(document: Mapping[str, Any]) -> list[str]:
    """Return what a person wants to know of a result."""
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

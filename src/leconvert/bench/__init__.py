"""Benchmarks of the library: loaders (``probe``), and resampling.

`Comparison` and `compare_with_map` are public. The other names are for the command line, the
report, and ``convert --probe``.
"""

from typing import TYPE_CHECKING

from leconvert.support.extras import lazy_names

if TYPE_CHECKING:
    from leconvert.bench.decoding import diagnose_decoding, run_limit
    from leconvert.bench.environment import (
        host_record,
        package_version,
        require_packages,
        start_again_with_ffmpeg,
        usable_gpus,
    )
    from leconvert.bench.lerobot_training import train_with_lerobot
    from leconvert.bench.loaders import open_stream_loader
    from leconvert.bench.options import (
        ResampleOptions,
        Resources,
        RunOptions,
        TrainOptions,
        dataset_place,
    )
    from leconvert.bench.resampling import everything, run_resample
    from leconvert.bench.results import (
        SummaryLine,
        check_results_dir,
        draw_plots,
        draw_resampling,
        probe_result,
        require_matplotlib,
        result_tables,
        results_below,
        summarize,
        write_document,
        write_table,
    )
    from leconvert.bench.run import Comparison, compare_with_map, failure_of, run_probe
    from leconvert.bench.submit import (
        Job,
        asked_resources,
        chain_script,
        parse_places,
        plan_matrix,
        plan_scenarios,
        submit_chain,
        summary_job,
        training_job,
    )
    from leconvert.bench.training import StepFacts, TrainReport, train

__all__ = [
    "Comparison",
    "Job",
    "ResampleOptions",
    "Resources",
    "RunOptions",
    "StepFacts",
    "SummaryLine",
    "TrainOptions",
    "TrainReport",
    "asked_resources",
    "chain_script",
    "check_results_dir",
    "compare_with_map",
    "dataset_place",
    "diagnose_decoding",
    "draw_plots",
    "draw_resampling",
    "everything",
    "failure_of",
    "host_record",
    "open_stream_loader",
    "package_version",
    "parse_places",
    "plan_matrix",
    "plan_scenarios",
    "probe_result",
    "require_matplotlib",
    "require_packages",
    "result_tables",
    "results_below",
    "run_limit",
    "run_probe",
    "run_resample",
    "start_again_with_ffmpeg",
    "submit_chain",
    "summarize",
    "summary_job",
    "train",
    "train_with_lerobot",
    "training_job",
    "usable_gpus",
    "write_document",
    "write_table",
]

_NAMES = {
    "decoding": ("diagnose_decoding", "run_limit"),
    "environment": (
        "host_record",
        "package_version",
        "require_packages",
        "start_again_with_ffmpeg",
        "usable_gpus",
    ),
    "lerobot_training": ("train_with_lerobot",),
    "loaders": ("open_stream_loader",),
    "options": ("ResampleOptions", "Resources", "RunOptions", "TrainOptions", "dataset_place"),
    "resampling": ("everything", "run_resample"),
    "results": (
        "SummaryLine",
        "check_results_dir",
        "draw_plots",
        "draw_resampling",
        "probe_result",
        "require_matplotlib",
        "result_tables",
        "results_below",
        "summarize",
        "write_document",
        "write_table",
    ),
    "run": ("Comparison", "compare_with_map", "failure_of", "run_probe"),
    "submit": (
        "Job",
        "asked_resources",
        "chain_script",
        "parse_places",
        "plan_matrix",
        "plan_scenarios",
        "submit_chain",
        "summary_job",
        "training_job",
    ),
    "training": ("StepFacts", "TrainReport", "train"),
}

__getattr__ = lazy_names(__name__, _NAMES, title="The probe")


def __dir__() -> list[str]:
    return sorted(__all__)

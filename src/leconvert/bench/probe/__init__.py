"""What measures loaders: throughput, limits, and whether each sample is the right one.

`Comparison` and `compare_with_map` are for everybody; the other names are for the command line, for
resampling, and for ``convert --probe``.
"""

from typing import TYPE_CHECKING

from leconvert.support.lazy import lazy_names

if TYPE_CHECKING:
    from leconvert.bench.probe.child import probe_result
    from leconvert.bench.probe.compare import Comparison, compare_with_map
    from leconvert.bench.probe.diagnose import diagnose_decoding
    from leconvert.bench.probe.environment import (
        host_record,
        package_version,
        require_packages,
        start_again_with_ffmpeg,
        usable_gpus,
        versions_record,
    )
    from leconvert.bench.probe.lerobot_training import train_with_lerobot
    from leconvert.bench.probe.limit import failure_of, run_limit
    from leconvert.bench.probe.measured import open_stream_loader
    from leconvert.bench.probe.options import (
        SCENARIOS,
        ResourceChanges,
        Resources,
        RunOptions,
        dataset_place,
        parse_resource_changes,
        parse_scenarios,
    )
    from leconvert.bench.probe.results import (
        SummaryLine,
        begin_document,
        draw_plots,
        require_matplotlib,
        results_below,
        run_name,
        summarize,
        write_document,
        write_table,
    )
    from leconvert.bench.probe.run import run_probe
    from leconvert.bench.probe.submit import (
        Job,
        chain_script,
        parse_matrix,
        parse_places,
        plan_matrix,
        plan_scenarios,
        submit_chain,
        summary_job,
        training_job,
    )
    from leconvert.bench.probe.training import StepFacts, TrainOptions, TrainReport, train

__all__ = [
    "SCENARIOS",
    "Comparison",
    "Job",
    "ResourceChanges",
    "Resources",
    "RunOptions",
    "StepFacts",
    "SummaryLine",
    "TrainOptions",
    "TrainReport",
    "begin_document",
    "chain_script",
    "compare_with_map",
    "dataset_place",
    "diagnose_decoding",
    "draw_plots",
    "failure_of",
    "host_record",
    "open_stream_loader",
    "package_version",
    "parse_matrix",
    "parse_places",
    "parse_resource_changes",
    "parse_scenarios",
    "plan_matrix",
    "plan_scenarios",
    "probe_result",
    "require_matplotlib",
    "require_packages",
    "results_below",
    "run_limit",
    "run_name",
    "run_probe",
    "start_again_with_ffmpeg",
    "submit_chain",
    "summarize",
    "summary_job",
    "train",
    "train_with_lerobot",
    "training_job",
    "usable_gpus",
    "versions_record",
    "write_document",
    "write_table",
]

_NAMES = {
    "child": ("probe_result",),
    "compare": (
        "Comparison",
        "compare_with_map",
    ),
    "diagnose": ("diagnose_decoding",),
    "environment": (
        "host_record",
        "package_version",
        "require_packages",
        "start_again_with_ffmpeg",
        "usable_gpus",
        "versions_record",
    ),
    "lerobot_training": ("train_with_lerobot",),
    "limit": (
        "failure_of",
        "run_limit",
    ),
    "measured": ("open_stream_loader",),
    "options": (
        "SCENARIOS",
        "ResourceChanges",
        "Resources",
        "RunOptions",
        "dataset_place",
        "parse_resource_changes",
        "parse_scenarios",
    ),
    "results": (
        "SummaryLine",
        "begin_document",
        "draw_plots",
        "require_matplotlib",
        "results_below",
        "run_name",
        "summarize",
        "write_document",
        "write_table",
    ),
    "run": ("run_probe",),
    "submit": (
        "Job",
        "chain_script",
        "parse_matrix",
        "parse_places",
        "plan_matrix",
        "plan_scenarios",
        "submit_chain",
        "summary_job",
        "training_job",
    ),
    "training": (
        "StepFacts",
        "TrainOptions",
        "TrainReport",
        "train",
    ),
}

__getattr__ = lazy_names(__name__, _NAMES, title="The probe")


def __dir__() -> list[str]:
    return sorted(__all__)

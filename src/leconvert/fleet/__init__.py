"""Many datasets in one command: lists of datasets, one pool of workers, and the outcome of each.

    from leconvert import fleet

    done = fleet.run(["recordings/may/*", "ORG/NAME"], output_dir="converted", work_dir="fleet")
    print(done.counts, [one.message for one in done.set_aside])

`run` converts the datasets. `status` shows the progress, also while workers of other hosts run.
`work_on_fleet` adds a worker, and `submit` adds workers as jobs of a scheduler. `run` consists of
`fleet_datasets`, `plan_fleet` and `convert_fleet`; `read_list` reads the datasets from a file.
"""

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from leconvert.fleet.lists import (
    FleetDataset,
    FoundDataset,
    Line,
    Policy,
    PolicyRule,
    find_datasets,
    find_on_hub,
    fleet_datasets,
    look_at_datasets,
    read_list,
    read_policy,
)
from leconvert.fleet.overview import (
    DatasetState,
    DatasetStatus,
    FleetObserver,
    FleetPrice,
    FleetStatus,
    PricedDataset,
    alike,
    price_fleet,
    status,
    write_fleet_report,
)
from leconvert.fleet.suggest import SuggestedRule, Suggestion, suggest_policy
from leconvert.fleet.work import (
    Fleet,
    FleetSummary,
    FleetWorker,
    check_fleet,
    clean_fleet,
    convert_fleet,
    open_fleet,
    plan_fleet,
    submit,
    work_on_fleet,
)
from leconvert.run.conversion import Control, Conversion
from leconvert.support.flags import several
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.transfer.names import HubName

__all__ = [
    "DatasetState",
    "DatasetStatus",
    "Fleet",
    "FleetDataset",
    "FleetObserver",
    "FleetPrice",
    "FleetStatus",
    "FleetSummary",
    "FleetWorker",
    "FoundDataset",
    "HubName",
    "Line",
    "Policy",
    "PolicyRule",
    "PricedDataset",
    "SuggestedRule",
    "Suggestion",
    "alike",
    "check_fleet",
    "clean_fleet",
    "convert_fleet",
    "find_datasets",
    "find_on_hub",
    "fleet_datasets",
    "look_at_datasets",
    "open_fleet",
    "plan_fleet",
    "price_fleet",
    "read_list",
    "read_policy",
    "run",
    "status",
    "submit",
    "suggest_policy",
    "work_on_fleet",
    "write_fleet_report",
]


def run(
    datasets: Iterable[str | os.PathLike[str] | Line],
    *,
    work_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str] | None = None,
    conversion: Conversion = Conversion(),
    policy: Policy = Policy(),
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> FleetStatus:
    """Convert all datasets that can be converted, and set the others aside.

    The same call continues after an interruption. Once everything is done, it skips unchanged
    datasets and converts new and changed ones.

    Args:
        datasets: Folders, globs and names on the Hub (``ORG/NAME`` or ``ORG/NAME@REV``). A `Line`
            gives a dataset a name or options of its own; they replace those of ``conversion``.
            Relative paths start from the current folder.
        work_dir: The folder for the state of the fleet, which all workers share. It is kept.
        output_dir: The folder in which each result gets a folder of its name; None if all results
            go to the Hub only.
        conversion: How each dataset is converted, and the workers. In ``push.repo_id`` the text
            ``{name}`` stands for the last part of the dataset's name; None means the repo that the
            dataset came from.
        policy: The repairs and findings that are allowed if a scan finds errors.
        stop: Set it from another thread to stop.
        progress: Receives the progress.

    Returns:
        The outcome of each dataset. If ``is_settled`` is false, workers ended before all datasets
        were settled, and the same call continues.

    Raises:
        LeconvertError: A subclass names the problem. A problem with one dataset raises nothing: the
            dataset is set aside.
    """
    given = [
        one if isinstance(one, Line) else Line(os.fspath(one), options=conversion)
        for one in several("datasets", datasets)
    ]
    found = fleet_datasets(
        given, None if output_dir is None else Path(output_dir).resolve(), say=progress.say
    )
    fleet = plan_fleet(found, work_dir, policy=policy, plan=conversion.plan, progress=progress)
    convert_fleet(fleet, conversion, Control(stop=stop or threading.Event(), progress=progress))
    return FleetObserver(fleet).look()

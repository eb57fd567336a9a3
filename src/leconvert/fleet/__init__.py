"""Many datasets in one command: lists of them, one pool of workers, and what became of each.

    from leconvert import fleet

    done = fleet.run(["recordings/may/*", "ORG/NAME"], output_dir="converted", work_dir="fleet")
    print(done.counts, [one.message for one in done.set_aside])

`run` converts what is named, and `status` looks, also while workers of other hosts are at it;
`work_on_fleet` joins, and `submit` lets jobs of a scheduler join. They are made of `read_list` and
`fleet_datasets`, which say which datasets there are, `plan_fleet` and `convert_fleet`.
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
    fleet_status,
    price_fleet,
    write_fleet_report,
)
from leconvert.fleet.suggest import SuggestedRule, Suggestion, suggest_policy
from leconvert.fleet.work import (
    Fleet,
    FleetSummary,
    FleetWorker,
    check_fleet_places,
    check_fleet_pushes,
    clean_fleet,
    convert_fleet,
    open_fleet,
    plan_fleet,
    submit,
    work_on_fleet,
)
from leconvert.run.conversion import Control, Conversion
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
    "check_fleet_places",
    "check_fleet_pushes",
    "clean_fleet",
    "convert_fleet",
    "find_datasets",
    "find_on_hub",
    "fleet_datasets",
    "fleet_status",
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
    """Convert all datasets that can be, and set the others aside.

    The same call goes on with what was interrupted; when all is done, it passes over what is
    unchanged, and converts what is new or changed.

    Args:
        datasets: Folders, globs and names on the Hub (``ORG/NAME`` or ``ORG/NAME@REV``); a `Line`
            where one has a name or options of its own, which stand for those of ``conversion``.
            Paths that are not absolute start from the current folder.
        work_dir: The folder for the state of the fleet, which all workers share; it stays.
        output_dir: The folder in which each result gets a folder of its name; None where all go to
            the Hub alone.
        conversion: How each dataset is converted, and who works. In ``push.repo_id`` the text
            ``{name}`` stands for the last part of the dataset's name, and None is where the dataset
            came from.
        policy: What may be repaired or accepted where a scan finds errors.
        stop: Set it from another thread to stop.
        progress: Where to report.

    Returns:
        What became of each dataset. Where ``is_settled`` is false workers ended before all was
        dealt with, and the same call goes on.

    Raises:
        LeconvertError: One of its subclasses. What is wrong with one dataset raises nothing: it is
            set aside.
    """
    given = [
        one if isinstance(one, Line) else Line(os.fspath(one), options=conversion)
        for one in datasets
    ]
    found = fleet_datasets(
        given, None if output_dir is None else Path(output_dir).resolve(), say=progress.say
    )
    fleet = plan_fleet(found, work_dir, policy=policy, plan=conversion.plan, progress=progress)
    convert_fleet(fleet, conversion, Control(stop=stop or threading.Event(), progress=progress))
    return FleetObserver(fleet).look()


def status(work_dir: str | os.PathLike[str]) -> FleetStatus:
    """Look at a fleet once; writes nothing and takes no lock.

    Raises:
        WorkDirError: The folder holds no fleet.
    """
    return fleet_status(Path(work_dir).resolve())

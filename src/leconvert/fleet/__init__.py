"""Many datasets in one command: lists of them, one pool of workers, and what became of each.

`read_list` and `find_datasets` say which datasets there are, `plan_fleet` and `convert_fleet`
convert them, `work_on_fleet` joins from any host, and `fleet_status` looks.
"""

from leconvert.fleet.lists import (
    DatasetOptions,
    FleetDataset,
    FoundDataset,
    Policy,
    PolicyRule,
    find_datasets,
    look_at_datasets,
    read_list,
    read_policy,
)
from leconvert.fleet.status import (
    DatasetState,
    DatasetStatus,
    FleetObserver,
    FleetPrice,
    FleetStatus,
    PricedDataset,
    fleet_status,
    price_fleet,
    write_fleet_report,
)
from leconvert.fleet.work import (
    Fleet,
    FleetSummary,
    FleetWorker,
    check_fleet_places,
    convert_fleet,
    open_fleet,
    plan_fleet,
    work_on_fleet,
)

__all__ = [
    "DatasetOptions",
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
    "Policy",
    "PolicyRule",
    "PricedDataset",
    "check_fleet_places",
    "convert_fleet",
    "find_datasets",
    "fleet_status",
    "look_at_datasets",
    "open_fleet",
    "plan_fleet",
    "price_fleet",
    "read_list",
    "read_policy",
    "work_on_fleet",
    "write_fleet_report",
]

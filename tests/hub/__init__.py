"""A Hub of our own on loopback, which the real ``huggingface_hub`` client talks to.

    with StandIn(folder) as hub:
        hub.add_repo("tester/dataset", dataset_folder, tags=("v2.1",))
        HfApi(endpoint=hub.endpoint, token=WRITE_TOKEN).dataset_info("tester/dataset")

Everything lies in ``folder`` (`store`), every request is logged, and rules break requests
(`faults`). It imitates what the client asks for, not the Hub's inside: no rendering, no search,
no git protocol, and a pull request is merged file by file.
"""

from tests.hub.access import OTHER_TOKEN, READ_TOKEN, WRITE_TOKEN
from tests.hub.faults import Fault
from tests.hub.handler import LoggedRequest
from tests.hub.standin import Limits, StandIn

__all__ = [
    "OTHER_TOKEN",
    "READ_TOKEN",
    "WRITE_TOKEN",
    "Fault",
    "Limits",
    "LoggedRequest",
    "StandIn",
]

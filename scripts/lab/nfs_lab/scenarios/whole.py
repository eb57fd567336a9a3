"""One whole conversion of a large dataset over all hosts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from lab_kit import Row, demand

from nfs_lab.scenarios.ground import Ground
from nfs_lab.scenarios.power import check_same

__all__ = ["whole_conversion"]


def whole_conversion(ground: Ground) -> Iterator[Row]:
    """Plan, work on every host, pack with ``--verify bytes``, verify once more elsewhere."""
    hosts = ground.all_on()
    original = ground.large()
    conversion = ground.conversion("whole", original, 10)
    # On the share, as users have it: there a file system that shares extents can do so.
    source = conversion.source = f"{conversion.folder}/source"
    hosts[0].shell(f"mkdir -p {conversion.folder} && cp -r {original} {source}")
    began = time.monotonic()
    conversion.plan(hosts[0])
    workers = conversion.work_together(hosts)
    packer = conversion.pack(hosts[0], "--verify", "bytes")
    summaries = [json.loads(worker.finish().out) for worker in workers]
    report = json.loads(packer.finish().out)
    seconds = time.monotonic() - began
    conversion.check_published_once()
    demand(report["verified"] == "bytes", f"The packer verified {report['verified']}.")
    conversion.leconvert(hosts[-1], "verify", conversion.target(), "--source", source, "--bytes")
    check_same(ground, conversion, hosts[-1], source=original)
    shares = " : ".join(str(summary["batches_done"]) for summary in summaries)
    cloned = report["cloned_bytes"] / 2**20
    yield Row(
        "whole conversion",
        f"{Path(original).name}, {conversion.batches} batches, {len(hosts)} hosts, "
        f"{ground.lab.options.file_system}",
        f"{seconds:.1f} s from plan to swap; batches a host {shares}; {cloned:.0f} MiB shared, "
        f"{report['copied_bytes'] / 2**20:.0f} MiB copied by workers; `verify --bytes` on another "
        "host passes; same digest as without NFS",
    )
    conversion.remove()

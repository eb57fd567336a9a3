"""Several hosts want the same thing at the same moment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from lab_kit import Row, demand

from nfs_lab.scenarios.ground import Ground
from nfs_lab.scenarios.losses import lose_a_worker

_CONTESTS = 200
_BRIEF_CONTESTS = 40
_CHANGED = 4
_NO_RUN = 7


def brief(ground: Ground) -> Iterator[Row]:
    """Race for claims, then convert with the loss of a host in mid-batch: the lab in a minute."""
    first, second, *_ = ground.all_on()
    claims = ground.race("claims", _BRIEF_CONTESTS, [first, second])
    _check_each_won_once(claims, _BRIEF_CONTESTS)
    yield Row(
        "brief",
        f"2 hosts claim the same {_BRIEF_CONTESTS} batches in the same moments",
        f"each claimed once; shares {_shares(claims)}",
    )
    yield lose_a_worker(ground, lease_seconds=3.0)


def races(ground: Ground) -> Iterator[Row]:
    """Race for claims, and for publications."""
    hosts = ground.all_on()
    claims = ground.race("claims", _CONTESTS, hosts)
    _check_each_won_once(claims, _CONTESTS)
    yield Row(
        "races",
        f"{len(hosts)} hosts claim the same {_CONTESTS} batches in the same moments",
        f"each claimed once; shares {_shares(claims)}",
    )

    published = ground.race("publications", _CONTESTS, hosts)
    _check_each_won_once(published, _CONTESTS)
    records = ground.lab.server.shell(
        f"cd /mnt/disk/export/race-publications-{_CONTESTS}/runs/races/done && ls | wc -l && "
        "cat *.json"
    )
    count, _, rest = records.partition("\n")
    winners = Counter(_tokens(rest))
    demand(
        int(count) == _CONTESTS
        and winners == Counter({one["token"]: len(one["won"]) for one in published if one["won"]}),
        "The records of `done` do not name those who were told that they won.",
    )
    yield Row(
        "races",
        f"{len(hosts)} hosts hold the same {_CONTESTS} batches and publish them in the same "
        "moments",
        f"each published once, 0 double; shares {_shares(published)}",
    )


def changed_source(ground: Ground) -> Iterator[Row]:
    """Change a file of the source on another host after the proof, right before the swap."""
    for number, (how, change) in enumerate(
        (
            ("overwritten in place, same size", "printf x | dd of={} bs=1 seek=99 conv=notrunc"),
            ("moved aside, and another one put there", "mv {0} {0}.mine && cp {0}.mine {0}"),
        )
    ):
        first, second, *_ = ground.all_on()
        conversion = ground.conversion(f"changed-{number}", ground.small())
        conversion.plan(first, in_place=True)
        conversion.work(second).finish()
        packer = conversion.pack(
            first, "--delete-source", halt="leconvert.run.packer.run:swap_into_place#1"
        )
        packer.wait_for("halted")
        clips = second.shell(f"find {conversion.source}/videos -name episode_000003.mp4").split()
        second.shell(change.format(clips[0]))
        packer.go_on()
        packer.finish(_CHANGED)
        names = sorted(second.shell(f"ls -A {conversion.folder}/dataset/meta").split())
        demand("episodes.jsonl" in names, f"The source is not in its place: {names}")
        conversion.remove()
        yield Row(
            "changed source",
            f"a clip is {how}, on another host, between the proof and the swap of "
            "`pack --delete-source`",
            f"the swap is refused (exit {_CHANGED}), the source stays",
        )


def _check_each_won_once(reports: list[dict[str, Any]], contests: int) -> None:
    won = Counter(batch for report in reports for batch in report["won"])
    demand(
        won == Counter(range(contests)),
        f"Batches won by none or by several: {[b for b in range(contests) if won[b] != 1]}",
    )


def _shares(reports: list[dict[str, Any]]) -> str:
    return " : ".join(str(len(report["won"])) for report in reports)


def _tokens(records: str) -> Iterator[str]:
    decoder = json.JSONDecoder()
    rest = records.strip()
    while rest:
        record, end = decoder.raw_decode(rest)
        yield record["token"]
        rest = rest[end:].strip()


def late_names(ground: Ground) -> Iterator[Row]:
    """Look for a plan and a result in vain, and again as soon as another host has made them."""
    first, second, *_ = ground.all_on()
    conversion = ground.conversion("late", ground.small())
    second.shell(f"mkdir -p {conversion.work_dir}")
    conversion.leconvert(second, "work", conversion.work_dir, codes=(_NO_RUN,))
    second.shell(f"! test -e {conversion.target()}")
    conversion.plan(first)
    attempts = f"{conversion.work_dir}/runs/*/attempts"
    for batch_id in range(conversion.batches):
        first.shell(f"! test -e $(echo {attempts})/{batch_id:06d}")
    conversion.work(second).finish()
    conversion.check_published_once()
    conversion.pack(first).finish()
    arguments = ("verify", conversion.target(), "--source", conversion.source)
    conversion.leconvert(second, *arguments)
    conversion.remove()
    yield Row(
        "late names",
        "a worker starts before there is a plan and again at once after; the packer's host looked "
        "for the workers' folders in vain; `verify` on a host that looked for the result in vain",
        "the worker finds the plan at once, the packer what the workers wrote, `verify` the result",
    )

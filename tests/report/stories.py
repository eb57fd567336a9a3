"""Stories made to order: large, troubled, hostile."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from leconvert.model.repairs import DroppedEpisode, Repairs
from leconvert.model.values import Finding
from leconvert.report.values import (
    Attempt,
    AttemptEnd,
    BatchCounts,
    Packer,
    RunReport,
    StoryState,
    StreamFigures,
    Verification,
)
from leconvert.workdir.activity import Invocation

__all__ = ["BEGIN", "HOSTILE", "run_story"]

BEGIN = datetime(2026, 3, 1, 9, 0, tzinfo=UTC).timestamp()
HOSTILE = (
    "<script>document.title='owned'</script>\"'><img src=x onerror=alert(1)>&\u202egnp\x00\udcff"
)
TOKEN = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz"


def run_story(
    *,
    batches: int = 120,
    hosts: int = 3,
    workers_a_host: int = 4,
    name: str = "aloha_pick_and_place",
    trouble: bool = True,
    overnight: bool = False,
) -> RunReport:
    """Return a run as it might have been, the same for the same arguments."""
    dice = random.Random(7)
    workers = [
        (f"node{host:02d}.cluster", 4000 + 17 * number)
        for host in range(hosts)
        for number in range(workers_a_host)
    ]
    free = [BEGIN + dice.random() for _ in workers]
    attempts = []
    for batch in range(batches):
        size = int(dice.lognormvariate(18.5, 0.7))
        generation = 1
        while True:
            place = min(range(len(free)), key=free.__getitem__)
            host, pid = workers[place]
            seconds = size / 1.5e8 * dice.uniform(0.7, 1.6)
            end = AttemptEnd.DONE
            if trouble and generation == 1 and batch % 23 == 11:
                end = (AttemptEnd.ERROR, AttemptEnd.LOST, AttemptEnd.HANDED_BACK,
                       AttemptEnd.LATE, AttemptEnd.VOID)[batch // 23 % 5]  # fmt: skip
            attempts.append(
                Attempt(
                    batch_id=batch, generation=generation, token=f"{host}-{pid}-{place:08x}",
                    host=host, pid=pid, end=end, began=free[place], ended=free[place] + seconds,
                    seconds=round(seconds, 3), source_bytes=size, frames=size // 9000,
                    message="" if end is AttemptEnd.DONE
                    else f"{name}/videos/chunk-000/episode_{batch:06d}.mp4 is cut off.",
                )
            )  # fmt: skip
            free[place] += seconds + dice.uniform(0.005, 0.05)
            if overnight and batch == batches // 2 and generation == 1:
                free = [time + 14 * 3600 for time in free]
            if end is AttemptEnd.DONE:
                break
            generation += 1
    last = max(a.ended for a in attempts if a.ended)
    total = sum(a.source_bytes for a in attempts if a.end is AttemptEnd.DONE)
    packer = Packer(
        1, workers[0][0], 3999, "finished",
        {"began": BEGIN, "packing": last, "swapping": last + 3, "finished": last + 3.4},
    )  # fmt: skip
    versions = {"python": "3.12.11", "leconvert": "0.1.0", "av": "15.1.0", "numpy": "2.2.6",
                "pyarrow": "26.0.1"}  # fmt: skip
    invocations = [
        Invocation("convert", ["leconvert", "convert", "--root", f"/data/{name}", "--token",
                               TOKEN, f"--output=/data/{name}_v30"],
                   "t0", workers[0][0], 3999, "2026-03-01T09:00:00.000+00:00", versions,
                   "/home/me", "Linux 6.8.0 x86_64", 32, 0.01),
        *(Invocation("work", ["leconvert", "work", "/data/work"], f"t{n}", host, pid,
                     "2026-03-01T09:00:01.000+00:00", versions, "/data", "Linux 6.8.0 x86_64", 32,
                     35.2 if host.startswith("node01") else 0.02)
          for n, (host, pid) in enumerate(workers, 1)),
    ]  # fmt: skip
    findings = [
        Finding("stale-total", "warning", "info.json says 1,201 episodes; there are 1,200.",
                remedy="nothing to do: totals are counted anew"),
        *(Finding("frame-count", "repaired", f"The clip of episode {n} has a frame too few.",
                  episode=n, stream="videos/observation.images.top",
                  remedy="--on-bad-episode drop") for n in (17, 311)),
    ]  # fmt: skip
    return RunReport(
        name=name,
        state=StoryState.FINISHED,
        generated=datetime(2026, 3, 1, 12, 0, tzinfo=UTC),
        target=f"/data/{name}_v30",
        sources=[f"/data/{name}"],
        work_dir="/data/work",
        run_id="20260301T090000-abcdef",
        episodes=1198,
        frames=512_345,
        fps="30",
        streams=[
            StreamFigures("data", 1198, total // 50, 3, 3, total // 51),
            StreamFigures("videos/observation.images.top", 1198, total // 2, 60, 60, total // 2),
            StreamFigures("videos/observation.images.wrist_left_with_a_long_name", 1198,
                          total // 3, 40, 40, total // 3),
        ],
        other_files=6,
        other_bytes=1_234_567,
        options={"data_file_size_in_mb": 100, "video_file_size_in_mb": 200, "block_align": "auto"},
        findings=findings,
        repairs=Repairs(dropped_episodes=(DroppedEpisode(17, "frame-count"),
                                          DroppedEpisode(311, "frame-count"))),
        verification=Verification(
            "bytes", True,
            {"files": 103, "episodes": 1198, "rows": 512_345, "video_frames": 1_024_690}, 21.4,
        ),
        batches=BatchCounts(batches, batches, 0, 0),
        attempts=attempts,
        packers=[packer],
        invocations=invocations,
        planned_versions=versions,
        clocks={host: 35.2 if host.startswith("node01") else 0.0 for host, _ in workers},
        cloned_bytes=0,
        copied_bytes=total,
        probe={"samples_per_s": 1234.5, "frames_per_s_node": 2469.0, "first_batch_latency_s": 1.31,
               "options": {"loader": "stream", "batch_size": 64, "num_workers": 4}},
    )  # fmt: skip

"""One conversion on the share: plan on one host, work on some, pack on another, and look at it."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lab_kit import LabError, demand, run_tool, wait_until
from nfs_hosts import INSIDE, LOOK_SECONDS, MAILBOX, MOUNT, SHARED, Command, Finished, Guest, NfsLab

from leconvert.api import convert
from leconvert.support.errors import BusyError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.testing.dataset import RandomLengths

_EVENT_SECONDS = 120.0
_START_SECONDS = 5.0
# Listed first: an NFS client that once looked in vain believes that for half a minute.
_DIGEST = (
    "set -o pipefail; ls {above} >/dev/null && cd {root} && "
    "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
)


def _short(episodes: int, cameras: int) -> DatasetSpec:
    keys = ("observation.images.top", "observation.images.wrist")[:cameras]
    return DatasetSpec(
        episodes=episodes,
        frames=RandomLengths(seed=7, minimum=6, maximum=24),
        cameras=[CameraSpec(key=key, width=64, height=48) for key in keys],
    )


_CAMERA = CameraSpec(
    width=640, height=480, options={"preset": "ultrafast"}, noise_amplitude=48,
    target_clip_bytes=3_100_000,
)  # fmt: skip
_DATASETS = {
    "small": _short(episodes=12, cameras=2),
    "many": _short(episodes=100, cameras=1),
    # 38 MB, of twelve episodes as long as a robot's.
    "large": DatasetSpec(episodes=12, frames=360, cameras=(_CAMERA,), distinct_clips=2),
}


class Ground:
    """A lab with datasets, and the bytes to expect of their conversions."""

    def __init__(self, lab: NfsLab) -> None:
        self.lab = lab
        self._digests: dict[str, str] = {}

    def all_on(self) -> list[Guest]:
        """Give power to every host that an earlier scenario left without, and return the clients.

        A frozen host is thawed.
        """
        for guest in (self.lab.server, *self.lab.clients):
            if guest.is_on:
                guest.thaw()
            else:
                guest.boot()
        return self.lab.clients

    def dataset(self, name: str) -> str:
        """Return the path of a dataset as guests see it, and make it if it is missing."""
        if not (self.lab.shared / name).exists():
            make_dataset(self.lab.shared / name, _DATASETS[name])
        return f"{SHARED}/{name}"

    def digest_of(self, name: str) -> str:
        """Return the digest of a quiet conversion of a dataset, without NFS."""
        if name not in self._digests:
            with TemporaryDirectory(prefix="leconvert-quiet-") as folder:
                convert(self.lab.shared / name, output=Path(folder, "out"))
                script = _DIGEST.format(above=folder, root=f"{folder}/out")
                self._digests[name] = run_tool(["bash", "-c", script])
        return self._digests[name]

    def race(
        self, folder: str, kind: str, batches: int, hosts: Sequence[Guest]
    ) -> list[dict[str, Any]]:
        """Run one kind of ``races.py`` on several hosts at once; return the report of each."""
        # Holding every batch before the start takes a while, and Python's start does anyway.
        ahead = _START_SECONDS + (batches * 0.1 if kind == "publications" else 0)
        words = (kind, f"{MOUNT}/{folder}", batches, time.time() + ahead)
        command = (sys.executable, INSIDE / "races.py", *words)
        reports = []
        for one in [guest.start(*command) for guest in hosts]:
            done = one.wait()
            failed = f"races.py on {one.guest.name} failed: {done.stderr[-600:]}"
            demand(done.returncode == 0, failed)
            reports.append(json.loads(done.stdout))
        return reports


class Observed:
    """leconvert under way on a host, telling what its leases do; see ``observed_leconvert.py``."""

    def __init__(self, guest: Guest, command: Command, name: str) -> None:
        self.guest = guest
        self._command = command
        self._events = guest.mailbox / "events" / name

    def told(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """Return the events of one kind, with these fields, without a line that is not whole."""
        wanted = {"event": event, **fields}
        log = self._events.with_suffix(".jsonl")
        lines = log.read_text().splitlines(True) if log.exists() else []
        entries = [json.loads(line) for line in lines if line.endswith("\n")]
        return [entry for entry in entries if wanted.items() <= entry.items()]

    def wait_for(self, event: str, count: int = 1, **fields: object) -> None:
        """Wait until it told so ``count`` times."""

        def is_told() -> bool:
            has_ended = self._command.ended
            if len(self.told(event, **fields)) >= count:
                return True
            if has_ended:
                done = self._command.wait()
                where = f"leconvert on {self.guest.name} ended ({done.returncode}) before `{event}`"
                raise LabError(f"{where}: {done.stderr[-600:]}")
            return False

        self.guest.wait_until(is_told, _EVENT_SECONDS, f"`{event}`")

    def go_on(self) -> None:
        """Let it go on from where it halted (once its host runs)."""
        self._events.with_suffix(".go").touch()

    def finish(self, *codes: int) -> Finished:
        """Wait for its end with one of these exit codes, 0 if none are given, and no traceback."""
        return _checked(self._command, *codes)


def _checked(command: Command, *codes: int) -> Finished:
    done = command.wait()
    demand(
        done.returncode in (codes or (0,)) and "Traceback" not in done.stderr,
        f"leconvert on {command.guest.name} ended with {done.returncode}: {done.stderr[-1500:]}",
    )
    return done


class Conversion:
    """One conversion on the share.

    Args:
        ground: The lab and its datasets.
        name: Its folder on the share.
        dataset: The name of the dataset.
        lease_seconds: The lease time of its workers.
        in_place: Convert a copy of the dataset on the share, at its place.

    Attributes:
        source: The dataset, as the guests see it.
        target: The path of the result.
        batches: Batches of the plan, once there is one.
        observed: Every worker and packer that was started, dead or alive.
    """

    def __init__(
        self,
        ground: Ground,
        name: str,
        dataset: str = "small",
        lease_seconds: float = 4.0,
        *,
        in_place: bool = False,
    ) -> None:
        self.lease_seconds = lease_seconds
        self.folder = f"{MOUNT}/{name}"
        self.source = ground.dataset(dataset)
        self.target = f"{self.folder}/{'dataset' if in_place else 'out'}"
        self.work_dir = f"{self.folder}/work"
        self.batches = 0
        self.observed: list[Observed] = []
        self._ground, self._name, self._dataset, self._in_place = ground, name, dataset, in_place

    def copy_source(self, guest: Guest, name: str) -> None:
        """Copy the source to the share, beside the result."""
        copy = f"{self.folder}/{name}"
        guest.shell(f"mkdir -p {self.folder} && cp -r {self.source} {copy}")
        self.source = copy

    def plan(self, guest: Guest) -> None:
        """Plan on a host, a batch an episode."""
        output = [] if self._in_place else ["--output", self.target]
        guest.shell(f"mkdir -p {self.folder}")
        if self._in_place:
            self.copy_source(guest, "dataset")
        done = self.leconvert(
            guest, "plan", "--root", self.source, *output, "--work-dir", self.work_dir, "--json",
            "--episodes-per-batch", "1",
        )  # fmt: skip
        self.batches = json.loads(done.stdout)["batches"]

    def leconvert(self, guest: Guest, *arguments: str, codes: Sequence[int] = (0,)) -> Finished:
        """Run leconvert to its end on a host; it must end with one of these exit codes."""
        return _checked(guest.start(sys.executable, "-m", "leconvert", *arguments), *codes)

    def work(self, guest: Guest, *, halt: str | None = None) -> Observed:
        """Start a worker on a host, and have it halt where a place is given."""
        seconds = f"--lease-seconds={self.lease_seconds}"
        return self._start(guest, halt, "work", self.work_dir, seconds, "--json")

    def work_together(self, guests: Sequence[Guest]) -> list[Observed]:
        """Start a worker on each host; none begins before all hold a batch.

        Otherwise the first to wake up does everything.
        """
        halt = "leconvert.run.worker:ShardWriter.write#1"
        workers = [self.work(guest, halt=halt) for guest in guests]
        for worker in workers:
            worker.wait_for("halted")
        for worker in workers:
            worker.go_on()
        return workers

    def pack(self, guest: Guest, *options: str, halt: str | None = None) -> Observed:
        """Start the packer on a host, likewise."""
        return self._start(guest, halt, "pack", self.work_dir, "--json", *options)

    def pack_after_silence(self, guest: Guest) -> str:
        """Pack on a host while a silent one holds the packer's lock: one command, which waits."""
        began = time.monotonic()
        done = self.leconvert(guest, "pack", self.work_dir)
        seconds = time.monotonic() - began
        told = (
            "says for whom it waits" if "no sign of life" in done.stderr else "need not wait long"
        )
        return f"{told}, goes on by itself and is done after {seconds:.1f} s"

    def pack_beside_a_living_packer(self, guest: Guest) -> float:
        """Demand that a second packer is refused while the first lives; return after how long."""
        began = time.monotonic()
        self.leconvert(guest, "pack", self.work_dir, codes=(BusyError.exit_code,))
        return time.monotonic() - began

    def clean(self, guest: Guest) -> None:
        """Remove the finished run on a host, and demand that the work dir holds no file then."""
        self.leconvert(guest, "clean", self.work_dir)
        left = guest.shell(f"find {self.work_dir} -mindepth 1 2>/dev/null || true").split()
        demand(not left, f"`clean` left {left}")

    def won(self) -> Counter[int]:
        """Return how often each batch was published by those who said that they won."""
        told = (entry for each in self.observed for entry in each.told("published", outcome="won"))
        return Counter(entry["batch"] for entry in told)

    def wait_for_published(self, count: int) -> None:
        """Wait until so many batches are published."""
        what = f"Publication number {count}"
        wait_until(
            lambda: self.won().total() >= count, _EVENT_SECONDS, what, look_seconds=LOOK_SECONDS
        )

    def check_published_once(self) -> None:
        """Demand that every batch was published, and only once."""
        won = self.won()
        bad = [batch for batch in range(self.batches) if won[batch] != 1]
        demand(not bad and len(won) == self.batches, f"Published more or less than once: {bad}")

    def check_same(self, guest: Guest) -> None:
        """Demand that the result, as a host sees it, is the quiet run's, byte for byte."""
        script = _DIGEST.format(above=self.folder, root=shlex.quote(self.target))
        demand(
            guest.shell(script) == self._ground.digest_of(self._dataset),
            "The result differs from that of a quiet conversion.",
        )

    def pack_and_check(self, packer: Guest) -> None:
        """Demand that every batch was published once, and that packing gives the quiet bytes."""
        self.check_published_once()
        self.pack(packer).finish()
        self.check_same(packer)

    def _start(self, guest: Guest, halt: str | None, *arguments: str) -> Observed:
        name = f"{arguments[0]}-{len(self.observed)}-{self._name}"
        command = guest.start(
            sys.executable, INSIDE / "observed_leconvert.py", "--events", f"{MAILBOX}/events",
            "--name", name, *([] if halt is None else ["--halt", halt]), "--", *arguments,
        )  # fmt: skip
        self.observed.append(Observed(guest, command, name))
        return self.observed[-1]

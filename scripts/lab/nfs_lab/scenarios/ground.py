"""The ground of the scenarios: a lab, datasets that its hosts see, and the bytes to expect."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lab_kit import demand
from tree_digest import tree_digest

from leconvert.api import convert
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.testing.dataset import RandomLengths
from nfs_lab.conversion import Conversion
from nfs_lab.guest import INSIDE, Guest
from nfs_lab.lab import MOUNT, SHARED, NfsLab

_START_SECONDS = 5.0


class Ground:
    """A lab with datasets.

    Args:
        lab: A lab that is up.
    """

    def __init__(self, lab: NfsLab) -> None:
        self.lab = lab
        self._digests: dict[str, str] = {}

    @property
    def hosts(self) -> list[Guest]:
        """The clients; a scenario that needs them on calls `all_on` first."""
        return self.lab.clients

    def all_on(self) -> list[Guest]:
        """Give power to every host that an earlier scenario left without, and return the clients.

        A frozen host is thawed.
        """
        for guest in (self.lab.server, *self.hosts):
            if guest.is_on:
                guest.thaw()
            else:
                self.lab.boot(guest.name)
        return self.hosts

    def small(self) -> str:
        """Return a dataset of twelve short episodes and two cameras."""
        return self._short("small", episodes=12, cameras=2)

    def many(self) -> str:
        """Return a dataset of a hundred short episodes and one camera."""
        return self._short("many", episodes=100, cameras=1)

    def large(self) -> str:
        """Return a dataset of 38 MB, of twelve episodes as long as a robot's."""
        camera = CameraSpec(
            width=640,
            height=480,
            options={"preset": "ultrafast"},
            noise_amplitude=48,
            target_clip_bytes=3_100_000,
        )
        spec = DatasetSpec(episodes=12, frames=360, cameras=(camera,), distinct_clips=2)
        return self._generated("large", spec)

    def digest_of(self, source: str) -> str:
        """Return the digest of a quiet conversion, without NFS, of one of these datasets."""
        if source not in self._digests:
            with TemporaryDirectory(prefix="leconvert-quiet-") as folder:
                target = Path(folder) / "out"
                convert(self.lab.shared / Path(source).name, output=target)
                self._digests[source] = tree_digest(target)
        return self._digests[source]

    def conversion(self, name: str, source: str, lease_seconds: float = 4.0) -> Conversion:
        """Return a conversion in a fresh folder of the share."""
        return Conversion(self.lab, name, source, lease_seconds)

    def check_same(
        self,
        conversion: Conversion,
        guest: Guest,
        target: str | None = None,
        source: str | None = None,
    ) -> None:
        """Demand that the result, as a host sees it, is the quiet run's, byte for byte.

        Raises:
            ScenarioFailedError: It is not.
        """
        demand(
            conversion.digest(guest, target) == self.digest_of(source or conversion.source),
            "The result differs from that of a quiet conversion.",
        )

    def pack_and_check(
        self, conversion: Conversion, packer: Guest, reader: Guest | None = None
    ) -> None:
        """Demand that every batch was published once, and that packing gives the quiet run's bytes.

        Raises:
            ScenarioFailedError: It is not so.
        """
        conversion.check_published_once()
        conversion.pack(packer).finish()
        self.check_same(conversion, reader or packer)

    def race(self, kind: str, batches: int, hosts: Sequence[Guest]) -> list[dict[str, Any]]:
        """Run one kind of ``races.py`` on several hosts at once; see there.

        Returns:
            The report of each host.
        """
        folder = f"{MOUNT}/race-{kind}-{batches}"  # `brief` may have raced before
        # Holding every batch before the start takes a while, and Python's start does anyway.
        ahead = _START_SECONDS + (batches * 0.1 if kind == "publications" else 0)
        start = time.time() + ahead
        command = self.lab.python(INSIDE / "races.py", kind, folder, batches, start)
        started = [guest.start(command, environment=self.lab.environment()) for guest in hosts]
        reports = []
        for guest, one in zip(hosts, started, strict=True):
            done = one.wait()
            demand(done.code == 0, f"races.py on {guest.name} failed: {done.err[-600:]}")
            reports.append(json.loads(done.out))
        return reports

    def _short(self, name: str, *, episodes: int, cameras: int) -> str:
        keys = ("observation.images.top", "observation.images.wrist")[:cameras]
        spec = DatasetSpec(
            episodes=episodes,
            frames=RandomLengths(seed=7, minimum=6, maximum=24),
            cameras=[CameraSpec(key=key, width=64, height=48) for key in keys],
        )
        return self._generated(name, spec)

    def _generated(self, name: str, spec: DatasetSpec) -> str:
        if not (self.lab.shared / name).exists():
            make_dataset(self.lab.shared / name, spec)
        return f"{SHARED}/{name}"

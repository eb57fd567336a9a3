"""`leconvert submit` on hosts that share an NFS mount alone; see docs/lab.md."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from slurm_lab.over_nfs import SCENARIOS, build

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, tmp_path: Path) -> None:
    with build(Namespace(folder=tmp_path / "lab")) as (_, cluster):
        rows = list(SCENARIOS[name](cluster))
    assert rows
    assert all(row.outcome for row in rows)

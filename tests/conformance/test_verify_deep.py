"""``verify --deep``: samples as LeRobot's own dataset loads them, against the source."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.pictures import DATA, IMAGE, move_rows

import leconvert
from leconvert.model.repairs import RepairOptions
from leconvert.run.proof import Sampling, verify_pair


def test_samples_load_in_lerobot_as_the_source_says(
    picture_result: Path, picture_source: Path
) -> None:
    report = verify_pair(picture_result, picture_source, sampling=Sampling(deep=12))
    assert report.differences == ()
    assert report.samples == 12


def test_repaired_rows_are_expected_in_samples(picture_source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    leconvert.convert(
        picture_source, output=out, repairs=RepairOptions(retime=True, drop_features=(IMAGE,))
    )
    report = verify_pair(out, picture_source, sampling=Sampling(decode=4, deep=4))
    assert report.ok
    assert (report.pictures, report.samples) == (4, 4)


def test_what_lerobot_loads_from_a_wrong_row_is_found(
    picture_result: Path, picture_source: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(picture_result, tmp_path / "out"))
    move_rows(root, "observation.state", [1, 0, 2, 3, 4, 5, 6, 7])
    found = verify_pair(root, picture_source, sampling=Sampling(deep=1000)).differences
    assert [(each.what, each.path, each.episode) for each in found] == [
        (f"'observation.state' of sample {n} in LeRobot", DATA, 0) for n in (0, 1)
    ]

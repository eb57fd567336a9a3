"""Features that are called otherwise in the result: rows, clips, statistics and declarations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.dataset_damage import DATA, edit_json, rewrite

import leconvert
from leconvert import LayoutOptions, ProofOptions, RepairOptions, verify_pair
from leconvert.model.selection import EpisodeSelection
from leconvert.support.errors import SourceError, UsageError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

BYTES = ProofOptions(verify="bytes")
FRONT, TOP = "observation.images.front", "observation.images.top"
SPEC = DatasetSpec(
    episodes=3, frames=[5, 4, 6], cameras=(CameraSpec(key=FRONT, width=64, height=48),)
)
RENAMES = (f"{FRONT}={TOP}", "action=action.joints")


def made(folder: Path, version: str, spec: DatasetSpec = SPEC) -> Path:
    if version != "v3.0":
        return make_dataset(folder / version, replace(spec, codebase_version=version))
    return leconvert.convert(make_dataset(folder / "v21", spec), output=folder / version).output


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The dataset in each version; do not change them."""
    folder = tmp_path_factory.mktemp("named")
    return {version: made(folder, version) for version in ("v2.0", "v2.1", "v3.0")}


def info_of(root: Path) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((root / "meta/info.json").read_text())
    return info


def rows_of(root: Path) -> list[dict[str, Any]]:
    return [
        row for p in sorted(root.glob("data/*/*.parquet")) for row in pq.read_table(p).to_pylist()
    ]


@pytest.mark.parametrize(
    ("version", "to"), [("v2.0", "v3.0"), ("v2.1", "v2.1"), ("v3.0", "v3.0"), ("v3.0", "v2.1")]
)
def test_a_result_has_the_new_names_and_its_source_the_old(
    sources: dict[str, Path], tmp_path: Path, version: str, to: str
) -> None:
    source, out = sources[version], tmp_path / "out"
    leconvert.convert(
        source, output=out, layout=LayoutOptions(to=to),
        repairs=RepairOptions(rename_features=RENAMES), selection=EpisodeSelection(episodes="0-2"),
        proof=BYTES,
    )  # fmt: skip
    features = info_of(out)["features"]
    assert {TOP, "action.joints"} <= features.keys()
    assert not {FRONT, "action"} & features.keys()
    stats = json.loads((out / "meta/stats.json").read_text())
    assert stats.keys() == features.keys()
    assert list(out.glob(f"videos/**/{TOP}/**/*.mp4"))
    assert not list(out.glob(f"videos/**/{FRONT}"))
    plain = leconvert.convert(source, output=tmp_path / "plain", layout=LayoutOptions(to=to)).output
    expected = [
        {"action.joints" if key == "action" else key: value for key, value in row.items()}
        for row in rows_of(plain)
    ]
    assert rows_of(out) == expected
    assert json.loads((plain / "meta/stats.json").read_text())["action"] == stats["action.joints"]
    assert verify_pair(out, source, depth="bytes").ok


def test_datasets_whose_names_differ_are_merged(sources: dict[str, Path], tmp_path: Path) -> None:
    other = replace(SPEC, cameras=(CameraSpec(key=TOP, width=64, height=48),), seed=5)
    two = [sources["v3.0"], made(tmp_path, "v2.1", other)]
    with pytest.raises(SourceError) as refused:
        leconvert.merge(two, output=tmp_path / "out")
    assert "--rename-feature OLD=NEW" in str(refused.value.next_step)
    repairs = RepairOptions(rename_features=(f"{FRONT}={TOP}",))
    out = leconvert.merge(two, output=tmp_path / "out", repairs=repairs, proof=BYTES).output
    assert TOP in info_of(out)["features"]
    assert FRONT not in info_of(out)["features"]
    assert verify_pair(out, two, depth="bytes").ok
    assert verify_pair(out, two[::-1], depth="bytes").ok


@pytest.mark.parametrize(
    "repairs",
    [
        RepairOptions(quantiles=True, reindex=True, retime=True, rename_features=RENAMES),
        RepairOptions(drop_features=(FRONT,), rename_features=("action=actions",)),
    ],
    ids=["counted and computed", "dropped"],
)
def test_other_repairs_go_together_with_new_names(
    sources: dict[str, Path], tmp_path: Path, repairs: RepairOptions
) -> None:
    source = sources["v2.1"]
    out = leconvert.convert(source, output=tmp_path / "out", repairs=repairs, proof=BYTES).output
    assert verify_pair(out, source, depth="bytes").ok
    assert json.loads((out / "meta/repairs.json").read_text())["renamed_features"] == (
        repairs.renames
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("action", "is not of the form OLD=NEW"),
        ("=x", "is not of the form OLD=NEW"),
        ("timestamp=time", "is one of LeRobot's own features"),
        ("action=index", "is one of LeRobot's own features"),
        ("action=task", "is one of LeRobot's own features"),
        ("action=a/b", "the new name cannot be the name of a folder"),
        ("action=../b", "the new name cannot be the name of a folder"),
        ("nothing=b", "The dataset has no such feature"),
        (f"action={FRONT}", "The dataset already has a feature of the new name"),
        ("action=action", "is given twice"),
    ],
)
def test_names_that_cannot_be_are_refused(
    sources: dict[str, Path], tmp_path: Path, given: str, said: str
) -> None:
    source, out = sources["v2.1"], tmp_path / "out"
    with pytest.raises(UsageError, match=said):
        leconvert.convert(source, output=out, repairs=RepairOptions(rename_features=(given,)))
    assert not (tmp_path / "out").exists()


def test_the_flags_stand_for_the_options_and_a_feature_that_is_left_out_is_not_renamed() -> None:
    options = RepairOptions(rename_features=RENAMES, drop_features=("a b",))
    assert RepairOptions.of_flags(options.flags()) == options
    assert "--rename-feature action=action.joints" in options.flags()
    with pytest.raises(UsageError, match="--drop-feature already leaves action out"):
        RepairOptions(drop_features=("action",), rename_features=("action=actions",))


@pytest.mark.parametrize("damage", ["rows", "record"])
def test_a_proof_finds_a_wrong_name(sources: dict[str, Path], tmp_path: Path, damage: str) -> None:
    source, out = sources["v2.1"], tmp_path / "out"
    repairs = RepairOptions(rename_features=("action=actions",))
    leconvert.convert(source, output=out, repairs=repairs)
    if damage == "rows":
        rewrite(DATA, lambda table: table.rename_columns({"actions": "action"}))(out)
    else:
        wrong = {"nothing": "actions"}
        edit_json("meta/repairs.json", lambda record: record.update(renamed_features=wrong))(out)
    assert not verify_pair(out, source, depth="bytes").ok

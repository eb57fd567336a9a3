"""LeRobot 0.3.3 loads what ``--to v2.1`` wrote, and every frame is the source's.

It needs Python 3.10 and versions that ours cannot have beside it, so it lives in an environment of
its own: ``scripts/test_lerobot033`` makes that and runs these tests. Without it they are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from reference import record_with_reference
from tests.hub import WRITE_TOKEN, StandIn
from tests.hub.fixtures import hub, lone_client, pauses
from tests.recordings import each

import leconvert
from leconvert.dataset.formats import open_dataset
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import DATA_STREAM, LayoutOptions, camera_of
from leconvert.run.conversion import ProofOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.transfer.options import PushOptions

__all__ = ["hub", "lone_client", "pauses"]

pytestmark = pytest.mark.slow

PYTHON = os.environ.get("LEROBOT033_PYTHON")
NO_ENVIRONMENT = "LEROBOT033_PYTHON names no interpreter; use scripts/test_lerobot033"
V21 = LayoutOptions(to="v2.1")
REPO = "tester/back"


def loaded(
    result: Path, source: Path, tmp_path: Path, endpoint: str | None = None
) -> dict[str, Any]:
    """Return what LeRobot 0.3.3 found of a result, beside its source.

    With the address of a Hub it downloads the result from there first, into a new folder.
    """
    if PYTHON is None:
        pytest.skip(NO_ENVIRONMENT)
    dataset = open_dataset(source)
    tasks = dict(dataset.task_table)
    slices = {stream: dataset.slices(stream) for stream in dataset.streams}
    declared = json.loads((result / "meta/info.json").read_bytes())["features"]
    episodes = []
    for position, length in enumerate(dataset.episodes.length.tolist()):
        places = {
            stream: [str(source / found.path(position)), int(found.first[position])]
            for stream, found in slices.items()
            if camera_of(stream) in (None, *declared)
        }
        path, first = places.pop(DATA_STREAM)
        rows = pq.read_table(path).slice(first, length)
        episodes.append(
            {
                "length": length,
                "data": [path, first],
                "videos": {camera_of(stream): place for stream, place in places.items()},
                "tasks": [tasks[index] for index in rows.column("task_index").to_pylist()],
            }
        )
    own = ("timestamp", "frame_index", "index", "episode_index", "task_index")
    job = {
        "result": str(result if endpoint is None else tmp_path / "downloaded"),
        "repo_id": REPO,
        "fps": float(dataset.fps),
        "cameras": [key for key, feature in declared.items() if feature["dtype"] == "video"],
        "images": [key for key, feature in declared.items() if feature["dtype"] == "image"],
        "columns": [
            key
            for key, feature in declared.items()
            if feature["dtype"].startswith(("float", "int", "bool")) and key not in own
        ],
        "episodes": episodes,
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    program = Path(__file__).with_name("lerobot033.py")
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    offline = {"HF_HUB_OFFLINE": "1"} if endpoint is None else {"HF_ENDPOINT": endpoint}
    if endpoint is not None:
        environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [PYTHON, str(program), str(tmp_path / "job.json")],
        capture_output=True,
        text=True,
        env={**environment, **offline, "HF_HOME": str(tmp_path / "home")},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    of_each_frame = len(job["cameras"]) + len(job["images"])
    assert found["frames"] == sum(e["length"] for e in episodes) * of_each_frame
    assert found["rows"] == sum(episode["length"] for episode in episodes)
    return found


@pytest.mark.parametrize(
    ("recording", "repairs"),
    each(
        ("g1_inspire_12ep", RepairOptions()),
        ("cr5_5ep", RepairOptions(retime=True, fill_stats=True)),
        (
            "robot_sim_picknplace_v20",
            RepairOptions(retime=True, drop_features=("observation.images.egoview",)),
        ),
    ),
    indirect=["recording"],
)
def test_recordings_load_and_every_frame_is_the_sources(
    recording: Path, repairs: RepairOptions, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    proof = ProofOptions(verify="bytes")
    leconvert.convert(recording, output=out, layout=V21, repairs=repairs, proof=proof)
    found = loaded(out, recording, tmp_path)
    assert found["different"] == []
    assert "action" in found["stats"]


@pytest.mark.parametrize("how", [{}, {"streaming_encoding": True}, {"use_videos": False}])
def test_what_lerobot_061_recorded_loads_in_033(how: dict[str, Any], tmp_path: Path) -> None:
    tasks = [["Pick up the cube." if n % 2 else "Put it down."] * n for n in (12, 7, 30, 9, 15)]
    tasks[3][4:] = ["Wait."] * 5
    source, out = record_with_reference(tmp_path / "recorded", tasks, **how), tmp_path / "out"
    proof = ProofOptions(verify="bytes")
    leconvert.convert(source, output=out, layout=V21, proof=proof)
    assert loaded(out, source, tmp_path)["different"] == []


def test_what_was_pushed_is_found_by_its_tag_and_every_frame_is_the_sources(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    cameras = tuple(CameraSpec(f"observation.images.{name}", 64, 64) for name in ("top", "wrist"))
    spec = DatasetSpec(episodes=4, frames=[40, 7, 33, 64], cameras=cameras, tasks=("A.", "B."))
    source = make_dataset(tmp_path / "source", spec)
    leconvert.convert(source, output=tmp_path / "v30")
    out, push = tmp_path / "out", PushOptions(repo_id=REPO)
    leconvert.convert(tmp_path / "v30", output=out, layout=V21, push=push)
    hub.add_commit(REPO, {"meta/info.json": b"what main holds later"})
    assert loaded(out, source, tmp_path, hub.endpoint)["different"] == []
    assert {path.read_bytes() for path in out.glob("videos/*/*/*.mp4")} == {
        path.read_bytes() for path in (tmp_path / "downloaded").glob("videos/*/*/*.mp4")
    }

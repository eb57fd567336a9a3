"""On a file system that lists names in another normal form than they were given in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from unicodedata import normalize

import pytest

from leconvert import convert
from leconvert.dataset.check import check_dataset
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from tests.hub import WRITE_TOKEN, StandIn
from tests.plain_platform.conftest import Run, run_commands
from tests.plain_platform.test_conversions import results_of
from tests.trees import digest_of

CAMERA = "observation.images.café"
LISTS = """
import os, sys
from pathlib import Path
here = Path(sys.argv[1])
(here / "caf\\u00e9").touch()
assert os.listdir(here) == ["cafe\\u0301"]
for name in ("caf\\u00e9", "cafe\\u0301"):
    assert (here / name).is_file()
    assert os.path.samefile(here / name, here / "caf\\u00e9")
"""


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The datasets of `test_conversions`, each with a camera whose name is not ASCII."""
    folder = tmp_path_factory.mktemp("sets")
    assert normalize("NFC", CAMERA) == CAMERA
    spec = DatasetSpec(
        episodes=5,
        frames=[12, 7, 1, 9, 15],
        cameras=(CameraSpec(key=CAMERA, width=32, height=32),),
        extra_files={"résumé.md": "# A dataset\n"},
    )
    source = make_dataset(folder / "source", spec)
    result = folder / "v30"
    convert(source, output=result)
    damaged = Path(shutil.copytree(result, folder / "damaged"))
    info = damaged / "meta" / "info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"total_frames": 7}))
    return {"SOURCE": source, "V30": result, "DAMAGED": damaged}


def test_it_lists_names_in_their_parts_and_finds_both(decomposing: Run, tmp_path: Path) -> None:
    decomposing("-c", LISTS, tmp_path)


# Each way to write: a new tree, in place, beside others, in place of a damaged one, no files.
NAMES = ["convert in place", "back", "merge", "split", "repair", "overlay"]


@pytest.fixture(scope="module")
def results(
    decomposing: Run, sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Path, str]]:
    return results_of(NAMES, decomposing, sets, tmp_path_factory.mktemp("results"))


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_gives_the_bytes_that_it_gives_elsewhere(
    results: Mapping[str, tuple[Path, Path, str]], name: str
) -> None:
    result, expected, _ = results[name]
    assert digest_of(result) == digest_of(expected)


def test_every_result_has_the_findings_that_it_has_elsewhere(
    results: Mapping[str, tuple[Path, Path, str]],
) -> None:
    checked = [(expected, json.loads(said)) for _, expected, said in results.values() if said]
    assert len(checked) == len(NAMES) - 1
    for expected, said in checked:
        found = [finding["code"] for finding in said["findings"]]
        assert found == [finding.code for finding in check_dataset(expected).findings], expected


def test_a_source_is_deleted_after_its_proof_and_a_kept_one_comes_back(
    decomposing: Run, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    place = Path(shutil.copytree(sets["SOURCE"], tmp_path / "café"))
    before, kept = digest_of(place), place.with_name("café_old")
    converts = ("convert", place, "--no-push")
    compares = ("verify", place, "--source", kept, "--bytes")
    run_commands(decomposing, converts, compares, ("undo", place))
    assert digest_of(place) == before
    shutil.rmtree(tmp_path / "café_v30")
    run_commands(decomposing, (*converts, "--delete-source"))
    assert digest_of(place) == digest_of(sets["V30"])
    assert [path.name for path in tmp_path.iterdir()] == ["café"]


def test_what_is_pushed_has_the_names_that_its_description_has(
    decomposing: Run, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    with StandIn(tmp_path / "hub") as hub:
        place = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_TOKEN": WRITE_TOKEN,
        }
        fetched = tmp_path / "fetched"
        push = ("push", sets["V30"], "--push-repo-id", "tester/arm")
        fetch = ("convert", "--repo-id", "tester/arm", "--root", fetched)
        run_commands(decomposing, push, fetch, environment=place)
        repo = hub.repo("tester/arm")
        names = set(repo.tree(repo.branches["main"]))
        assert f"videos/{CAMERA}/chunk-000/file-000.mp4" in names
        assert digest_of(fetched / "videos") == digest_of(sets["V30"] / "videos")


def test_a_file_that_has_arrived_is_not_fetched_again(decomposing: Run, tmp_path: Path) -> None:
    decomposing("-c", ARRIVES, tmp_path / "set")


ARRIVES = """
import sys
from pathlib import Path
from leconvert.transfer.store import incoming
path = "videos/caf\u00e9/episode.mp4"
with incoming(Path(sys.argv[1])) as arriving:
    arriving.keep([path])
    file = arriving.tree / path
    file.parent.mkdir(parents=True)
    file.touch()
    arriving.keep([path])
    assert file.exists()
    arriving.keep(["data/episode.parquet"])
    assert not file.exists()
"""


def test_a_former_result_is_found_by_the_name_of_its_dataset(
    decomposing: Run, tmp_path: Path
) -> None:
    source, target = tmp_path / "set", tmp_path / "out/café"
    target.parent.mkdir()
    converts = ("convert", source, "--output", target)
    make_dataset(source, DatasetSpec(episodes=2, frames=6))
    run_commands(decomposing, converts)
    first = digest_of(target)
    shutil.rmtree(source)
    make_dataset(source, DatasetSpec(episodes=4, frames=6))
    cleans = ("clean", "--of", target, "--old", "--dry-run")
    _, told = run_commands(decomposing, (*converts, "--append"), cleans)
    assert digest_of(target) != first
    (former,) = target.parent.glob("café.former-*")
    assert f"would remove former state {former}" in told
    run_commands(decomposing, ("undo", target))
    assert digest_of(target) == first
    assert not former.exists()

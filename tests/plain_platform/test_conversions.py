"""On a platform that offers nothing beyond POSIX the same bytes come out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from itertools import compress
from pathlib import Path

import pytest

from leconvert.cli import main
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from tests.plain_platform.conftest import Run, run_commands
from tests.trees import digest_of

OFFERS = """
import json, os, resource
from leconvert.support import file_calls, machine
from leconvert.support.forkserver import serve_forks, serves_forks
serve_forks(())
print(json.dumps([
    hasattr(os, "fork"), serves_forks(), machine.boot_id(), file_calls.locks_ranges(),
    file_calls.MemoryFile().gives_parts_back, resource.getrlimit(resource.RLIMIT_NOFILE)[0],
]))
"""


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory, small_result: Path) -> dict[str, Path]:
    """Datasets by name; ``many`` has more files than a process may have open there."""
    camera = CameraSpec(key="observation.images.top", width=32, height=32)
    spec = DatasetSpec(episodes=260, frames=1, cameras=(camera,), distinct_clips=1, state_dim=2)
    return {
        "MANY": make_dataset(tmp_path_factory.mktemp("sets") / "many", spec),
        "V30": small_result,
    }


def test_it_offers_nothing(plain: Run) -> None:
    assert json.loads(plain("-c", OFFERS).stdout) == [False, False, "", False, False, 256]


# Those that are not HERE are tried where names are listed in their parts, too.
HERE = ["convert many", "trim"]
OPERATIONS = {
    "convert many": "convert MANY OUT --num-workers 2",
    "convert in place": "convert COPY-OF-SOURCE --no-push",
    "back": "convert V30 OUT --to v2.1",
    "merge": "merge SOURCE V30 --output OUT",
    "split": "split V30 --output-dir OUT --into a=0-2,b=3-4",
    "trim": "trim COPY-OF-V30 --episode 0 --frames 2:9",
    "repair": "repair COPY-OF-DAMAGED",
    "overlay": "convert COPY-OF-SOURCE --layout overlay --no-push",
}


def results_of(
    names: Iterable[str], there: Run, sets: Mapping[str, Path], folder: Path
) -> dict[str, tuple[Path, Path, str]]:
    """Return the result of each operation on another platform, its result elsewhere, and its check.

    The check is what ``check --json`` says there; nothing of a split, which is several datasets.
    """
    pairs: dict[str, list[Path]] = {name: [] for name in names}
    for where in ("there", "elsewhere"):
        commands = []
        for name, results in pairs.items():
            own = folder / where / name.replace(" ", "-")
            own.mkdir(parents=True)
            words, result = list[object](), own / "out"
            for word in OPERATIONS[name].split():
                if (dataset := sets.get(word.removeprefix("COPY-OF-"))) is None:
                    words.append(result if word == "OUT" else word)
                elif word.startswith("COPY-OF-"):
                    result = Path(shutil.copytree(dataset, own / "set"))
                    words.append(result)
                else:
                    words.append(dataset)
            commands.append(words)
            results.append(result)
        if where == "there":
            checks = [("check", "--json", result) for (result,) in pairs.values()]
            checked = [name != "split" for name in pairs]
            said = run_commands(there, *commands, *compress(checks, checked))[len(pairs) :]
        else:
            for command in commands:
                assert main([str(word) for word in command]) == 0
    told = dict(zip(compress(pairs, checked), said, strict=True))
    return {
        name: (found, expected, told.get(name, "")) for name, (found, expected) in pairs.items()
    }


@pytest.fixture(scope="module")
def results(
    plain: Run, sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Path, str]]:
    return results_of(HERE, plain, sets, tmp_path_factory.mktemp("results"))


@pytest.mark.parametrize("name", HERE)
def test_every_operation_gives_the_bytes_that_it_gives_elsewhere(
    results: Mapping[str, tuple[Path, Path, str]], name: str
) -> None:
    result, expected, _ = results[name]
    assert digest_of(result) == digest_of(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tests",
    [
        "tests/conformance/test_conversion.py tests/conformance/test_merged.py",
        "tests/conformance/test_trimmed.py tests/conformance/test_overlay.py",
        "tests/conformance/test_repaired.py tests/conformance/test_v3_sources.py",
    ],
)
def test_what_comes_out_there_is_held_against_lerobot(plain: Run, tests: str) -> None:
    plain("-m", "pytest", "-q", *tests.split(), cwd=Path(__file__).parents[2])

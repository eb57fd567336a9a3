"""Every key of each table under `meta/` of v2.1, deleted, retyped, swapped or nested.

Whatever comes of it is a result that LeRobot opens, or an error that says what to do; whoever does
what is said, to the letter, gets there too, and never the same answer twice. `test_v3_agreement`
alters v3.0.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.as_told import convert_as_told, why_it_does_not_load

from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

CAMERA, IMAGE = "observation.images.top", "observation.images.wrist"
LENGTHS = (4, 3, 5)
TABLES = ("info.json", "episodes.jsonl", "episodes_stats.jsonl", "tasks.jsonl")
_DELETED = object()
_VALUES: tuple[Any, ...] = (None, True, 0, 7, -1, 2.5, "7", "", [], {}, "action")


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of one file.

    Attributes:
        table: The file, relative to the dataset.
        what: The change, for people.
        content: What the file holds then; None where it is taken away.
    """

    table: str
    what: str
    content: bytes | None

    def __str__(self) -> str:
        return f"{self.table} {self.what}"


def mutations(root: Path) -> Iterator[Mutation]:
    """Yield every mutation of each file of a v2.1 dataset, in a fixed order."""
    for name in TABLES:
        table = f"meta/{name}"
        raw = (root / table).read_bytes()
        yield from _of_bytes(table, raw)
        yield Mutation(table, "has a byte order mark", b"\xef\xbb\xbf" + raw)
        yield Mutation(table, "has lines that end as on Windows", raw.replace(b"\n", b"\r\n"))
        if name == "info.json":
            for what, changed in _changes(json.loads(raw)):
                yield Mutation(table, what, json.dumps(changed).encode())
            continue
        lines = raw.splitlines(keepends=True)
        yield Mutation(table, "lacks line 1", b"".join([lines[0], *lines[2:]]))
        yield Mutation(table, "has line 1 twice", b"".join([*lines, lines[1]]))
        yield Mutation(table, "is in another order", b"".join(reversed(lines)))
        for what, changed in _changes(json.loads(lines[1])):
            line = json.dumps(changed).encode() + b"\n"
            yield Mutation(table, f"line 1: {what}", b"".join([lines[0], line, *lines[2:]]))


def _of_bytes(table: str, raw: bytes) -> Iterator[Mutation]:
    yield Mutation(table, "is missing", None)
    yield Mutation(table, "is empty", b"")
    yield Mutation(table, "is cut", raw[: len(raw) * 2 // 3])


def _changes(document: Any) -> Iterator[tuple[str, Any]]:
    for path in _paths(document):
        *above, key = path
        holder = _at(document, above)
        value = holder[key]
        siblings = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        other = siblings[(siblings.index(key) + 1) % len(siblings)]
        new: list[tuple[str, dict[Any, Any]]] = [("deleted", {key: _DELETED})]
        new += [(f"is {odd!r}", {key: odd}) for odd in _VALUES if odd != value]
        new += [("in a list", {key: [value]}), ("in a mapping", {key: {"value": value}})]
        if other != key:
            new.append((f"swapped with {other}", {key: holder[other], other: value}))
        for what, changes in new:
            changed = copy.deepcopy(document)
            for name, change in changes.items():
                if change is _DELETED:
                    del _at(changed, above)[name]
                else:
                    _at(changed, above)[name] = copy.deepcopy(change)
            yield f"{'.'.join(map(str, path))} {what}", changed


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        yield (*path, key)
        if isinstance(child, (dict, list)):
            # Elements of a list are alike.
            yield from _paths(child if isinstance(child, dict) else child[:1], (*path, key))


def _at(document: Any, path: list[Any]) -> Any:
    for key in path:
        document = document[key]
    return document


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = DatasetSpec(
        episodes=len(LENGTHS),
        frames=LENGTHS,
        cameras=(CameraSpec(key=CAMERA, width=16, height=16),),
        image_keys=(IMAGE,),
        image_size=(16, 16),
        state_dim=2,
        action_dim=1,
        has_done=True,
    )
    return make_dataset(tmp_path_factory.mktemp("mutated") / "sound", spec)


def trouble_of(mutation: Mutation, root: Path, result: Path) -> str | None:
    """Convert a dataset with a mutation as told; what the dataset was is put back.

    Returns:
        What should not be; None where it ended well or in an error that says what to do.
    """
    path = root / mutation.table
    before = path.read_bytes()
    try:
        if mutation.content is None:
            path.unlink()
        else:
            path.write_bytes(mutation.content)
        ended = convert_as_told(root, result)
        if ended.trouble is None and ended.code == 0:
            return why_it_does_not_load(result, ended.record["episodes"])
        return ended.trouble
    finally:
        path.write_bytes(before)
        shutil.rmtree(result, ignore_errors=True)
        for left in result.parent.glob(f".{result.name}.*"):
            shutil.rmtree(left)


def _check(mutated: list[Mutation], sound: Path, folder: Path) -> None:
    dataset = Path(shutil.copytree(sound, folder / "dataset"))
    troubles = {str(one): trouble_of(one, dataset, folder / "result") for one in mutated}
    assert {what: trouble for what, trouble in troubles.items() if trouble is not None} == {}


def _some(every: Iterable[Mutation]) -> list[Mutation]:
    """Return a change of each file from the midst of all, not one of those of its bytes."""
    files = [list(of_file) for _, of_file in groupby(every, lambda one: one.table)]
    return [file[len(file) // 2] for file in files]


def test_some_mutations_end_in_what_loads_or_in_what_to_do(sound: Path, tmp_path: Path) -> None:
    _check(_some(mutations(sound)), sound, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_all_mutations_end_in_what_loads_or_in_what_to_do(
    sound: Path, tmp_path: Path, part: int
) -> None:
    _check(list(mutations(sound))[part::20], sound, tmp_path)

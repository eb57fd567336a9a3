"""Altered v3.0 datasets: `check`, `convert`, `repair`, the loader and LeRobot are of one opinion.

What `check` calls clean, LeRobot and the loader give every frame of, each the right one, and
`convert --output` takes. What one of them calls an error, all do: the loader when it opens or when
it reads, and `convert` by a refusal, or by a right result and a finding that says what it mended.

    python -m tests.conformance.test_v3_agreement TREES [SEED]

tries so many trees, and prints each disagreement.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import leconvert
from leconvert.cli import main
from leconvert.dataset.check import check_dataset
from leconvert.model.values import LayoutOptions
from leconvert.support.errors import LeconvertError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset, read_label

CAMERA, WRIST = "observation.images.top", "observation.images.wrist"
LENGTHS = (5, 3, 4, 6, 4)
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
COUNTED = ("index", "episode_index", "frame_index", "timestamp", "task_index")
# Frames are the right ones, and LeRobot alone refuses them.
_OF_TIMES_ALONE = {"frame-times", "float32-reach"}
_VALUES: tuple[Any, ...] = (None, 0, 7, -1, 2.5, "7", "", [], {}, True)

Known = dict[bytes, tuple[int, int, str]]
"""Episode, frame and task of the rows of a sound dataset, by their state."""


def make_bases(folder: Path) -> list[Path]:
    """Write sound datasets: with several files a stream, with one, and with pictures in rows."""
    cameras = (CameraSpec(CAMERA, 48, 48), CameraSpec(WRIST, 48, 48, gop_size=2))
    spec = DatasetSpec(
        episodes=len(LENGTHS), frames=LENGTHS, cameras=cameras, state_dim=2, action_dim=1,
        tasks=("Pick up the cube.", "Put it down."), tasks_per_episode=2,
    )  # fmt: skip
    make_dataset(folder / "v21", spec)
    small = LayoutOptions(data_file_size_in_mb=0.003, video_file_size_in_mb=0.004)
    leconvert.convert(folder / "v21", output=folder / "several", layout=small)
    leconvert.convert(folder / "v21", output=folder / "one")
    files = LayoutOptions(layout="episode-files")
    leconvert.convert(folder / "v21", output=folder / "each", layout=files)
    return [folder / name for name in ("several", "one", "each")]


def known_rows(root: Path) -> Known:
    """Return what each row of a sound dataset is."""
    texts = pq.read_table(root / "meta/tasks.parquet").column("task").to_pylist()
    known: Known = {}
    for path in sorted((root / "data").glob("*/*.parquet")):
        for row in pq.read_table(path).to_pylist():
            state = np.asarray(row["observation.state"], np.float32).tobytes()
            known[state] = row["episode_index"], row["frame_index"], texts[row["task_index"]]
    return known


# ------------------------------------------------------------------------------------------------
# Alterations: each changes one thing of a dataset, and says what.


@dataclass
class Alteration:
    """Chooses what to change by chance alone."""

    root: Path
    chance: random.Random
    said: list[str] = field(default_factory=list)

    def one(self) -> None:
        """Change one thing."""
        kinds: list[tuple[int, Callable[[], None]]] = [
            (3, self.info),
            (8, self.episodes_cell),
            (2, self.episodes_table),
            (3, self.tasks),
            (3, self.stats),
            (5, self.rows_cell),
            (2, self.rows_table),
            (2, self.types),
            (2, self.rows_of_nobody),
            (4, self.files),
        ]
        weights, changes = zip(*kinds, strict=True)
        self.chance.choices(changes, weights)[0]()

    def info(self) -> None:
        path = self.root / "meta/info.json"
        info = json.loads(path.read_bytes())
        holder: dict[str, Any] = info
        key = self.chance.choice([*info, "features", "features"])
        if key == "features":
            holder = info["features"]
            key = self.chance.choice(list(holder))
            if self.chance.random() < 0.7:
                holder = holder[key]
                key = self.chance.choice(list(holder))
        if self.chance.random() < 0.3:
            del holder[key]
            self.said.append(f"info.json: no {key}")
        else:
            old = holder[key]
            value = self.chance.choice(
                [*_VALUES, *([old + 1, old - 1] if isinstance(old, int) else [])]
            )
            holder[key] = copy.deepcopy(value)
            self.said.append(f"info.json: {key} = {value!r}")
        path.write_text(json.dumps(info))

    def _rewrite(self, path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
        with pq.ParquetFile(path) as file:
            sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
            old = file.read()
        new = change(old)
        sizes = sizes if new.num_rows == old.num_rows else [new.num_rows]
        with pq.ParquetWriter(path, new.schema) as writer:
            start = 0
            for size in sizes:
                writer.write_table(new.slice(start, size))
                start += size

    def _cell(self, path: Path, columns: list[str]) -> None:
        name = self.chance.choice(columns)

        def change(table: pa.Table) -> pa.Table:
            values = table.column(name).to_pylist()
            row = self.chance.randrange(len(values))
            old = values[row]
            choices: list[Any] = [None]
            if isinstance(old, float):
                choices += [old + 1 / 30, old - 1 / 30, old + 3e-5, old + 1e-3, -1.0, 99.0]
            elif isinstance(old, int):
                choices += [old + 1, old - 1, old + 2, 0, -1, 10**6]
            elif isinstance(old, list):
                choices += [[], [*old, *old], ["Never heard."]]
            elif isinstance(old, str):
                choices += ["", "Never heard.", values[row - 1]]
            values[row] = self.chance.choice(choices)
            whole = self.chance.random() < 0.15
            if whole:
                values = [values[row]] * len(values)
            self.said.append(
                f"{path.relative_to(self.root)}: {name} of {'all' if whole else row} = "
                f"{values[row]!r}, was {old!r}"
            )
            at = table.schema.get_field_index(name)
            field = table.schema.field(at)
            return table.set_column(at, field, pa.array(values, field.type))

        self._rewrite(path, change)

    def episodes_cell(self) -> None:
        path = self.root / EPISODES
        names = pq.read_schema(path).names
        self._cell(path, [name for name in names if not name.startswith("stats/")])

    def _table(self, path: Path) -> None:
        what = self.chance.choice(["row gone", "row twice", "swapped", "column gone", "reversed"])

        def change(table: pa.Table) -> pa.Table:
            rows = list(range(table.num_rows))
            at = self.chance.randrange(len(rows))
            told = f"{what} ({at})"
            if what == "row gone":
                rows.pop(at)
            elif what == "row twice":
                rows.insert(at, at)
            elif what == "swapped":
                rows[at], rows[at - 1] = rows[at - 1], rows[at]
            elif what == "reversed":
                rows.reverse()
            else:
                name = self.chance.choice(table.column_names)
                told = f"no column {name}"
                table = table.drop_columns([name])
            self.said.append(f"{path.relative_to(self.root)}: {told}")
            return table.take(rows)

        self._rewrite(path, change)

    def episodes_table(self) -> None:
        self._table(self.root / EPISODES)

    def tasks(self) -> None:
        path = self.root / "meta/tasks.parquet"
        kind = self.chance.randrange(5)
        if kind == 0:
            self._table(path)
        elif kind == 1:
            self._cell(path, ["task_index", "task"])
        elif kind == 2:
            self._rewrite(path, lambda table: table.replace_schema_metadata(None))
            self.said.append("tasks.parquet: texts are no index")
        elif kind == 3:
            beside = self.chance.choice([None, "task", "__index_level_0__"])
            self._rewrite(path, lambda table: _with_other_index(table, beside))
            # The word would keep the texts from being compared.
            self.said.append(f"another index of texts, other texts: {beside is not None}")
        else:
            path.unlink()
            self.said.append("no tasks.parquet")

    def stats(self) -> None:
        path = self.root / "meta/stats.json"
        stats = json.loads(path.read_bytes())
        feature = self.chance.choice(list(stats))
        name = self.chance.choice(list(stats[feature]))
        kind = self.chance.randrange(3)
        if kind == 0:
            del stats[feature]
        elif kind == 1:
            del stats[feature][name]
        else:
            value = self.chance.choice([*_VALUES, [1e9]])
            stats[feature][name] = copy.deepcopy(value)
        self.said.append(f"stats.json: {feature} {name} ({kind})")
        path.write_text(json.dumps(stats))

    def _data_file(self) -> Path:
        return self.chance.choice(sorted((self.root / "data").glob("*/*.parquet")))

    def rows_cell(self) -> None:
        self._cell(self._data_file(), list(COUNTED))

    def rows_table(self) -> None:
        self._table(self._data_file())

    def types(self) -> None:
        """Store a column of some files in another type that holds the same values, or nearly."""
        name = self.chance.choice([*COUNTED, "timestamp", "observation.state", "action"])
        kinds = [pa.float64(), pa.float32()]
        if name in COUNTED:
            kinds += [pa.float16(), pa.int64(), pa.int32(), pa.int16(), pa.string()]
        kind = self.chance.choice(kinds)
        paths = sorted((self.root / "data").glob("*/*.parquet"))
        paths = self.chance.sample(paths, self.chance.randint(1, len(paths)))
        sizes = self.chance.choice([-1, None])

        def change(table: pa.Table) -> pa.Table:
            at = table.schema.get_field_index(name)
            values = table.column(at).to_pylist()
            if isinstance(values[0], list):
                size = -1 if sizes is None else len(values[0])
                return table.set_column(at, name, pa.array(values, pa.list_(kind, size)))
            return table.set_column(at, name, pa.array(values).cast(kind, safe=False))

        for path in paths:
            self._rewrite(path, change)
        self.said.append(f"{len(paths)} data files: {name} is {kind} ({sizes})")

    def rows_of_nobody(self) -> None:
        """Add rows at the end of a data file whose episode is not listed, or is none."""
        path = self._data_file()
        number = self.chance.choice([len(LENGTHS), 99, -1, None])
        more = self.chance.choice([1, 3])

        def change(table: pa.Table) -> pa.Table:
            rows = table.slice(table.num_rows - 1).take([0] * more)
            at = rows.schema.get_field_index("episode_index")
            episodes = pa.array([number] * more, rows.schema.field(at).type)
            return pa.concat_tables([table, rows.set_column(at, rows.schema.field(at), episodes)])

        self._rewrite(path, change)
        self.said.append(f"{path.relative_to(self.root)}: {more} rows of episode {number}")

    def files(self) -> None:
        every = [path for path in sorted(self.root.rglob("*")) if path.is_file()]
        path = self.chance.choice(every)
        others = [each for each in every if each.suffix == path.suffix and each != path]
        kinds = ["gone", "cut", "empty", "renamed", "copied", "in another folder"]
        kinds += ["exchanged"] * 3 if others else []
        kind = self.chance.choice(kinds)
        other = path
        if kind == "gone":
            path.unlink()
        elif kind == "cut":
            content = path.read_bytes()
            path.write_bytes(content[: len(content) * 2 // 3])
        elif kind == "empty":
            path.write_bytes(b"")
        elif kind in ("renamed", "copied"):
            new = self.chance.choice(["file-003", "file-0000", "other", "file-001"]) + path.suffix
            other = path.with_name(new)
            (shutil.copy if kind == "copied" else shutil.move)(path, other)
        elif kind == "in another folder":
            folder = path.relative_to(self.root).parts[0]
            (self.root / folder).rename(self.root / f"{folder}_2")
            other = self.root / folder
        else:
            other = self.chance.choice(others)
            content = path.read_bytes()
            path.write_bytes(other.read_bytes())
            other.write_bytes(content)
        self.said.append(f"{path.relative_to(self.root)}: {kind} {other.relative_to(self.root)}")


def _with_other_index(tasks: pa.Table, beside: str | None) -> pa.Table:
    """Return the table with its pandas index renamed, perhaps with another column of texts."""
    described = tasks.schema.metadata[b"pandas"].replace(b'"task"', b'"instruction"')
    texts = tasks.column("task")
    columns = {"task_index": tasks.column("task_index"), "instruction": texts}
    if beside is not None:
        columns[beside] = pa.chunked_array([["Something else."] * len(texts)])
    return pa.table(columns, metadata={"pandas": described})


# ------------------------------------------------------------------------------------------------
# Opinions.


def _checked(root: Path) -> tuple[bool, set[str]]:
    try:
        findings = check_dataset(root).findings
    except LeconvertError as error:
        return True, {type(error).__name__}
    errors = {each.code for each in findings if each.severity == "error"}
    return bool(errors), errors or {each.code for each in findings}


@dataclass(frozen=True)
class Truth:
    """What frames must be.

    Attributes:
        known: Every row, by its state.
        with_task: Whether the tasks are those of the sound dataset.
        with_pictures: Whether each video has the content that it had: nobody decodes it to check.
        all_rows: Whether none may be left out.
    """

    known: Known
    with_task: bool = True
    with_pictures: bool = True
    all_rows: bool = True


def _item_trouble(item: dict[str, Any], truth: Truth) -> str | None:
    known, with_task = truth.known, truth.with_task
    if gone := {"observation.state", CAMERA, WRIST} - item.keys():
        return f"there is no {sorted(gone)[0]}"
    state = np.asarray(item["observation.state"], np.float32).tobytes()
    if state not in known:
        return "rows of no known state"
    episode, frame, task = known[state]
    for camera in (CAMERA, WRIST) if truth.with_pictures else ():
        picture = np.moveaxis(np.asarray(item[camera]), 0, -1)
        picture = picture * 255 if picture.dtype.kind == "f" else picture
        label = read_label(picture)
        if (label.episode, label.frame) != (episode, frame):
            return f"{camera} of {(episode, frame)} is {(label.episode, label.frame)}"
    if int(item["episode_index"]) != episode or int(item["frame_index"]) != frame:
        return f"row of {(episode, frame)} says otherwise"
    if not isinstance(item["task"], str) or (with_task and item["task"] != task):
        return f"task of {(episode, frame)} is {item['task']!r}"
    return None


def why_lerobot_does_not(root: Path, truth: Truth) -> str | None:
    """Load every frame through LeRobot; None where each is the right one."""
    from lerobot.datasets import LeRobotDataset

    try:
        dataset = LeRobotDataset("ours/altered", root=root, video_backend="pyav")
        if len(dataset) != len(truth.known) and truth.all_rows:
            return f"LeRobot has {len(dataset)} frames"
        for index in range(len(dataset)):
            item = dataset[index]
            trouble = _item_trouble(item, truth)
            if trouble is not None or int(item["index"]) != index:
                return f"LeRobot, item {index}: {trouble or 'index'}"
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return f"LeRobot: {type(error).__name__}: {str(error)[:160]}"
    return None


def why_the_loader_does_not(root: Path, truth: Truth) -> str | None:
    """Read every frame through the loader; None where each is the right one and comes once."""
    from leconvert.loading import EpisodeStream

    seen, trouble = 0, None
    try:
        stream = EpisodeStream(root, shuffle=False, rank=0, world_size=1, video_backend="pyav")
        for item in stream:
            seen += 1
            trouble = trouble or _item_trouble(item, truth)
    except LeconvertError as error:
        return f"loader: {type(error).__name__}: {error.message[:160]}"
    if trouble is not None:
        return f"loader: {trouble}"
    return None if seen == len(truth.known) else f"loader: {seen} frames"


def converted(root: Path, result: Path, *flags: str) -> tuple[int, list[dict[str, Any]], str]:
    """Convert, and return exit code, findings and what was said."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["convert", "--root", str(root), "--output", str(result), "--json", *flags])
    try:
        record = json.loads(out.getvalue())
    except ValueError:
        record = {}
    return code, record.get("findings") or [], err.getvalue()


def _repair_says_error(root: Path) -> bool:
    try:
        plan = leconvert.repair(root, dry_run=True).plan
    except LeconvertError:
        return True
    return any(each.severity == "error" for each in (*plan.mended, *plan.left))


def disagreements(root: Path, result: Path, known: Known, said: list[str]) -> list[str]:
    """Return what should not be, one sentence each."""
    truth = Truth(
        known,
        with_task=not any("task" in each for each in said),
        with_pictures=not any(re.search(r"mp4: (exchanged|copied|renamed)", each) for each in said),
    )
    is_wrong, codes = _checked(root)
    found = []
    code, findings, told = converted(root, result)
    if code and not is_wrong and "episode-stats" in codes:
        # LeRobot loads it; a conversion wants to be told to compute what is missing.
        code, findings, told = converted(root, result, "--fill-stats")
    if code not in (0, 3, 11) or "Traceback" in told:
        found.append(f"convert ended with {code}: {told[-300:]}")
    lerobot = why_lerobot_does_not(root, truth) if not is_wrong else ""
    loader = why_the_loader_does_not(root, truth)
    repair = _repair_says_error(root)
    if not is_wrong:
        if code:
            found.append(f"clean ({sorted(codes)}), convert: {told[:300]}")
        if lerobot:
            found.append(f"clean ({sorted(codes)}), {lerobot}")
        if loader:
            found.append(f"clean ({sorted(codes)}), {loader}")
    elif loader is None and not codes <= _OF_TIMES_ALONE:
        found.append(f"an error ({sorted(codes)}), but the loader gives every frame")
    elif loader is not None and "Error" not in loader:
        found.append(f"an error ({sorted(codes)}), but {loader} in silence")
    if repair != is_wrong:
        found.append(f"check says error {is_wrong}, repair {repair} ({sorted(codes)})")
    if code == 0:
        if is_wrong and not findings:
            found.append(f"an error ({sorted(codes)}), and convert mends it in silence")
        wrong_now, codes_now = _checked(result)
        if wrong_now:
            found.append(f"convert wrote {sorted(codes_now)} of {sorted(codes)}")
            return found
        told_of = {each["code"] for each in findings}
        truth = replace(truth, all_rows=not told_of & {"stray-file", "stray-rows"})
        if trouble := why_lerobot_does_not(result, truth):
            found.append(f"convert's result of ({sorted(codes)}): {trouble}")
    return found


def trees(bases: list[Path], folder: Path, seeds: range) -> Iterator[tuple[int, str, list[str]]]:
    """Alter a dataset for each seed; yield what was done and what does not agree."""
    known = {base: known_rows(base) for base in bases}
    for seed in seeds:
        chance = random.Random(seed)
        base = chance.choice(bases)
        # One name a tree: ``datasets`` keeps what it read from a path.
        root, result = folder / f"t{seed}", folder / f"r{seed}"
        shutil.copytree(base, root)
        alteration = Alteration(root, chance)
        for _ in range(chance.choice([1, 1, 1, 2])):
            with contextlib.suppress(KeyError, OSError, ValueError, IndexError, pa.ArrowException):
                alteration.one()
        found = disagreements(root, result, known[base], alteration.said)
        yield seed, f"{base.name}: {'; '.join(alteration.said)}", found
        for place in (root, result):
            shutil.rmtree(place, ignore_errors=True)
        for left in folder.glob(f".r{seed}.*"):
            shutil.rmtree(left, ignore_errors=True)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_bases(tmp_path_factory.mktemp("agreement"))


def _check(bases: list[Path], folder: Path, seeds: range) -> None:
    found = {f"{seed} {said}": each for seed, said, each in trees(bases, folder, seeds) if each}
    assert found == {}


def test_all_are_of_one_opinion_of_some_altered_datasets(bases: list[Path], tmp_path: Path) -> None:
    _check(bases, tmp_path, range(5))


@pytest.mark.slow
@pytest.mark.parametrize("hundreds", range(1, 31))
def test_all_are_of_one_opinion_of_thousands(
    bases: list[Path], tmp_path: Path, hundreds: int
) -> None:
    _check(bases, tmp_path, range(hundreds * 100, hundreds * 100 + 100))


def _show(count: int, first: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bases = make_bases(Path(folder))
        for seed, said, found in trees(bases, Path(folder), range(first, first + count)):
            for each in found:
                print(f"{seed} {said}\n    {each}", flush=True)


if __name__ == "__main__":
    _show(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)

"""How long does it take to edit a v3.0 dataset, or to bring it back to v2.1, beside other tools?

    python scripts/bench.py edit --episodes 400 --reverse-episodes 4000 --script any4lerobot=FILE

Generates short episodes of two cameras, converts them to v3.0, and runs each task alternately:

- `delete`: leave two episodes out, with ``leconvert convert --exclude-episodes`` and with
  ``lerobot-edit-dataset``, which encodes again the video files that they are in;
- `split`: into nine tenths and one tenth;
- `merge`: with a second dataset of the same shape;
- `reverse`: to v2.1, with ``leconvert convert --to v2.1``, with each ``--script NAME=FILE`` of
  other projects, which is called as ``python FILE --repo-id bench/set --root COPY`` and works in
  place, on a copy whose making is not measured, and ``cp -r`` of the bytes that leconvert wrote.

``--tasks merge,reverse`` runs some of them. ``--ffmpeg FILE`` is put first in the PATH of those
scripts under the name ``ffmpeg``. Every repeat is a row of the log; a table of medians is printed
at the end.
"""

from __future__ import annotations

import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benches import kit

_LEFT_OUT = (1, 7)
_SHARES = '{"train": 0.9, "val": 0.1}'


@dataclass(frozen=True)
class Runner:
    """One tool at one task.

    Attributes:
        name: Task and tool.
        command: The command that is measured.
        made: Paths that it writes, removed after each repeat.
        copied: A copy of the dataset that it works on, made before each repeat.
        environment: Variables for it.
    """

    name: str
    command: Sequence[str]
    made: Sequence[Path]
    copied: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def _edit(source: Path, out: Path, *operation: str) -> list[str]:
    program = str(Path(sys.executable).with_name("lerobot-edit-dataset"))
    names = ["--repo_id", "bench/set", "--new_repo_id", "bench/out"]
    return [program, *names, "--root", str(source), "--new_root", str(out), *operation]


def edit_runners(source: Path, other: Path) -> list[Runner]:
    """Return the tools that edit a dataset."""
    ours, out = list(kit.LECONVERT), source.with_name("out")
    left_out = ",".join(map(str, _LEFT_OUT))
    return [
        Runner(
            "delete: leconvert",
            [*ours, "convert", str(source), str(out), "--exclude-episodes", left_out, "-q"],
            [out],
        ),
        Runner(
            "delete: LeRobot",
            _edit(source, out, "--operation.type", "delete_episodes",
                  "--operation.episode_indices", str(list(_LEFT_OUT))),
            [out],
        ),
        Runner(
            "split: leconvert",
            [*ours, "split", str(source), "--output-dir", str(out), "--into", "train=0.9,val=0.1"],
            [out],
        ),
        Runner(
            "split: LeRobot",
            _edit(source, out, "--operation.type", "split", "--operation.splits", _SHARES),
            [out],
        ),
        Runner(
            "merge: leconvert",
            [*ours, "merge", str(source), str(other), "--output", str(out)],
            [out],
        ),
        Runner(
            "merge: LeRobot",
            _edit(source, out, "--operation.type", "merge",
                  "--operation.roots", f'["{source}", "{other}"]',
                  "--operation.repo_ids", '["bench/set", "bench/other"]'),
            [out],
        ),
    ]  # fmt: skip


def reverse_runners(source: Path, scratch: Path, options: Namespace) -> list[Runner]:
    """Return the tools that bring a dataset back to v2.1, and a copy of the same bytes."""
    ours, out, copy = list(kit.LECONVERT), scratch / "back", scratch / "copy"
    reverse = [*ours, "convert", str(source), str(out), "--to", "v2.1", "-q"]
    kept = scratch / "kept-back"
    kit.run_quietly([*reverse[:5], kept, *reverse[6:]])
    kit.read_through(kept)
    environment = {}
    if options.ffmpeg is not None:
        programs = scratch / "programs"
        programs.mkdir()
        (programs / "ffmpeg").symlink_to(options.ffmpeg.resolve())
        environment["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    runners = [
        Runner("reverse: leconvert", reverse, [out]),
        Runner("reverse: cp -r", ["cp", "-r", str(kept), str(out)], [out]),
    ]
    for given in options.script:
        name, _, script = given.partition("=")
        words = [sys.executable, script, "--repo-id", "bench/set", "--root", str(copy)]
        made = [copy, copy.with_name("copy_v3.0"), copy.with_name("copy_v2.1")]
        runners.append(Runner(f"reverse: {name}", words, made, copy, environment))
    return runners


def run_all(
    runners: Sequence[Runner],
    source: Path,
    scratch: Path,
    options: Namespace,
    arguments: Sequence[str],
) -> None:
    """Measure all runners alternately; the log gets a row each."""

    def run(runner: Runner) -> kit.Row:
        if runner.copied is not None:
            shutil.copytree(source, runner.copied)
        row = kit.measured(runner.command, scratch, runner.environment)
        for made in runner.made:
            shutil.rmtree(made, ignore_errors=True)
            for part in made.parent.glob(f"{made.name}_*"):
                shutil.rmtree(part)
        return {"runner": runner.name, **row}

    others = {runner.name for runner in runners if not runner.name.endswith(": leconvert")}
    runners = kit.of_trees(runners, options.trees, others)
    shape = kit.dataset_shape(source, options.profile)
    head = kit.header("bench.py edit", arguments, scratch, shape)
    head["trees"] = [kit.commit(tree) for tree in options.trees]
    kit.read_through(source)
    task = "reverse" if runners[0].name.startswith("reverse") else "edit"
    log = kit.new_log(options.log_dir, head, task)
    rows = kit.rows_in_turns(log, head, runners, options.repeats, run)
    print(f"{shape['episodes']:,} episodes, {shape['bytes']:,} bytes, {head['file_system']}")
    print(kit.table(rows), flush=True)


def _converted(scratch: Path, name: str, episodes: int, options: Namespace) -> Path:
    """Generate a dataset and convert it to v3.0."""
    kit.make_profile(options.profile, scratch / f"{name}-v21", episodes)
    words = ["convert", scratch / f"{name}-v21", scratch / name, "-q"]
    kit.run_quietly([*kit.LECONVERT, *words])
    shutil.rmtree(scratch / f"{name}-v21")
    return scratch / name


def main(arguments: Sequence[str]) -> int:
    """Measure, keep the rows, print the medians."""
    parser = kit.parser(__doc__, repeats=3)
    parser.add_argument("--profile", default="many", help="shape of the dataset (many)")
    parser.add_argument("--episodes", type=int, default=400, help="episodes to edit (400)")
    parser.add_argument("--reverse-episodes", type=int, default=4000, help="to reverse (4000)")
    parser.add_argument("--tasks", default="delete,split,merge,reverse", help="which of them")
    parser.add_argument("--script", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--ffmpeg", type=Path, metavar="FILE", help="ffmpeg for these scripts")
    kit.add_trees(parser)
    options = parser.parse_args(arguments)
    tasks = options.tasks.split(",")
    with kit.scratch_folder(options.scratch, "edit") as scratch:
        if options.episodes and tasks != ["reverse"]:
            source = _converted(scratch, "set", options.episodes, options)
            other = _converted(scratch, "other", options.episodes, options)
            runners = edit_runners(source, other)
            wanted = [each for each in runners if each.name.partition(":")[0] in tasks]
            run_all(wanted, source, scratch, options, arguments)
        if options.reverse_episodes and "reverse" in tasks:
            source = _converted(scratch, "long", options.reverse_episodes, options)
            runners = reverse_runners(source, scratch, options)
            run_all(runners, source, scratch, options, arguments)
    return 0

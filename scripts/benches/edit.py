"""How long does it take to edit a v3.0 dataset, or to bring it back to v2.1, beside other tools?

    python scripts/bench.py edit --repeats 3
    python scripts/bench.py edit --tasks reverse --script any4lerobot=FILE

Generates short episodes of two cameras, converts them to v3.0, and runs each task alternately:

- `delete`: leave two episodes out, with ``leconvert convert --exclude-episodes`` and with
  ``lerobot-edit-dataset``, which encodes again the video files that they are in;
- `split`: into nine tenths and one tenth;
- `merge`: with a second dataset of the same shape;
- `reverse`: to v2.1, with ``leconvert convert --to v2.1``, with each ``--script NAME=FILE`` of
  other projects, which is called as ``python FILE --repo-id bench/set --root COPY`` and works in
  place, on a copy whose making is not measured, and ``cp -r`` of the bytes that leconvert wrote.

``--tasks merge,reverse`` runs some of them. Every repeat is a row of the log; a table of medians is
printed at the end.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benches import kit

PROFILE = "many"
_LEFT_OUT = (1, 7)
_SHARES = '{"train": 0.9, "val": 0.1}'


def _edit(source: Path, out: Path, *operation: str) -> list[str]:
    program = str(Path(sys.executable).with_name("lerobot-edit-dataset"))
    names = ["--repo_id", "bench/set", "--new_repo_id", "bench/out"]
    return [program, *names, "--root", str(source), "--new_root", str(out), *operation]


def edit_runners(source: Path, other: Path) -> list[kit.Runner]:
    """Return the tools that edit a dataset."""
    ours, out = list(kit.LECONVERT), source.with_name("out")
    left_out = ",".join(map(str, _LEFT_OUT))
    return [
        kit.Runner(
            "delete: leconvert",
            [*ours, "convert", str(source), str(out), "--exclude-episodes", left_out, "-q"],
            [out],
        ),
        kit.Runner(
            "delete: LeRobot",
            _edit(source, out, "--operation.type", "delete_episodes",
                  "--operation.episode_indices", str(list(_LEFT_OUT))),
            [out],
            is_ours=False,
        ),
        kit.Runner(
            "split: leconvert",
            [*ours, "split", str(source), "--output-dir", str(out), "--into", "train=0.9,val=0.1"],
            [out],
        ),
        kit.Runner(
            "split: LeRobot",
            _edit(source, out, "--operation.type", "split", "--operation.splits", _SHARES),
            [out],
            is_ours=False,
        ),
        kit.Runner(
            "merge: leconvert",
            [*ours, "merge", str(source), str(other), "--output", str(out)],
            [out],
        ),
        kit.Runner(
            "merge: LeRobot",
            _edit(source, out, "--operation.type", "merge",
                  "--operation.roots", f'["{source}", "{other}"]',
                  "--operation.repo_ids", '["bench/set", "bench/other"]'),
            [out],
            is_ours=False,
        ),
    ]  # fmt: skip


def reverse_runners(source: Path, scratch: Path, scripts: Sequence[str]) -> list[kit.Runner]:
    """Return the tools that bring a dataset back to v2.1, and a copy of the same bytes."""
    out, kept, copy = scratch / "back", scratch / "kept-back", scratch / "copy"
    reverse = [*kit.LECONVERT, "convert", source, "--to", "v2.1", "-q", "--output"]
    kit.run_quietly([*reverse, kept])
    kit.read_through(kept)
    runners = [
        kit.Runner("reverse: leconvert", [*reverse, out], [out]),
        kit.Runner("reverse: cp -r", ["cp", "-r", kept, out], [out], is_ours=False),
    ]
    for given in scripts:
        name, _, script = given.partition("=")
        words = [sys.executable, script, "--repo-id", "bench/set", "--root", copy]
        runners.append(kit.Runner(f"reverse: {name}", words, [copy], (source, copy), is_ours=False))
    return runners


def _converted(scratch: Path, name: str, episodes: int) -> Path:
    """Generate a dataset and convert it to v3.0."""
    kit.make_profile(PROFILE, scratch / f"{name}-v21", episodes)
    words = ["convert", scratch / f"{name}-v21", scratch / name, "-q"]
    kit.run_quietly([*kit.LECONVERT, *words])
    shutil.rmtree(scratch / f"{name}-v21")
    kit.read_through(scratch / name)
    return scratch / name


def main(arguments: Sequence[str]) -> int:
    """Measure, keep the rows, print the medians."""
    parser = kit.parser(__doc__, repeats=3)
    parser.add_argument("--tasks", default="delete,split,merge,reverse", help="which of them")
    parser.add_argument("--episodes", type=int, help="other than 400 to edit and 4,000 to reverse")
    parser.add_argument("--script", action="append", default=[], metavar="NAME=FILE")
    kit.add_trees(parser)
    options = parser.parse_args(arguments)
    tasks = options.tasks.split(",")
    with kit.scratch_folder(options.scratch, "edit") as scratch:
        if tasks != ["reverse"]:
            source, other = (
                _converted(scratch, name, options.episodes or 400) for name in ("set", "other")
            )
            runners = edit_runners(source, other)
            wanted = [each for each in runners if each.name.partition(":")[0] in tasks]
            shape = kit.dataset_shape(source, PROFILE)
            kit.compare("edit", ["edit"], wanted, scratch, shape, options, arguments)
        if "reverse" in tasks:
            source = _converted(scratch, "long", options.episodes or 4000)
            runners = reverse_runners(source, scratch, options.script)
            shape = kit.dataset_shape(source, PROFILE)
            kit.compare("edit", ["reverse"], runners, scratch, shape, options, arguments)
    return 0

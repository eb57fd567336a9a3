"""The datasets of a fleet: those below a folder, and those that a list names.

A list has one dataset a line, with options that apply to it alone::

    # recorded in May
    lab/may/*
    lab/may/pick_03 --retime
    "a name with spaces" --name pick --to v2.1
    ORG/NAME@v2.1 --push-repo-id OURS/{name}-v30

Relative paths start from the list's own folder. A name on the Hub may also be written
``hf://datasets/ORG/NAME@REV``. If several lines name a dataset, the last one applies, so a glob can
come first and exceptions after it.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import stat
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from leconvert.dataset.check import check_dataset
from leconvert.dataset.findings import SOURCE_CATALOGUE, V3_CATALOGUE, all_remedies
from leconvert.dataset.formats import open_dataset
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import FrameInterval
from leconvert.model.values import OVERLAY, CountedFinding, camera_of
from leconvert.model.versions import V3_VERSION
from leconvert.remote.source import HubGroup, datasets_of, glances_at
from leconvert.run.conversion import Conversion
from leconvert.support.errors import LeconvertError, UsageError
from leconvert.support.machine import names_an_open_file
from leconvert.support.parallel import parallel_map
from leconvert.support.storage_errors import storage_errors
from leconvert.support.text import count, shown
from leconvert.support.values import dataclass
from leconvert.transfer.names import HubName, check_name
from leconvert.transfer.options import MAIN, PushOptions
from leconvert.workdir.former import is_former
from leconvert.workdir.swap import codebase_version, info_path

# Options and result path of one dataset.


# The parts of a conversion that can differ between datasets.
_OWN_PARTS = ("layout", "selection", "repairs", "proof")


def conversion_record(conversion: Conversion) -> dict[str, Any]:
    """Return a JSON-serialisable mapping of a dataset's options that are not the default.

    It leaves out the push, and options that are the same for all datasets of a fleet.
    """
    parts = {part: _given(getattr(conversion, part)) for part in _OWN_PARTS}
    return {part: given for part, given in parts.items() if given}


def _given(options: Any) -> dict[str, Any]:
    """Return the fields of options that are not the default, in the form that JSON gives back."""
    usual = asdict(type(options)())
    return {
        name: list(said) if isinstance(said, tuple) else said
        for name, said in asdict(options).items()
        if said != usual[name]
    }


def conversion_from_record(record: Mapping[str, Mapping[str, Any]]) -> Conversion:
    """Return the options from `conversion_record`, with defaults for the rest.

    Raises:
        TypeError: A key is not known.
    """
    usual = Conversion()
    return Conversion(
        **{
            part: type(getattr(usual, part))(
                **{
                    key: tuple(map(_restored, value)) if isinstance(value, list) else value
                    for key, value in given.items()
                }
            )
            for part, given in record.items()
        }
    )


def _restored(item: Any) -> Any:
    """Return an item of a record's list; the only items that are no texts are frames to keep."""
    return FrameInterval(**item) if isinstance(item, Mapping) else item


@dataclass(frozen=True, slots=True)
class FleetDataset:
    """One dataset of a fleet."""

    name: str  # its name in the fleet: the result's path below the folder of all results
    source: Path | HubName  # the dataset's folder, or its name on the Hub
    target: Path | None  # path of its result; None if the result goes to the Hub only
    # How it is converted, and the repo that its result is pushed to.
    options: Conversion = Conversion()
    # An estimate of one worker's time for it; the longest datasets come first.
    cost_seconds: float = 0.0
    discard: str | None = None  # id of a run to give up; None if there is none

    @property
    def push(self) -> PushOptions | None:
        """How its result is pushed; None if it is not."""
        return self.options.push

    @property
    def needs_scratch(self) -> bool:
        """Whether the source is downloaded, or the result is only made to be pushed."""
        return isinstance(self.source, HubName) or self.target is None

    @property
    def migrates(self) -> bool:
        """Whether it becomes v3.0 in its own repo, where its files stay."""
        return (
            isinstance(self.source, HubName)
            and self.target is None
            and self.push is not None
            and self.push.repo_id == self.source.repo_id
            and self.options.layout.can_migrate
        )

    @property
    def place(self) -> str:
        """Path or repo of its result, for messages."""
        if self.target is not None or self.push is None:
            return str(self.target)
        return f"hf://datasets/{self.push.repo_id}"

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {
            "name": self.name,
            "source": str(self.source),
            "target": None if self.target is None else str(self.target),
            "cost_seconds": self.cost_seconds,
            "discard": self.discard,
            "options": conversion_record(self.options),
            "push": None if self.push is None else _given(self.push),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> FleetDataset:
        """Return the dataset of a record by `as_record`."""
        source, target, push = record["source"], record["target"], record.get("push")
        return cls(
            record["name"],
            HubName.parse(source, bare=False) or Path(source),
            None if target is None else Path(target),
            replace(
                conversion_from_record(record["options"]),
                push=None if push is None else PushOptions(**push),
            ),
            record["cost_seconds"],
            record["discard"],
        )


# Reading of lists.


_COMMENT = re.compile(r"(?:^|\s)#")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a list."""

    place: str  # a folder, a glob, or a name on the Hub
    name: str | None = None  # the name that the line gives the dataset; None for the default name
    # How the dataset is converted. In the repo of ``options.push`` the text ``{name}`` stands for
    # the last part of the dataset's name; no repo means the dataset's own.
    options: Conversion = Conversion()
    number: int = 0  # the line's number


ParseLine = Callable[[Sequence[str]], Line]
"""Parses the words of a line."""


def read_list(
    path: Path, output_dir: Path | None, parse: ParseLine, *, say: Callable[[str], None]
) -> list[FleetDataset]:
    """Read a list as `fleet_datasets` reads its lines, whose words ``parse`` parses.

    Raises:
        UsageError: The list is missing, or a line is wrong.
    """
    return fleet_datasets(_lines(path, parse), output_dir, path=path, say=say)


def fleet_datasets(
    lines: Iterable[Line],
    output_dir: Path | None,
    *,
    path: Path = Path("the list"),
    say: Callable[[str], None] = lambda _: None,
) -> list[FleetDataset]:
    """Return the datasets that lines name, sorted by name.

    Args:
        lines: The lines.
        output_dir: The folder of all results; None if they go to the Hub only.
        path: The list, for messages; relative paths start from its folder, or from the current
            one if it is standard input.
        say: Takes remarks for the user.

    Raises:
        UsageError: A line is wrong, no dataset is named, or results would meet.
    """
    found: dict[Path | HubName, tuple[Line, str]] = {}
    for line in lines:
        with _in_line(path, line.number):
            sources, left_out = _expanded(path, line)
            for what in left_out:
                say(f"{path}, line {line.number}: left out {what}.")
            if line.name is not None and len(sources) > 1:
                raise UsageError(
                    f"--name can name only one result, but the line gives {len(sources)} datasets."
                )
            if line.name is not None and not line.name.isprintable():  # also bytes, not UTF-8
                raise UsageError(
                    f"the name of the result {shown(line.name)} has a character that cannot be "
                    "shown.",
                    next_step="Give another name with --name.",
                )
            for source in sources:
                usual = source.repo_id if isinstance(source, HubName) else source.name
                found[source] = line, _checked_name(usual if line.name is None else line.name)
    if not found:
        raise UsageError(
            f"The list {path} contains no dataset.",
            path=str(path),
            next_step="`leconvert fleet find FOLDER` prints a list of the datasets in a folder.",
        )
    _refuse_collisions(path, found)
    datasets = []
    for source, (line, name) in found.items():
        with _in_line(path, line.number):
            datasets.append(_dataset(line, name, source, output_dir))
    _refuse_meeting_pushes(path, datasets)
    return sorted(datasets, key=lambda dataset: dataset.name)


def _dataset(
    line: Line, name: str, source: Path | HubName, output_dir: Path | None
) -> FleetDataset:
    push = line.options.push
    if push is None and output_dir is None:
        raise UsageError(
            f"no folder is given for the result of {source}.",
            next_step="Add --output-dir DIR for a folder, --push-repo-id ORG/{name} for a repo on "
            "the Hub, or --push-to-hub for the repo of the source.",
        )
    if push is not None:
        repo_id = push.repo_id
        if repo_id is None and isinstance(source, HubName) and line.options.layout.to == "v3.0":
            repo_id = source.repo_id
        if repo_id is None:
            raise UsageError(
                f"the repo for the push of {source} is not given.",
                next_step="Add --push-repo-id ORG/{name}; {name} stands for the last part of the "
                "dataset's name.",
            )
        repo_id = repo_id.replace("{name}", PurePosixPath(name).name)
        check_name(repo_id)
        push = replace(push, repo_id=repo_id)
    target = None if output_dir is None else output_dir / name
    # The other parts belong to the command and may differ when a fleet is resumed.
    own = {part: getattr(line.options, part) for part in _OWN_PARTS}
    dataset = FleetDataset(name, source, target, Conversion(**own, push=push))
    is_overlay = line.options.layout.layout == OVERLAY
    if isinstance(source, HubName) and is_overlay and not dataset.migrates:
        raise UsageError(
            f"--layout overlay leaves the files of {source} on the Hub, so its result "
            "cannot go elsewhere.",
            next_step="Push the result back with --push-to-hub and without --output-dir, or use "
            "another --layout for this dataset.",
        )
    return dataset


def _refuse_meeting_pushes(path: Path, datasets: Sequence[FleetDataset]) -> None:
    """Refuse to push two results to one repo, or one to the repo of another dataset's source."""
    sources = {one.source.repo_id: one for one in datasets if isinstance(one.source, HubName)}
    pushed: dict[tuple[str, str], FleetDataset] = {}
    for dataset in datasets:
        if dataset.push is None:
            continue
        repo_id, branch = str(dataset.push.repo_id), dataset.push.branch
        others = [pushed.setdefault((repo_id, branch), dataset)]
        own = isinstance(dataset.source, HubName) and dataset.source.repo_id == repo_id
        if branch == MAIN and not own:
            others.append(sources.get(repo_id, dataset))
        for other in others:
            if other is not dataset:
                raise UsageError(
                    f"{path}: two datasets would be pushed to {repo_id}: {other.name} and "
                    f"{dataset.name}.",
                    path=str(path),
                    next_step="Give one of the two another repo with --push-repo-id.",
                )


def _lines(path: Path, parse: ParseLine) -> Iterator[Line]:
    if path.is_dir():
        raise UsageError(
            f"{path} is a folder, not a list of datasets.",
            path=str(path),
            next_step=f"`leconvert fleet find {shlex.quote(str(path))} > LIST_FILE` writes a list "
            "of the datasets in this folder.",
        )
    try:
        with storage_errors(path):
            text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except FileNotFoundError:
        raise UsageError(
            f"The list {path} does not exist.",
            path=str(path),
            next_step="`leconvert fleet find FOLDER > LIST_FILE` writes a list of the datasets in "
            "a folder.",
        ) from None
    for number, line in enumerate(text.split("\n"), 1):
        with _in_line(path, number):
            try:
                words = shlex.split(_without_comment(line))
            except ValueError as error:
                raise UsageError(f"{error}.") from error
            parsed = parse(words) if words else None
        if parsed is not None:
            yield replace(parsed, number=number)


@contextmanager
def _in_line(path: Path, number: int) -> Iterator[None]:
    """Let an error name the line that it is about."""
    try:
        yield
    except UsageError as error:
        raise UsageError(
            f"{path}, line {number}: {error.message}",
            path=str(path),
            next_step=error.next_step
            or "Correct the line, then run the same command again. Nothing was written.",
        ) from error


def _without_comment(line: str) -> str:
    """Return a line up to a ``#`` that begins a word and is not quoted."""
    for mark in _COMMENT.finditer(line):
        try:
            shlex.split(line[: mark.start()])
        except ValueError:
            continue  # within quotes
        return line[: mark.start()]
    return line


def _expanded(path: Path, line: Line) -> tuple[list[Path | HubName], list[str]]:
    """Return the datasets that a line names, and descriptions of what its glob leaves out."""
    if "://" in line.place:
        if (named := HubName.parse(line.place, bare=False)) is not None:
            return [named], []
        convert = f"leconvert convert --root {shlex.quote(line.place)} --output RESULT"
        raise UsageError(
            f"{line.place} is neither a folder nor a dataset on the Hub.",
            next_step=f"`{convert}` converts a dataset at a URL."
            if not line.place.startswith("hf:")
            else "Write ORG/NAME or ORG/NAME@REV for a dataset on the Hub. `leconvert fleet "
            "find hf://ORG` lists the datasets of a user or an organisation.",
        )
    # A list on standard input, or one that a shell passes as an open file, lies in no folder.
    folder = Path.cwd() if names_an_open_file(path) else path.parent
    pattern = os.path.join(folder, os.path.expanduser(line.place))  # noqa: PTH111, PTH118
    if os.path.lexists(pattern):
        if not os.path.isdir(pattern):  # noqa: PTH112 - the pattern is a text
            raise UsageError(f"{line.place} is not a folder.")
        return [Path(pattern).resolve()], []
    if not glob.has_magic(line.place):
        named = HubName.parse(line.place)
        # If the first part is a folder here, the name is probably a mistyped path.
        if named is not None and not os.path.lexists(folder / line.place.split("/")[0]):
            return [named], []
        raise UsageError(f"{line.place} does not exist.")
    folders = sorted(Path(match) for match in glob.glob(pattern, recursive=True))  # noqa: PTH207 - any path
    folders = [folder for folder in folders if folder.is_dir()]
    # A former state is an old version of the dataset beside it.
    own = [folder for folder in folders if not is_former(folder)]
    datasets: list[Path | HubName] = [folder.resolve() for folder in own if _may_be_dataset(folder)]
    if not datasets:
        raise UsageError(f"{line.place} matches no dataset.")
    others, former = len(own) - len(datasets), len(folders) - len(own)
    left_out = [f"{count(others, 'folder')} without meta/info.json"] if others else []
    return datasets, left_out + ([count(former, "former state")] if former else [])


def _checked_name(name: str) -> str:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or any(part.startswith(".") for part in parts):
        raise UsageError(
            f"{name!r} cannot be the name of a result.",
            next_step="Give a path below the folder of all results, such as robot/pick. No part "
            "may begin with a dot.",
        )
    return str(PurePosixPath(*parts))


def _refuse_collisions(path: Path, found: Mapping[Path | HubName, tuple[Line, str]]) -> None:
    """Refuse two results at one path, and a result inside another."""
    owners: dict[str, tuple[Path | HubName, int]] = {}
    for source, (line, name) in found.items():
        if name in owners:
            other, number = owners[name]
            raise _meeting(path, (other, number), (source, line.number), f"both named {name}")
        owners[name] = source, line.number
    for name, owner in owners.items():
        for parent in PurePosixPath(name).parents:
            if str(parent) in owners:
                said = f"{name} lies inside {parent}"
                raise _meeting(path, owners[str(parent)], owner, said)


def _meeting(
    path: Path, one: tuple[Path | HubName, int], other: tuple[Path | HubName, int], said: str
) -> UsageError:
    return UsageError(
        f"{path}: two results would be in the same place, {said}.",
        path=str(path),
        details=[f"line {number}: {source}" for source, number in (one, other)],
        next_step="Give one of the two another name: write --name NAME at the end of its line.",
    )


# Policies: the flags that a dataset gets if a scan finds certain errors.


def errors_of(findings: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the errors among a dataset's findings."""
    return [finding for finding in findings if finding["severity"] == "error"]


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """Allowed flags for some findings in some datasets."""

    # Options of a conversion that repair or accept, each as a user types it. In ``--drop-feature
    # {column}``, ``--drop-feature {camera}``, ``--assume-fps {fps}`` and ``--assume-version
    # {version}`` the braces stand for the value that a finding names.
    flags: tuple[str, ...]
    datasets: tuple[str, ...] = ("*",)  # globs of names or folders
    # Codes of errors; the rule applies if at least one was found. If empty, the rule always
    # applies.
    findings: tuple[str, ...] = ()

    def holds_for(self, dataset: FleetDataset) -> bool:
        """Return whether the rule applies to a dataset."""
        return any(
            fnmatchcase(called, pattern)
            for pattern in self.datasets
            for called in (dataset.name, str(dataset.source))
        )

    def flags_for(self, errors: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the flags that the rule gives for errors, which are records of findings."""
        codes = {error["code"] for error in errors}
        # If all times step at another rate than fps, --retime would give them the wrong rate.
        others = _OF_TIMES if "frame-rate" in codes else frozenset()
        meant = [error for error in errors if error["code"] in {*self.findings} - others]
        flags: list[str] = []
        for flag in self.flags if meant else ():
            if flag in _WORDS:
                helping = [(one["flag"], error) for error in meant for one in error["remedies"]]
                flags += [found for found, error in helping if as_word(found, error) == flag]
            else:
                flags.append(flag)
        return flags


_OF_TIMES = frozenset({"timestamps", "uneven-times"})
# Flags whose value a finding names, as policies write them: they fit any dataset.
_COLUMN, _CAMERA = "--drop-feature {column}", "--drop-feature {camera}"
_FPS, _VERSION = "--assume-fps {fps}", "--assume-version {version}"
_WORDS = (_COLUMN, _CAMERA, _FPS, _VERSION)
_BRACES = re.compile(r"\{\w*\}")


def as_word(flag: str, error: Mapping[str, Any]) -> str:
    """Return a flag as a policy writes it, without the value that the error names."""
    for word in (_FPS, _VERSION):
        if flag.startswith(word.partition("{")[0]):
            return word
    if not flag.startswith("--drop-feature "):
        return flag
    return _COLUMN if camera_of(error["stream"] or "") is None else _CAMERA


@dataclass(frozen=True, slots=True)
class Policy:
    """The repairs and findings that are allowed if a scan finds errors; none by default."""

    rules: tuple[PolicyRule, ...] = ()

    def always(self, dataset: FleetDataset) -> RepairOptions:
        """Return a dataset's repairs, with those from rules that apply whatever is found."""
        always = [rule for rule in self.rules if not rule.findings and rule.holds_for(dataset)]
        return _with(dataset.options.repairs, [flag for rule in always for flag in rule.flags])

    def after(
        self, dataset: FleetDataset, repairs: RepairOptions, errors: Sequence[Mapping[str, Any]]
    ) -> RepairOptions | None:
        """Return more repairs for another attempt at a dataset; None if no rule adds any.

        ``repairs`` are those of the last attempt, ``errors`` the records of what it found.
        """
        rules = [rule for rule in self.rules if rule.holds_for(dataset)]
        more = _with(repairs, [flag for rule in rules for flag in rule.flags_for(errors)])
        return None if more == repairs else more

    def as_record(self) -> list[dict[str, Any]]:
        """Return a JSON-serialisable list."""
        return [asdict(rule) for rule in self.rules]

    @classmethod
    def from_record(cls, record: Sequence[Mapping[str, Sequence[str]]]) -> Policy:
        """Return the policy of a record by `as_record`."""
        return cls(tuple(PolicyRule(**{k: tuple(v) for k, v in rule.items()}) for rule in record))


def _with(repairs: RepairOptions, flags: Iterable[str]) -> RepairOptions:
    given = repairs.flags()
    fresh = [flag for flag in dict.fromkeys(flags) if flag not in given]
    return RepairOptions.of_flags([*given, *fresh]) if fresh else repairs


ParseFlags = Callable[[Sequence[str]], RepairOptions]
"""Parses the words of flags into repairs, and refuses other words."""

_RULE_KEYS = ("datasets", "findings", "flags")


def read_policy(path: Path, parse: ParseFlags) -> Policy:
    """Read a policy, a TOML file of ``[[rule]]`` tables.

    Raises:
        UsageError: The file is missing, is no TOML, or a rule is wrong.
    """
    try:
        with storage_errors(path):
            given = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"The policy {path} does not exist.", path=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} is not TOML: {error}.",
            path=str(path),
            next_step="docs/howto/fleet.md shows a policy.",
        ) from error
    if other := [key for key in given if key != "rule"]:
        raise _bad_policy(path, f"{other[0]!r} is unknown. A policy contains only [[rule]] tables.")
    rules = given.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise _bad_policy(path, "write each rule below a line [[rule]].")
    return Policy(tuple(_rule(path, n, rule, parse) for n, rule in enumerate(rules, 1)))


def _rule(path: Path, number: int, rule: Mapping[str, Any], parse: ParseFlags) -> PolicyRule:
    where = f"rule {number}"
    if other := [key for key in rule if key not in _RULE_KEYS]:
        raise _bad_policy(
            path,
            f"{where}: {other[0]!r} is unknown. The keys of a rule are {', '.join(_RULE_KEYS)}.",
        )
    texts = {}
    for key in _RULE_KEYS:
        value = rule.get(key, [])
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise _bad_policy(path, f"{where}: {key} must be a text or a list of texts.")
        texts[key] = value
    if not texts["flags"]:
        raise _bad_policy(path, f'{where} allows nothing: it needs flags, such as "--retime".')
    for code in texts["findings"]:
        if code not in SOURCE_CATALOGUE and code not in V3_CATALOGUE:
            raise _bad_policy(path, f"{where}: there is no finding {code!r}.")
    left = " ".join(texts["flags"]).replace("={", " {")
    words = tuple(word for word in _WORDS if word in left)
    for word in words:
        left = left.replace(word, "")
        if not texts["findings"]:
            raise _bad_policy(path, f"{where}: {word} works only in a rule with findings.")
    if strange := _BRACES.search(left):
        known = ", ".join(_WORDS)
        raise _bad_policy(path, f"{where}: {strange[0]} is unknown. A rule may contain {known}.")
    try:
        repairs = parse(shlex.split(left))
    except (UsageError, ValueError) as error:
        said = error.message if isinstance(error, UsageError) else f"{error}."
        raise _bad_policy(path, f"{where}: {said}") from error
    flags = (*repairs.flags(), *words)
    return PolicyRule(flags, tuple(texts["datasets"]) or ("*",), tuple(texts["findings"]))


def _bad_policy(path: Path, said: str) -> UsageError:
    return UsageError(
        f"{path}: {said}",
        path=str(path),
        next_step="`leconvert explain CODE` explains a finding. docs/howto/fleet.md explains "
        "policies.",
    )


# Finding datasets below a folder, and looking at each.


@dataclass(frozen=True, slots=True)
class FoundDataset:
    """A dataset that was found."""

    source: Path | HubName  # its folder, or its name on the Hub
    name: str  # its path below the searched folder, or its name on the Hub
    version: str | None  # the version in its ``info.json``; None if there is none
    episodes: int | None  # the number of episodes in its ``info.json``; None if there is none
    size_bytes: int  # bytes of all its files
    # Codes of the errors that the scan found, with the number of each.
    errors: Mapping[str, int] = field(default_factory=dict)
    warnings: Mapping[str, int] = field(default_factory=dict)  # the same for warnings
    # The help for the errors; of several flags the one that loses least.
    remedies: tuple[str, ...] = ()
    problem: str | None = None  # why it cannot be read at all; None if it can
    is_scanned: bool = True  # whether its files were read

    @property
    def is_left_out(self) -> bool:
        """Whether a list has it as a comment: it cannot be read, or is v3.0 without an error."""
        return self.problem is not None or (self.version == V3_VERSION and not self.errors)

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {**asdict(self), "source": str(self.source)}


def find_datasets(root: Path) -> list[Path]:
    """Return the folders below ``root`` that are datasets or may be broken ones, sorted.

    A dataset holds ``meta/info.json``. The result also has folders with other files of a dataset,
    folders that cannot be opened, and links to datasets outside of ``root``, which are not
    followed; `look_at_datasets` says what is wrong with them. It leaves out hidden folders, former
    states of results (`leconvert.workdir.former`), and folders inside a dataset.

    Raises:
        UsageError: ``root`` is not a folder.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder.", path=str(root))
    found = []
    real = root.resolve()

    def note(error: OSError) -> None:
        found.append(Path(error.filename))

    for name, below, _ in os.walk(root, onerror=note):
        folder = Path(name)
        if "meta" in below and _may_be_dataset(folder):
            if not is_former(folder):
                found.append(folder)
            below.clear()
        elif _has_parts(folder, below):
            found.append(folder)
            below[:] = [name for name in below if name not in _PARTS]
        below[:] = [name for name in below if not name.startswith(".")]
        links = filter(Path.is_symlink, (folder / name for name in below))
        away = (link for link in links if not link.resolve().is_relative_to(real))
        found += filter(_may_be_dataset, away)
    return sorted(found)


def _may_be_dataset(folder: Path) -> bool:
    """Return whether a folder holds ``meta/info.json``, or may: this user cannot look."""
    try:
        return stat.S_ISREG(info_path(folder).stat().st_mode)
    except OSError as error:
        return isinstance(error, PermissionError)


_PARTS = frozenset({"meta", "data", "videos"})
_TABLES = ("episodes.jsonl", "tasks.jsonl", "episodes_stats.jsonl", "stats.json", "tasks.parquet")


def _has_parts(folder: Path, below: Collection[str]) -> bool:
    """Return whether a folder without ``info.json`` holds other files of a dataset."""
    if "meta" in below and any((folder / "meta" / name).is_file() for name in _TABLES):
        return True
    return "data" in below and any((folder / "data").glob("chunk-*/*.parquet"))


def look_at_datasets(
    root: Path, datasets: Sequence[Path], *, scan: bool = True
) -> Iterator[FoundDataset]:
    """Look at datasets below a folder as ``check`` does, and yield them in their order."""
    return parallel_map(_look_at, [(root, dataset, scan) for dataset in datasets])


def _look_at(root: Path, source: Path, scan: bool) -> FoundDataset:
    relative = source.relative_to(root)
    name = str(relative) if relative.parts else source.resolve().name
    found = FoundDataset(source, name, None, None, 0, is_scanned=False)
    if source.is_symlink():
        said = f"This is a link. To convert the dataset, write {source.resolve()} in the list."
        return replace(found, problem=said)
    try:
        next(os.scandir(source), None)
    except OSError as error:
        return replace(found, problem=f"The folder cannot be opened: {error.strerror}.")
    if {"\n", "\r"} & set(str(source)):
        said = "The path has a line break, which no line of a list can hold. Rename the folder."
        return replace(found, problem=said)
    findings: tuple[CountedFinding, ...] = ()
    try:
        version, episodes = codebase_version(source), None
        with suppress(OSError, ValueError, KeyError, TypeError):
            episodes = int(json.loads(info_path(source).read_bytes())["total_episodes"])
        found = FoundDataset(source, name, version, episodes, _size_bytes(source), is_scanned=scan)
        if scan:
            findings = check_dataset(source).findings
        else:
            open_dataset(source)  # raises errors that every conversion would meet
    except LeconvertError as error:
        helps = () if error.next_step is None else (error.next_step,)
        return replace(found, problem=error.message, remedies=helps)
    errors = [finding for finding in findings if finding.severity == "error"]
    numbers: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for finding in findings:
        numbers[finding.severity][finding.code] += finding.count
    return replace(
        found,
        errors=dict(numbers["error"]),
        warnings=dict(numbers["warning"]),
        remedies=tuple(
            dict.fromkeys(filter(None, (all_remedies(each.code, each.remedy) for each in errors)))
        ),
    )


_HUB_THREADS = 8


def find_on_hub(group: HubGroup | HubName) -> Iterator[FoundDataset]:
    """Look at the datasets of a user, an organisation or a collection, sorted by name.

    Datasets in the folders of a repository are found by its listing; ``group`` may also be one
    repository. Their files are not downloaded, so the findings of a scan are missing.
    """
    revision = group.revision if isinstance(group, HubName) else None
    named = [group.repo_id] if isinstance(group, HubName) else datasets_of(group)
    look = partial(glances_at, revision=revision)
    for seen in chain.from_iterable(map_on_hub(look, named)):
        source = HubName(seen.origin.repo_id, revision)
        yield FoundDataset(
            source,
            str(source).removeprefix("hf://datasets/"),
            seen.version,
            seen.episodes,
            seen.size_bytes,
            problem=seen.problem
            or (None if seen.version else "not a LeRobot dataset: meta/info.json is missing"),
            is_scanned=False,
        )


def map_on_hub[T, R](ask: Callable[[T], R], datasets: Iterable[T]) -> Iterator[R]:
    """Ask the Hub about several datasets at a time; answers come in the order of ``datasets``."""
    with ThreadPoolExecutor(_HUB_THREADS, thread_name_prefix="hub") as pool:
        yield from pool.map(ask, datasets)


def _size_bytes(folder: Path) -> int:
    total = 0
    for inside, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(inside, name)).st_size  # noqa: PTH116, PTH118
            except OSError:  # a link to nowhere; the scan says what is missing
                continue
    return total

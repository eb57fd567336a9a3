"""The origin of a result, and its state when it was proven: a record beside the result.

A conversion writes the record once the result is in place, if its source came from the Hub or if
the result shall be pushed. A verification of all bytes writes a new one. A push relies on it: it
sends what was proven, file by file and by content, and knows which state of a repo the result was
made from. The record stays beside the result and is never part of the dataset.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, override

from leconvert._version import __version__
from leconvert.dataset.files import CARD_BEGIN, files_below, kept_dataset, published_files
from leconvert.dataset.formats.v3 import read_repairs
from leconvert.model.values import LayoutOptions
from leconvert.support.errors import HubConflictError, StorageError, WorkDirError
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.storage_errors import storage_errors
from leconvert.support.text import count
from leconvert.support.values import dataclass
from leconvert.transfer.names import HubName, folder_of, in_folder, repository_of
from leconvert.workdir.fs import sha256_of, write_durably
from leconvert.workdir.records import beside, encode_record, fields_of, find_record
from leconvert.workdir.run import OpenedRun

if TYPE_CHECKING:
    from huggingface_hub import DatasetCard

    from leconvert.transfer.hub import HubStore

# The origin on the Hub of a run's source: a record in the run's work dir.
#
# It is never part of the dataset. The command that downloads a source writes it. A push reads it,
# to know where the result belongs and from which commit it was made.


_ORIGIN_KIND = "origin"
_ORIGIN_VERSION = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """A dataset on the Hub, at one commit."""

    repo_id: str  # ``ORG/NAME`` or ``ORG/NAME/path/to/dataset``
    revision: str  # the requested tag, branch or commit
    commit: str  # its commit then, 40 hexadecimal digits

    @property
    def url(self) -> str:
        """The URL with the commit."""
        return str(HubName(self.repo_id, self.commit))

    @property
    def outline(self) -> str | None:
        """The URL if only a sparse snapshot is here; None if all files are."""
        return None

    def store(self, **options: Any) -> HubStore:
        """Return the files of the dataset at this commit; for the options see `HubStore`."""
        from leconvert.transfer.hub import HubStore  # local datasets do not need the Hub's client

        return HubStore(self.repo_id, self.commit, **options)


class SparseOrigin(Origin):
    """The origin of a sparse snapshot, see `leconvert.remote.sparse_snapshot`."""

    __slots__ = ()

    @property
    @override
    def outline(self) -> str:
        return self.url


_NO_ORIGIN = Origin("", "", "")  # of a local dataset


def origin_path(folder: Path) -> Path:
    """Return the path of a run's record, given the run's folder or the work dir."""
    return folder / "origin.json"


def write_origin(folder: Path, origin: Origin, *, run_id: str) -> None:
    """Write or replace the record."""
    write_durably(
        origin_path(folder), encode_record(_ORIGIN_KIND, _ORIGIN_VERSION, run_id, asdict(origin))
    )


def read_origin(folder: Path) -> Origin | None:
    """Return the record, or None if the source is no copy from the Hub."""
    path = origin_path(folder)
    record = find_record(path, _ORIGIN_KIND, version=_ORIGIN_VERSION)
    if record is None:
        return None
    with fields_of(path):
        return Origin(record["repo_id"], record["revision"], record["commit"])


# The folder for records in a downloaded dataset. Scans skip it, as do LeRobot and the Hub's client.
NOTES = Path(".cache") / "leconvert"


def known_origin(folder: Path) -> Origin | None:
    """Return the commit that a folder was downloaded from; None if it is not known."""
    with suppress(WorkDirError, StorageError, OSError):
        return read_origin(folder / NOTES)
    return None


def _origin_of_merged(folder: Path) -> Origin | None:
    """Return the origin of a merged dataset, also of one in the client's cache."""
    kind, _, name = folder.parent.parent.name.partition("--")
    if (kind, folder.parent.name) == ("datasets", "snapshots"):
        return Origin(name.replace("--", "/"), folder.name, folder.name)
    return known_origin(folder)


# The origin of a result, and its state when it was proven: a record beside the result.


_PROVENANCE_KIND = "provenance"
_PROVENANCE_VERSION = 2

CARD_PATH = "README.md"
_THREADS = 4
FileContent = tuple[int, str]
"""Size in bytes and SHA-256 of a file."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a result, as far as known, and its files when it was proven."""

    repo_id: str = ""  # the repo that its source came from; empty for a local source
    revision: str = ""  # the requested revision
    commit: str = ""  # its commit then
    # Options that decided the result's bytes, without defaults.
    options: Mapping[str, Any] = field(default_factory=dict)
    # Codes of findings about the source, with the number of each.
    findings: Mapping[str, int] = field(default_factory=dict)
    changes: Sequence[str] = ()  # changes besides the format, a few words each
    pushed: bool = False  # whether a push of it was completed
    # Folder or name of the source; empty if it was removed.
    source: str = ""
    source_facts: str = ""  # `facts_of` that folder; empty without one
    # Every file of the result except its card; empty if their hashes were not kept (version 1).
    files: Mapping[str, FileContent] = field(default_factory=dict)
    # For a merge, repo, revision and commit of each dataset; empty texts for a local one.
    merged: Sequence[Origin] = ()

    @property
    def repos(self) -> list[str]:
        """The repos that the result was made from, each once, sorted."""
        return sorted({self.repo_id, *(each.repo_id for each in self.merged)} - {""})

    @property
    def origin(self) -> Origin | None:
        """The source on the Hub; None for a local source."""
        return Origin(self.repo_id, self.revision, self.commit) if self.repo_id else None

    @property
    def place(self) -> str:
        """The source as ``leconvert verify --source`` takes it; empty if it is not known."""
        return self.origin.url if self.origin else self.source


def hash_files(
    root: Path, sizes: Mapping[str, int], digests: dict[str, str], progress: Progress
) -> None:
    """Hash the files that have no digest yet."""
    unread = [path for path in sizes if path not in digests]
    if not unread:
        return
    with (
        progress.stage("hash", sum(sizes[path] for path in unread), "B") as stage,
        ThreadPoolExecutor(_THREADS, thread_name_prefix="hash") as pool,
    ):
        places = [root / path for path in unread]
        for path, digest in zip(unread, pool.map(sha256_of, places), strict=True):
            digests[path] = digest
            stage.advance(sizes[path])


def content_of(
    root: Path, digests: dict[str, str] | None = None, progress: Progress = NO_PROGRESS
) -> dict[str, FileContent]:
    """Return size and SHA-256 of every file of a result except its card, which pushes change."""
    sizes = {p: size for p, size in published_files(root).sizes.items() if p != CARD_PATH}
    digests = {} if digests is None else digests
    hash_files(root, sizes, digests, progress)
    return {path: (size, digests[path]) for path, size in sizes.items()}


def facts_of(folder: Path) -> str:
    """Return a SHA-256 over names, sizes and modification times of a source's files.

    For a ``meta/`` that an overlay in place replaced, it is the digest of the dataset with that
    folder.

    An equal digest means that the source is unchanged, as far as a file system can tell; the
    contents are not read.
    """
    digest = hashlib.sha256()
    with kept_dataset(folder) as dataset:
        for path in sorted(path for path, is_file in files_below(dataset) if is_file):
            place = dataset / path
            with storage_errors(place):
                seen = place.stat()
            digest.update(
                f"{path}\0{seen.st_size}\0{seen.st_mtime_ns}\n".encode(errors="surrogateescape")
            )
    return digest.hexdigest()


def decisive_options(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a plan that decide the result's bytes, without defaults."""
    default = asdict(LayoutOptions()) | {"block_align": "auto"}
    return {
        name: value
        for name, value in planned.items()
        if name != "episodes_per_batch" and (name not in default or value != default[name])
    }


def note_result(
    run: OpenedRun,
    kept: Path | None,
    *,
    for_push: bool,
    digests: dict[str, str] | None = None,
    progress: Progress = NO_PROGRESS,
) -> None:
    """Write the record of a result that a run has just put in place.

    The whole result is read. If nothing in it is from the Hub and it will not be pushed, no record
    is written and an earlier one is removed.

    Args:
        run: The run.
        kept: The source's folder, if the result took its place.
        for_push: Whether the result will be pushed.
        digests: SHA-256 of files that need not be read, by path.
        progress: Receives the progress.
    """
    origin = read_origin(run.paths.root)
    manifest = run.manifest
    target = Path(manifest.target)
    merged = [_origin_of_merged(Path(source.root)) for source in manifest.sources]
    if len(merged) == 1:
        merged = []
    if origin is None and not any(merged) and not for_push:
        record = provenance_path(target)
        with storage_errors(record):
            record.unlink(missing_ok=True)
        return
    source = kept if manifest.in_place else Path(manifest.source)
    if manifest.outline is not None or len(manifest.sources) > 1:
        source = None
    repairs = manifest.sources[0].repairs if len(manifest.sources) == 1 else None
    known = Provenance(
        **asdict(origin or _NO_ORIGIN),
        options=decisive_options(manifest.options),
        findings=dict(Counter(finding.code for finding in manifest.findings)),
        changes=tuple(repairs.summary()) if repairs else (),
        source=str(source) if source else manifest.outline or "",
        source_facts=facts_of(source) if source else "",
        files=content_of(target, digests, progress=progress),
        merged=tuple(each or _NO_ORIGIN for each in merged),
    )
    write_provenance(target, known, run_id=run.paths.run_id)


def proven_anew(
    result: Path, origin: Origin | None, source: Path | None, progress: Progress = NO_PROGRESS
) -> Provenance | None:
    """Return the record of a result that is about to be compared with a source, byte by byte.

    The whole result is read. Write the record only if there is no difference.

    Returns:
        The record; None if it would not help a push: nothing in the result is from the Hub, and
        there is no record yet.
    """
    known = read_provenance(result)
    if known is None and origin is None:
        return None
    files = content_of(result, progress=progress)
    if known is not None and origin is None and known.files == files:
        return known
    return replace(
        known or told_by_repairs(result) or Provenance(),
        **asdict(origin or _NO_ORIGIN),
        source=str(source or ""),
        source_facts=facts_of(source) if source else "",
        files=files,
        pushed=False,
    )


def told_by_repairs(result: Path) -> Provenance | None:
    """Return a conversion's changes from the result's own record; None if it has none."""
    repairs = read_repairs(result)
    return Provenance(changes=tuple(repairs.summary())) if repairs else None


def provenance_path(result: Path) -> Path:
    """Return the path of a result's record: ``<parent>/.<name>.leconvert-provenance``."""
    return beside(result, ".{}.leconvert-provenance")


def write_provenance(result: Path, provenance: Provenance, *, run_id: str = "") -> None:
    """Write or replace the record."""
    record = encode_record(_PROVENANCE_KIND, _PROVENANCE_VERSION, run_id, asdict(provenance))
    write_durably(provenance_path(result), record)


def read_provenance(result: Path) -> Provenance | None:
    """Return the record of a result; None if there is none."""
    path = provenance_path(result)
    record = find_record(path, _PROVENANCE_KIND, version=_PROVENANCE_VERSION)
    if record is None:
        return None
    fields = {name: record[name] for name in Provenance.__dataclass_fields__ if name in record}
    with fields_of(path):
        fields["changes"] = tuple(record["changes"])
        fields["files"] = {
            name: (size, sha256) for name, (size, sha256) in record.get("files", {}).items()
        }
        fields["merged"] = tuple(Origin(**each) for each in record.get("merged", ()))
        return Provenance(**fields)


def noted_origin(result: Path) -> Origin | None:
    """Return the origin of a result's source; None if it was local, or is not known."""
    known = read_provenance(result)
    return None if known is None else known.origin


# The dataset card: the user's own text and keys stay; one marked part is ours and holds the record
# in words.


_END = "<!-- leconvert: end -->"
_OURS = re.compile(re.escape(CARD_BEGIN) + r".*?" + re.escape(_END) + r"(?:\r?\n)?", re.DOTALL)
# A file name of v2.x: v3.0 has no file per episode, and the viewer would find nothing.
_V2_FILES = re.compile(r"episode_[^/]*\.parquet\Z")
_DATA_FILES = "data/*/*.parquet"


def render_card(
    before: str | None,
    info: Mapping[str, Any],
    *,
    repo_id: str,
    sizes: Mapping[str, int],
    provenance: Provenance | None,
    place: Path | None = None,
) -> str:
    """Return the new card.

    Equal arguments give the same text, and a card that was already rendered does not change, so a
    repeated push changes nothing.

    Args:
        before: The card so far; None if there is none.
        info: The result's ``info.json``.
        repo_id: The repo.
        sizes: Size of every file of the result, by path.
        provenance: The result's record, if there is one.
        place: The card's file if it is on this machine; None for the card in the repo.

    Raises:
        HubConflictError: The head of the card cannot be read.
    """
    text = before if before is not None else f"\n# {repo_id.rsplit('/', 1)[-1]}\n"
    card = parse_card(text, repo_id, place)
    _set_keys(card.data)
    line_end = "\r\n" if "\r\n" in card.text else "\n"
    part = line_end.join([CARD_BEGIN, *_lines(info, sizes, provenance), _END, ""])
    if _OURS.search(card.text):
        card.text = _OURS.sub(lambda _: part, card.text, count=1)
    else:
        card.text = f"{card.text.rstrip()}{line_end * 2}{part}"
    return str(card.content)


def decode_card(stored: bytes, repo_id: str, place: Path | None) -> str:
    """Return the text of a stored card; for ``place`` see `render_card`.

    Raises:
        HubConflictError: It is not UTF-8.
    """
    try:
        return stored.decode()
    except UnicodeDecodeError as error:
        raise HubConflictError(
            f"{place or f'README.md in {repo_id}'} is not UTF-8 text, which the Hub requires.",
            path=CARD_PATH,
            next_step="Save the file as UTF-8. If the repo has a README.md already, "
            "--no-card keeps it.",
        ) from error


def parse_card(text: str, repo_id: str, place: Path | None) -> DatasetCard:
    """Return the parsed card; for ``place`` see `render_card`.

    Raises:
        HubConflictError: Its head cannot be read.
    """
    import yaml
    from huggingface_hub import DatasetCard

    text = text.removeprefix("\ufeff")  # in front of a head it would turn the head into text
    if not text.lstrip().startswith("---"):
        text = f"---\n{{}}\n---\n{text}"
    try:
        return DatasetCard(text)
    except (ValueError, TypeError, yaml.YAMLError) as error:
        named = f"README.md in {repo_id}" if place is None else str(place)
        helps = "Correct README.md on the Hub, or add --no-card."
        raise HubConflictError(
            f"The YAML head of {named} cannot be read: {str(error).splitlines()[0]}.",
            path=CARD_PATH if place is None else str(place),
            next_step=helps if place is None else "Correct the file.",
        ) from error


def _set_keys(data: Any) -> None:
    tags = data.get("tags") or []
    tags = [*tags] if isinstance(tags, list) else [tags]
    if not any(str(tag).lower() == "lerobot" for tag in tags):
        data["tags"] = [*tags, "LeRobot"]
    if not data.get("task_categories"):
        data["task_categories"] = ["robotics"]
    configs = data.get("configs")
    if not configs:
        data["configs"] = [{"config_name": "default", "data_files": _DATA_FILES}]
        return
    if not isinstance(configs, list):
        return  # invalid for the Hub, but the user's own
    data["configs"] = [
        {**config, "data_files": _DATA_FILES}
        if isinstance(config, Mapping) and _V2_FILES.search(str(config.get("data_files")))
        else config
        for config in configs
    ]


def _lines(
    info: Mapping[str, Any], sizes: Mapping[str, int], provenance: Provenance | None
) -> list[str]:
    counts = [
        ("episodes", info.get("total_episodes")),
        ("frames", info.get("total_frames")),
        ("tasks", info.get("total_tasks")),
        ("frames a second", info.get("fps")),
        ("robot", info.get("robot_type")),
    ]
    lines = [
        "## Dataset",
        "",
        f"A [LeRobot](https://github.com/huggingface/lerobot) dataset, codebase version "
        f"{info.get('codebase_version')}.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in counts if value is not None),
        *(
            f"| {name} | {count(len(found), 'file')}, {sum(found):,} bytes |"
            for name in ("data", "videos", "meta")
            if (found := [n for path, n in sizes.items() if path.startswith(f"{name}/")])
        ),
        "",
        "| feature | type | shape |",
        "|---|---|---|",
    ]
    for key, feature in sorted(info.get("features", {}).items()):
        shape = " × ".join(map(str, feature.get("shape") or []))
        lines.append(f"| `{_cell(key)}` | {_cell(feature.get('dtype'))} | {shape} |")
    if provenance is None:
        return [*lines, "", f"Pushed by leconvert {__version__}.", ""]
    has_video = any(path.startswith("videos/") for path in sizes)
    version = str(info.get("codebase_version"))
    return [*lines, "", *_origin_lines(provenance, version, has_video=has_video)]


def _origin_lines(provenance: Provenance, version: str, *, has_video: bool) -> list[str]:
    done = f"Converted to {version} from {_source(provenance.origin or _NO_ORIGIN)}"
    if provenance.merged:
        done = f"Merged to {version} from {', then '.join(map(_source, provenance.merged))},"
    lines = [
        "### Conversion",
        "",
        f"{done} by leconvert {__version__}"
        + ("; coded video was copied, not encoded again." if has_video else "."),
        "",
    ]
    told = {
        "Options": [f"`{key}` = {value}" for key, value in sorted(provenance.options.items())],
        "Findings": [
            f"`{code}`" + (f" ({times} times)" if times > 1 else "")
            for code, times in sorted(provenance.findings.items())
        ],
        "Changed": list(provenance.changes),
    }
    lines += [f"- {name}: {', '.join(words)}" for name, words in told.items() if words]
    if lines[-1]:
        lines.append("")
    return lines


def _source(origin: Origin) -> str:
    if not origin.repo_id:
        return "a local dataset"
    repository, folder = repository_of(origin.repo_id), folder_of(origin.repo_id)
    url = f"https://huggingface.co/datasets/{repository}/tree/"
    url += in_folder(origin.commit, folder)
    return f"[{origin.repo_id}]({url}) at `{origin.revision}`"


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")

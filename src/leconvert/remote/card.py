"""The dataset card: a user's own text and keys stay, one marked part is ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from leconvert._version import __version__
from leconvert.dataset.files import CARD_BEGIN
from leconvert.remote.provenance import Origin, Provenance
from leconvert.support.errors import HubConflictError
from leconvert.support.text import count

_END = "<!-- leconvert: end -->"
_OURS = re.compile(re.escape(CARD_BEGIN) + r".*?" + re.escape(_END) + r"(?:\r?\n)?", re.DOTALL)
# A name without its episodes, which v3.0 has no file for; the viewer would find nothing.
_V2_FILES = re.compile(r"episode_[^/]*\.parquet\Z")
_DATA_FILES = "data/*/*.parquet"


def render_card(
    before: str | None,
    info: Mapping[str, Any],
    *,
    repo_id: str,
    sizes: Mapping[str, int],
    provenance: Provenance | None,
) -> str:
    """Return the new card.

    The same arguments give the same text, and a card that was rendered before comes out as it
    went in; so a push that is repeated changes nothing.
    """
    import yaml
    from huggingface_hub import DatasetCard

    text = before if before is not None else f"\n# {repo_id.rsplit('/', 1)[-1]}\n"
    text = text.removeprefix("\ufeff")  # before a head it would make a text of the head
    if not text.lstrip().startswith("---"):
        text = f"---\n{{}}\n---\n{text}"
    try:
        card = DatasetCard(text)
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise HubConflictError(
            f"The head of README.md in {repo_id} cannot be read: {str(error).splitlines()[0]}.",
            path="README.md",
            next_step="Mend it on the Hub, or push with --no-card.",
        ) from error
    _set_keys(card.data)
    line_end = "\r\n" if "\r\n" in card.text else "\n"
    part = line_end.join([CARD_BEGIN, *_lines(info, sizes, provenance), _END, ""])
    if _OURS.search(card.text):
        card.text = _OURS.sub(lambda _: part, card.text, count=1)
    else:
        card.text = f"{card.text.rstrip()}{line_end * 2}{part}"
    return str(card.content)


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
        return  # not as the Hub wants them, but a user's own
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
            f"| {name} | {count(number, 'file')}, {size:,} bytes |"
            for name, number, size in _totals(sizes)
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
    origin = Origin(provenance.repo_id, provenance.revision, provenance.commit)
    done = f"Converted to {version} from {_source(origin)}"
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
    url = f"https://huggingface.co/datasets/{origin.repo_id}/tree/{origin.commit}"
    return f"[{origin.repo_id}]({url}) at `{origin.revision}`"


def _totals(sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    totals = []
    for name in ("data", "videos", "meta"):
        found = [size for path, size in sizes.items() if path.startswith(f"{name}/")]
        if found:
            totals.append((name, len(found), sum(found)))
    return totals


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")

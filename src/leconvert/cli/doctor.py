"""``leconvert doctor``."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leconvert.cli import check_fs
from leconvert.cli.check_fs import add_peer_options
from leconvert.cli.options import add_json
from leconvert.cli.output import folded
from leconvert.support.errors import InstallationError, StorageError, UsageError
from leconvert.support.text import aligned, amount

_WIDTH_WITHOUT_TERMINAL = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="a folder: test whether several hosts can share its file system, too",
    )
    add_peer_options(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Look, and say what is there and what is missing."""
    from leconvert.cli.examination import examine

    if options.peer or options.wait is not None:
        if options.folder is None:
            raise UsageError("--peer and --wait need the folder that two hosts share.")
        return check_fs.run(options)
    folder = None if options.folder is None else options.folder.resolve()
    if folder is not None and not folder.is_dir():
        raise StorageError(
            f"{folder} is not a folder.", path=str(folder), next_step="Name one that exists."
        )
    found = examine(folder)
    if options.json:
        print(json.dumps(found.as_record(), indent=2))
    else:
        width = shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
        print("\n".join(doctor_lines(found.as_record(), width)))
    if not found.can_use_folder:
        return StorageError.exit_code
    return InstallationError.exit_code if found.lacks or found.broken else 0


# What ``leconvert doctor`` says of each part of a machine that it looked at.


_CAN = {
    "several_hosts": "OK on this host; test a second one with `leconvert doctor DIR --peer`",
    "one_host": "only one host may work here",
    "none": "leconvert cannot work here",
}


def doctor_rows(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name of each part, empty where it goes on, and what was seen of it."""
    machine = record["machine"]
    yield "leconvert", f"{record['leconvert']}, Python {record['python']}, {record['platform']}"
    if "trouble" in machine:
        yield "machine", f"not known: {machine['trouble']}"
    else:
        yield "machine", _machine(machine)
    yield "video", _video(record["video"])
    yield from _loading(record["loading"])
    yield "Hub", _hub(record["hub"])
    yield "engines", ", ".join(name for name, trouble in record["engines"].items() if not trouble)
    for name, trouble in record["engines"].items():
        if trouble:
            yield "", f"not {name}: {trouble}"
    if not record["packages"]:
        yield "packages", "leconvert is not installed as a package: what it wants is not known"
    if record["file_system"] is not None:
        yield from _file_system(record["file_system"])


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['cpu']}; {machine['cores']} cores; {amount(machine['memory_bytes'])} of memory, "
        f"{amount(machine['free_memory_bytes'])} free"
    )


def _video(video: Mapping[str, Any]) -> str:
    if "trouble" in video:
        return str(video["trouble"])
    return f"PyAV carries FFmpeg {video['ffmpeg']}, which decodes {', '.join(video['decodes'])}"


def _loading(loading: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "trouble" in loading:
        yield "loading", f"torch could not be asked: {loading['trouble']}"
        return
    if loading["torch"] is None:
        yield "loading", "torch is missing, which the loader and the probe need"
        return
    ffmpeg = loading["ffmpeg"] or "none"
    codec = "loads" if loading["torchcodec_loads"] else "does not load"
    yield (
        "loading",
        f"torch {loading['torch']}; torchcodec {loading['torchcodec'] or 'missing'} {codec}; "
        f"the FFmpeg it finds: {ffmpeg}",
    )
    nvdec = "; NVDEC is there" if loading["nvdec"] else "; no NVDEC" if loading["gpus"] else ""
    yield "GPUs", (", ".join(loading["gpus"]) or "none that torch can use") + nvdec
    for sentence in loading["missing"]:
        yield "missing", sentence


def _hub(hub: Mapping[str, Any]) -> str:
    if "trouble" in hub:
        return f"the client does not load: {hub['trouble']}"
    token = "no token" if hub["token"] is None else f"a token from {hub['token']}"
    offline = "; HF_HUB_OFFLINE forbids to ask it" if hub["is_offline"] else ""
    return f"{hub['endpoint']}, {token}{offline}"


def _file_system(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    mount = found["mount"]
    yield "folder", found["folder"]
    yield (
        "mount",
        f"{mount['point']}, {mount['kind']}, {amount(mount['free_bytes'])} of "
        f"{amount(mount['total_bytes'])} free",
    )
    for promise in found["findings"]:
        if not promise["holds"]:
            yield "not kept", f"{promise['says']}: {promise['instead']}"
    yield "so", _CAN[str(found["fitness"])]


# Draws what ``leconvert doctor`` found: a name on the left, what was seen wrapped beside it.


_NAME_WIDTH = 12
_NARROWEST = 40
_WIDE = 80


def doctor_lines(record: Mapping[str, Any], width: int) -> list[str]:
    """Return the lines."""
    width = max(width, _NARROWEST)
    lines: list[str] = []
    for name, said in doctor_rows(record):
        first, *further = folded(said, width - _NAME_WIDTH, "")
        lines.append(f"{name:<{_NAME_WIDTH}}{first}")
        lines += [" " * _NAME_WIDTH + piece for piece in further]
    if record["packages"]:
        lines += ["", *_packages(record["packages"], width)]
    lines.append("")
    told = list(record["lacks"])
    if not told:
        rest = ", but something else does not work:" if record["broken"] else "."
        told = [f"Everything that a conversion needs is here{rest}"]
    for sentence in (*told, *record["broken"]):
        lines += folded(sentence, width, "")
    return lines


def _packages(packages: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Return a table, and below it the commands that bring what is missing.

    A command stays on one line, to be copied. Narrow terminals have no room for the last column.
    """
    rows = [("package", "wants", "here", "extra")]
    rows += [
        (p["name"], p["wants"] or "any", p["version"] or "missing", ", ".join(p["extras"]))
        for p in packages
    ]
    # The first extra that wants a package is the one whose command brings it.
    lacking = {p["extras"][0]: p["remedy"] for p in packages if p["remedy"] and p["extras"]}
    lines = aligned(rows if width >= _WIDE else [row[:3] for row in rows])
    if lacking:
        lines += ["", "What an extra lacks is installed by:"]
        lines += aligned(list(lacking.items()))
    return lines

"""What ``leconvert doctor`` says of each part of a machine that it looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leconvert.cli.text import amount

__all__ = ["doctor_rows"]

_CAN = {
    "several_hosts": "nothing speaks against several hosts; see check-fs --peer",
    "one_host": "one host alone may work here",
    "none": "leconvert cannot work here",
}


def doctor_rows(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name of each part, empty where it goes on, and what was seen of it."""
    machine = record["machine"]
    yield "leconvert", f"{record['leconvert']}, Python {record['python']}, {record['platform']}"
    yield (
        "machine",
        f"{machine['cpu']}; {machine['cores']} cores; {amount(machine['memory_bytes'])} of memory, "
        f"{amount(machine['free_memory_bytes'])} free",
    )
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


def _video(video: Mapping[str, Any]) -> str:
    if "trouble" in video:
        return f"PyAV does not load: {video['trouble']}"
    return f"PyAV carries FFmpeg {video['ffmpeg']}, which decodes {', '.join(video['decodes'])}"


def _loading(loading: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "trouble" in loading:
        yield "loading", f"torch could not be asked: {loading['trouble']}"
        return
    if loading["torch"] is None:
        yield "loading", "torch is missing, which only the probe needs"
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

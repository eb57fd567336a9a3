"""What a result is held against: the decode limit, and the frames that should have come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leconvert.errors import LeconvertError, ProbeError, UnreadableSourceError
from leconvert.probe.clips import open_clip
from leconvert.probe.environment import PACKETS_LOOKED_AT, cores, video_facts
from leconvert.probe.files import Files, OpenFile
from leconvert.probe.limit import LimitPlan, limit_of, measure_limit, videos_to_decode
from leconvert.probe.metadata import DatasetMeta
from leconvert.probe.options import RunOptions
from leconvert.probe.results import read_results

__all__ = ["KnownLimit", "dataset_record", "failure_of", "find_limit", "known_limit"]

_NAMED = 20


@dataclass(frozen=True, slots=True)
class KnownLimit:
    """How fast the files decode at most.

    Attributes:
        frames_per_s: Random access, all processes.
        origin: ``measured`` for now, or the result's file.
        rates: Every rate as `leconvert.probe.limit.DecodeRate.as_record` gives it.
    """

    frames_per_s: float
    origin: str
    rates: Sequence[Mapping[str, Any]]

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {
            "frames_per_s": self.frames_per_s,
            "origin": self.origin,
            "rates": [dict(rate) for rate in self.rates],
        }


def known_limit(
    options: RunOptions,
    meta: DatasetMeta,
    files: Files,
    results_dir: Path | None,
    *,
    backend: str,
) -> KnownLimit | None:
    """Return the limit of a run: measured now if asked for, else from a result at hand.

    Args:
        options: The run's.
        meta: The dataset.
        files: Where its videos are.
        results_dir: Where results of ``probe limit`` may lie.
        backend: What decodes.
    """
    if not meta.video_keys:
        return None
    if not options.with_limit:
        return find_limit(results_dir, meta, options.decode_device) if results_dir else None
    plan = LimitPlan(
        cores(), options.limit_duration_s, backend, options.decode_device, options.seed
    )
    rates = [rate.as_record() for rate in measure_limit(files, videos_to_decode(meta), plan)]
    frames_per_s = limit_of(rates)
    return None if frames_per_s is None else KnownLimit(frames_per_s, "measured", rates)


def find_limit(folder: Path, meta: DatasetMeta, device: str) -> KnownLimit | None:
    """Return the newest limit in a folder that was measured on this host, data set and device.

    Fewer processes than cores decode less than the host could: they are no limit.
    """
    import platform

    fitting = [
        (document["started"], path.name, document["rates"])
        for path, document in read_results(folder.glob("*.json"))
        if document["kind"] == "limit"
        and document["host"]["name"] == platform.node()
        and document["dataset"]["fingerprint"] == meta.fingerprint()
        and document["options"]["decode_device"] == device
        and document["options"]["processes"] >= cores()
    ]
    if not fitting:
        return None
    _, name, rates = max(fitting, key=lambda found: found[:2])
    frames_per_s = limit_of(rates)
    return None if frames_per_s is None else KnownLimit(frames_per_s, name, rates)


def dataset_record(meta: DatasetMeta, files: Files) -> dict[str, Any]:
    """Return what is known about a dataset, with how each camera's first video is coded."""
    table = meta.episodes
    videos: dict[str, Any] = {}
    for key, camera in table.cameras.items():
        # All files of a camera are coded alike: players could not follow otherwise.
        try:
            videos[key] = _facts_of(files, camera.paths[0]) if camera.paths else None
        except LeconvertError:
            videos[key] = None
    first: Mapping[str, Any] = next((facts for facts in videos.values() if facts), {})
    return {
        "root": meta.root,
        "fingerprint": meta.fingerprint(),
        "codebase_version": str(meta.info["codebase_version"]),
        "episodes": len(table),
        "frames": int(table.length.sum()),
        "fps": meta.fps,
        "cameras": list(meta.camera_keys),
        "data_files": len(table.data_paths),
        "video_files": sum(len(camera.paths) for camera in table.cameras.values()),
        "codec": first.get("codec"),
        "gop": first.get("gop"),
        "videos": videos,
    }


def _facts_of(files: Files, path: str) -> dict[str, Any]:
    import av

    opened = files.open(path)
    try:
        if not files.is_local:
            _fetch_beginning(opened)
        with Path(opened.path).open("rb") as file:
            return video_facts(file).as_record()
    except (av.error.FFmpegError, OSError, IndexError) as error:
        raise UnreadableSourceError(f"{opened.name} is no video: {error}.") from error
    finally:
        opened.close()


def _fetch_beginning(opened: OpenFile) -> None:
    """Fetch what tells how a video is coded; a whole one may have hundreds of megabytes."""
    index = open_clip(opened, keep_index=True).index
    if index is not None:
        runs = index.byte_runs(0, min(PACKETS_LOOKED_AT, index.num_samples))
        opened.need([(start, start + length) for start, length in runs])


def failure_of(document: Mapping[str, Any]) -> ProbeError | None:
    """Return what is wrong with the frames of a result; None where nothing was found.

    Without ``--check`` unreadable frames are only counted.
    """
    check = document["check"]
    if check is None:
        return None
    if not check["samples"]:
        return ProbeError(
            f"Nothing was compared: LeRobot could load none of {check['refused_by_map']} samples.",
            path=document["dataset"]["root"],
            next_step="Convert the dataset again with leconvert; its times are exact.",
            details=check["named"][:_NAMED],
        )
    wrong, unreadable = check["wrong_frames"], check["unreadable_frames"]
    others = check["wrong_values"] + check["wrong_pad_flags"]
    in_batches = document["unreadable_frames"]
    if not (wrong or unreadable or others or in_batches):
        return None
    return ProbeError(
        f"In {check['samples']} samples compared {wrong} frames are wrong, {unreadable} cannot be "
        f"read and {others} values or pad flags are wrong; in the batches {in_batches} frames "
        "could not be read.",
        path=document["dataset"]["root"],
        next_step="See `check` in the result for the places.",
        details=check["named"][:_NAMED],
    )

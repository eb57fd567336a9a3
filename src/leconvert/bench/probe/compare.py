"""Streamed samples against those of LeRobot's own dataset: is it the right frame?"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from leconvert.bench.environment import require_packages
from leconvert.bench.probe.measured import LoaderUnderTest, SampleToCheck, Subject
from leconvert.loading import PAD_SUFFIX, EpisodeStream, Sample
from leconvert.support.errors import ProbeError, UsageError
from leconvert.support.extras import missing_package
from leconvert.support.progress import Progress, Stage

_NAMED = 50
_TOLD = 3


@dataclass(frozen=True, slots=True)
class SampleDifference:
    """One key of one sample that is not what LeRobot gives.

    Attributes:
        index: Number of the frame in the whole dataset.
        key: The feature, a pad flag, or ``task``.
        what: How it differs.
    """

    index: int
    key: str
    what: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison found.

    Attributes:
        samples: Samples compared.
        wrong_frames: By camera, samples one of whose pictures differs.
        wrong_pads: Pad flags that differ.
        wrong_values: Other keys that differ, in value, type or shape.
        unreadable: Samples that LeRobot itself could not load, so nothing was compared.
        differences: The first fifty, and the first fifty samples that could not be loaded.
    """

    samples: int
    wrong_frames: Mapping[str, int]
    wrong_pads: int
    wrong_values: int
    unreadable: int
    differences: tuple[SampleDifference, ...]

    @property
    def is_right(self) -> bool:
        """Whether samples were compared and none differs."""
        wrong = sum(self.wrong_frames.values()) + self.wrong_pads + self.wrong_values
        return self.samples > 0 and not wrong


def open_map(stream: EpisodeStream, delta_timestamps: Mapping[str, Any] | None) -> Any:
    """Open the same dataset with LeRobot's map-style class."""
    root = stream.meta.root
    if "://" in root:
        raise UsageError(
            f"{root} is not local; LeRobot's dataset reads local folders alone.",
            next_step="Download the dataset and compare there.",
        )
    try:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError as error:
        raise missing_package("Comparing with LeRobot needs lerobot", "deep") from error
    deltas = None if delta_timestamps is None else {k: list(v) for k, v in delta_timestamps.items()}
    return LeRobotDataset(
        f"local/{Path(root).name}",
        root=root,
        delta_timestamps=deltas,
        return_uint8=stream.return_uint8,
    )


def compare_with_map(stream: EpisodeStream, samples: int, *, reference: Any = None) -> Comparison:
    """Compare the first samples of a stream with LeRobot's samples of the same numbers.

    Args:
        stream: The stream; it is iterated in this process.
        samples: How many; fewer where the stream has fewer.
        reference: What to compare with, indexed by the number of a frame in the whole dataset;
            None for `open_map`.

    Returns:
        What differs. A frame that LeRobot itself refuses to load is counted apart.
    """
    if reference is None:
        reference = open_map(stream, stream.delta_timestamps)
    first = ((sample, ()) for sample in islice(stream, samples))
    return compare_samples(first, reference, cameras=stream.meta.camera_keys)


def compare_samples(
    samples: Iterable[tuple[Sample, Collection[str]]], reference: Any, *, cameras: tuple[str, ...]
) -> Comparison:
    """Compare samples of any loader with a map-style dataset."""
    wrong_frames = dict.fromkeys(cameras, 0)
    wrong_pads = wrong_values = unreadable = compared = 0
    named: list[SampleDifference] = []
    refused: list[SampleDifference] = []
    for sample, left_out in samples:
        number = int(sample["index"])
        try:
            wanted = reference[number]
        except Exception as error:  # noqa: BLE001 (LeRobot's errors are of many kinds)
            unreadable += 1
            first_line = str(error).strip().partition("\n")[0]
            if len(refused) < _NAMED:
                said = f"LeRobot cannot load it: {first_line}"
                refused.append(SampleDifference(number, "", said))
            continue
        compared += 1
        for key in sorted({*sample, *wanted}.difference(left_out)):
            what = _difference(sample, wanted, key, is_picture=key in wrong_frames)
            if what is None:
                continue
            if len(named) < _NAMED:
                named.append(SampleDifference(number, key, what))
            if key in wrong_frames:
                wrong_frames[key] += 1
            elif key.endswith(PAD_SUFFIX):
                wrong_pads += 1
            else:
                wrong_values += 1
    return Comparison(
        samples=compared,
        wrong_frames=wrong_frames,
        wrong_pads=wrong_pads,
        wrong_values=wrong_values,
        unreadable=unreadable,
        differences=(*named, *refused),
    )


def _difference(
    sample: Mapping[str, Any], wanted: Mapping[str, Any], key: str, *, is_picture: bool
) -> str | None:
    if key not in sample or key not in wanted:
        return "is missing" if key in wanted else "is not there in LeRobot's"
    ours, theirs = sample[key], wanted[key]
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return None if ours == theirs else f"is {ours!r} instead of {theirs!r}"
    if is_picture and ours.dtype != theirs.dtype and ours.dtype == torch.uint8:
        # LeRobot gives images of tables as floats whatever it is asked for.
        theirs = (theirs * 255).round().to(torch.uint8)
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return (
            f"is {ours.dtype} of {tuple(ours.shape)} instead of {theirs.dtype} of "
            f"{tuple(theirs.shape)}"
        )
    if torch.equal(ours, theirs):
        return None
    if ours.dtype.is_floating_point and torch.allclose(ours, theirs, 0, 0, equal_nan=True):
        return None
    off = (ours.to(torch.float64) - theirs.to(torch.float64)).abs()
    return (
        f"differs in {int((off > 0).sum())} of {off.numel()} numbers, by up to {float(off.max()):g}"
    )


def check_samples(
    loader: LoaderUnderTest, subject: Subject, progress: Progress
) -> dict[str, Any] | None:
    """Compare samples of a loader, made in this process, with LeRobot's of the same frames.

    Returns:
        Counts, and the first places that are wrong. A frame counts by sample and camera: one wrong
        step makes a window wrong, and one that cannot be decoded makes it unreadable. None for the
        map-style loader, which is the reference itself.
    """
    samples = loader.to_check()
    if samples is None:
        return None
    require_packages("torch", "lerobot", "datasets")
    from leconvert.bench.probe.lerobot_loaders import MapUnderTest

    options = subject.options
    if "://" in str(options.root) and not str(options.root).startswith("hf://datasets/"):
        raise UsageError(
            f"LeRobot cannot read {options.root}, so nothing can be compared.",
            next_step="Leave --check out, or compare on a local copy.",
        )
    # All episodes: its samples are then numbered as the dataset's frames are.
    reference = MapUnderTest(
        replace(subject, episodes=None, options=replace(options, data_files_root=None))
    ).dataset
    unreadable: list[str] = []
    with progress.stage("check", options.check, "samples") as stage:
        found = compare_samples(
            _decoded(islice(samples, options.check), unreadable, stage),
            reference,
            cameras=subject.meta.camera_keys,
        )
    return {
        "samples": found.samples,
        "refused_by_map": found.unreadable,
        "wrong_frames": sum(found.wrong_frames.values()),
        "wrong_frames_by_camera": dict(found.wrong_frames),
        "unreadable_frames": len(unreadable),
        "wrong_pad_flags": found.wrong_pads,
        "wrong_values": found.wrong_values,
        "named": [
            *dict.fromkeys(unreadable),
            *(f"frame {one.index}: {one.key} {one.what}" for one in found.differences),
        ][:_NAMED],
    }


def _decoded(
    samples: Iterator[SampleToCheck], unreadable: list[str], stage: Stage
) -> Iterator[tuple[dict[str, Any], Collection[str]]]:
    """Yield samples, each with the cameras that are black in it because nothing was decoded."""
    for sample, cameras in samples:
        stage.advance(1)
        unreadable += cameras.values()
        yield dict(sample), cameras.keys()


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
            details=[*check["named"][:_TOLD], *_more(check["named"])],
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
        details=[*check["named"][:_TOLD], *_more(check["named"])],
    )


def _more(named: Sequence[str]) -> list[str]:
    left = len(named) - _TOLD
    return [f"… and {left} more in the result, under `check`"] if left > 0 else []

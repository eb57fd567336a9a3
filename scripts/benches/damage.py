"""Random bytes inside coded frames: in how many clips they are found, and what looking costs."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benches import kit
from leconvert.loading import open_clip, open_decoder
from leconvert.support.errors import UnreadableSourceError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.transfer.files import files_at

CODECS: dict[str, dict[str, Any]] = {
    "H.264, a keyframe in 2 frames": {},
    "H.264, a keyframe in 60, B-frames": {"gop_size": 60, "options": {"bf": "3"}},
    "AV1": {"codec": "libsvtav1", "options": {"preset": "10"}},
    "HEVC": {"codec": "libx265", "options": {"x265-params": "log-level=none"}},
}
WAYS = {"strict": True, "not": False}
_FOLLOWING = 6


def damage(case: kit.Case) -> None:
    """Damage clips of each codec, and print which damages a loader finds.

        python scripts/bench.py damage --trials 40
        python scripts/bench.py damage NAME=CLIP... --repeats 5

    Makes a clip of each codec, or takes those given. Each trial writes 1 to 64 random bytes into
    one coded frame of a copy and decodes it and up to five frames that follow in its group, each
    for itself, as the loader does. A clip is *found* if one of them raises, else *wrong* if a
    picture differs from the sound clip's, else *harmless*. Then every frame of the sound clip is
    decoded once, with and without looking, in turns; CPU time counts.
    """
    case.parser.add_argument("clips", nargs="*", metavar="NAME=CLIP")
    case.parser.add_argument("--trials", type=int, default=40)
    options = case.parse(repeats=5)
    given = (clip.partition("=") for clip in options.clips)
    with case.scratch_folder() as folder:
        clips = {name: Path(path) for name, _, path in given} or {
            name: made_clip(folder / str(number), of_camera)
            for number, (name, of_camera) in enumerate(CODECS.items())
        }
        with case.log(folder, "damage", clips=list(clips)) as keep:
            for name, clip in clips.items():
                drawn = random.Random(1)
                trials = [trial(clip, folder / "bad.mp4", drawn) for _ in range(options.trials)]
                row: kit.Row = {"clip": name, "trials": len(trials), "is_sound": True}
                row |= {way: Counter(each[way] for each in trials) for way in WAYS}
                frames = range(opened(clip).num_frames or 0)
                for way in [*WAYS] * options.repeats:
                    began = time.process_time()
                    row["is_sound"] &= None not in list(pictures(clip, frames, way))
                    row.setdefault(f"cpu_ms_a_frame_{way}", []).append(
                        round((time.process_time() - began) / len(frames) * 1e3, 3)
                    )
                keep(row)
                print(row, flush=True)


def made_clip(root: Path, of_camera: dict[str, Any]) -> Path:
    """Make a clip of 120 frames, half of each picture noise."""
    camera = CameraSpec(width=320, height=240, noise_amplitude=40, **of_camera)
    make_dataset(root, DatasetSpec(episodes=1, frames=120, cameras=(camera,)))
    return next(root.rglob("*.mp4"))


def opened(path: Path) -> Any:
    """Open a clip as a stream of a local folder does."""
    return open_clip(files_at(path.parent).open(path.name), keep_index=True)


def pictures(path: Path, ranks: Sequence[int], way: str) -> Iterator[bytes | None]:
    """Yield the picture of each frame, None for one that raises."""
    decoder = open_decoder(opened(path), "pyav", is_strict=WAYS[way])
    for rank in ranks:
        try:
            ((_, frames),) = list(decoder.decode(np.array([rank])))
            yield frames.numpy().tobytes()
        except UnreadableSourceError:
            yield None


def trial(clip: Path, damaged: Path, drawn: random.Random) -> dict[str, str]:
    """Damage a copy of a clip, and return what becomes of it with and without looking."""
    index = opened(clip).index
    heads = [*np.flatnonzero(index.keyframes).tolist(), index.num_samples]
    sample = drawn.randrange(index.num_samples)
    end = next(head for head in heads if head > sample)
    ranks = sorted(index.ranks[sample : min(end, sample + _FOLLOWING)].tolist())
    size = int(index.sizes[sample])
    amount = min(drawn.choice((1, 4, 16, 64)), size - 1)
    place = int(index.offsets[sample]) + drawn.randrange(size - amount)
    data = bytearray(clip.read_bytes())
    data[place : place + amount] = drawn.randbytes(amount)
    damaged.write_bytes(data)
    sound = list(pictures(clip, ranks, "strict"))
    found = {}
    for way in WAYS:
        seen = list(pictures(damaged, ranks, way))
        found[way] = "found" if None in seen else "harmless" if seen == sound else "wrong"
    return found

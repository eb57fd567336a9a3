"""Random bytes inside coded frames: in how many clips they are found, and what looking costs.

    python scripts/bench.py damage --trials 40
    python scripts/bench.py damage NAME=CLIP... --repeats 5

Makes a clip of each codec, or takes those given. Each trial writes 1 to 64 random bytes into one
coded frame of a copy and decodes it and up to five frames that follow in its group, each for
itself, as the loader does. A clip is *found* if one of them raises, else *wrong* if a picture
differs from the sound clip's, else *harmless*. Then every frame of the sound clip is decoded once,
with and without looking, in turns; CPU time counts. Raw rows go to
``bench_logs/<date>-damage.jsonl``.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benches import kit

CODECS: dict[str, dict[str, Any]] = {
    "H.264, a keyframe in 2 frames": {},
    "H.264, a keyframe in 60, B-frames": {"gop_size": 60, "options": {"bf": "3"}},
    "AV1": {"codec": "libsvtav1", "options": {"preset": "10"}},
    "HEVC": {"codec": "libx265", "options": {"x265-params": "log-level=none"}},
}
_FOLLOWING = 6


def make_clip(folder: Path, number: int, of_camera: dict[str, Any]) -> Path:
    """Make a clip of 120 frames, half of each picture noise."""
    from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

    camera = CameraSpec(width=320, height=240, noise_amplitude=40, **of_camera)
    root = make_dataset(
        folder / str(number), DatasetSpec(episodes=1, frames=120, cameras=(camera,))
    )
    return next(root.rglob("*.mp4"))


def open_clip(path: Path) -> Any:
    """Open a clip as a stream of a local folder does."""
    from leconvert.loading import open_clip
    from leconvert.transfer.files import files_at

    return open_clip(files_at(path.parent).open(path.name), keep_index=True)


def pictures(path: Path, ranks: Sequence[int], *, is_strict: bool) -> Iterator[bytes | None]:
    """Yield the picture of each frame, None for one that raises."""
    import numpy as np

    from leconvert.loading import open_decoder
    from leconvert.support.errors import UnreadableSourceError

    decoder = open_decoder(open_clip(path), "pyav", is_strict=is_strict)
    for rank in ranks:
        try:
            ((_, frames),) = list(decoder.decode(np.array([rank])))
            yield frames.numpy().tobytes()
        except UnreadableSourceError:
            yield None


def trial(clip: Path, damaged: Path, drawn: random.Random) -> dict[str, str]:
    """Damage a copy of a clip, and return what becomes of it with and without looking."""
    import numpy as np

    index = open_clip(clip).index
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
    sound = list(pictures(clip, ranks, is_strict=True))
    found = {}
    for name, is_strict in (("strict", True), ("not", False)):
        seen = list(pictures(damaged, ranks, is_strict=is_strict))
        found[name] = "found" if None in seen else "harmless" if seen == sound else "wrong"
    return found


def main(arguments: Sequence[str]) -> int:
    """Damage clips of each codec, and print which damages are found."""
    parser = kit.parser(__doc__, repeats=5)
    parser.add_argument("clips", nargs="*", metavar="NAME=CLIP")
    parser.add_argument("--trials", type=int, default=40)
    options = parser.parse_args(arguments)
    with kit.scratch_folder(options.scratch, "damage") as folder:
        given = (clip.partition("=") for clip in options.clips)
        clips = {name: Path(path) for name, _, path in given} or {
            name: make_clip(folder, number, of_camera)
            for number, (name, of_camera) in enumerate(CODECS.items())
        }
        head = kit.header("bench.py damage", arguments, folder, {"clips": list(clips)})
        with kit.rows_kept(kit.new_log(options.log_dir, head, "damage"), head) as keep:
            for name, clip in clips.items():
                drawn = random.Random(1)
                trials = [trial(clip, folder / "bad.mp4", drawn) for _ in range(options.trials)]
                row: kit.Row = {"clip": name, "trials": len(trials)}
                row |= {way: Counter(each[way] for each in trials) for way in ("strict", "not")}
                frames = range(open_clip(clip).num_frames or 0)
                for way, is_strict in [("strict", True), ("not", False)] * options.repeats:
                    began = time.process_time()
                    sound = None not in list(pictures(clip, frames, is_strict=is_strict))
                    row.setdefault(f"cpu_ms_a_frame_{way}", []).append(
                        round((time.process_time() - began) / len(frames) * 1e3, 3)
                    )
                    row["is_sound"] = row.get("is_sound", True) and sound
                keep(row)
                print(row, flush=True)
    return 0

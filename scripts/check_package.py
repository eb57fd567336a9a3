"""Build the wheel and the sdist, install the wheel in empty environments, and use it there.

    python scripts/check_package.py [--keep DIR] [--python 3.13] [--extras probe ray ...]

The wheel is installed as a user does it, without this project's pins: once with the newest versions
of what it requires, once with the lowest that it allows and that have wheels. Both do what decodes
a frame, writes a table or asks the Hub: convert v2.0 and v2.1, with statistics and quantiles, and
back; trim, merge, split, repair; verify by bytes and by decoding; bring a dataset to the Hub's
stand-in of ``tests/hub`` and back. The loader is tried on the lowest versions, since the tests load
with new ones; its torch is the one of this environment, which uv has at hand. The command that
``doctor`` prints for a missing extra is run, in the environment and under ``uvx``.

``--extras`` gives each extra that it names an environment of its own, with the newest versions, and
tries what the extra is for; ``all`` are some 8 GB.

It fails if a file is missing from an archive or should not be in it, if the package index would
refuse the metadata (``twine check``), if the version is not the one of ``_version.py``, or if an
installed program does not do what it is told.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from email.parser import HeaderParser
from functools import partial
from importlib import metadata as installed
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from tests.hub import WRITE_TOKEN, StandIn  # noqa: E402

from leconvert._version import __version__  # noqa: E402

_SECONDS = 600.0
_UV = os.environ.get("UV", "uv")  # `uv run` says which one it is

# Datasets with video of two codecs and images in tables. One clip must be remuxed, and its title is
# no UTF-8.
_MAKE = """
from pathlib import Path
import av
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
cameras = (
    CameraSpec(key="observation.images.top"),
    CameraSpec(key="observation.images.wrist", codec="libsvtav1"),
)
images = ("observation.images.still",)
for name, version in (("v20", "v2.0"), ("v21", "v2.1")):
    spec = DatasetSpec(4, cameras=cameras, image_keys=images, codebase_version=version)
    make_dataset(name, spec)
clip = next(Path("v21").rglob("observation.images.top/episode_000001.mp4"))
with av.open(str(clip)) as source, av.open(
    "fragments.mp4", "w", format="mp4", options={"movflags": "frag_keyframe+empty_moov"}
) as target:
    target.metadata["title"] = "Muell"
    stream = source.streams.video[0]
    copy = target.add_stream_from_template(stream)
    for packet in source.demux(stream):
        if packet.size:
            packet.stream = copy
            target.mux(packet)
content = Path("fragments.mp4").read_bytes()
assert content.count(b"Muell") == 1
clip.write_bytes(content.replace(b"Muell", b"M\\xfcll\\xff"))
"""
# Convert and change datasets; whatever decodes a frame is among it.
_EDIT = """
leconvert convert v20 of_v20 --recompute-stats
leconvert verify of_v20 --source v20 --bytes --decode 8
leconvert convert v21 of_v21 --quantiles
leconvert verify of_v21 --source v21 --bytes --decode 8
leconvert report of_v21 --output report.html
leconvert convert of_v21 back --to v2.1
leconvert verify back --source of_v21 --bytes --decode 8
leconvert trim of_v21 --episode 0 --frames 3:15 --output trimmed
leconvert merge of_v21 trimmed --output merged
leconvert split merged --output-dir parts --into a=0-5,b=6-7
leconvert repair parts/a --reindex --recompute-stats --output repaired
leconvert check parts/b
leconvert check repaired
"""
# The Hub has the demo's v2.1 dataset. The tag v3.0 names what was pushed: it is fetched, and there
# is nothing to convert.
_FROM_HUB = """
leconvert convert --repo-id tester/arm --output pushed --push-to-hub
leconvert convert --repo-id tester/arm --root fetched
leconvert verify fetched --source demo/demo_v21 --bytes
leconvert convert --repo-id tester/arm --revision v2.1 --output streamed --orchestrate \\
  --num-workers 1 --scratch-limit 1G
leconvert verify streamed --source demo/demo_v21 --bytes
"""
_PROBE = "leconvert probe run --warmup-batches 1 --num-batches 4 --batch-size 4 --num-workers 1"
_IN_WHEEL = ("leconvert/py.typed", "leconvert/_version.py", "leconvert/cli/main.py",
             "leconvert/cli/commands.txt", "leconvert/report/templates/report.html")  # fmt: skip
_IN_SDIST = ("src/leconvert/py.typed", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE",
             "docs/cli.md")  # fmt: skip
# Every frame is the right one, in this process and then in workers that are forked from it.
_LOAD = """
from leconvert.loading import EpisodeStream, StreamLoader
from leconvert.testing import read_label
for root, first in (("of_v20", 0), ("of_v21", 0), ("trimmed", 3)):
    stream = EpisodeStream(root, return_uint8=True)
    for workers in (0, 1):
        seen = set()
        for batch in StreamLoader(stream, batch_size=16, num_workers=workers):
            for key in ("top", "wrist", "still"):
                for n, picture in enumerate(batch[f"observation.images.{key}"]):
                    label = read_label(picture.permute(1, 2, 0).numpy())
                    episode, frame = int(batch["episode_index"][n]), int(batch["frame_index"][n])
                    wanted = (episode, frame + (first if episode == 0 else 0))
                    assert label[1:] == wanted, (root, key, label, wanted)
                    seen.add((key, *wanted))
        assert len(seen) == 3 * len(stream), (root, workers, len(seen), len(stream))
"""


def trouble_in_wheel(names: Iterable[str]) -> list[str]:
    """Return what is wrong with the names of a wheel's files."""
    names = set(names)
    trouble = [f"the wheel lacks {name}" for name in _IN_WHEEL if name not in names]
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        trouble.append("the wheel lacks the licence")
    tops = {name.partition("/")[0] for name in names} - {"leconvert"}
    return trouble + [f"the wheel holds {top}" for top in tops if not top.endswith(".dist-info")]


def trouble_in_sdist(names: Iterable[str]) -> list[str]:
    """Return what is wrong with the names of an sdist's files.

    It holds what is needed to build and to read. Tests stay in the repository.
    """
    inside = {name.partition("/")[2] for name in names}
    tops = {name.partition("/")[0] for name in inside}
    return [
        *(f"the sdist lacks {name}" for name in _IN_SDIST if name not in inside),
        *(f"the sdist holds {name}" for name in ("tests", "bench_logs", ".ci") if name in tops),
    ]


def requirements_of(metadata: str) -> list[str]:
    """Return what a wheel's METADATA requires of every installation, without its extras."""
    return [
        line
        for line in HeaderParser().parsestr(metadata).get_all("Requires-Dist") or []
        if "extra ==" not in line
    ]


class _FailedError(Exception):
    """A program that should have worked did not."""


def _run(*words: object, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    if done.returncode:
        raise _FailedError(
            f"`{' '.join(map(str, words))}` ended with {done.returncode}:\n"
            f"{done.stdout}{done.stderr}"
        )
    return done.stdout


class _Installation:
    """The wheel in an environment of its own, as a user has it, in a folder where all is made.

    Its programs do not see the caller's variables for Python and the Hub.
    """

    def __init__(self, folder: Path, python: str) -> None:
        folder.mkdir()
        self.folder = folder
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("HF_", "PYTHON"))
            and key not in ("LD_LIBRARY_PATH", "VIRTUAL_ENV", "UV")
        }
        places = (str(folder / "env/bin"), str(Path(_UV).parent), os.environ["PATH"])
        self._environment = kept | {
            "HF_HOME": str(folder / "hf_home"),
            "HF_TOKEN": WRITE_TOKEN,
            "PATH": os.pathsep.join(places),
            "UV_PYTHON": python,
        }

    @classmethod
    def make(cls, folder: Path, python: str, *install: object) -> _Installation:
        """Make the environment; ``install`` are words for ``uv pip install``.

        uv runs outside the repository: its pyproject.toml pins versions, which users do not see.
        """
        made = cls(folder, python)
        _run(_UV, "venv", "--quiet", "--no-project", "--python", python, "env", cwd=folder)
        made.install(*install)
        return made

    def install(self, *words: object) -> None:
        """Install more."""
        python = self.folder / "env/bin/python"
        _run(_UV, "pip", "install", "--quiet", "--python", python, *words, cwd=self.folder)

    def run(self, commands: str, **environment: str) -> str:
        """Run commands in a shell, until one fails, and return what they print."""
        words = ("bash", "-ex", "-c", commands)  # the last one that it says is the one that failed
        return _run(*words, cwd=self.folder, env=self._environment | environment)

    def python(self, code: str) -> None:
        """Run a program in Python."""
        self.run(f"python -c {shlex.quote(code)}")


def _uses(here: _Installation, *, loads: bool) -> list[str]:
    """Return what is wrong with an installed program."""
    trouble = []
    said = here.run("leconvert --version").strip()
    if said != f"leconvert {__version__}":
        trouble.append(f"--version says {said!r}, _version.py {__version__!r}")
    demo = json.loads(here.run("leconvert demo demo --json"))
    if demo["verified"] != {**demo["verified"], "ok": True, "depth": "bytes"}:
        trouble.append(f"the demo is not proven: {demo['verified']}")
    health = json.loads(here.run("leconvert doctor . --json"))
    if not health["ok"] or not health["packages"]:
        trouble.append(f"doctor says: {health['lacks'] or 'no packages are known'}")
    with StandIn(here.folder / "hub") as hub:
        hub.add_repo("tester/arm", here.folder / "demo/demo_v21", tags=("v2.1",))
        # The stand-in hands out only what came as with Git LFS.
        here.run(_FROM_HUB, HF_ENDPOINT=hub.endpoint, HF_HUB_DISABLE_XET="1")
    here.python(_MAKE)
    here.run(_EDIT)
    if loads:
        here.install(f"torch=={installed.version('torch')}")
        here.python(_LOAD)
        here.run(f"{_PROBE} --root repaired")
    here.run(_remedy(health, "shtab"))
    here.run("leconvert completion bash")
    return trouble


def _remedy(health: dict[str, Any], name: str) -> str:
    """Return the command that ``doctor`` prints for a package that is missing."""
    (found,) = (package for package in health["packages"] if package["name"] == name)
    return str(found["remedy"])


def _runs_by_uvx(wheel: Path, folder: Path, python: str) -> list[str]:
    """Return what is wrong where ``uvx`` runs the program, in an environment of uv's cache."""
    here = _Installation(folder, python)
    uvx = f"uvx --quiet --from {wheel} leconvert"
    here.run(f"{uvx} demo demo")
    remedy = _remedy(json.loads(here.run(f"{uvx} doctor --json")), "shtab")
    return [] if here.run(f"{remedy} completion bash") else ["uvx completes nothing"]


_TRIES = {
    "deep": "leconvert verify demo/demo_v30 --source demo/demo_v21 --deep 3",
    "plots": "leconvert probe resample --help; python -c 'import matplotlib.figure'",
    "resample": "leconvert probe resample --help; python -c 'import h5py, torch'",
    "s3": """python -c 'import fsspec; fsspec.filesystem("s3", anon=True)'""",
    "ray": "leconvert convert --root demo/demo_v21 --output by_ray --engine ray --ray-address local"
    " --num-workers 1; leconvert verify by_ray --source demo/demo_v21 --bytes",
}
"""Commands that need each extra, beside the demo's datasets."""


def _tries_extra(extra: str, here: _Installation) -> list[str]:
    """Return what is wrong with what an extra is for."""
    here.run(f"leconvert demo demo; {_TRIES.get(extra, '')}")
    trouble = []
    if extra == "probe":
        measured = json.loads(here.run(f"{_PROBE} --root demo/demo_v30 --json"))
        if measured["decoder"]["backend"] != "pyav" or not measured["samples_measured"]:
            trouble.append(f"the probe did not decode by PyAV: {measured}")
        loading = json.loads(here.run("leconvert doctor . --json"))["loading"]
        if "trouble" in loading or not (loading["ffmpeg"] or loading["missing"]):
            trouble.append(f"doctor does not say why torchcodec finds no FFmpeg: {loading}")
    return trouble


def _report(name: str, check: Callable[[], list[str]]) -> list[str]:
    began = time.monotonic()
    try:
        trouble = check()
    except _FailedError as failed:
        trouble = [str(failed)]
    print(f"{name}: {'not good' if trouble else 'good'} after {time.monotonic() - began:.1f} s")
    return [f"{name}: {sentence}" for sentence in trouble]


def main() -> int:
    """Check, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", metavar="VERSION", help="of the environments (default: this)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the archives there")
    parser.add_argument(
        "--extras", nargs="+", default=[], metavar="EXTRA", help="try these; or all"
    )
    options = parser.parse_args()
    python = options.python or sys.executable
    with TemporaryDirectory(prefix="leconvert-package-") as temporary:
        folder = Path(temporary)
        archives = (options.keep or folder / "dist").resolve()
        # With this Python: the one of .python-version need not be on the machine as uv wants it.
        _run(_UV, "build", "--quiet", "--python", sys.executable, "--out-dir", archives, cwd=_ROOT)
        (wheel,) = archives.glob(f"leconvert-{__version__}-*.whl")
        with zipfile.ZipFile(wheel) as opened:
            trouble = trouble_in_wheel(opened.namelist())
            name = next(name for name in opened.namelist() if name.endswith("/METADATA"))
            metadata = opened.read(name).decode()
        sdist = archives / f"leconvert-{__version__}.tar.gz"
        with tarfile.open(sdist) as packed:
            trouble += trouble_in_sdist(packed.getnames())
        _run(_UV, "tool", "run", "--quiet", "twine", "check", "--strict", wheel, sdist, cwd=folder)

        def install(name: str, *words: object) -> _Installation:
            return _Installation.make(folder / name, python, *words)

        # A newer Python has no wheels of the lowest versions, and their sources do not build there.
        lowest = ("--no-build", "--resolution", "lowest-direct", *requirements_of(metadata), wheel)
        checks: dict[str, Callable[[], list[str]]] = {
            "newest": lambda: _uses(install("newest", wheel), loads=False),
            "lowest": lambda: _uses(install("lowest", *lowest), loads=True),
            "uvx": lambda: _runs_by_uvx(wheel, folder / "uvx", python),
        }
        extras = HeaderParser().parsestr(metadata).get_all("Provides-Extra") or []
        for extra in extras if options.extras == ["all"] else options.extras:
            wanted = f"leconvert[{extra}] @ {wheel.as_uri()}"
            checks[extra] = partial(
                lambda extra, wanted: _tries_extra(extra, install(extra, wanted)), extra, wanted
            )
        with ThreadPoolExecutor(2) as pool:
            for found in pool.map(_report, checks, checks.values()):
                trouble += found
    for sentence in trouble:
        print(sentence)
    return 1 if trouble else 0


if __name__ == "__main__":
    raise SystemExit(main())

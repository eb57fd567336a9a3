"""``leconvert doctor``: what is installed and what is missing, and what a file system promises.

``leconvert check-fs`` is the older name of the test of a file system.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from typing import Any

from leconvert._version import __version__
from leconvert.bench import host_record, package_version
from leconvert.cli.output import columns, folded, show, table
from leconvert.cli.parser import add_output
from leconvert.run.engines import BUILT_IN, EngineNames
from leconvert.support.errors import InstallationError, OneHostOnlyError, StorageError, UsageError
from leconvert.support.extras import command_for_extra, install_command
from leconvert.support.flags import seconds
from leconvert.support.machine import Machine
from leconvert.support.text import aligned, amount, shorten
from leconvert.support.values import dataclass
from leconvert.workdir.fscheck import CheckReport, Fitness, check_folder, follow

# Everything that leconvert needs or can use, one thing at a time.


_LIMIT_SECONDS = 60.0
_LAST_WORDS = 300


class NoAnswerError(Exception):
    """The reason why a process gave no answer."""


def ask(command: Sequence[str], *, limit_seconds: float = _LIMIT_SECONDS) -> str:
    """Run a command and return its output. The command may crash or never end.

    A process that hangs in a driver survives a kill; this function does not wait for it.

    Raises:
        NoAnswerError: The command failed, or did not end within the limit.
    """
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise NoAnswerError(f"it cannot be started: {error.strerror}") from error
    try:
        said, complained = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
        raise NoAnswerError(f"no answer within {limit_seconds:g} s") from None
    if process.returncode < 0:
        raise NoAnswerError(f"it was ended by signal {-process.returncode}")
    if process.returncode and not said:
        words = complained.decode("utf-8", "replace").split()
        raise NoAnswerError(" ".join(words)[-_LAST_WORDS:] or f"it ended with {process.returncode}")
    return said.decode("utf-8", "replace")


def probe_diagnosis() -> dict[str, Any]:
    """Return the outcome of `leconvert probe diagnose`.

    Raises:
        NoAnswerError: The command gave no outcome.
    """
    said = ask([sys.executable, "-P", "-m", "leconvert", "probe", "diagnose", "--json"])
    try:
        found: dict[str, Any] = json.loads(said)
    except ValueError as error:
        raise NoAnswerError(f"it answered {said[:_LAST_WORDS]!r}") from error
    if "decoder" not in found:
        raise NoAnswerError(str(found.get("message")))
    return found


def library_loads(name: str) -> bool:
    """Return whether the dynamic loader finds a shared library, such as one of a driver."""
    code = f"import ctypes; ctypes.CDLL({name!r}); print('loads')"
    with suppress(NoAnswerError):
        return bool(ask([sys.executable, "-P", "-c", code], limit_seconds=20.0))
    return False


# The module to import, if that of the package loads nothing or has another name.
_MODULES = {"huggingface-hub": "huggingface_hub.hf_api", "pyyaml": "yaml"}
# The diagnosis loads these; that takes seconds.
_DIAGNOSED = frozenset({"torch", "torchcodec"})
_IMPORT_ALL = """
import importlib, json, sys
troubles = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:  # SystemExit and the panics of Rust are no Exception
        said = str(error).strip().splitlines() or [""]
        troubles[name] = f"{type(error).__name__}: {said[0]}".removesuffix(": ")
print(json.dumps(troubles))
"""


def import_troubles(modules: Sequence[str]) -> dict[str, str]:
    """Import modules in a process of their own; return the trouble of each that fails."""
    if not modules:
        return {}
    try:
        said = ask([sys.executable, "-P", "-c", _IMPORT_ALL, *modules])
    except NoAnswerError as error:
        if len(modules) == 1:
            return {modules[0]: str(error)}
    else:
        found: dict[str, str] = json.loads(said.splitlines()[-1])
        return found
    # A module ended the process: import each in a process of its own.
    return {name: said for one in modules for name, said in import_troubles([one]).items()}


_OURSELVES = "leconvert"


@dataclass(frozen=True, slots=True)
class Package:
    """A package that leconvert or one of its extras requires."""

    name: str
    wants: str  # the versions, such as ``>=14``; empty for any
    extras: tuple[str, ...]  # the extras that require it; empty if every installation does
    version: str | None  # the installed version; None if it is missing
    fits: bool  # whether that version is one of ``wants``
    # Why it cannot be imported, in one line; None if it can, or is missing.
    trouble: str | None = None

    @property
    def is_needed(self) -> bool:
        """Whether every conversion needs it."""
        return not self.extras

    @property
    def remedy(self) -> str | None:
        """The command that installs it; None if nothing is wrong with it."""
        if self.fits and self.trouble is None:
            return None
        if self.extras and not self.fits:
            return command_for_extra(self.extras[0])
        return install_command(f"{self.name}{self.wants}", again=self.fits)

    @property
    def wrong(self) -> str | None:
        """The fault and its remedy in one sentence; None if there is no fault.

        A missing package is no fault if the extra that requires it was not installed.
        """
        if self.fits and self.trouble is not None:
            said = (
                f"{self.name} {self.version} is installed but cannot be imported ({self.trouble})"
            )
        elif not self.fits and self.is_needed:
            said = (
                f"{self.name}{self.wants} is needed, but {self.version or 'no version'} is "
                "installed"
            )
        elif not self.fits and self.version is not None:
            said = f"{self.name}{self.wants} is wanted, but {self.version} is installed"
        else:
            return None
        return f"{said}: run `{self.remedy}`."

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {**asdict(self), "extras": list(self.extras), "remedy": self.remedy}


def declared_requirements() -> tuple[list[str], list[str]]:
    """Return the requirements and the extras of the installed leconvert.

    Both are empty if it runs from its sources without being installed.
    """
    try:
        about = metadata.metadata(_OURSELVES)
    except metadata.PackageNotFoundError:
        return [], []
    return about.get_all("Requires-Dist") or [], about.get_all("Provides-Extra") or []


def packages_of(
    requirements: Iterable[str],
    extras: Sequence[str],
    version_of: Callable[[str], str | None],
) -> tuple[Package, ...]:
    """Return the packages that requirements name: needed ones first, otherwise in their order."""
    from packaging.requirements import Requirement

    wants: dict[str, str] = {}
    wanted_by: dict[str, list[str]] = {}
    for text in requirements:
        requirement = Requirement(text)
        marker = requirement.marker
        # The empty name stands for the requirements of every installation.
        by = [
            extra for extra in ("", *extras) if marker is None or marker.evaluate({"extra": extra})
        ]
        if by:  # otherwise it is for another platform or Python
            wants.setdefault(requirement.name, str(requirement.specifier))
            wanted_by.setdefault(requirement.name, []).extend(by)
    found = [
        _package(name, wants[name], () if "" in by else tuple(by), version_of(name))
        for name, by in wanted_by.items()
    ]
    return tuple(sorted(found, key=lambda package: not package.is_needed))


def _package(name: str, wants: str, extras: tuple[str, ...], version: str | None) -> Package:
    from packaging.specifiers import SpecifierSet

    fits = version is not None and SpecifierSet(wants).contains(version, prereleases=True)
    return Package(name, wants, extras, version, fits)


# The driver's library for decoding, which torchcodec and FFmpeg load.
_NVDEC = "libnvcuvid.so.1"


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings."""

    # The requirements of leconvert; empty if it runs without being installed.
    packages: tuple[Package, ...]
    # ``ffmpeg`` and ``decodes`` of PyAV; or ``trouble``, if it does not load or decode.
    video: dict[str, Any]
    # Abilities of torch and torchcodec here: ``torch``, ``torchcodec`` and ``ffmpeg`` (versions, or
    # None), ``gpus``, ``nvdec`` and ``missing``; or ``trouble``.
    loading: dict[str, Any]
    # ``cpu``, its ``memory_bytes``, and the part that this process may use: ``cores`` and
    # ``free_memory_bytes``; or ``trouble``.
    machine: dict[str, Any]
    hub: dict[str, Any]  # ``endpoint``, ``token`` (its place), ``is_offline``; or ``trouble``
    engines: dict[str, str | None]  # what can start workers, by name: None, or why it cannot
    file_system: CheckReport | None = None  # of the folder; None if none was given

    @property
    def lacks(self) -> tuple[str, ...]:
        """Missing things that every conversion needs, a sentence each."""
        needed = sorted((p for p in self.packages if p.is_needed), key=lambda p: p.fits)
        lacking = [package.wrong for package in needed if package.wrong is not None]
        pyav = next((package for package in self.packages if package.name == "av"), None)
        if "trouble" in self.video and (pyav is None or pyav.remedy is None):
            tested = None if pyav is None else install_command(pyav.wants.replace(">=", "av=="))
            helps = f" Run `{tested}`, which installs a tested version." if tested else ""
            lacking.append(f"{self.video['trouble']}.{helps}")
        if not self.can_use_folder and self.file_system is not None:
            lacking.append(f"leconvert cannot work in {self.file_system.folder}.")
        return tuple(lacking)

    @property
    def broken(self) -> tuple[str, ...]:
        """Installed packages that do not work, a sentence each, besides those of `lacks`."""
        others = sorted((p for p in self.packages if not p.is_needed), key=lambda p: not p.fits)
        found = [package.wrong for package in others if package.wrong is not None]
        client = next(
            (p for p in self.packages if p.name.replace("_", "-") == "huggingface-hub"), None
        )
        if "trouble" in self.hub and (client is None or (client.fits and client.trouble is None)):
            found.append(f"The client of the Hub cannot be imported: {self.hub['trouble']}.")
        if "trouble" in self.loading:
            found.append(f"torch is installed, but it does not work: {self.loading['trouble']}.")
        elif self.loading["torchcodec"] is not None and not self.loading.get(
            "torchcodec_loads", True
        ):
            found += self.loading["missing"][:1]
        return tuple(found)

    @property
    def can_use_folder(self) -> bool:
        """Whether a work dir may be in the folder; true if no folder was given."""
        return self.file_system is None or self.file_system.fitness is not Fitness.NONE

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {
            "ok": not (self.lacks or self.broken),
            "lacks": list(self.lacks),
            "broken": list(self.broken),
            "leconvert": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": [package.as_record() for package in self.packages],
            "video": self.video,
            "loading": self.loading,
            "machine": self.machine,
            "hub": self.hub,
            "engines": self.engines,
            "file_system": None if self.file_system is None else self.file_system.as_record(),
        }


def examine(folder: Path | None = None) -> Examination:
    """Examine this machine, and the file system of a folder."""
    return Examination(
        _packages(),
        _video(),
        _loading(),
        _machine(),
        _hub(),
        _engines(),
        None if folder is None else check_folder(folder),
    )


def _packages() -> tuple[Package, ...]:
    try:
        packages = packages_of(*declared_requirements(), package_version)
    except ImportError:  # the package that reads requirements is one of them
        return (Package("packaging", "", (), None, False),)
    modules = {
        package.name: _MODULES.get(package.name.replace("_", "-"), package.name.replace("-", "_"))
        for package in packages
        if package.version is not None and package.name not in _DIAGNOSED
    }
    troubles = import_troubles(list(modules.values()))
    return tuple(
        replace(package, trouble=troubles.get(modules.get(package.name, "")))
        for package in packages
    )


def _video() -> dict[str, Any]:
    from leconvert.media.pyav import carried_ffmpeg

    fails = "PyAV does not load"
    try:
        version, decodes = carried_ffmpeg()
        fails = f"PyAV {package_version('av')} does not decode"
        _decode_a_frame()
    except Exception as error:  # noqa: BLE001 - whatever a broken or a newer package raises
        return {"trouble": f"{fails}: {_first_line(error)}"}
    return {"ffmpeg": version, "decodes": list(decodes)}


def _decode_a_frame() -> None:
    """Make a clip in memory and find a frame in it, as trimming and comparing do."""
    from leconvert.media import decode_shown
    from leconvert.support.file_calls import MemoryFile
    from leconvert.testing import FrameLabel, draw_frame, read_label
    from leconvert.testing.encode import encode_clip

    labels = [FrameLabel(1, 2, frame) for frame in range(3)]
    with closing(MemoryFile()) as clip:
        # Every FFmpeg has an encoder and a decoder for this codec.
        frames = (draw_frame(label, 64, 64) for label in labels)
        encode_clip(clip.path, frames, fps=Fraction(30), codec="mpeg4")
        ((_, picture),) = decode_shown(clip.path, [1])
    if read_label(picture) != labels[1]:
        raise ValueError("it decoded the wrong frame")


def _loading() -> dict[str, Any]:
    if package_version("torch") is None:
        # There is nothing to load in a process, and no GPU can be used.
        torchcodec = package_version("torchcodec")
        return {"torch": None, "torchcodec": torchcodec, "gpus": [], "missing": []}
    try:
        found = probe_diagnosis()
    except NoAnswerError as error:
        return {"trouble": str(error)}
    ffmpeg = found["decoder"]["ffmpeg"]
    return {
        "torch": found["versions"]["torch"],
        "torchcodec": found["versions"]["torchcodec"],
        "torchcodec_loads": found["decoder"]["torchcodec_loads"],
        "ffmpeg": None if ffmpeg is None else f"{ffmpeg['major']} ({ffmpeg['origin']})",
        "gpus": found["gpus"],
        "nvdec": bool(found["gpus"]) and library_loads(_NVDEC),
        "missing": found["missing"],
    }


def _machine() -> dict[str, Any]:
    try:
        host, usable = host_record(), Machine()
    except ImportError as error:
        return {"trouble": _first_line(error)}
    return {
        "cpu": host["cpu"],
        "cores": usable.cores(),
        "memory_bytes": host["memory_bytes"],
        "free_memory_bytes": usable.free_memory(),
    }


def _hub() -> dict[str, Any]:
    try:
        from leconvert.transfer.client import hub_access

        return asdict(hub_access())
    except Exception as error:  # noqa: BLE001 - whatever a broken package raises when it is imported
        return {"trouble": _first_line(error)}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _engines() -> dict[str, str | None]:
    troubles = {}
    if shutil.which("sbatch") is None:
        troubles["slurm"] = "no sbatch on the PATH"
    if package_version("ray") is None:
        troubles["ray"] = "Ray is not installed"
    return {name: troubles.get(name) for name in EngineNames(BUILT_IN)}


# Prints the promises of a folder's file system, alone or between two hosts.


_NOTE_WIDTH = 56
_OPTIONS_WIDTH = 90
_WIDE = 80


def check_lines(outcome: Mapping[str, Any], width: int) -> list[str]:
    """Return the lines about the file system of a folder."""
    mount = outcome["mount"]
    lines = [
        f"folder   {outcome['folder']}",
        f"mount    {mount['point']}, {mount['kind']}",
        f"options  {shorten(mount['options'], _OPTIONS_WIDTH)}",
        f"free     {amount(mount['free_bytes'])} of {amount(mount['total_bytes'])}",
        *_promises(outcome["findings"], width),
        _tested_with(outcome),
        _verdict(outcome),
    ]
    return [piece for line in lines for piece in folded(line, width, "  ")]


def _tested_with(outcome: Mapping[str, Any]) -> str:
    if outcome["peer"] is None:
        return "Only this host was tested."
    if outcome["same_host"]:
        return "Both processes ran on this host. Two hosts were not tested."
    return (
        f"Tested together with {outcome['peer']}. Delays are measured from the report of the "
        "other host."
    )


def _promises(findings: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Return a table; in a narrow terminal the observation is below its promise."""
    rows = []
    for found in findings:
        note = found["note"]
        if not found["holds"]:
            note = f"{note}: {found['instead']}" if note else found["instead"]
        rows.append((found["says"], "yes" if found["holds"] else "no", note))
    head = "promise", "holds", "observed, or what leconvert does instead"
    lines = table(head, ([*row[:2], shorten(row[2], _NOTE_WIDTH)] for row in rows))
    if max(map(len, lines)) <= width:
        return lines
    lines = []
    for says, holds, note in rows:
        lines += [f"{says}: {holds}", *([f"  {note}"] if note else [])]
    return lines


def _verdict(outcome: Mapping[str, Any]) -> str:
    if outcome["fitness"] == "none":
        return "leconvert cannot work here."
    if any(found["promise"] == "link" and not found["holds"] for found in outcome["findings"]):
        return "Only one host may work here. A run accepts only the host that planned it."
    if outcome["fitness"] == "one_host":
        return (
            "Only one host may work here. Add --one-host to the plan, so that other hosts are "
            "refused."
        )
    if outcome["tested_between_hosts"]:
        return "Several hosts may work here."
    return "This host may work here. Test a second host with `leconvert doctor DIR --peer`."


# ``leconvert check-fs``.


_CODES = {
    "several_hosts": 0,
    "one_host": OneHostOnlyError.exit_code,
    "none": StorageError.exit_code,
}


def add_check_fs_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder on the file system")
    add_peer_options(parser)
    add_output(parser)


def add_peer_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to test a file system from two hosts; ``doctor`` has them, too."""
    parser.add_argument(
        "--peer", action="store_true",
        help="be the second host: wait for `leconvert doctor DIR --wait S` on the first host",
    )  # fmt: skip
    parser.add_argument(
        "--wait", type=seconds, metavar="S",
        help="seconds to wait for the other host (default: 0; with --peer: 600)",
    )  # fmt: skip


def run_check_fs(options: argparse.Namespace) -> int:
    """Test, and print which promises hold and what follows if one does not."""
    folder = _folder(options)
    if options.peer:

        def tell() -> None:
            print(
                f"Waiting for `leconvert check-fs {shlex.quote(str(folder))}` on another host.",
                file=sys.stderr,
            )

        wait = 600.0 if options.wait is None else options.wait
        outcome: Mapping[str, Any] = follow(folder, wait_seconds=wait, on_ready=tell)
    else:
        outcome = check_folder(folder, wait_seconds=options.wait or 0.0).as_record()
    return show(options, outcome, check_lines(outcome, columns()), _CODES[str(outcome["fitness"])])


def _folder(options: argparse.Namespace) -> Path:
    folder: Path = options.folder.resolve()
    if not folder.is_dir():
        raise StorageError(
            f"{folder} is not a folder.", path=str(folder), next_step="Give a folder that exists."
        )
    return folder


# ``leconvert doctor``.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="also test whether several hosts can share the file system of this folder",
    )
    add_peer_options(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Examine this machine, and print what is there and what is missing."""
    if options.peer or options.wait is not None:
        if options.folder is None:
            raise UsageError("--peer and --wait need DIR, the folder that two hosts share.")
        return run_check_fs(options)
    found = examine(None if options.folder is None else _folder(options))
    record = found.as_record()
    if not found.can_use_folder:
        code = StorageError.exit_code
    else:
        code = InstallationError.exit_code if found.lacks or found.broken else 0
    return show(options, record, doctor_lines(record, columns()), code)


# Sentences of ``leconvert doctor`` about each part of a machine.


def doctor_rows(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each line as the name of its part and a text; the name is empty on further lines."""
    machine = record["machine"]
    yield "leconvert", f"{record['leconvert']}, Python {record['python']}, {record['platform']}"
    if "trouble" in machine:
        yield "machine", f"unknown: {machine['trouble']}"
    else:
        yield "machine", _machine_said(machine)
    yield "video", _video_said(record["video"])
    yield from _loading_said(record["loading"])
    yield "Hub", _hub_said(record["hub"])
    yield "engines", ", ".join(name for name, trouble in record["engines"].items() if not trouble)
    for name, trouble in record["engines"].items():
        if trouble:
            yield "", f"not {name}: {trouble}"
    if not record["packages"]:
        yield "packages", "leconvert is not installed as a package, so its needs are unknown"


def _machine_said(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['cpu']}; {machine['cores']} cores; {amount(machine['memory_bytes'])} of memory, "
        f"{amount(machine['free_memory_bytes'])} free"
    )


def _video_said(video: Mapping[str, Any]) -> str:
    if "trouble" in video:
        return str(video["trouble"])
    return f"PyAV with FFmpeg {video['ffmpeg']} decodes {', '.join(video['decodes'])}"


def _loading_said(loading: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "trouble" in loading:
        yield "loading", f"torch does not work: {loading['trouble']}"
        return
    if loading["torch"] is None:
        yield "loading", "torch is missing; the loader and the probe need it"
        return
    ffmpeg = loading["ffmpeg"] or "none"
    codec = "loads" if loading["torchcodec_loads"] else "does not load"
    yield (
        "loading",
        f"torch {loading['torch']}; torchcodec {loading['torchcodec'] or 'missing'} "
        f"{codec}; FFmpeg for torchcodec: {ffmpeg}",
    )
    nvdec = "; NVDEC is available" if loading["nvdec"] else "; no NVDEC" if loading["gpus"] else ""
    yield "GPUs", (", ".join(loading["gpus"]) or "none that torch can use") + nvdec
    for sentence in loading["missing"]:
        yield "missing", sentence


def _hub_said(hub: Mapping[str, Any]) -> str:
    if "trouble" in hub:
        return f"the client cannot be imported: {hub['trouble']}"
    token = "no token" if hub["token"] is None else f"a token from {hub['token']}"
    offline = "; HF_HUB_OFFLINE forbids requests" if hub["is_offline"] else ""
    return f"{hub['endpoint']}, {token}{offline}"


# Prints the outcome of ``leconvert doctor``: a name on the left, the wrapped text beside it.


_NAME_WIDTH = 12
_NARROWEST = 40


def doctor_lines(record: Mapping[str, Any], width: int) -> list[str]:
    """Return the lines."""
    width = max(width, _NARROWEST)
    lines: list[str] = []
    for name, said in doctor_rows(record):
        first, *further = folded(said, width - _NAME_WIDTH, "")
        lines.append(f"{name:<{_NAME_WIDTH}}{first}")
        lines += [" " * _NAME_WIDTH + piece for piece in further]
    if record["packages"]:
        lines += ["", *_packages_lines(record["packages"], width)]
    if record["file_system"] is not None:
        lines += ["", *check_lines(record["file_system"], width)]
    lines.append("")
    told = list(record["lacks"])
    if not told:
        rest = ", but other parts do not work:" if record["broken"] else "."
        told = [f"Everything that a conversion needs is installed{rest}"]
    for sentence in (*told, *record["broken"]):
        lines += folded(sentence, width, "")
    return lines


def _packages_lines(packages: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Return a table, and below it the commands that install missing packages.

    A command stays on one line, so that it can be copied. Narrow terminals get no last column.
    """
    rows = [("package", "wants", "here", "extra")]
    rows += [
        (p["name"], p["wants"] or "any", p["version"] or "missing", ", ".join(p["extras"]))
        for p in packages
    ]
    # The command of the first extra that requires a package installs the package.
    lacking = {p["extras"][0]: p["remedy"] for p in packages if p["remedy"] and p["extras"]}
    lines = aligned(rows if width >= _WIDE else [row[:3] for row in rows])
    if lacking:
        lines += ["", "These commands install what an extra needs:"]
        lines += aligned(list(lacking.items()))
    return lines

"""``leconvert doctor``: what is here, what is missing, and codes that a script can use."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from av import __version__ as av_version

from leconvert.cli.doctor import Examination, Package, doctor_lines, examine, import_troubles
from leconvert.media import pyav
from leconvert.support.extras import command_for_extra, install_command
from leconvert.workdir import fscheck
from leconvert.workdir.fscheck import Finding, Promise
from tests.program import Leconvert

DIAGNOSIS: dict[str, Any] = {
    "versions": {"torch": "2.11.0+cu130", "torchcodec": "0.11.1"},
    "decoder": {
        "torchcodec_loads": True,
        "trouble": None,
        "ffmpeg": {"major": 7, "origin": "PyAV's wheel"},
    },
    "gpus": ["NVIDIA H100"],
    "missing": [],
}
PACKAGES = (
    Package("numpy", ">=2", (), "2.2.6", True),
    Package("torchcodec", ">=0.4", ("probe",), None, False),
)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Examination]:
    """Examine this machine, with a GPU that only the diagnosis knows of."""

    def look(folder: Path | None = None, **changes: Any) -> Examination:
        packages = changes.pop("packages", PACKAGES)
        defaults: dict[str, Any] = {
            "packages_of": lambda *_: packages,
            "probe_diagnosis": lambda: DIAGNOSIS,
            "library_loads": lambda _name: True,
            "import_troubles": lambda _modules: {},
            "package_version": {"torch": "2.11.0", "av": av_version}.get,
        }
        for name, stand_in in (defaults | changes).items():
            monkeypatch.setattr(f"leconvert.cli.doctor.{name}", stand_in)
        return examine(folder)

    return look


def test_a_machine_with_everything_is_well(found: Callable[..., Examination]) -> None:
    seen = found(import_troubles=import_troubles)
    assert seen.lacks == ()
    assert seen.loading == {
        "torch": "2.11.0+cu130",
        "torchcodec": "0.11.1",
        "torchcodec_loads": True,
        "ffmpeg": "7 (PyAV's wheel)",
        "gpus": ["NVIDIA H100"],
        "nvdec": True,
        "missing": [],
    }
    assert {"av1", "h264"} <= set(seen.video["decodes"])
    assert seen.machine["cores"] >= 1
    assert seen.machine["free_memory_bytes"] <= seen.machine["memory_bytes"]


def test_an_engine_that_cannot_start_workers_says_why(
    found: Callable[..., Examination], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = found()
    assert seen.engines["local"] is None
    assert seen.engines["slurm"] == "no sbatch on the PATH"
    assert seen.engines["ray"] == "Ray is not installed"
    assert seen.lacks == ()
    assert "not slurm: no sbatch on the PATH" in "\n".join(doctor_lines(seen.as_record(), 200))
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    assert found().engines["slurm"] is None


def test_what_does_not_load_is_lacking_and_stops_nothing(
    found: Callable[..., Examination], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "leconvert.transfer.client", None)

    def broken() -> None:
        raise ImportError("libavcodec.so.61: cannot open shared object file")

    monkeypatch.setattr("leconvert.media.pyav.carried_ffmpeg", broken)
    seen = found()
    assert seen.lacks == ("PyAV does not load: libavcodec.so.61: cannot open shared object file.",)
    assert "leconvert.transfer.client" in seen.hub["trouble"]
    assert seen.as_record()["ok"] is False


@pytest.mark.parametrize("fault", ["raises", "another frame", "nothing"])
def test_a_pyav_that_loads_and_does_not_decode_is_lacking(
    found: Callable[..., Examination], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    decode = pyav.decode_shown

    def newer(path: str, ranks: list[int]) -> Any:
        if fault == "raises":
            raise TypeError("open() got an unexpected keyword argument 'metadata_errors'")
        return decode(path, [0]) if fault == "another frame" else iter(())

    monkeypatch.setattr("leconvert.media.decode_shown", newer)
    av = Package("av", ">=15.1", (), "19.0.2", True)
    seen = found(packages=(av, *PACKAGES))
    (said,) = seen.lacks
    assert said.startswith(f"PyAV {av_version} does not decode: ")
    assert said.endswith(f". Run `{install_command('av==15.1')}`, which installs a tested version.")
    assert seen.as_record()["ok"] is False
    assert said.partition(". Run")[0] in "\n".join(doctor_lines(seen.as_record(), 200))
    # A package that does not even load has its own remedy, and one is enough.
    (said,) = found(
        packages=(av, *PACKAGES), import_troubles=lambda _: {"av": "ImportError: libx264"}
    ).lacks
    assert install_command("av>=15.1", again=True) in said


def test_what_is_installed_and_does_not_load_is_broken(found: Callable[..., Examination]) -> None:
    client = Package("huggingface-hub", ">=1", (), "1.20", True)
    plots = Package("matplotlib", ">=3.9", ("plots",), "3.10", True)
    asked: list[str] = []

    def imports(modules: list[str]) -> dict[str, str]:
        asked.extend(modules)
        return {"huggingface_hub.hf_api": "ImportError: no httpx", "matplotlib": "OSError: no font"}

    seen = found(packages=(*PACKAGES, client, plots), import_troubles=imports)
    assert asked == ["numpy", "huggingface_hub.hf_api", "matplotlib"]
    assert seen.lacks == (
        "huggingface-hub 1.20 is installed but cannot be imported (ImportError: no "
        f"httpx): run `{install_command('huggingface-hub>=1', again=True)}`.",
    )
    assert [said.partition(" (")[0] for said in seen.broken] == [
        "matplotlib 3.10 is installed but cannot be imported"
    ]
    assert seen.as_record()["ok"] is False
    assert "Everything that a conversion needs" not in "\n".join(
        doctor_lines(seen.as_record(), 200)
    )


def test_an_extra_that_is_too_old_is_broken(found: Callable[..., Examination]) -> None:
    old = Package("ray", ">=2.40", ("ray",), "2.9", False)
    assert found(packages=(*PACKAGES, old)).broken == (
        f"ray>=2.40 is wanted, but 2.9 is installed: run `{command_for_extra('ray')}`.",
    )


def test_what_the_packages_say_ends_with_19(
    leconvert_here: Leconvert, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = (Package("pyarrow", ">=18", (), None, False),)
    monkeypatch.setattr("leconvert.cli.doctor.packages_of", lambda *_: missing)
    monkeypatch.setattr("leconvert.cli.doctor.package_version", _nothing)
    told = leconvert_here("doctor", code=19)
    remedy = install_command("pyarrow>=18")
    said = " ".join(told.stdout.split())
    assert f"pyarrow>=18 is needed, but no version is installed: run `{remedy}`." in said


def _nothing(_name: str) -> None:
    """Tell that a package is missing."""


def test_a_token_is_told_of_and_never_shown(
    found: Callable[..., Examination], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")
    seen = found()
    assert seen.hub["token"] == "HF_TOKEN"
    assert "abcdefgh" not in json.dumps(seen.as_record())


def test_a_folder_is_probed_and_left_as_it_was(
    found: Callable[..., Examination], tmp_path: Path
) -> None:
    seen = found(tmp_path)
    assert seen.file_system is not None
    assert seen.as_record()["file_system"]["fitness"] in {"several_hosts", "one_host"}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_where_nothing_can_work_ends_with_11(
    leconvert_here: Leconvert, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = [Finding(Promise.WRITE, False, "EROFS")]
    monkeypatch.setattr(fscheck, "probe_folder", lambda _folder, **_: broken)
    monkeypatch.setattr("leconvert.cli.doctor.package_version", _nothing)
    told = leconvert_here("doctor", tmp_path, "--json", code=11)
    record = json.loads(told.stdout)
    assert record["ok"] is False
    assert f"leconvert cannot work in {tmp_path}." in record["lacks"]


def test_a_package_that_does_not_load_is_no_bug(
    leconvert_here: Leconvert, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "leconvert.cli.doctor")
    monkeypatch.setitem(sys.modules, "leconvert.workdir.fscheck", None)
    refused = leconvert_here("check-fs", tmp_path, code=19)
    assert refused.stderr.startswith("leconvert: A Python package cannot be imported")
    assert "`leconvert doctor` lists" in refused.stderr

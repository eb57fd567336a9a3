"""A missing package is installed into the Python that runs leconvert, wherever that came from."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from leconvert.support import extras
from leconvert.support.extras import command_for_extra, install_command, missing_package

ROOT = Path(__file__).parents[3]
ASKS = "import leconvert.support.extras as e; print(e.install_command('tiny-extra>=1'))"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Make a folder of one wheel, which pip and uv install from without any network."""
    folder = tmp_path / "an index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_extra-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_extra.py", "")
        about = "tiny_extra-1.0.dist-info"
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-extra\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        names = ("tiny_extra.py", f"{about}/METADATA", f"{about}/WHEEL", f"{about}/RECORD")
        wheel.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in names))
    return folder


def test_the_command_installs_into_the_python_that_asked(index: Path, tmp_path: Path) -> None:
    """The environment's activation and the folder do not matter, and with pip nor does the PATH."""
    folder = tmp_path / "an environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    environment.pop("VIRTUAL_ENV", None)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "pip").mkdir()
    (packages / "pip/__init__.py").touch()
    told = _asked(python, {"PYTHONPATH": str(ROOT / "src")})
    assert shlex.split(told)[:4] == [str(python), "-m", "pip", "install"]
    shutil.rmtree(packages / "pip")
    if not _uv_is_here():
        pytest.skip("there is no uv here")
    offline = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(index), "UV_OFFLINE": "1"}
    done = subprocess.run(
        _asked(python, environment), shell=True, cwd=tmp_path, env=environment | offline,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    subprocess.run([python, "-c", "import tiny_extra"], env={}, check=True)


def _asked(python: Path, environment: dict[str, str]) -> str:
    return subprocess.run(
        [python, "-c", ASKS], env=environment, capture_output=True, text=True, check=True
    ).stdout


def _uv_is_here() -> bool:
    return shutil.which("uv") is not None or (ROOT / ".uv" / "bin" / "uv").exists()


def test_an_environment_of_uvx_is_left_alone_and_made_anew_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "archive-v0" / "x"))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    told: dict[str, object] = {"url": "file:///home/a%20b/leconvert", "dir_info": {}}
    monkeypatch.setattr(metadata.PathDistribution, "read_text", lambda *_: json.dumps(told))
    assert install_command("av==15.1") == (
        "uvx --from '/home/a b/leconvert' --with av==15.1 leconvert"
    )
    assert install_command("av", again=True).startswith("uvx --refresh --from ")
    told |= {"url": "https://host/leconvert", "vcs_info": {"vcs": "git"}}
    assert "--from git+https://host/leconvert " in install_command("av")
    monkeypatch.setattr(metadata.PathDistribution, "read_text", lambda *_: None)
    assert "--from leconvert " in install_command("av")


def test_every_extra_stands_for_its_packages_and_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    error = missing_package("Plots need matplotlib", "plots", ", or leave --plots out")
    assert "matplotlib" in error.message
    assert error.next_step == f"Run `{command_for_extra('plots')}`, or leave --plots out."
    assert error.exit_code == 19
    names = {
        extra: {Requirement(line).name for line in extras._requirements_of(extra)}
        for extra in metadata.metadata("leconvert").get_all("Provides-Extra") or []
    }
    assert names["probe"] == {"torch", "torchcodec"}
    assert names["train"] == {"accelerate", "torch", "torchcodec"}
    assert extras._requirements_of("deep") == ["lerobot[dataset]>=0.6.1", "pandas>=2"]
    assert set(names) == {
        "completion", "deep", "plots", "probe", "ray", "resample", "s3", "slurm", "train",
    }  # fmt: skip
    monkeypatch.setattr(extras, "_OURSELVES", "a package that nobody installed")
    assert command_for_extra("plots").endswith(f"{ROOT}[plots]'")


def test_no_message_and_no_page_names_a_pip_that_may_be_another_pythons() -> None:
    """`pip install .` puts leconvert into an environment that the reader has chosen."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    told = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in pages
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"(?<!uv )pip install (?!\.`)", line)
    ]
    assert told == []

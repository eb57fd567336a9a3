"""Which packages are wanted, by what leconvert says of itself."""

from __future__ import annotations

import tomllib
from pathlib import Path

from leconvert.cli.doctor import Package, packages_of
from leconvert.support.extras import command_for_extra, install_command

REQUIREMENTS = [
    "numpy>=2",
    'torch>=2.7; extra == "probe"',
    "h5py>=3.12; extra == 'resample'",
    'torch>=2.7; extra == "resample"',
    'pyarrow>=18; extra == "resample"',
    "pyarrow>=18",
    'winreg-shim>=1; sys_platform == "win32"',
]
EXTRAS = ["probe", "resample"]


def test_needed_packages_come_first_and_extras_are_named() -> None:
    versions = {"numpy": "2.2.6", "torch": "2.6.0", "pyarrow": "19.0.0"}
    assert packages_of(REQUIREMENTS, EXTRAS, versions.get) == (
        Package("numpy", ">=2", (), "2.2.6", True),
        Package("pyarrow", ">=18", (), "19.0.0", True),
        Package("torch", ">=2.7", ("probe", "resample"), "2.6.0", False),
        Package("h5py", ">=3.12", ("resample",), None, False),
    )


def test_the_remedy_is_a_command_that_can_be_copied() -> None:
    found = {p.name: p for p in packages_of(REQUIREMENTS, EXTRAS, {"torch": "2.6.0"}.get)}
    assert found["numpy"].remedy == install_command("numpy>=2")
    assert found["torch"].remedy == command_for_extra("probe")
    assert found["h5py"].remedy == command_for_extra("resample")
    assert found["h5py"].as_record() == {
        "name": "h5py",
        "wants": ">=3.12",
        "extras": ["resample"],
        "version": None,
        "fits": False,
        "trouble": None,
        "remedy": command_for_extra("resample"),
    }


def test_builds_and_development_versions_fit() -> None:
    versions = {"numpy": "2.3.0.dev0", "torch": "2.11.0+cu130", "pyarrow": "18"}
    found = packages_of(REQUIREMENTS, EXTRAS, versions.get)
    assert [package.name for package in found if not package.fits] == ["h5py"]


def test_the_project_says_of_itself_what_can_be_read() -> None:
    project = tomllib.loads(Path(__file__).parents[4].joinpath("pyproject.toml").read_text())
    declared = project["project"]
    extras = declared["optional-dependencies"]
    lines = [*declared["dependencies"]]
    lines += [f'{line}; extra == "{extra}"' for extra, wants in extras.items() for line in wants]
    found = packages_of(lines, list(extras), lambda _name: None)
    needed = {package.name for package in found if package.is_needed}
    assert {"av", "numpy", "pyarrow", "packaging", "huggingface_hub"} <= needed
    assert {"torch", "h5py", "s3fs", "shtab"} <= {package.name for package in found} - needed

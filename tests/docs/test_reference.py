"""The reference is what the code says."""

from __future__ import annotations

import re

import pytest

from leconvert import errors
from tests.docs.pages import ROOT
from tests.scripts import loaded_script


def test_pages_are_as_the_code_is() -> None:
    with loaded_script("make_reference") as script:
        for name, text in script.pages().items():
            stored = (script.FOLDER / name).read_text("utf-8")
            assert stored == text, "run: python scripts/make_reference.py"


def test_the_guide_says_what_to_do_about_every_exit_code() -> None:
    page = (ROOT / "docs/cli.md").read_text("utf-8")
    table = page.split("## When it stops", 1)[1]
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert told == {0} | {getattr(errors, name).exit_code for name in errors.__all__}


def test_a_stale_page_is_named(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    with loaded_script("make_reference") as script, pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "FOLDER", tmp_path)
        patch.setattr(script, "pages", lambda: {"cli.md": "new"})
        patch.setattr("sys.argv", ["make_reference.py", "--check"])
        assert script.main() == 1
        assert "cli.md is not as the code is" in capsys.readouterr().out
        patch.setattr("sys.argv", ["make_reference.py"])
        assert script.main() == 0
        patch.setattr("sys.argv", ["make_reference.py", "--check"])
        assert script.main() == 0

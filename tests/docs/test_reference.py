"""The reference is what the code says."""

from __future__ import annotations

import pytest

from tests.scripts import loaded_script


def test_pages_are_as_the_code_is() -> None:
    with loaded_script("make_reference") as script:
        for name, text in script.pages().items():
            stored = (script.FOLDER / name).read_text("utf-8")
            assert stored == text, "run: python scripts/make_reference.py"


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

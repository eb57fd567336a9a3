"""The check of words finds the worst shapes, and leaves code, questions and headings alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scripts import loaded_script

BAD = '''"""Read files.

What is missing is not read. A second sentence is good.

Args:
    path: Of the folder.
"""

import sys  # Where it is.

# A comment that is good.
# Which it is.


def names() -> list[str]:
    """Return the names and the size of it."""
    return ["What a value holds is no prose."]
'''
GOOD = '''"""Is this a question? What is read? `What` and "Where x" are quoted; see [one](a.md).

    An indented paragraph is prose.
"""

# noqa: What is for a tool.
# Return each of them.
'''
PAGE = """# What every page has

Where is it?

| name | What it means |
|---|---|
| a | Those that are there. |

```text
What is code.
```
"""


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("bad.py", BAD, [3, 6, 9, 11, 16]),
        ("good.py", GOOD, []),
        ("page.md", PAGE, [5, 7]),
    ],
)
def test_lines_of_bad_shapes_are_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    lines: list[int],
) -> None:
    (tmp_path / name).write_text(text)
    with loaded_script("check_words") as script:
        monkeypatch.setattr(script, "ROOT", tmp_path)
        monkeypatch.setattr("sys.argv", ["check_words.py", str(tmp_path)])
        assert script.main() == int(bool(lines))
    said = capsys.readouterr().out
    assert (
        sorted(int(line.split(":")[1]) for line in said.splitlines() if line.startswith(name))
        == lines
    )

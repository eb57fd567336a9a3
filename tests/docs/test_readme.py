"""The README's picture and what a newcomer is told to do first."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from tests.docs.commands import commands_of
from tests.docs.pages import ROOT
from tests.scripts import loaded_script

PICTURE = ROOT / "docs/images/terminal.svg"


def test_the_picture_shows_the_commands_that_made_it_and_loads_nothing() -> None:
    text = PICTURE.read_text("utf-8")
    lines: dict[str, str] = {}
    for element in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text"):
        height = element.attrib["y"]
        lines[height] = lines.get(height, "") + (element.text or "").replace("\xa0", " ")
    shown = [line.removeprefix("$ ").strip() for line in lines.values() if line.startswith("$ ")]
    with loaded_script("make_terminal_svg") as script:
        assert shown == list(script.COMMANDS)
    assert any("hold the same bytes as the source" in line for line in lines.values())
    assert re.findall(r"(?:src|href)\s*=|url\((?!#)|@import", text) == []


def test_what_a_terminal_showed_is_drawn_as_it_was_last() -> None:
    with loaded_script("make_terminal_svg") as script:
        picture = script.drawn([("leconvert demo", "scan: 10%\rscan: 100%\nmade <it>\n")], "title")
    drawn = [
        (element.text or "").replace("\xa0", " ")
        for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert "scan: 100%" in drawn
    assert "made <it>" in drawn
    assert not any("10%\r" in line or line == "scan: 10%" for line in drawn)


def test_the_first_hour_installs_converts_and_proves() -> None:
    with loaded_script("first_hour") as script:
        lines = script.commands_below((ROOT / "README.md").read_text("utf-8"), "Try it")
        later = script.commands_below((ROOT / "docs" / "tutorial.md").read_text("utf-8"))
    words = [command.words for line in lines for command in commands_of(line)]
    assert words[0] == ("scripts/demo",)
    done = [command[1] for command in words if command[0] == "leconvert"]
    assert done == ["convert", "verify", "check"]
    assert later[0] == "scripts/uv pip install -e '.[train]'"
    assert any(command.startswith("python - <<'END'\nfrom leconvert.loading") for command in later)

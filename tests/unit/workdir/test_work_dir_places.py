"""Source, target and work dir lie side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from leconvert.errors import TargetError, UsageError
from leconvert.workdir.places import check_places


@pytest.mark.parametrize(
    ("source", "target", "work", "said"),
    [
        ("set", "out", "set/work", "The work dir {}/set/work lies inside the source {}/set."),
        ("set", "out", "out/work", "The work dir {}/out/work lies inside the target {}/out."),
        ("set", "set/out", "work", "The target {}/set/out lies inside the source {}/set."),
        ("out/set", "out", "work", "The source {}/out/set lies inside the target {}/out."),
        ("set", "work/out", "work", "The target {}/work/out lies inside the work dir {}/work."),
        ("work/set", "out", "work", "The source {}/work/set lies inside the work dir {}/work."),
        ("set", "out", "set", "The work dir {}/set lies inside the source {}/set."),
    ],
)
def test_one_inside_another_is_refused_and_both_are_named(
    tmp_path: Path, source: str, target: str, work: str, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_places(tmp_path / source, tmp_path / target, tmp_path / work)
    assert caught.value.message == said.format(tmp_path, tmp_path)
    assert caught.value.next_step


def test_side_by_side_in_place_and_as_an_outline_they_may_be(tmp_path: Path) -> None:
    source, target, work = (tmp_path / name for name in ("set", "out", ".set.leconvert-work"))
    check_places(source, target, work)
    check_places(source, source, work)
    check_places(tmp_path / "setting", tmp_path / "set", tmp_path / "set-work")
    check_places(work / "outlines" / "abc", target, work, outlined=True)


def test_a_target_without_a_folder_to_be_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="does not exist") as caught:
        check_places(tmp_path / "set", tmp_path / "nowhere" / "out", tmp_path / "work")
    assert caught.value.path == str(tmp_path / "nowhere")

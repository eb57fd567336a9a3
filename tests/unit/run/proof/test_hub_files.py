"""What a repo on the Hub adds to a dataset is no difference; anything near it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from leconvert.dataset.files import CARD_BEGIN
from leconvert.run.proof import verify_pair


def paths_that_differ(result: Path, source: Path) -> list[str]:
    return [
        difference.path for difference in verify_pair(result, source, depth="bytes").differences
    ]


def test_attributes_of_git_belong_to_the_repo(result_copy: Path, source_copy: Path) -> None:
    (source_copy / ".gitattributes").write_text("*.mp4 filter=lfs\n")
    assert paths_that_differ(result_copy, source_copy) == []
    (result_copy / ".gitattributes").write_text("*.parquet filter=lfs\n")
    assert paths_that_differ(result_copy, source_copy) == []
    (result_copy / ".gitignore").write_text("data\n")
    assert paths_that_differ(result_copy, source_copy) == [".gitignore"]


@pytest.mark.parametrize("had_one", [True, False])
def test_a_card_that_a_push_wrote_is_not_the_sources(
    result_copy: Path, source_copy: Path, had_one: bool
) -> None:
    if not had_one:
        (source_copy / "README.md").unlink()
    (result_copy / "README.md").write_text(f"# A dataset\n{CARD_BEGIN}\n| episodes | 5 |\n")
    assert paths_that_differ(result_copy, source_copy) == []
    (result_copy / "README.md").write_text("# Another one\n")
    assert paths_that_differ(result_copy, source_copy) == ["README.md"]

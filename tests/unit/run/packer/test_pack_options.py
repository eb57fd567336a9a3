"""What stands in the way of packing is said before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from leconvert.run.conversion import ProofOptions
from leconvert.support.errors import UsageError


def test_a_depth_that_nobody_knows_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        ProofOptions(verify="thorough").check_target(tmp_path / "in", tmp_path / "out", "v3.0")
    assert caught.value.message == "--verify takes structure, bytes, none, not 'thorough'."


@pytest.mark.parametrize(
    ("verify", "delete_source", "depth"),
    [
        (None, False, "structure"),
        (None, True, "bytes"),
        ("none", False, "none"),
        ("structure", True, "structure"),
    ],
)
def test_a_source_that_is_to_be_removed_is_compared_to_the_byte_unless_told_otherwise(
    verify: str | None, delete_source: bool, depth: str
) -> None:
    assert ProofOptions(verify=verify, delete_source=delete_source).depth == depth

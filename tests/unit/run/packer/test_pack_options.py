"""What stands in the way of packing is said before anything is done."""

from __future__ import annotations

import pytest

from leconvert.run.conversion import ProofOptions


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

"""Every way to damage a good result that a verification is held to find."""

from __future__ import annotations

from mutation import Mutation
from mutations_of_files import MUTATIONS as FILES
from mutations_of_metadata import MUTATIONS as METADATA
from mutations_of_rows import MUTATIONS as ROWS
from mutations_of_videos import MUTATIONS as VIDEOS

__all__ = ["MUTATIONS"]

MUTATIONS: dict[str, list[Mutation]] = {
    "Videos": VIDEOS,
    "Data files": ROWS,
    "Tables and records": METADATA,
    "Files": FILES,
}
"""By what is damaged, as the documentation lists them."""

"""The one place that makes a client of the Hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leconvert._version import __version__

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = ["make_api", "without_its_bars"]


def make_api(*, endpoint: str | None = None, token: str | bool | None = None) -> HfApi:
    """Return a client; it asks nothing yet.

    Args:
        endpoint: The Hub's address; None for ``HF_ENDPOINT``, else the public Hub.
        token: A token; None for the one of ``HF_TOKEN`` or ``hf auth login``, False for none.
    """
    from huggingface_hub import HfApi

    return HfApi(
        endpoint=endpoint, token=token, library_name="leconvert", library_version=__version__
    )


@contextmanager
def without_its_bars() -> Iterator[None]:
    """Keep the client from drawing progress bars within the block; ours say the same."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()

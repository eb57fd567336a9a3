"""What all conformance tests share: an offline LeRobot with caches of its own, and torchcodec."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anything imports `datasets`: its cache answers for files that it saw earlier, under the
# user's home; nothing here may read or leave anything there.
_CACHE = Path(tempfile.mkdtemp(prefix="leconvert-conformance-"))
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_CACHE"] = str(_CACHE / "datasets")
os.environ["HF_LEROBOT_HOME"] = str(_CACHE / "lerobot")
os.environ["TQDM_DISABLE"] = "1"


@pytest.fixture(scope="session", autouse=True)
def torchcodec_loads() -> None:
    """Fail every test here, rather than skip any, where torchcodec finds no FFmpeg."""
    reason = ""
    try:
        import torchcodec.decoders  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        reason = str(error).strip().split("\n", 1)[0] or repr(error)
    if reason:
        pytest.fail(
            f"torchcodec does not load ({reason}). Make FFmpeg's libraries visible before Python "
            'starts: export LD_LIBRARY_PATH="$(python scripts/ffmpeg_libs.py .ffmpeg)"',
            pytrace=False,
        )


@pytest.fixture(scope="session", autouse=True)
def quiet_reference() -> Iterator[None]:
    """Keep LeRobot's remarks about every file out of the tests' output."""
    logger = logging.getLogger("lerobot")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)

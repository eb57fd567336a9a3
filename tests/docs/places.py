"""What stands in the sandbox before a block runs.

The pages call their datasets by placeholder names, which are real names here: below the sandbox's
folder ``path/to/dataset`` is a v2.1 dataset and ``WORK`` a work dir. A block that converts DATASET
needs it as v2.1 and no RESULT yet; one that verifies RESULT needs that. Which it is follows from
the command itself, parsed by the program's own parser, so that no page has to say it twice.
"""

from __future__ import annotations

import argparse
import ast
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from leconvert.conversion import convert
from leconvert.model import LayoutOptions
from leconvert.packer import pack
from leconvert.planner import open_or_plan
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.worker import work

__all__ = ["Places", "Templates", "make_templates"]

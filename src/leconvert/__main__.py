"""``python -m leconvert``."""

import sys

from leconvert.cli import main

sys.exit(main())

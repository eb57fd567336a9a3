"""Runs a driver: ``python -m leconvert.engines.ray``."""

import sys

from leconvert.engines.ray.driver import main

sys.exit(main())

"""Where every episode goes: output files and batches, decided from plain numbers alone.

Nothing here knows of workers, hosts or time, so a layout depends on the source and the options
only. Sizes are counted in bytes with integers; the reference counts in floating MiB, which gives
the same answers because a division by 2**20 is exact.
"""

from leconvert.dataset.fitness import MISFIT_SAID, changes_rows, fit_files, misfit_counts
from leconvert.run.layout.batches import cut_batches
from leconvert.run.layout.files import (
    check_layout_options,
    choose_block_align,
    count_out_of_reach,
    first_frames,
    layout_streams,
    roll_over,
)
from leconvert.run.layout.together import roll_together

__all__ = [
    "MISFIT_SAID",
    "changes_rows",
    "check_layout_options",
    "choose_block_align",
    "count_out_of_reach",
    "cut_batches",
    "first_frames",
    "fit_files",
    "layout_streams",
    "misfit_counts",
    "roll_over",
    "roll_together",
]

"""The packer: collect shards, assemble the new tree, prove it, swap it into place.

It works while workers do: the tables come first, then each file as soon as its shards are there.

It costs O(files), not O(bytes): a shard that is a whole output file is linked into the tree. Only
parts of files (batches of episode ranges) are joined here.

A packer may be killed at any moment; the next one goes on. The tree is built beside the target
under a name that carries the packer's generation, and a packer that takes over first renames it to
its own generation's name, so that a predecessor that still lives finds its tree gone and can swap
nothing.
"""

from leconvert.packer.collection import check_all_done
from leconvert.packer.options import PackOptions
from leconvert.packer.report import PackReport
from leconvert.packer.run import pack_run, swap_has_begun
from leconvert.packer.watcher import Watcher

__all__ = [
    "PackOptions",
    "PackReport",
    "Watcher",
    "check_all_done",
    "pack_run",
    "swap_has_begun",
]

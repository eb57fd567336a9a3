"""The packer: collect shards, assemble the new tree, prove it, swap it into place.

It works while workers do: the tables come first, then each file as soon as its shards are there.

It costs O(files), not O(bytes): a shard that is a whole output file is linked into the tree. Only
parts of files (batches of episode ranges) are joined here.

A packer may be killed at any moment; the next one goes on. The tree is built beside the target
under a name that carries the packer's generation, and a packer that takes over first renames it to
its own generation's name, so that a predecessor that still lives finds its tree gone and can swap
nothing. A predecessor's proof is repeated: a proof is good for the process that made it.
"""

from leconvert.run.packer.assembly import check_all_done, taken_over
from leconvert.run.packer.proof import (
    PackReport,
    TreePair,
    does_not_match,
    facts_of_tree,
    remove_compared,
    rest_of_removal,
    tree_facts,
)
from leconvert.run.packer.run import (
    NoResultError,
    WorkerMonitor,
    finish_run,
    pack_run,
    swap_has_begun,
)

__all__ = [
    "NoResultError",
    "PackReport",
    "TreePair",
    "WorkerMonitor",
    "check_all_done",
    "does_not_match",
    "facts_of_tree",
    "finish_run",
    "pack_run",
    "remove_compared",
    "rest_of_removal",
    "swap_has_begun",
    "taken_over",
    "tree_facts",
]

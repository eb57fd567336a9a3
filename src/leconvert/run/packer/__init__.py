"""The packer: collect shards, assemble the new tree, prove it, swap it into place.

It works while workers do: the tables come first, then each file as soon as its shards are there.
Its cost is O(files), not O(bytes): a shard that is a whole output file is linked into the tree.
Only parts of files (batches of episode ranges) are joined here.

A packer may be killed at any moment; the next one continues. The tree is built beside the target,
with the packer's generation in its name. A packer that takes over first renames the tree to its own
generation. So a predecessor that is still alive no longer finds its tree and cannot swap. The
predecessor's proof is repeated, because a proof is valid only for the process that made it.
"""

from leconvert.run.packer.assembly import check_all_done, taken_over
from leconvert.run.packer.removal import (
    TreePair,
    facts_of_tree,
    reason_to_keep,
    remove_compared,
    rest_of_removal,
    tree_facts,
)
from leconvert.run.packer.run import (
    NoResultError,
    PackReport,
    WorkerMonitor,
    does_not_match,
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
    "reason_to_keep",
    "remove_compared",
    "rest_of_removal",
    "swap_has_begun",
    "taken_over",
    "tree_facts",
]

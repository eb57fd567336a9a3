"""Which of several training processes this is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from leconvert.errors import UsageError

__all__ = ["find_rank"]

# torchrun's, then those of SLURM's srun. SLURM_NTASKS would not do: a batch script has it too, with
# SLURM_PROCID=0, and would then load the share of one of several ranks of which it is the only one.
_VARIABLES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
_OF_NODE = (("LOCAL_RANK", "LOCAL_WORLD_SIZE"),)  # torchrun's and accelerate's


def find_rank(
    rank: int | None = None,
    world_size: int | None = None,
    *,
    of_node: bool = False,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, int]:
    """Return rank and world size: as given, else accelerate's, torchrun's or SLURM's, else 0 of 1.

    accelerate is only asked where the program already started it: asking would start it.

    Args:
        rank: This process, from 0; with ``world_size`` or not at all.
        world_size: How many there are.
        of_node: Count the processes of this node alone.
        environment: Instead of the process's own variables.

    Raises:
        UsageError: One of the two is missing, or they do not go together; or those of this node are
            wanted, and nobody tells them from the others.
    """
    variables = os.environ if environment is None else environment
    if rank is not None or world_size is not None:
        return _checked(rank, world_size, "the arguments")
    if of_node:
        return _rank_on_node(variables)
    state = sys.modules.get("accelerate.state")
    if state is not None and state.PartialState._shared_state:  # noqa: SLF001 (see above)
        running = state.PartialState()
        return _checked(running.process_index, running.num_processes, "accelerate")
    return _said_by(variables, _VARIABLES) or (0, 1)


def _rank_on_node(variables: Mapping[str, str]) -> tuple[int, int]:
    found = _said_by(variables, _OF_NODE)
    if found is None:
        rank, world_size = find_rank(environment=variables)
        if world_size > 1:
            raise UsageError(
                f"This is rank {rank} of {world_size} on all nodes, and it is not known which of "
                "this node's processes it is; nodes that load files of their own go by that.",
                next_step="Give rank and world size of the processes of this node (--rank, "
                "--world-size).",
            )
        found = 0, 1
    return found


def _said_by(
    variables: Mapping[str, str], pairs: Iterable[tuple[str, str]]
) -> tuple[int, int] | None:
    for rank_name, size_name in pairs:
        if rank_name in variables and size_name in variables:
            try:
                numbers = int(variables[rank_name]), int(variables[size_name])
            except ValueError as error:
                raise UsageError(
                    f"{rank_name}={variables[rank_name]} and {size_name}={variables[size_name]} "
                    "are no numbers."
                ) from error
            return _checked(*numbers, f"{rank_name} and {size_name}")
    return None


def _checked(rank: int | None, world_size: int | None, origin: str) -> tuple[int, int]:
    if rank is None or world_size is None:
        raise UsageError("A rank needs a world size, and the other way round.")
    if not 0 <= rank < world_size:
        raise UsageError(f"There is no rank {rank} of {world_size} (from {origin}).")
    return rank, world_size

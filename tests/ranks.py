"""Runs a function as several ranks: processes forked from one that imported everything once.

    python -m tests.ranks MODULE:FUNCTION WORLD_SIZE VARIABLE FILE [ARGUMENT ...]

Each process finds its rank in the environment variable; what the functions return goes to the file,
as a JSON list. If one of them fails the others are ended, and so is this, with code 1.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["free_port", "run_as_ranks"]

_SECONDS = 120


def run_as_ranks(
    function: Callable[..., Any],
    *arguments: object,
    folder: Path,
    world_size: int = 2,
    variable: str = "RANK",
    environment: Mapping[str, str],
) -> list[Any]:
    """Call a function of a test module in every rank, and return what each returned.

    Args:
        function: At the top of its module; takes texts, returns what JSON can hold.
        arguments: Become texts.
        folder: For the outcome.
        world_size: How many ranks.
        variable: What tells a process its rank.
        environment: What else is set for all of them.
    """
    outcome = folder / "ranks.json"
    # By its file: where there is no package pytest calls a module by its last name alone.
    repository = Path(__file__).resolve().parents[1]
    file = Path(function.__code__.co_filename).resolve().relative_to(repository)
    place = f"{'.'.join(file.with_suffix('').parts)}:{function.__qualname__}"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.ranks", place, str(world_size), variable, outcome,
         *map(str, arguments)],
        cwd=repository,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            _, said = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, said
    returned: list[Any] = json.loads(outcome.read_text())
    return returned


def free_port() -> int:
    """Return a free port, which nobody gets by chance until a rank has imported torch.

    The kernel gives any port from 32768 on to whoever connects or asks for one.
    """
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise OSError("no port below 32000 is free")


def _main(place: str, world_size: str, variable: str, outcome: str, *arguments: str) -> int:
    module, _, name = place.partition(":")
    function = getattr(import_module(module), name)
    sys.stdout.flush()
    ranks = {}
    for rank in range(int(world_size)):
        pid = os.fork()
        if pid == 0:
            os.environ[variable] = str(rank)
            _be_rank(function, arguments, Path(f"{outcome}.{rank}"))
        ranks[pid] = rank
    while ranks:
        pid, status = os.wait()
        del ranks[pid]
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            return 1
    returned = [Path(f"{outcome}.{rank}").read_text() for rank in range(int(world_size))]
    Path(outcome).write_text(f"[{', '.join(returned)}]")
    return 0


def _be_rank(function: Callable[..., Any], arguments: tuple[str, ...], outcome: Path) -> None:
    code = 1
    try:
        outcome.write_text(json.dumps(function(*arguments)))
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))

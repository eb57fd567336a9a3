"""A command that a message suggests can be pasted, whatever the folders are called."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.commands import parsed
from tests.plans import open_or_plan

import leconvert
from leconvert.cli.main import build_parser
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import Conversion
from leconvert.run.leasing import Board, LeaseStore, WorkerIdentity
from leconvert.run.packer import check_all_done
from leconvert.support.errors import BatchesFailedError, IncompleteError, UnreadableSourceError
from leconvert.workdir.run import OpenedRun

PACKAGE = Path(leconvert.__file__).parent
_, *COMMANDS = [command.prog for command in build_parser().declared()]
# Up to the end of the quotation, else of the sentence.
SUGGESTED = re.compile(rf"(?:{'|'.join(map(re.escape, COMMANDS))}|hf [a-z ]+)\b[^`]*?(?=`|\.\s|$)")
A_VALUE = "\0"


@pytest.fixture
def planned_in_a_folder_with_spaces(small_source: Path, tmp_path: Path) -> OpenedRun:
    place = tmp_path / "the robot's runs"
    place.mkdir()
    layout = LayoutOptions(episodes_per_batch=1)
    return open_or_plan(small_source, place / "out", place / "work dir", Conversion(layout=layout))


def board_of(run: OpenedRun) -> Board:
    identity = WorkerIdentity.of_this_process()
    store = LeaseStore(run.paths, identity, max_attempts=1)
    return Board(store, run.manifest.num_batches)


def suggested_by(error: IncompleteError | BatchesFailedError) -> list[str]:
    assert error.next_step is not None
    (command,) = re.findall(r"`([^`]*)`", error.next_step)
    return shlex.split(command)


def test_who_packs_too_early_or_with_batches_set_aside_is_told_what_to_do_in_that_folder(
    planned_in_a_folder_with_spaces: OpenedRun,
) -> None:
    run = planned_in_a_folder_with_spaces
    board = board_of(run)
    board.refresh()
    with pytest.raises(IncompleteError) as early:
        check_all_done(run, board)
    assert suggested_by(early.value) == ["leconvert", "work", str(run.work_dir.root)]
    lease = board.next_lease()
    lease.fail(UnreadableSourceError("a clip is torn."))
    board.refresh()
    with pytest.raises(BatchesFailedError) as failed:
        check_all_done(run, board)
    command = suggested_by(failed.value)
    assert command == ["leconvert", "release", str(run.work_dir.root), "--failed"]
    parsed(command[1:])


def formatted_texts(path: Path) -> Iterator[tuple[ast.JoinedStr, str, list[ast.expr]]]:
    source = path.read_text()
    if not re.search(r"\b(leconvert|hf) ", source):
        return  # parsing it takes much longer
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            text, values = "", []
            for piece in node.values:
                if isinstance(piece, ast.FormattedValue):
                    text, values = text + A_VALUE, [*values, piece.value]
                elif isinstance(piece, ast.Constant):
                    text += str(piece.value)
            yield node, text, values


def test_every_message_quotes_what_it_puts_into_a_command() -> None:
    checked, bare = 0, []
    for path in PACKAGE.rglob("*.py"):
        for node, text, values in formatted_texts(path):
            if not {"leconvert", "hf"} & set(re.findall(r"\w+", text)):
                continue  # no command begins in it
            for found in SUGGESTED.finditer(text):
                first = text.count(A_VALUE, 0, found.start())
                for value in values[first : first + found[0].count(A_VALUE)]:
                    checked += 1
                    if not ast.unparse(value).startswith("shlex."):
                        bare.append(f"{path.name}:{node.lineno}: {ast.unparse(value)}")
    assert not bare
    assert checked >= 20

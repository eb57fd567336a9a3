"""Pushes that fail anywhere, other people and the user, in any order: readers see whole datasets.

Two results of one source are pushed to one repo, with and without force, in one commit or through a
pull request. The Hub fails at any request, the process ends after any answer, and meanwhile or in
between somebody edits the card, adds a file, changes the dataset, moves or deletes a tag, or closes
a draft. At every request ``main`` and the tag hold one whole dataset. Without force a push replaces
the dataset that its result was made from, and no other, and moves no tag of another. Nobody else's
file is lost. In the end each result goes up, if force is allowed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.hub import Fault, LoggedRequest, StandIn
from tests.hub.committed import contents
from tests.hub.fixtures import CutOff, api_of, cut_after, hub, lone_client, pauses

from leconvert.api import convert
from leconvert.model.repairs import RepairOptions
from leconvert.remote.provenance import read_provenance
from leconvert.remote.push import push
from leconvert.support.errors import HubConflictError, HubUnavailableError
from leconvert.transfer.options import PushOptions

__all__ = ["api_of", "hub", "lone_client", "pauses"]

IN_ONE_COMMIT, IN_SEVERAL = 25_000, 6
NOTES = "notes/"  # a folder of the repo that belongs to no dataset
STRANGERS = ("card", "note", "dataset", "tag deleted", "tag moved", "draft closed")
KINDS = ("none", "drop_before", "drop_after", "truncate", "500", "429", "away", "cut")

# A push in one commit takes up to 24 requests, one through a pull request about 40.
failures = st.tuples(st.sampled_from(KINDS), st.integers(1, 40))


class Pushes(RuleBasedStateMachine):
    """One repo, two results, and everybody who writes to the repo."""

    def __init__(
        self, hub: StandIn, api: HfApi, source: Path, results: dict[str, Path], numbers: count[int]
    ) -> None:
        super().__init__()
        self.hub, self.api, self.source, self.results = hub, api, source, results
        self.repo_id = f"tester/arm{next(numbers)}"
        self.wholes = {name: _proven(result) for name, result in results.items()}
        self.notes = 0

    @initialize(tags=st.sampled_from([("v2.1",), ("v2.1", "v3.0")]))
    def begin(self, tags: tuple[str, ...]) -> None:
        self.hub.break_requests()
        self.repo = self.hub.add_repo(self.repo_id, self.source, tags=tags)
        self.wholes["old"] = contents(self.repo, self.repo.branches["main"])
        self.hub.watch = self.look

    def look(self, _: LoggedRequest | None = None) -> None:
        """Read the repo as anybody may at this moment."""
        assert self.holds(self.repo.branches["main"]), "main holds no whole dataset"
        if tag := self.repo.tags.get("v3.0"):
            assert self.holds(tag), "the tag names no whole dataset"
        notes = {path for path in self.repo.tree(self.repo.branches["main"]) if NOTES in path}
        assert notes == {f"{NOTES}{number}.txt" for number in range(self.notes)}

    def holds(self, commit: str) -> str | None:
        found = contents(self.repo, commit)
        own = {path: digest for path, digest in found.items() if not path.startswith(NOTES)}
        return next((name for name, files in self.wholes.items() if files == own), None)

    def at_main(self) -> str | None:
        return self.holds(self.repo.branches["main"])

    @rule(who=st.sampled_from(STRANGERS))
    def stranger(self, who: str) -> None:
        main, tags = self.repo.branches["main"], self.repo.tags
        if who == "card":
            card = f"---\nlicense: mit\n---\n# Edited at {main}\n"
            self.hub.add_commit(self.repo_id, {"README.md": card.encode()})
        elif who == "note":
            self.hub.add_commit(self.repo_id, {f"{NOTES}{self.notes}.txt": b"read me"})
            self.notes += 1
        elif who == "dataset":
            path = next(p for p in sorted(self.repo.tree(main)) if p.startswith("data/"))
            self.hub.add_commit(self.repo_id, {path: f"changed at {main}".encode()})
            found = contents(self.repo, self.repo.branches["main"])
            own = {path: sha for path, sha in found.items() if not path.startswith(NOTES)}
            self.wholes[f"changed at {main}"] = own
        elif who == "tag deleted":
            tags.pop("v3.0", None)
        elif who == "tag moved":
            tags["v3.0"] = main
        elif self.repo.pulls and self.repo.pulls[-1]["status"] in ("draft", "open"):
            self.repo.pulls[-1]["status"] = "closed"

    @rule(
        which=st.sampled_from(["mine", "theirs"]),
        force=st.booleans(),
        operations=st.sampled_from([IN_ONE_COMMIT, IN_SEVERAL]),
        failure=failures,
        meanwhile=st.none() | st.tuples(st.sampled_from(STRANGERS), st.integers(1, 40)),
    )
    def push(
        self,
        which: str,
        force: bool,
        operations: int,
        failure: tuple[str, int],
        meanwhile: tuple[str, int] | None,
    ) -> None:
        kind, at = failure
        before, changed = self.at_main(), len(self.wholes)
        tag = self.repo.tags.get("v3.0")
        tagged = tag and self.holds(tag)
        rules = []
        if meanwhile is not None:
            act = partial(self.stranger, meanwhile[0])
            rules.append(Fault("none", at=meanwhile[1], interfere=act))
        if kind.isdigit():
            rules.append(Fault("status", at=at, status=int(kind), headers={"Retry-After": "1"}))
        elif kind == "away":
            rules.append(Fault("drop_before", at=at, onward=True))
        elif kind not in ("none", "cut"):
            rules.append(Fault(kind, at=at, keep_bytes=1))
        self.hub.break_requests(*rules)
        options = PushOptions(commit_operations=operations, force=force)
        send = partial(self.send, self.results[which], options)
        is_done, refused = False, None
        try:
            if kind == "cut":
                with cut_after(at):
                    send()
            else:
                send()
            is_done = True
        except CutOff:
            pass
        except HubUnavailableError:
            assert kind == "away" or rules
        except HubConflictError as error:
            refused = error
        if refused is not None:
            assert refused.next_step
            is_replaceable = {before, tagged} <= {"old", which, None} or force
            assert meanwhile is not None or not is_replaceable, refused
        self.hub.break_requests()
        after = self.at_main()
        if is_done and len(self.wholes) == changed:
            assert after == which
        if not force and before not in ("old", which):
            assert after == before or len(self.wholes) > changed

    def send(self, result: Path, options: PushOptions) -> None:
        how = replace(options, repo_id=self.repo_id)
        push(result, how, api=self.api, pause=lambda _: None)

    @invariant()
    def readers_see_a_whole_dataset(self) -> None:
        if hasattr(self, "repo"):
            self.look()

    def teardown(self) -> None:
        if not hasattr(self, "repo"):
            return
        for name, result in self.results.items():
            self.send(result, PushOptions(force=True))
            main, tag = self.repo.branches["main"], self.repo.tags["v3.0"]
            assert self.holds(main) == self.holds(tag) == name
        self.hub.watch = None
        shutil.rmtree(self.repo.folder)


def _proven(result: Path) -> dict[str, str]:
    known = read_provenance(result)
    assert known is not None
    return {path: sha256 for path, (_, sha256) in known.files.items()}


@pytest.fixture(scope="module")
def results(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two results of one source: the same names, other contents."""
    folder = tmp_path_factory.mktemp("results")
    convert(small_source, output=folder / "mine", for_push=True)
    repairs = RepairOptions(quantiles=True)
    convert(small_source, output=folder / "theirs", for_push=True, repairs=repairs)
    return {name: folder / name for name in ("mine", "theirs")}


@pytest.mark.parametrize("examples", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_pushes_in_any_order(
    hub: StandIn,
    api_of: Callable[..., HfApi],
    small_source: Path,
    results: dict[str, Path],
    examples: int,
) -> None:
    machine = partial(Pushes, hub, api_of(), small_source, results, count())
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=8,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

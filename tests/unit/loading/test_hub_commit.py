"""A dataset of the Hub is read at one commit, whatever is pushed meanwhile."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.hub import Fault, StandIn
from tests.hub.fixtures import hub, lone_client, pauses
from tests.unit.loading.conftest import shift

from leconvert.bench.lerobot_training import _Run
from leconvert.loading import EpisodeStream, MixedStream, SampleStream, StreamLoader
from leconvert.support.errors import PlanMismatchError, UnreadableSourceError

__all__ = ["hub", "lone_client", "pauses"]

REPO = "me/pick"
URL = f"hf://datasets/{REPO}"
Make = Callable[..., SampleStream]


@pytest.fixture
def push(hub: StandIn, two_commits: tuple[Path, Path]) -> Callable[[], None]:
    """Put the first commit on the Hub, and return what pushes the second one."""
    hub.add_repo(REPO, two_commits[0], tags=("v3.0",))
    return lambda: hub.add_commit(REPO, two_commits[1]) and None


def one(**options: Any) -> EpisodeStream:
    return EpisodeStream(URL, return_uint8=True, **options)


def mixture(**options: Any) -> MixedStream:
    return MixedStream([(URL, 1), (URL, 2)], return_uint8=True, **options)


@pytest.mark.parametrize(
    ("make", "workers"),
    [
        (one, {}),
        (mixture, {"num_workers": 2, "persistent_workers": True}),
        # Processes that are spawned take seconds to start; the test below has what they are sent.
        pytest.param(
            one, {"num_workers": 1, "multiprocessing_context": "spawn"}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_push_between_two_epochs_changes_no_sample(
    hub: StandIn, push: Callable[[], None], monkeypatch: pytest.MonkeyPatch, make: Make,
    workers: dict[str, Any],
) -> None:  # fmt: skip
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)  # for workers that are spawned
    first = hub.repo(REPO).branches["main"]
    stream = make(cache_size_in_gb=0)
    asked = len(hub.log)
    loader = StreamLoader(stream, batch_size=5, **workers)
    assert shift(loader) == {0}
    push()
    assert shift(loader) == {0}
    requests = [each.path for each in hub.log[asked:] if REPO in each.path]
    assert requests
    assert all(first in path for path in requests)
    assert shift(StreamLoader(make(cache_size_in_gb=0), batch_size=5)) == {1}


@pytest.mark.parametrize(
    "name", ["info.json", "tasks.parquet", "episodes/chunk-000/file-000.parquet"]
)
def test_metadata_that_arrive_with_other_content_are_refused(
    hub: StandIn, push: Callable[[], None], name: str
) -> None:
    hub.break_requests(Fault("flip", path=f"/resolve/.*/meta/{name}", at_byte=99, times=None))
    with pytest.raises(UnreadableSourceError, match="does not have the listed content"):
        one(cache_size_in_gb=0)


def test_a_copy_of_a_stream_reads_the_same_commit(push: Callable[[], None]) -> None:
    stream = one()
    copied = pickle.dumps(stream)
    push()
    again = pickle.loads(copied)
    assert again.commit == stream.commit != one().commit
    assert shift(again.batches(5)) == {0}


@pytest.mark.parametrize("make", [one, mixture])
def test_a_state_is_refused_at_another_commit_and_goes_on_at_its_own(
    push: Callable[[], None], make: Make
) -> None:
    loader = StreamLoader(make(), batch_size=5)
    for _ in loader:
        break
    state = loader.state_dict()
    expected = [batch["index"].tolist() for batch in loader_from(make(), state)]
    push()
    with pytest.raises(PlanMismatchError, match="the commit of the dataset") as error:
        loader_from(make(), state)
    first = state["commit"] if make is one else state["datasets"][0]["commit"]
    assert first in error.value.message
    assert "revision" in str(error.value.next_step)
    again = list(loader_from(make(revision=first), state))
    assert [batch["index"].tolist() for batch in again] == expected
    assert shift(again) == {0}


def loader_from(stream: SampleStream, state: dict[str, Any]) -> StreamLoader:
    loader = StreamLoader(stream, batch_size=5)
    loader.load_state_dict(state)
    return loader


def test_states_from_before_commits_were_noted_and_from_a_copy_go_on(
    push: Callable[[], None], two_commits: tuple[Path, Path]
) -> None:
    there, here = one(), EpisodeStream(two_commits[0], return_uint8=True)
    for taken_from, going_on in ((here, there), (there, here)):
        state = StreamLoader(taken_from, batch_size=5).state_dict()
        assert shift(loader_from(going_on, state)) == {0}
    assert "commit" not in StreamLoader(here, batch_size=5).state_dict()


@pytest.mark.parametrize(
    ("revision", "in_url"), [("main", True), ("v3.0", False), ("refs/pr/1", True)]
)
def test_a_revision_is_the_commit_that_it_was(
    hub: StandIn, push: Callable[[], None], revision: str, in_url: bool
) -> None:
    repo = hub.repo(REPO)
    first = repo.branches["main"]
    repo.open_pull("a change", "somebody", first)
    if in_url:
        stream = EpisodeStream(f"{URL}@{revision.replace('/', '%2F')}", return_uint8=True)
    else:
        stream = one(revision=revision)
    push()
    assert stream.commit == first
    assert stream.repo_id == REPO
    assert shift(stream.batches(5)) == {0}


def test_the_commit_of_files_elsewhere_is_fixed_as_well(
    push: Callable[[], None], two_commits: tuple[Path, Path]
) -> None:
    stream = EpisodeStream(two_commits[0], data_files_root=URL, return_uint8=True)
    state = StreamLoader(stream, batch_size=5).state_dict()
    push()
    assert shift(stream.batches(5)) == {0}
    moved = EpisodeStream(two_commits[0], data_files_root=URL, return_uint8=True)
    with pytest.raises(PlanMismatchError, match="the commit of data/ and videos/"):
        loader_from(moved, state)
    kept = f"{URL}@{state['data_commit']}"
    again = EpisodeStream(two_commits[0], data_files_root=kept, return_uint8=True)
    assert shift(loader_from(again, state)) == {0}


def test_checkpoints_of_lerobot_hold_the_commit(hub: StandIn, push: Callable[[], None]) -> None:
    def resumed(revision: str | None) -> tuple[Any, str]:
        dataset = SimpleNamespace(revision=revision)
        run = _Run(SimpleNamespace(make_train_eval_datasets=None), ())
        run._config = SimpleNamespace(seed=None, dataset=dataset)
        return run.open_stream(REPO, revision=revision), dataset.revision

    first, kept = resumed(None)
    assert first.commit == kept == hub.repo(REPO).branches["main"]
    push()
    again, same = resumed(kept)
    assert again.commit == same == kept

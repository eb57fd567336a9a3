"""A fault at every request of a push, and a push cut off after every request.

Whatever breaks, readers meet these states in this order and no others: all old; the branch new and
the tag old; the branch new and no tag; all new. The same command completes the push, and no content
that the Hub has is sent again, but for one case that is the client's: the answer to a PUT is lost,
and the client repeats the PUT at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from tests.hub import Fault, LoggedRequest, StandIn
from tests.hub.committed import contents
from tests.hub.fixtures import CutOff, api_of, cut_after, hub, lone_client, pauses

from leconvert.api import convert
from leconvert.model.repairs import RepairOptions
from leconvert.remote.provenance import read_provenance
from leconvert.remote.push import push
from leconvert.support.errors import HubConflictError, HubUnavailableError, LeconvertError
from leconvert.transfer.options import PushOptions

__all__ = ["api_of", "hub", "lone_client", "pauses"]

OLD, NEW, MISSING = "old", "new", "missing"
# What readers of main and of the tag v3.0 may meet, in this order.
STATES = [(OLD, OLD), (NEW, OLD), (NEW, MISSING), (NEW, NEW)]
KINDS = ("drop_before", "drop_after", "truncate", "500", "429")
REQUESTS = 24  # of a push to a repo that has a tag v3.0 elsewhere; checked below


@dataclass(slots=True)
class Scene:
    """One repo, one result, and everything that readers of the repo met."""

    hub: StandIn
    api: HfApi
    result: Path
    repo_id: str
    old: frozenset[str]
    operations: int
    met: list[tuple[str, str]]

    def push(self) -> None:
        push(
            self.result, PushOptions(repo_id=self.repo_id, commit_operations=self.operations),
            api=self.api, pause=lambda _: None,
        )  # fmt: skip

    def look(self, _: LoggedRequest | None = None) -> None:
        repo = self.hub.repo(self.repo_id)
        state = (self._side(repo.branches["main"]), self._side(repo.tags.get("v3.0")))
        if not self.met or self.met[-1] != state:
            self.met.append(state)

    def _side(self, commit: str | None) -> str:
        if commit is None:
            return MISSING
        files = self.hub.repo(self.repo_id).tree(commit)
        if files.keys() == self.old:
            return OLD
        new = {p.relative_to(self.result).as_posix() for p in self.result.rglob("*") if p.is_file()}
        assert files.keys() == new | {".gitattributes"}, "readers met half a dataset"
        return NEW

    def check_order(self, *, complete: bool = True) -> None:
        places = [STATES.index(state) for state in self.met]
        assert places == sorted(places), self.met
        assert not complete or self.met[-1] == (NEW, NEW)

    def check_sent_once(self) -> None:
        arrived: Counter[str] = Counter()
        for request in self.hub.log:
            if request.method == "PUT" and self.repo_id in request.path:
                arrived[request.path] += request.status == 200 or request.fault == "drop_after"
        lost = {r.path for r in self.hub.log if r.method == "PUT" and r.fault == "drop_after"}
        again = {path for path, times in arrived.items() if times > 1}
        assert again <= lost
        assert len(arrived) == 5


@pytest.fixture(scope="module")
def result(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("result") / "out"
    convert(small_source, output=target, for_push=True)
    return target


@pytest.fixture
def scene(
    hub: StandIn, api_of: Callable[..., HfApi], small_source: Path, result: Path
) -> Callable[..., Scene]:
    """Make a repo with the old dataset and a tag ``v3.0`` that names it."""
    count = 0

    def make(*, operations: int = 25_000) -> Scene:
        nonlocal count
        count += 1
        repo_id = f"tester/arm{count}"
        repo = hub.add_repo(repo_id, small_source, tags=("v2.1", "v3.0"))
        old = frozenset(repo.tree(repo.branches["main"]))
        hub.break_requests()
        made = Scene(hub, api_of(), result, repo_id, old, operations, [])
        hub.watch = made.look
        hub.log.clear()
        made.look()
        return made

    return make


def _fault(kind: str, at: int | None) -> Fault:
    if kind.isdigit():
        return Fault("status", at=at, status=int(kind), headers={"Retry-After": "1"})
    return Fault(kind, at=at, keep_bytes=1)


def _break_and_check(scene: Scene, kind: str, at: int) -> None:
    scene.hub.break_requests(_fault(kind, at))
    scene.push()  # one broken request is survived within the push
    assert sum(r.fault is not None for r in scene.hub.log) == 1
    scene.check_order()
    scene.check_sent_once()


def test_a_push_takes_so_many_requests_and_bytes_that_change_on_their_way_up_are_sent_again(
    scene: Callable[..., Scene],
) -> None:
    here = scene()
    here.push()
    assert len(here.hub.log) == REQUESTS
    assert here.met == STATES
    here.check_sent_once()
    here = scene()
    here.hub.break_requests(Fault("flip_up", method="PUT", path="/upload/", at_byte=7))
    here.push()
    here.check_order()
    repo = here.hub.repo(here.repo_id)
    assert contents(repo, repo.tags["v3.0"]) == _contents(here.result)


def _every(number: int) -> pytest.MarkDecorator:
    """Every so-manieth request in CI, all of them with the slow tests."""
    return pytest.mark.parametrize("every", [number, pytest.param(1, marks=pytest.mark.slow)])


@_every(6)
def test_a_push_that_was_cut_off_after_any_request_is_completed_by_the_next(
    scene: Callable[..., Scene], every: int
) -> None:
    for number in range(1, REQUESTS, every):
        here = scene()
        with cut_after(number), pytest.raises(CutOff):
            here.push()
        here.check_order(complete=False)
        here.push()
        here.check_order()
        here.check_sent_once()
        assert not [r for r in here.hub.log if r.fault]


def test_a_gap_between_two_tags_is_closed_before_anything_else(
    scene: Callable[..., Scene],
) -> None:
    here = scene()
    here.hub.break_requests(Fault("none", path="/tag/v3.0", method="DELETE"))
    with cut_after(REQUESTS - 1), pytest.raises(CutOff):
        here.push()
    assert here.met[-1] == (NEW, MISSING)
    here.hub.log.clear()
    here.push()
    writes = [r.path for r in here.hub.log if r.method not in ("GET", "HEAD")]
    assert writes[0].endswith(f"/tag/{here.hub.repo(here.repo_id).branches['main']}")
    assert len(writes) == 1


@pytest.mark.parametrize("kind", [None, *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS)])
def test_a_fault_at_any_request_is_survived(scene: Callable[..., Scene], kind: str | None) -> None:
    """Each kind comes at least once, and with the slow tests at every request."""
    for at in range(2, REQUESTS + 1, 4) if kind is None else range(1, REQUESTS + 1):
        _break_and_check(scene(), kind or KINDS[at % len(KINDS)], at)


UPLOADS = ("PUT /upload/", "POST /verify/", "POST /objects/batch")
OF_THE_HUB = {"400": 15, "401": 16, "403": 16, "404": 15, "409": 17, "412": 17, "413": 15}
# What a storage answers whose address expired, that got other bytes, or is busy, and others.
ANSWERS = (*KINDS, *["401", "408", "413", "503", "400", "403", "404", "409", "412"])


def _uploading_fault(place: str, kind: str, **rule: object) -> Fault:
    method, path = place.split()
    fault = _fault(kind, at=None)
    return replace(fault, method=method, path=path, headers={}, **rule)  # type: ignore[arg-type]


_FOR_CI = set(zip(UPLOADS, ("403", "404", "403"), strict=True))


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        pytest.param(*both, marks=() if both in _FOR_CI else pytest.mark.slow)
        for both in product(UPLOADS, ANSWERS)
    ],
)
def test_a_fault_of_an_upload_is_survived_or_told_and_the_next_push_goes_on(
    scene: Callable[..., Scene], place: str, kind: str
) -> None:
    """Once it is survived, for good it ends with its code, and the next push goes on."""
    for times in (1, None):
        here = scene()
        here.hub.break_requests(_uploading_fault(place, kind, times=times))
        ended = 0
        try:
            here.push()
        except LeconvertError as error:
            ended = error.exit_code
        is_sent_again = place == UPLOADS[0] or (place, kind) == (UPLOADS[1], "404")
        if not is_sent_again and kind in OF_THE_HUB:
            assert ended == OF_THE_HUB[kind]
        else:  # a storage that has the content is not asked again, whatever it answered
            assert ended in ({0} if times else {0, 15})
        here.check_order(complete=ended == 0)
        here.hub.break_requests()
        here.push()
        here.check_order()


@_every(20)
def test_a_hub_that_is_away_is_waited_for(scene: Callable[..., Scene], every: int) -> None:
    """The Hub stops answering for good; later it is back."""
    for at in range(2, REQUESTS + 1, every):
        here = scene()
        here.hub.break_requests(Fault("drop_before", at=at, onward=True))
        with pytest.raises(HubUnavailableError):
            here.push()
        here.check_order(complete=False)
        here.hub.break_requests()
        here.push()
        here.check_order()
        here.check_sent_once()


@pytest.mark.parametrize("becomes", ["open", "closed", "merged"])
def test_a_draft_that_was_begun_is_gone_on_with_unless_somebody_closed_it(
    scene: Callable[..., Scene], becomes: str
) -> None:
    here = scene(operations=6)
    with cut_after(24), pytest.raises(CutOff):
        here.push()
    repo = here.hub.repo(here.repo_id)
    (draft,) = repo.pulls
    assert draft["status"] == "draft"
    half = draft["head"]
    draft["status"] = becomes
    if becomes == "merged":  # half of a dataset, by somebody's own hand
        draft["status"] = "open"
        repo.merge(draft)
        here.hub.watch = None
        with pytest.raises(HubConflictError):
            here.push()
        assert repo.tags["v3.0"] != repo.branches["main"]
        return
    here.push()
    here.check_order()
    here.check_sent_once()
    assert len(repo.pulls) == 1 + (becomes == "closed")
    assert repo.pulls[-1]["status"] == "merged"
    assert contents(repo, repo.tags["v3.0"]) == _contents(here.result)
    assert half != repo.branches["main"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cut", *KINDS])
def test_merges_survive_every_fault_at_every_request(
    scene: Callable[..., Scene], kind: str
) -> None:
    quiet = scene(operations=6)
    quiet.push()
    quiet.check_order()
    for number in range(1, len(quiet.hub.log)):
        here = scene(operations=6)
        if kind != "cut":
            _break_and_check(here, kind, number)
            continue
        with cut_after(number), pytest.raises(CutOff):
            here.push()
        here.push()
        here.check_order()
        here.check_sent_once()


@pytest.fixture(scope="module")
def other(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another result of the same source: the same names, other contents."""
    target = tmp_path_factory.mktemp("other") / "out"
    convert(small_source, output=target, for_push=True, repairs=RepairOptions(quantiles=True))
    return target


def _contents(result: Path) -> dict[str, str]:
    """Return what a commit that holds a result holds: the hash of each file but the card."""
    known = read_provenance(result)
    assert known is not None
    return {path: sha256 for path, (_, sha256) in known.files.items()}


@pytest.mark.parametrize(
    ("case", "every"),
    [
        *(("asked", 11), ("forced", 11), ("new repo", 11)),
        *(pytest.param(case, 1, marks=pytest.mark.slow) for case in ("asked", "forced")),
        pytest.param("new repo", 1, marks=pytest.mark.slow),
    ],
)
def test_of_two_pushes_at_once_one_is_there_whole_and_the_other_says_so(
    scene: Callable[..., Scene], api_of: Callable[..., HfApi], other: Path, case: str, every: int
) -> None:
    wholes = {}
    for at in range(1, REQUESTS + 1, every):
        here = scene()
        hub, repo_id, result = here.hub, here.repo_id, here.result
        hub.watch = None
        wholes = wholes or {"mine": _contents(result), "theirs": _contents(other)}
        if case == "new repo":
            repo_id = f"tester/new{at}"
        options = PushOptions(force=case == "forced")
        ends: list[bool] = []

        def push_of(folder: Path, repo_id: str = repo_id, how: PushOptions = options) -> bool:
            try:
                push(folder, replace(how, repo_id=repo_id), api=api_of(), pause=lambda _: None)
            except HubConflictError:
                return False
            return True

        def meanwhile(ends: list[bool] = ends, run: Callable[[Path], bool] = push_of) -> None:
            ends.append(run(other))

        hub.break_requests(Fault("none", at=at, interfere=meanwhile))
        mine = push_of(result)
        repo = hub.repo(repo_id)
        main, tag = repo.branches["main"], repo.tags["v3.0"]
        holds = [name for name, files in wholes.items() if contents(repo, main) == files]
        assert len(holds) == 1, f"half of each after request {at}"
        assert contents(repo, tag) in wholes.values()
        if case == "forced" and hub.log[-2].method == "DELETE":
            continue  # the one gap that the Hub leaves: it deletes a tag whatever it names
        assert tag == main
        if not options.force:
            assert (mine, [*ends, False][0]) == (holds == ["mine"], holds == ["theirs"])

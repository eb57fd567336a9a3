"""The Hub's client: how it is made, its errors as errors of leconvert, its retries and its pace.

The address and the kind of token can be queried without a request.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert._version import __version__
from leconvert.support.errors import (
    REPORT_IT,
    HubAccessError,
    HubConflictError,
    HubError,
    HubUnavailableError,
    InterruptedRunError,
    LeconvertError,
)
from leconvert.support.text import duration, without_secrets_in
from leconvert.support.values import dataclass
from leconvert.transfer.names import check_name, repository_of
from leconvert.workdir.fs import replace_record
from leconvert.workdir.records import encode_record, fields_of, find_record

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError


def make_api(*, endpoint: str | None = None, token: str | bool | None = None) -> HfApi:
    """Return a client; no request is made yet."""
    from huggingface_hub import HfApi

    return HfApi(endpoint, token, library_name="leconvert", library_version=__version__)


def check_token(repo_id: str, api: HfApi | None = None) -> None:
    """Raise if there is no token for a push; whether it may write is not checked.

    Raises:
        HubAccessError: There is no token.
    """
    from huggingface_hub import get_token

    token = None if api is None else api.token
    if not (get_token() if token is None else token):
        raise HubAccessError(
            f"A push to {repo_id} needs a token for the Hub, but no token is set.",
            next_step=TOKEN_HELP,
        )


def check_can_push(repo_id: str) -> None:
    """Raise if the name is not one of a repo, or there is no token that may write.

    It is checked before hours of work. If the Hub does not answer now, the push itself will show
    it.

    Raises:
        UsageError: The name is not that of a repo, or of a folder in one.
        HubAccessError: There is no token, or it can only read.
    """
    from huggingface_hub import constants, get_token

    check_name(repo_id)
    check_token(repo_id)
    try:
        with hub_errors(repo_id):
            can_write = _can_write(constants.ENDPOINT, str(get_token()))
    except HubError:
        return
    if not can_write:
        raise HubAccessError(
            f"A push to {repo_id} needs a token with the right to write, but the present "
            "token may only read.",
            next_step=TOKEN_HELP,
        )


@cache
def _can_write(endpoint: str, token: str) -> bool:
    """Ask the Hub, once a process, whether a token may write anything; true if it is not known."""
    told = make_api(endpoint=endpoint).whoami(token=token)
    access = (told.get("auth") or {}).get("accessToken") or {}
    if access.get("role") != "fineGrained":
        return bool(access.get("role") != "read")
    allowed = access.get("fineGrained") or {}
    scopes = [*(allowed.get("scoped") or ()), {"permissions": allowed.get("global") or ()}]
    return any("write" in permission for scope in scopes for permission in scope["permissions"])


# The paces that the requests of this process follow: `Pace.before` is called before each request,
# `Pace.after` after each answer.
_followed: list[Pace] = []


def attach_hooks() -> None:
    """Attach the pace to the client's session; errors and forks make a new one."""
    if not _followed:
        return
    from huggingface_hub import get_session

    hooks = get_session().event_hooks
    for kind, hook in (("request", _before_request), ("response", _after_response)):
        if hook not in hooks[kind]:
            hooks[kind].append(hook)


def _before_request(_: Any) -> None:
    for pace in tuple(_followed):
        pace.before()


def _after_response(response: Any) -> None:
    for pace in tuple(_followed):
        pace.after(response.status_code, response.headers)


@contextmanager
def without_its_bars() -> Iterator[None]:
    """Keep the client from drawing progress bars while the block runs; ours show the same."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


# How the Hub would be reached from here; no request is made.


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How the Hub would be reached."""

    endpoint: str  # the Hub's address, without credentials
    # The token's origin: ``HF_TOKEN`` or ``hf auth login``; None if there is none. The token itself
    # is never kept here.
    token: str | None
    is_offline: bool  # whether ``HF_HUB_OFFLINE`` forbids requests


def hub_access() -> HubAccess:
    """Look at the environment, and at the token stored by ``hf auth login``."""
    from huggingface_hub import constants, get_token

    token = None
    if get_token() is not None:
        given = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or ""
        # The client also ignores a variable that holds only blanks.
        token = "HF_TOKEN" if given.strip() else "hf auth login"
    return HubAccess(without_secrets_in(constants.ENDPOINT), token, bool(constants.HF_HUB_OFFLINE))


# The client's errors as errors of leconvert.
#
# - no such repo, revision or file: `HubError` (15);
# - no answer, a broken answer, too many requests, a failure of the Hub's own: `HubUnavailableError`
#   (15); it is unknown then whether the request had an effect;
# - 401, 403, no token: `HubAccessError` (16);
# - 409, 412 (something exists already, or the parent commit is not the head): `HubConflictError`
#   (17).


TOKEN_HELP = "Log in with `hf auth login`, or set HF_TOKEN to a token with this right."  # noqa: S105
_REPORT = "The Hub does not accept what this version of leconvert sends."
_AGAIN = "Run the same command again."
_SEND_AGAIN = "Run the same command again. Files that the Hub has are not uploaded again."


@contextmanager
def hub_errors(repo_id: str, revision: str | None = None, *, sends: bool = False) -> Iterator[None]:
    """Turn errors of the Hub's client within the block into errors of leconvert.

    Args:
        repo_id: The repo, for messages.
        revision: The revision, for messages.
        sends: Whether the block sends files; the advice then says that they are not sent again.

    Raises:
        HubError, HubUnavailableError, HubAccessError, HubConflictError: See above.
    """
    attach_hooks()
    try:
        yield
    except LeconvertError:
        raise
    except Exception as error:
        # The client raises errors of its upload threads as a RuntimeError.
        cause = error.__cause__ if isinstance(error, RuntimeError) else error
        told = _as_ours(repo_id, revision, cause, _SEND_AGAIN if sends else _AGAIN)
        if told is None:
            raise
        raise told from error


def _as_ours(
    repo_id: str, revision: str | None, error: BaseException | None, again: str
) -> LeconvertError | None:
    """Return the error for an error of the client; None for other errors."""
    # HTTPError is the base of the client's own errors and of the HTTP library's below it. The
    # version of the client decides which library that is.
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
    )

    if isinstance(error, OfflineModeIsEnabled):
        return HubError(
            f"{repo_id} cannot be reached, since HF_HUB_OFFLINE is set.",
            next_step="Unset HF_HUB_OFFLINE.",
        )
    if isinstance(error, LocalTokenNotFoundError):
        return HubAccessError(
            f"{repo_id} needs a token for the Hub, but no token is set.", next_step=TOKEN_HELP
        )
    if isinstance(error, HFValidationError):
        return HubError(
            f"{repo_id!r} is not the name of a repo on the Hub.",
            next_step="The name of a repo has the form ORG/NAME.",
        )
    if isinstance(error, HfHubHTTPError):
        return _of_answer(repo_id, revision, error, again)
    if isinstance(error, HTTPError | ConnectionError | TimeoutError | json.JSONDecodeError):
        said = str(error).strip().rstrip(".") or type(error).__name__
        return HubUnavailableError(
            f"The Hub did not answer a request about {repo_id}: {said}.",
            next_step="Check the network and HF_ENDPOINT. " + again,
        )
    return _of_content(repo_id, error) if isinstance(error, ValueError) else None


def asked_to_wait(status: int, headers: Mapping[str, str]) -> float:
    """Return the seconds for which an answer asks to wait; 0 if it does not."""
    names = {"Retry-After": "", **({"RateLimit": "t="} if status == 429 else {})}
    for name, prefix in names.items():
        for part in headers.get(name, "").split(";"):
            text = part.strip()
            if text.startswith(prefix) and text.removeprefix(prefix).isdigit():
                return float(text.removeprefix(prefix))
    return 0.0


def _of_content(repo_id: str, error: ValueError) -> LeconvertError | None:
    """Return the error for content that the Hub refuses; None for other errors."""
    first, *rest = str(error).strip().splitlines() or [""]
    said = " ".join(line.strip(" -") for line in rest).rstrip(".")
    if "README.md" in first:
        return HubConflictError(
            f"The Hub does not accept the YAML head of README.md in {repo_id}: {said}.",
            next_step="Correct README.md on the Hub, or add --no-card.",
        )
    if first.startswith("LFS batch API"):
        return HubError(
            f"The Hub does not accept a file of {repo_id}: {said}.",
            next_step="Check the limits of the repo and the account.",
        )
    return None


def _of_answer(
    repo_id: str, revision: str | None, error: HfHubHTTPError, again: str
) -> LeconvertError:
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    status = error.response.status_code
    said = (error.server_message or f"status {status}").strip().splitlines()[0].rstrip(".")
    if error.response.request.method == "PUT":
        # The Hub gave this address for some content. It expires and has rights of its own, so the
        # remedy is to ask for another one.
        return HubUnavailableError(
            f"The storage of the Hub did not accept a file of {repo_id}: status {status}.",
            next_step=again,
            wait_seconds=asked_to_wait(status, error.response.headers),
        )
    if isinstance(error, GatedRepoError):
        return HubAccessError(
            f"{repo_id} is gated, and the present token has no access to it.",
            next_step="Request access on the page of the "
            f"repo.{f' {TOKEN_HELP}' * (status == 401)}",
        )
    if isinstance(error, RevisionNotFoundError):
        return HubError(
            f"{repo_id} has no revision {revision}." if revision else f"{repo_id}: {said}.",
            next_step=f"`hf repo tag list {shlex.quote(repository_of(repo_id))} "
            "--repo-type dataset` lists its tags.",
        )
    if isinstance(error, RepositoryNotFoundError):
        return HubError(
            f"The Hub has no dataset {repository_of(repo_id)}, or this token may not see it.",
            next_step="Check the name. For a private dataset: " + TOKEN_HELP,
        )
    if isinstance(error, EntryNotFoundError):
        return HubError(
            f"{repo_id}: {said}.",
            next_step="Run the same command again: the repo may have changed.",
        )
    if status == 404 and _asks_for_upload(error.response.request):
        return HubUnavailableError(
            f"The Hub does not find a file that was just uploaded to {repo_id}: {said}.",
            next_step=again,
        )
    if status in (401, 403):
        return HubAccessError(
            f"The Hub refused a request about {repo_id}: {said}.", next_step=TOKEN_HELP
        )
    if status in (409, 412):
        return HubConflictError(
            f"{repo_id} changed during this command: {said}.",
            next_step="Look at what changed on the Hub, then run the same command again.",
        )
    asked = asked_to_wait(status, error.response.headers)
    if status == 429:
        wait = f"Wait {duration(asked)}. " if asked else "Wait some minutes. "
        return HubUnavailableError(
            f"The Hub accepts no more requests about {repo_id} for now.",
            next_step=wait + again,
            wait_seconds=asked,
        )
    if status >= 500 or status == 408:
        return HubUnavailableError(
            f"The Hub failed at a request about {repo_id}: {said}.",
            next_step=again,
            wait_seconds=asked,
        )
    return HubError(
        f"The Hub refused a request about {repo_id}: {said}.", next_step=f"{_REPORT} {REPORT_IT}."
    )


def _asks_for_upload(request: Any) -> bool:
    """Return whether a request asks if content has arrived: ``…/info/lfs/objects/verify``."""
    path = request.url.path
    return (
        request.method == "POST"
        and not path.startswith("/api/")
        and "verify" in path.strip("/").split("/")
    )


# Retries: one policy for listings, files and pushes.
#
# After a failure that may be over in a moment (`HubUnavailableError`) the request is repeated after
# a pause. Pauses grow, and are random, so that workers that failed together do not return together.
# A wait that the Hub asks for is added.


TRIES = 7
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
# Limit of all waits that the Hub asks for; its own windows are of 5 minutes.
_MOST_ASKED_SECONDS = 900.0


class Patience:
    """Counts consecutive failures of one request to the Hub.

    Args:
        tries: Failures after which to give up.
        pause: Waits some seconds; by default the followed pace waits, if there is one.
    """

    def __init__(self, tries: int = TRIES, pause: Callable[[float], object] | None = None) -> None:
        self._tries = tries
        self._pause = pause
        self._failures = 0
        self._asked_seconds = 0.0

    def wait(
        self,
        error: HubUnavailableError,
        *,
        arrived: bool = False,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Wait until the next attempt.

        Args:
            error: Why the last attempt failed.
            arrived: Whether it brought some bytes all the same; the count then starts again.
            say: Called with the reason and the length of the wait.

        Raises:
            HubUnavailableError: The error, after too many failures.
        """
        asked = error.wait_seconds
        self._asked_seconds += asked
        self._failures = 0 if arrived else self._failures + 1
        if self._failures >= self._tries or self._asked_seconds > _MOST_ASKED_SECONDS:
            raise error
        longest = min(_FIRST_PAUSE_SECONDS * 2**self._failures, _LONGEST_PAUSE_SECONDS)
        seconds = asked + longest * (0.5 + random.random() / 2)  # noqa: S311 - no secret
        why = ", as the Hub asks" if asked else ""
        say(f"{error.message} Trying again in {duration(seconds)}{why}.")
        (self._pause or pause)(seconds)

    def run[T](self, ask: Callable[[], T], *, say: Callable[[str], object] = lambda _: None) -> T:
        """Call a function until it does not fail; `wait` between two calls."""
        while True:
            try:
                return ask()
            except HubUnavailableError as error:
                self.wait(error, say=say)


def pause(seconds: float) -> None:
    """Wait some seconds, through the followed pace if there is one."""
    if _followed:
        _followed[-1].wait(seconds)
    else:
        # the Hub sends no notice when it answers again: only a request shows it
        time.sleep(seconds)


def ask_hub[T](repo_id: str, revision: str | None, ask: Callable[[], T]) -> T:
    """Make a request to the Hub, with retries; errors are those of `hub_errors`."""
    return Patience().run(hub_errors(repo_id, revision)(ask))


# The pace of requests: one record that all workers of a fleet read before each request.
#
# If the Hub answers that there were too many requests (429), or fails (5xx), no process that shares
# the record asks again before the time in the record. So one refused request slows down all hosts,
# and the others do not run into the same limit one after another.
#
# Guaranteed: a request that begins after the record was written waits. Not guaranteed: that the Hub
# is satisfied; a process that is refused again writes the record again. Requests that are already
# running are not stopped. A library of the client transfers files through Xet and makes pauses of
# its own; requests before and after these transfers wait.
#
# Times are those of the hosts' clocks. A wrong clock makes a pause shorter, or longer up to
# `LONGEST_PAUSE_SECONDS`, never longer than that.


LONGEST_PAUSE_SECONDS = 900.0
_UNTOLD_LIMIT_SECONDS = 60.0  # for 429 without a time; the Hub's own windows are of 5 minutes
_FIRST_FAILURE_SECONDS = 2.0
_LONGEST_FAILURE_SECONDS = 30.0
_OF_THE_MOMENT = frozenset({500, 502, 503, 504})
_KIND = "hub-pause"
_VERSION = 1


def read_pause(path: Path, now: float) -> float:
    """Return for how many more seconds the Hub must not be asked; 0 if it may be."""
    return min(max(_until(path) - now, 0.0), LONGEST_PAUSE_SECONDS)


def _until(path: Path) -> float:
    """Return the time before which the Hub must not be asked; 0 if there is none."""
    try:
        with fields_of(path):
            record = find_record(path, _KIND, version=_VERSION)
            return float(record["until"]) if record else 0.0
    except (LeconvertError, OSError):
        return 0.0  # a pause is a courtesy: without its record the Hub itself refuses


def wait_for_hub(
    stop: threading.Event,
    seconds: float,
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
) -> None:
    """Wait some seconds.

    Raises:
        InterruptedRunError: The event was set meanwhile.
    """
    if wait(stop, seconds):
        raise InterruptedRunError(
            "Stopped during a wait that the Hub asked for.",
            next_step="Run the same command again to continue.",
        )


class Pace:
    """The record of a fleet, as one process reads and writes it. Threads may share it.

    Args:
        path: The record.
        stop: Ends a pause with an error.
        clock: Returns seconds since the epoch.
        wait: Waits for the event or for some seconds.

    Attributes:
        answers: Number of answers to this process that did not ask to try later.
        limited: Number of answers to this process that there were too many requests.
    """

    def __init__(
        self,
        path: Path,
        stop: threading.Event,
        *,
        clock: Callable[[], float] = time.time,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._path = path
        self._stop = stop
        self._clock = clock
        self._wait = wait
        self._failures = 0
        # The time in a record that was waited for as long as any pause may last.
        self._outlasted = 0.0
        self.answers = 0
        self.limited = 0

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Let every request of this process follow the record while the block runs."""
        _followed.append(self)
        try:
            attach_hooks()
            yield
        finally:
            _followed.remove(self)

    def before(self) -> None:
        """Wait until the Hub may be asked.

        Raises:
            InterruptedRunError: The stop event was set.
        """
        while (until := self._until()) > (now := self._clock()):
            self.wait(min(until - now, LONGEST_PAUSE_SECONDS))
            if until - now >= LONGEST_PAUSE_SECONDS:
                self._outlasted = until

    def _until(self) -> float:
        until = _until(self._path)
        return 0.0 if until == self._outlasted else until

    def wait(self, seconds: float) -> None:
        """Wait some seconds.

        Raises:
            InterruptedRunError: The stop event was set.
        """
        wait_for_hub(self._stop, seconds, self._wait)

    def after(self, status: int, headers: Any) -> None:
        """Record an answer."""
        if status == 429:
            self.limited += 1
            self._pause(asked_to_wait(status, headers) or _UNTOLD_LIMIT_SECONDS)
        elif status in _OF_THE_MOMENT:
            self.failed(asked_to_wait(status, headers))
        else:
            self.answers += 1
            self._failures = 0

    def failed(self, asked_seconds: float = 0.0) -> None:
        """Record that the Hub failed, or did not answer: pauses grow until it answers."""
        seconds = min(_FIRST_FAILURE_SECONDS * 2**self._failures, _LONGEST_FAILURE_SECONDS)
        self._failures = min(self._failures + 1, 10)
        self._pause(asked_seconds or seconds)

    def _pause(self, seconds: float) -> None:
        until = round(self._clock() + min(seconds, LONGEST_PAUSE_SECONDS), 3)
        if until <= self._until():
            return
        fields = {"until": until}
        with suppress(LeconvertError, OSError):
            replace_record(self._path, encode_record(_KIND, _VERSION, "-", fields))

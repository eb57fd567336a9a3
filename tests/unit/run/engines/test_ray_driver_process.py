"""A driver's process that refuses, dies, hangs, or loses its cluster."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leconvert.run.engines.ray import DriverProcess, Order, RayEngine, RayOptions
from leconvert.support.errors import EngineError
from leconvert.workdir.run import OpenedRun

if TYPE_CHECKING:
    from tests.unit.conftest import TurnedClock

_BEGUN = 'tell(event="begun", job_id="0100", workers=2)\n'
_PRELUDE = """
import json, pathlib, sys
order = json.loads(sys.stdin.readline())
tries = pathlib.Path(order["logs_dir"], "tries")
with tries.open("a") as file: file.write("x")
number = len(tries.read_text())
def tell(**event): print(json.dumps(event), flush=True)
"""

MakeDriver = Callable[[str], DriverProcess]


@pytest.fixture
def make_driver(tmp_path: Path, clock: TurnedClock) -> MakeDriver:
    """Run Python as a driver, which has ``tell(event=...)`` and the ``number`` of its start."""

    def make(program: str) -> DriverProcess:
        return DriverProcess(
            Order(RayOptions(connect_seconds=0.0), 2, ["WORK"], tmp_path, "ray-1"),
            program=(sys.executable, "-S", "-c", _PRELUDE + program),
            clock=clock,
            pause_seconds=0.0,
        )

    return make


def ended(driver: DriverProcess) -> None:
    """Wait until it has no driver any more, and will have none."""
    driver._thread.join(30.0)
    assert not driver._thread.is_alive()


def test_what_a_driver_says_last_is_remembered(make_driver: MakeDriver, tmp_path: Path) -> None:
    driver = make_driver(
        _BEGUN + 'tell(event="state", running=5, failures=["a worker failed"])\n'
        'tell(event="ended")\n'
    )
    begun = driver.begin()
    assert begun == ("0100", 2)
    ended(driver)
    assert (driver.running(), driver.failures()) == (0, ["a worker failed"])
    assert (tmp_path / "tries").read_text() == "x"


def test_a_refusal_or_an_early_death_is_the_drivers_error(
    make_driver: MakeDriver, tmp_path: Path
) -> None:
    driver = make_driver(
        'tell(event="refused", message="There is no Ray cluster.", path=None, details=["why"], '
        'next_step="Start one.")\n'
    )
    with pytest.raises(EngineError, match=r"There is no Ray cluster\.") as refused:
        driver.begin()
    assert (refused.value.next_step, refused.value.details) == ("Start one.", ("why",))
    assert driver.running() == 0
    (tmp_path / "ray-1-driver.log").unlink(missing_ok=True)
    with pytest.raises(EngineError, match="The Ray driver ended: a bug of Ray"):
        make_driver("sys.exit('a bug of Ray')").begin()
    assert (tmp_path / "ray-1-driver.log").read_text() == "a bug of Ray\n"


@pytest.mark.parametrize(
    ("second", "tries", "last"),
    [
        ('tell(event="ended")', "xx", "1 of 4 ended: its head is gone"),
        (
            'tell(event="refused", message="Nobody listens.", path=None, details=[], '
            "next_step=None)",
            "xxxx",
            "4 of 4 ended: Nobody listens.",
        ),
    ],
    ids=["begins", "stays away"],
)
def test_a_driver_that_dies_is_followed_by_another_until_its_cluster_stays_away(
    make_driver: MakeDriver, tmp_path: Path, second: str, tries: str, last: str
) -> None:
    driver = make_driver(f"{_BEGUN}if number == 1: sys.exit('its head is gone')\n{second}\n")
    driver.begin()
    ended(driver)
    assert (tmp_path / "tries").read_text() == tries
    assert driver.running() == 0
    first, *_ = failures = driver.failures()
    assert first == "Ray driver 1 of 4 ended: its head is gone"
    assert failures[-1] == f"Ray driver {last}"
    assert len(failures) == (1 if tries == "xx" else 4)


def test_a_driver_that_hangs_is_replaced_and_never_waited_for(
    make_driver: MakeDriver, clock: TurnedClock
) -> None:
    driver = make_driver(_BEGUN + "if number == 1:\n  while True: sys.stdin.read(1)\n"
                         "tell(event='state', running=7, failures=[])\nsys.stdin.readline()\n"
                         "tell(event='ended')\n")  # fmt: skip
    driver.begin()
    assert driver.running() == 2
    clock.seconds += 121.0
    assert driver.running() == 2  # it is being killed; until it is, this is what is known
    waiting = threading.Event()
    while driver.running() != 7:
        waiting.wait(0.01)  # for another process, which has no other way to tell
    driver.stop()
    assert driver.running() == 0
    assert driver.failures() == ["Ray driver 1 of 4 ended: no output"]


def test_a_stop_lets_the_driver_end_by_itself(make_driver: MakeDriver, tmp_path: Path) -> None:
    driver = make_driver(
        _BEGUN + "said = sys.stdin.readline()\n"
        'pathlib.Path(order["logs_dir"], "said").write_text(said)\ntell(event="ended")\n'
    )
    driver.begin()
    driver.stop()
    assert (tmp_path / "said").read_text() == "stop\n"
    assert driver.running() == 0
    assert (tmp_path / "tries").read_text() == "x"


def test_neither_a_driver_that_does_not_end_nor_a_cluster_that_does_not_answer_is_waited_for(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leconvert.run.engines.ray._GRACE_SECONDS", 0.2)
    driver = make_driver(_BEGUN + "while True: sys.stdin.readline() or __import__('time').sleep(9)")
    driver.begin()
    driver.stop()
    ended(driver)
    assert (driver.running(), driver.failures()) == (0, [])
    monkeypatch.setattr("leconvert.run.engines.ray._SECONDS_TO_START", 0.2)
    driver = make_driver("sys.stdin.read()")
    with pytest.raises(EngineError, match="at auto did not answer within 0 s"):
        driver.begin()
    ended(driver)
    driver.stop()


def test_a_second_run_knows_nothing_of_the_first(
    planned: OpenedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended:
        def __init__(self, order: Order) -> None:
            self.failures = lambda: [order.name]

        def begin(self) -> tuple[str, int]:
            return "0100", 1

        def running(self) -> int:
            return 0

    monkeypatch.setattr("leconvert.run.engines.ray.DriverProcess", Ended)
    engine = RayEngine()
    for _ in range(2):
        engine.start(1, ["WORK"], planned.paths)
        assert len(engine.failures()) == 1

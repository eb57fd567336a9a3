"""Threads that use PyAV for the first time at the same moment each get all of it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import threading
import time

from leconvert.media.pyav import rgb_converter

paused, goes_on = threading.Event(), threading.Event()
failed = []


class Pausing:
    def find_spec(self, name, path=None, target=None):
        if name == "av.logging" and threading.current_thread() is whole:
            paused.set()
            goes_on.wait()


def guarded(work):
    try:
        work()
    except BaseException as error:
        failed.append(repr(error))


def import_the_whole():
    import av

    assert av.error


def waits_for_an_import(thread):
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and "importlib._bootstrap" in frame.f_code.co_filename


whole = threading.Thread(target=guarded, args=[import_the_whole])
user = threading.Thread(target=guarded, args=[rgb_converter])
sys.meta_path.insert(0, Pausing())
whole.start()
paused.wait()
user.start()
while not waits_for_an_import(user):
    time.sleep(0.001)  # nothing tells when a thread begins to wait for a lock of an import
goes_on.set()
whole.join()
user.join()
print(failed)
"""


def test_a_thread_that_converts_frames_while_another_imports_pyav_gets_all_of_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"

"""Processor time by kind of thread."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from raftlog.system.thread_times import ThreadTimes


@pytest.mark.skipif(sys.platform != "linux", reason="the times are Linux's")
def test_the_times_of_this_process_rise() -> None:
    times = ThreadTimes()
    before = times.read()["loop"]
    sum(range(2_000_000))
    assert times.read()["loop"] > before >= 0


def test_threads_of_a_pool_are_one_kind_and_keep_their_time_when_they_end(tmp_path: Path) -> None:
    ends = threading.Event()
    pool = [threading.Thread(target=ends.wait, name=f"raftlog-fsync-{number}") for number in range(2)]
    for thread in pool:
        thread.start()
        folder = tmp_path / str(thread.native_id)
        folder.mkdir()
        (folder / "schedstat").write_text("1500000000 7 9\n")
    times = ThreadTimes(os.fspath(tmp_path))
    assert times.read() == {"fsync": 3.0}
    ends.set()
    for thread in pool:
        thread.join()
    assert times.read() == {"fsync": 3.0}
    assert ThreadTimes(os.fspath(tmp_path / "none")).read() == {}

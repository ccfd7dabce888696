"""A process whose threads append records to one file each, sync every record, and report the records that the kernel
reported as synced.

`python synced_writer.py FOLDER TOLD WRITERS`: files 0, 1, ... of `FOLDER`; `TOLD` has a number of 8 bytes for each, in
memory shared with the reader. It ends only when it is killed.
"""

from __future__ import annotations

import itertools
import mmap
import os
import random
import signal
import sys
import threading
import time

RECORD = 84


def record(number: int) -> bytes:
    """The record with this number, from 1."""
    return number.to_bytes(4, "big") * (RECORD // 4)


def write_on(path: str, count: memoryview) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    pause = random.Random(path)
    for number in itertools.count(1):
        try:
            os.pwritev(file, [record(number)], (number - 1) * RECORD, os.RWF_DSYNC)
        except OSError:
            return
        count[0] = number
        time.sleep(pause.uniform(0.0, 0.002))  # so that threads join one transaction of the file system at any time


def main(folder: str, told: str, writers: str) -> None:
    with open(told, "r+b") as file:
        counts = memoryview(mmap.mmap(file.fileno(), mmap.PAGESIZE)).cast("Q")
    for name in range(int(writers)):
        threading.Thread(target=write_on, args=(os.path.join(folder, str(name)), counts[name : name + 1])).start()
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])

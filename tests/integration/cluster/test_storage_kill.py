"""A process that is killed while it writes: everything that it reported as stable is there, and only what it wrote. And
group commit on real threads.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from partitions.log.writer import LogWriter
from raftlog.config import TopicConfig
from raftlog.records.batch import parse_header
from raftlog.system.disk import LocalDisk
from raftlog.system.runtime import LoopScheduler, ThreadWorker
from tests.support.partitions.storage import PATH, append, batch, read_batches, recover_log

pytestmark = pytest.mark.integration

CONFIG = TopicConfig(segment_bytes=300_000, index_interval_bytes=4096)

WRITER = """
import sys
from raftlog.system.disk import LocalDisk
from tests.integration.cluster.test_storage_kill import CONFIG
from tests.support.partitions.storage import PATH, append, recover_log

log, recovery = recover_log(LocalDisk(sys.argv[1]), PATH, CONFIG, clean_shutdown=False)
print("recovered", log.log_end_offset, flush=True)
while True:
    for number in range(5):
        append(log, count=3, epoch=log.log_end_offset // 1000, size=4000)
    job = log.take_job()
    job.run()
    log.job_done(job, None)
    print("stable", log.stable_end_offset, flush=True)
"""


def test_stable_data_survives_a_kill(tmp_path: Path) -> None:
    stable = 0
    for round_number in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        assert writer.stdout is not None
        with writer.stdout:
            for number, line in enumerate(writer.stdout):
                word, offset = line.split()
                assert int(offset) >= stable, f"{word}: less than before the kill"
                stable = int(offset)
                if number == 11 + 7 * round_number:
                    writer.send_signal(signal.SIGKILL)
            assert writer.wait(30) == -signal.SIGKILL
        log, recovery = recover_log(LocalDisk(str(tmp_path)), PATH, CONFIG, clean_shutdown=False)
        assert recovery.stable_end_offset >= stable
        found = read_batches(log, 0)
        for one in found:
            base = parse_header(one).base_offset
            assert one == batch(base, count=3, epoch=base // 1000, size=4000).data
        assert parse_header(found[-1]).end_offset == log.log_end_offset
        stable = log.log_end_offset
        log.close(clean=False)


async def test_group_commit_on_threads(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    scheduler, worker = LoopScheduler(loop), ThreadWorker(loop, 2, "fsync")
    writer = LogWriter(worker, scheduler)
    disk = LocalDisk(str(tmp_path))
    logs = [recover_log(disk, f"partitions/{n}", CONFIG, clean_shutdown=False)[0] for n in range(6)]
    idle = asyncio.Event()
    told = [0] * len(logs)

    def on_stable(number: int) -> None:
        assert logs[number].stable_end_offset >= told[number]
        told[number] = logs[number].stable_end_offset

    async with asyncio.timeout(30):
        for turn in range(300):
            for number, log in enumerate(logs):
                append(log, size=500)
                writer.dirty(log, lambda number=number: on_stable(number))  # type: ignore[misc]
            if turn % 10 == 0:
                await asyncio.sleep(0)
        writer.when_idle(idle.set)
        await idle.wait()
    assert told == [300] * len(logs)
    assert writer.jobs < 300 * len(logs) / 5, "many appends share a job"
    for log in logs:
        log.close(clean=True)
    worker.close()
    again = recover_log(disk, "partitions/3", CONFIG, clean_shutdown=True)[1]
    assert again.clean and again.stable_end_offset == 300

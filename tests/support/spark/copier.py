"""A streaming query from a topic to another one, or to files, as a separate program that may be killed at any moment.

`python -P -m tests.support.spark.copier OPTIONS` with `OPTIONS` as JSON (`CopierOptions`) copies the available records
and ends; if the query failed, it prints the reason and exits with 3.

`Copier` starts it from a test, kills it with all its processes, stops it and continues it: Spark's processes leave the
process group, but stay in the session.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .held_source import held_source
from .session import ROOT, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

PATIENCE_S = 600
"""The timeout of a query, which is a JVM and a dozen of Python processes: half a minute on an idle machine, several on
a busy one."""
ROWS_HANDED_OVER = "2"
"""The number of rows that Spark passes to a sink at a time: with the default of 10,000, a paused task would not have
written anything."""
PAUSED_KEY_BYTES = 60_000
"""Rows go from process to process through buffers of 64 KiB; rows to be written before a pause must not wait there."""


@dataclass(frozen=True)
class CopierOptions:
    bootstrap: str
    source: str
    checkpoint: str
    wheel: str
    """The folder of the unpacked wheel."""
    topic: str = ""
    """The topic of the rows; or:"""
    parquet: str = ""
    """A folder, of Spark's file sink."""
    start: str = "earliest"
    """The starting offsets of the query, if it has no checkpoint."""
    held: str = ""
    """A file that the source creates when the query has its starting offsets; it determines the end of the first
    micro-batch when the file is gone."""
    per_trigger: int = 25
    transaction_timeout_ms: int = 300_000
    pause_s: float = 0.0
    """The pause of a task after it has produced its rows, the last few of which may not be written yet."""
    paused: str = ""
    """A file that a task creates when it pauses; a task does not pause if it exists."""
    shuffled: bool = False
    """Rows arrive at the sink's tasks in another order, and at other tasks, each time."""


class Copier:
    """The running program."""

    def __init__(self, options: CopierOptions, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-P", "-m", "tests.support.spark.copier", json.dumps(asdict(options))]
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)

    def wait_until(self, holds: Callable[[], bool]) -> bool:
        """Returns False if the program ended before."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if self._process.poll() is not None:
                return holds()
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.005)
        return True

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill driver, JVM and workers, as a power failure would."""
        for _ in range(100):
            mine = list(self._session())
            for process in mine:
                _signal(process, signal.SIGKILL)
            self._process.poll()
            if not mine:
                break
            time.sleep(0.02)
        self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        """Stop all processes (SIGSTOP)."""
        for process in self._session():
            _signal(process, signal.SIGSTOP)

    def go_on(self) -> None:
        for process in self._session():
            _signal(process, signal.SIGCONT)

    def finish(self) -> int:
        """Return its exit code."""
        return self._process.wait(PATIENCE_S)

    def told(self) -> str:
        return self._log.read_text()[-4_000:]

    def _session(self) -> Iterator[int]:
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == self._process.pid and fields[0] != "Z":
                    yield int(name)


def _signal(process: int, what: signal.Signals) -> None:
    try:
        os.kill(process, what)
    except ProcessLookupError:
        return


def main(options: CopierOptions) -> int:
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": ROWS_HANDED_OVER}
    with session(settings=settings, wheel=Path(options.wheel)) as spark:
        writer = _to_target(_shaped(_source(spark, options), options), options)
        query = writer.option("checkpointLocation", options.checkpoint).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as error:
            print(error, flush=True)  # noqa: T201  the log is read when a test fails
            return 3
    return 0


def _source(spark: SparkSession, options: CopierOptions) -> DataFrame:
    kind = "raftlog"
    if options.held:
        source = held_source(options.held, PATIENCE_S)
        spark.dataSource.register(source)
        kind = source.name()
    reader = spark.readStream.format(kind).option("raftlog.bootstrap.servers", options.bootstrap)
    reader = reader.options(subscribe=options.source, startingOffsets=options.start)
    return reader.option("maxOffsetsPerTrigger", options.per_trigger).load()


def _shaped(frame: DataFrame, options: CopierOptions) -> DataFrame:
    """The value identifies the record."""

    def paused(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        if options.pause_s and not Path(options.paused).exists():
            Path(options.paused).touch()
            time.sleep(options.pause_s)

    if options.shuffled:
        frame = frame.repartition(3)
    key = f"CAST(rpad(CAST(key AS STRING), {PAUSED_KEY_BYTES}, ' ') AS BINARY) AS key" if options.pause_s else "key"
    shaped = frame.selectExpr(key, "CAST(concat_ws('/', partition, offset, CAST(value AS STRING)) AS BINARY) AS value")
    return shaped.mapInArrow(paused, shaped.schema) if options.pause_s else shaped


def _to_target(frame: DataFrame, options: CopierOptions) -> DataStreamWriter:
    if options.parquet:
        return frame.writeStream.format("parquet").option("path", options.parquet)
    writer = frame.writeStream.format("raftlog").option("raftlog.bootstrap.servers", options.bootstrap)
    return writer.option("topic", options.topic).option("transactionTimeoutMs", options.transaction_timeout_ms)


if __name__ == "__main__":
    sys.exit(main(CopierOptions(**json.loads(sys.argv[1]))))

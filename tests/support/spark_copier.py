"""A streaming query from a topic to another one, or to files, as a program of its own that may be killed at any moment.

`python -P -m tests.support.spark_copier OPTIONS` with `OPTIONS` as JSON (`CopierOptions`) copies what is there and
ends; with 3 where the query failed, and it prints why.

`Copier` starts it from a test, kills it with everything that it started, stops it and lets it go on: what Spark starts
leaves the process group, and stays in the session.
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

from .spark import ROOT, session
from .spark_held_source import held_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

PATIENCE_S = 600
"""A query is a JVM and a dozen of Python processes: half a minute alone, and many on a machine that others work on."""
ROWS_HANDED_OVER = "2"
"""Spark hands a sink so many rows at a time, or what is left at the end: with the default of 10,000 a task that stands
still would not have written anything."""
PAUSED_KEY_BYTES = 60_000
"""Rows go from process to process through buffers of 64 KiB, and what is to be written before a pause must not wait
there."""


@dataclass(frozen=True)
class CopierOptions:
    bootstrap: str
    source: str
    checkpoint: str
    wheel: str
    """Unpacked."""
    topic: str = ""
    """Where the rows go; or:"""
    parquet: str = ""
    """A folder, of Spark's file sink."""
    start: str = "earliest"
    """Where the query begins, if it has no checkpoint."""
    held: str = ""
    """A file that the source makes when the query knows where it begins; how far the first micro-batch goes it tells
    when the file is gone again."""
    per_trigger: int = 25
    transaction_timeout_ms: int = 300_000
    pause_s: float = 0.0
    """Of a task, when it has made its rows, the last few of which may not be written yet."""
    paused: str = ""
    """A file that a task makes when it pauses; no task pauses where it is there already."""
    shuffled: bool = False
    """Rows come to the sink's tasks in another order, and to others, each time."""


class Copier:
    """The program, running."""

    def __init__(self, options: CopierOptions, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-P", "-m", "tests.support.spark_copier", json.dumps(asdict(options))]
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)

    def wait_until(self, holds: Callable[[], bool]) -> bool:
        """False: the program ended before."""
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
        """Driver, JVM and workers, as a power failure would."""
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
        """All of it stands still."""
        for process in self._session():
            _signal(process, signal.SIGSTOP)

    def go_on(self) -> None:
        for process in self._session():
            _signal(process, signal.SIGCONT)

    def finish(self) -> int:
        """Its exit code."""
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
    """The value tells which record it was."""

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
